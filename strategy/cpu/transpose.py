"""Transposition by tiles, which are read along the input's memory into vector registers and written along the output's.

LLVM makes shuffles of what lies between. Floats of 16 bits are moved as integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.cpu.row import PARALLEL_BYTES
from strategy.schedule import (
    compute_stage,
    dtype_bytes,
    find_stages,
    integer,
    lanes_of,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import Dim, TensorType

_TILES = (4, 8, 16)
_BLOCKS = (1, 2, 4, 8, 16, 32)
_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int32", "int64"})


def can_tile(out_type: TensorType, columns: Dim | int) -> bool:
    """Return whether tiles divide the `columns`, the elements that lie together in the output."""
    known = all(d.is_constant and int(d) >= 1 for d in out_type.shape)
    return known and out_type.dtype in _DTYPES and int(columns) % _TILES[0] == 0


def space(out_type: TensorType, rows: int, columns: int, target: Target) -> ConfigSpace:
    """Extents of a tile, how many tiles are next to each other in one direction, and which.

    Args:
        rows: the elements that lie together in the input.
        columns: those that do in the output.
    """
    size = dtype_bytes(out_type.dtype)
    parallel = out_type.size * size >= PARALLEL_BYTES
    high = 8 if size > 2 else 16
    along = "columns" if size == 2 and rows <= high else "rows"
    return _space(columns, lanes_of(target, out_type.dtype), high, along, target.threads > 1 and parallel)


@lru_cache(maxsize=1024)
def _space(columns: int, lanes: int, high: int, along: str, parallel: bool) -> ConfigSpace:
    widths = tuple(t for t in _TILES if columns % t == 0)
    fallback = {
        "rows": max(min(high, lanes), _TILES[0]), "columns": max(w for w in widths if w <= max(lanes, 4)),
        "block": 4, "along": along, "parallel": parallel,
    }
    return ConfigSpace(
        [
            Knob("rows", _TILES),
            Knob("columns", widths),
            Knob("block", _BLOCKS),
            Knob("along", ("rows", "columns")),
            Knob("parallel", (False, True)),
        ],
        fallback=fallback,
    )


def transposed(data: Any, order: Sequence[int], shape: Sequence[int], config: Config) -> Any:
    """Tiles [..., rows, columns] of the output, kept as they are read: columns first."""
    from tvm import te

    rank = len(order)
    along = order.index(rank - 1)  # the output's axis along which the input lies in memory
    rows, columns = integer(config, "rows"), integer(config, "columns")
    outer = [i for i in range(rank - 1) if i != along]
    dtype = str(data.dtype)
    moved = "uint16" if dtype_bytes(dtype) == 2 else dtype

    def read(*index: Any) -> Any:
        *place, row_tile, column_tile, column, row = index
        at: list[Any] = [None] * rank
        for axis, value in zip(outer, place, strict=True):
            at[order[axis]] = value
        at[rank - 1] = row_tile * rows + row
        at[order[-1]] = column_tile * columns + column
        return zero_beyond(_reinterpreted(data(*at), moved), at[rank - 1], shape[along], rows)

    extents = [*(shape[i] for i in outer), -(-shape[along] // rows), shape[-1] // columns, columns, rows]
    tiles = compute_stage("tiles", extents, read)

    def turned(*index: Any) -> Any:
        row, column = index[along], index[-1]
        place = [index[i] for i in outer]
        found = tiles(*place, row // rows, column // columns, column % columns, row % rows)
        return _reinterpreted(found, dtype)

    return te.compute(shape, turned, name="transpose")


def _reinterpreted(number: Any, dtype: str) -> Any:
    from tvm import tirx

    return number if str(number.ty.dtype) == dtype else tirx.reinterpret(dtype, number)


def schedule_transposed(sch: Any, output: Any, order: Sequence[int], config: Config) -> None:
    """Schedule blocks of tiles, which share cache lines in one direction; each tile within registers."""
    tiles = find_stages(sch)["tiles"]
    sch.set_scope(tiles, 0, "local")
    loops = sch.get_loops(output)
    along = order.index(len(loops) - 1)
    outer = [loop for i, loop in enumerate(loops[:-1]) if i != along]
    row_tile, row = sch.split(loops[along], [None, integer(config, "rows")])
    column_tile, column = sch.split(loops[-1], [None, integer(config, "columns")])
    first, second = (column_tile, row_tile) if config["along"] == "rows" else (row_tile, column_tile)
    block, tile = sch.split(second, [None, integer(config, "block")])
    sch.reorder(*outer, block, first, tile, row, column)
    sch.compute_at(tiles, tile, preserve_unit_loops=True)
    if config["parallel"]:
        sch.parallel(sch.fuse(*outer, block, first))
    *_, tile_column, tile_row = sch.get_loops(tiles)
    sch.unroll(tile_column)
    sch.vectorize(tile_row)
    sch.unroll(row)
    sch.vectorize(column)
