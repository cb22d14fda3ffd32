"""The register tile of the packed implementations of `dense`, and its packed panels.

A weight is packed into panels [ceil(n / width), k, width]: each step of k reads `width` neighbours.
The tile is `rows` × `width` accumulators, which stay in vector registers over the whole loop of k.
Rows and columns are padded to whole tiles: rows beyond m repeat the last one, columns beyond n are zeros in the
packed weight, and neither is stored. So every shape has the same inner loop.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from strategy.condition import Clause, Expr, ceildiv, maximum, minimum
from strategy.schedule import (
    ScheduleError,
    compute_stage,
    lanes_of,
    store_tile,
    unroll_tile,
    zero_beyond,
)
from strategy.space import Knob, KnobKind, knob
from strategy.target import Target
from strategy.types import Dim, TensorType

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 19, 20, 24, 28)
VECTORS = (1, 2, 3, 4, 6, 8)
PAGE_BYTES = 4096  # and of a way of the first level


@dataclass(frozen=True)
class Extents:
    """The extents of a product: m may be symbolic, n and k are constant."""

    m: Dim
    n: int
    k: int

    @classmethod
    def of(cls, inputs: Sequence[TensorType]) -> Extents:
        """The extents for data[m, k] and weight[n, k]; raise `ScheduleError` if n or k is symbolic."""
        (m, k), (n, _) = inputs[0].shape, inputs[1].shape
        for name, dim in (("n", n), ("k", k)):
            if not dim.is_constant:
                raise ScheduleError(f"dense: {name} = '{dim}' is symbolic: give a constant")
        return cls(m, int(n), int(k))

    @property
    def rows(self) -> int:
        """m, or 64 if it is symbolic, for the fallback only."""
        return int(self.m) if self.m.is_constant else 64


def round_up(value: Any, multiple: int) -> Any:
    """Round up to a multiple; for integers and TE expressions."""
    return (value + multiple - 1) // multiple * multiple


def clamped_row(m: Any) -> Callable[[Any], Any]:
    """Clamp row indices to the last row, as results beyond it are never stored."""
    from tvm import tirx

    return lambda i: tirx.min(i, m - 1)


def panels(width: int, depth: int | None = None) -> Callable[[Any], Any]:
    """The packing of weight[n, k] into [panel, k, width], or [k block, panel, depth, width], with zeros at the end."""

    def pack(weight: Any) -> Any:
        n, k = (int(extent) for extent in weight.shape)
        count = -(-n // width)

        def read(panel: Any, step: Any, lane: Any) -> Any:
            column = panel * width + lane
            return zero_beyond(zero_beyond(weight[column, step], step, k, depth or 1), column, n, width)

        if depth is None:
            return compute_stage("panels", (count, k, width), read)
        return compute_stage(
            "panels", (-(-k // depth), count, depth, width),
            lambda block, panel, step, lane: read(panel, block * depth + step, lane),
        )

    return pack


def schedule_tile(
    sch: Any, block: Any, output: Any, loops: Sequence[Any], lanes: int, unroll: int, *, vectors: bool = True
) -> Any:
    """Schedule one tile: `loops` are its rows, its columns and its steps, `output` its consumer.

    Must be called last, as it decomposes the reduction. Returns the loop over lanes, which is not vectorised without
    `vectors`, but left to an instruction.
    """
    rows, columns, steps = loops
    outer_steps, inner_steps = sch.split(steps, [None, unroll])
    panel, lane = sch.split(columns, [None, lanes])
    sch.reorder(outer_steps, inner_steps, rows, panel, lane)
    if vectors:
        sch.vectorize(lane)
    for loop in (inner_steps, rows, panel):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(block, outer_steps))
    store_tile(sch, output, lanes)
    return lane


ALWAYS = Expr.const(1) == 1  # a condition of idle knobs

# Parts of spaces are cached by their parameters, as most shapes share most of them.


def up_to(name: str, offered: tuple[int, ...], most: int, kind: KnobKind = "schedule") -> Knob:
    """A knob of the `offered` sizes (ascending) up to `most`; never empty."""
    return _sizes(name, offered, min(most, offered[-1]), kind)


@lru_cache(maxsize=4096)
def _sizes(name: str, offered: tuple[int, ...], most: int, kind: KnobKind) -> Knob:
    return Knob(name, [size for size in offered if size <= most] or offered[:1], kind)


def block_knob(name: str, offered: tuple[int, ...], extent: int, tile: Knob) -> Knob:
    """A knob of the `offered` sizes of blocks that divide the tiles of `extent`, for some size of `tile`."""
    return _blocks(name, offered, extent, cast("tuple[int, ...]", tile.values))


@lru_cache(maxsize=4096)
def _blocks(name: str, offered: tuple[int, ...], extent: int, tiles: tuple[int, ...]) -> Knob:
    counts = {-(-extent // tile) for tile in tiles}
    return Knob(name, [size for size in offered if any(count % size == 0 for count in counts)])


def width_knob(lanes: int, n: int) -> Knob:
    """The constraint of whole vectors, of which only the last may exceed n."""
    return up_to("width", tuple([v * lanes for v in VECTORS]), n + lanes - 1, "layout")


@lru_cache(maxsize=256)
def register_constraint(registers: int, lanes: int | str) -> Clause:
    """The constraint that accumulators, a row of weights and a broadcast number fit the vector registers.

    `lanes` is a number or the name of a knob.
    """
    return accumulators(lanes) + _vectors(lanes) + 1 <= registers


@lru_cache(maxsize=256)
def accumulators(lanes: int | str) -> Expr:
    """The number of vectors of a tile's sums; `lanes` as for `register_constraint`."""
    return knob("rows") * _vectors(lanes)


def _vectors(lanes: int | str) -> Expr:
    return knob("width") // (knob(lanes) if isinstance(lanes, str) else lanes)


@lru_cache(maxsize=4096)
def whole_blocks(extent: int, tile: str, blocks: str) -> Clause:
    """The constraint that blocks divide the tiles of `extent`."""
    return ceildiv(extent, knob(tile)) % knob(blocks) == 0


def one_order(outer: Any, inner: Any, *, ahead: bool = False) -> Clause:
    """The condition under which the order of two loops is none, as one of them has a single turn.

    Args:
        outer: turns of the loop over panels.
        inner: turns of the loop over the tiles of a panel.
        ahead: with the knob `ahead` set, tiles share the prefetches of a panel if they follow each other.
    """
    return minimum(maximum(outer, knob("ahead") + 1) if ahead else outer, inner) <= 1


def best_tile(extents: Extents, target: Target, dtype: str, most: int = ROWS[-1]) -> tuple[int, int]:
    """The rows, `most` or fewer, and width of the fallback's tile: they waste little of shape, registers and loads."""
    lanes = lanes_of(target, dtype)
    return best_tile_of(extents.rows, extents.n, lanes, tile_registers(target), target.multiply_adds, most)


def tile_registers(target: Target) -> int:
    """The vector registers that the sums, numbers and weights of an untuned tile of floats may fill.

    Without fused multiply-adds, two hold products that are not yet added: LLVM keeps more sums on the stack otherwise.
    """
    return target.vector_registers - (0 if target.is_arm or target.has("fma") else 2)


def rows_in_place(row_bytes: int, target: Target) -> int:
    """The most rows of an untuned tile that are read where they lie, `row_bytes` apart.

    Rows whole pages apart share a set of the first level: of its ways they take two thirds, the panel the others. With
    fewer than 8 rows, a wider panel takes as much of the second level as it saves of the first.
    """
    sets = PAGE_BYTES // math.gcd(row_bytes, PAGE_BYTES)
    return max(2 * (target.l1d_bytes // PAGE_BYTES) // 3, 8) * sets


@lru_cache(maxsize=1024)
def best_tile_of(
    m: int, n: int, lanes: int, registers: int, multiply_adds: int, most: int = ROWS[-1]
) -> tuple[int, int]:
    """As `best_tile`, for m rows and n columns in vectors of `lanes`, of which a cycle multiplies and adds some."""
    heights = {rows: round_up(m, rows) for rows in ROWS}
    widths = {v: round_up(n, v * lanes) for v in VECTORS if v == 1 or (v - 1) * lanes < n}
    size = m * n
    _, rows, vectors = max(
        [
            (size / (heights[rows] * widths[vectors]) * ideal / cycles, rows, vectors)
            for rows, vectors, ideal, cycles in _tiles(registers, multiply_adds)
            if vectors in widths and rows <= most
        ],
        key=operator.itemgetter(0),
    )
    return rows, vectors * lanes


@lru_cache(maxsize=256)
def _tiles(registers: int, multiply_adds: int) -> list[tuple[int, int, float, float]]:
    """The tiles that fit, each with the cycles of a step: those of its sums, and all."""
    found = []
    for rows, vectors in itertools.product(ROWS, VECTORS):
        if rows * vectors + vectors + 1 <= registers:
            found.append((rows, vectors, *_cycles(rows, vectors, multiply_adds)))
    return found


def _cycles(rows: int, vectors: int, multiply_adds: int) -> tuple[float, float]:
    """The cycles of a step of a tile: those of its sums, and all."""
    # A multiply-add has a latency of four cycles; a load that is not hidden costs a part of a cycle, more
    # from the second-level cache.
    ideal = rows * vectors / multiply_adds
    return ideal, max(ideal, 4) + 0.1 * rows + 0.3 * vectors


def tile_share(m: int, rows: int, vectors: int, multiply_adds: int, more: float = 0) -> float:
    """The share of a processor's multiply-adds that a tile reaches whose vectors are whole, over m rows.

    A step takes `more` cycles than those of the tile.
    """
    ideal, cycles = _cycles(rows, vectors, multiply_adds)
    return m / int(round_up(m, rows)) * ideal / (cycles + more)


def usual_unroll(k: int) -> int:
    """The steps of k in a turn of a fallback's loop: a divisor, as a turn with fewer would check each.

    A turn has instructions of its own, as the loop's and a prefetch, which weigh as much as a step's loads.
    """
    return largest_divisor((1, 2, 4), k, 4)


def largest_divisor(offered: Sequence[int], extent: int, most: int) -> int:
    """The largest of the `offered` sizes, one of them 1, that divides `extent`; at most `most`."""
    return max(size for size in offered if size <= max(most, 1) and extent % size == 0)
