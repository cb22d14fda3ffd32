"""The register tile of products by dot-product instructions, and by matrix instructions, which take several rows."""

from __future__ import annotations

from strategy.condition import Clause
from strategy.cpu.dot import Dot
from strategy.cpu.tile import ROWS, VECTORS, accumulators, best_tile_of, round_up
from strategy.space import knob
from strategy.target import Target


def heights(dot: Dot, multiple: int = 1) -> tuple[int, ...]:
    """The rows of tiles: whole instructions, and a multiple."""
    return tuple(rows for rows in ROWS if rows % dot.rows == rows % multiple == 0)


def widths(dot: Dot, target: Target, multiple: int = 1) -> tuple[int, ...]:
    """The widths of tiles that fit the registers with the fewest rows."""
    least = heights(dot, multiple)[0]
    return tuple(v * dot.lanes for v in VECTORS if (least + dot.rows) * v < target.vector_registers)


def fit_registers(dot: Dot, target: Target) -> Clause:
    """The constraint that accumulators, a step of the weight and one vector of the data fit the registers."""
    return accumulators(dot.lanes) + knob("width") // dot.columns + 1 <= target.vector_registers


def usual_tile(dot: Dot, m: int, n: int, target: Target, multiple: int = 1) -> tuple[int, int]:
    """The rows, of a matrix instruction a multiple, and the width of an untuned tile over m rows and n columns."""
    if dot.rows == 1:
        return best_tile_of(m, n, dot.lanes, target.vector_registers, target.multiply_adds)

    def gain(tile: tuple[int, int]) -> float:
        """The share of a tile that is stored, and of its instructions that multiply."""
        rows, width = tile
        products, loads = rows * width // dot.lanes, rows // dot.rows + width // dot.columns
        stored = m * n / int(round_up(m, rows) * round_up(n, width))
        return stored * products / (products + loads)

    tiles = (
        (rows, vectors * dot.lanes) for rows in heights(dot, multiple) for vectors in VECTORS
        if vectors == 1 or (vectors - 1) * dot.lanes < n
    )
    return max(
        ((r, w) for r, w in tiles if r * w // dot.lanes + w // dot.columns + 1 <= target.vector_registers), key=gain
    )
