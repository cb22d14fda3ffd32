"""`dense_nopack.cpu`: rows of the data times rows of the weight in place, without packing.

Both are contiguous along k, so a vector has `lanes` consecutive steps of k: a tile of `rows` × `cols` dot products
runs over k together, and the lanes of each are summed at its end, by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import Clause, ceildiv
from strategy.cpu.tile import (
    Extents,
    clamped_row,
    largest_divisor,
    one_order,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    sum_in_tile,
    unroll_tile,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_SIDES = (1, 2, 3, 4, 5, 6, 7, 8)
_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_UNROLL = Knob("unroll", [1, 2, 4])
_INNER = Knob("inner", ["rows", "cols"])
_DERIVED = {"accumulators": knob("rows") * knob("cols")}


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Tile, lanes, unrolling, and how tiles are grouped into tasks, as for `dense_pack`."""
    extents = Extents.of(inputs)
    full = lanes_of(target, accumulator(inputs[0].dtype))
    lanes = tuple([x for x in (full // 4, full // 2, full) if 1 <= x <= extents.k]) or (1,)
    registers = target.vector_registers

    def fallback() -> dict[str, Any]:
        side = 4 if registers >= 32 else 3
        rows = next(r for r in (side, side - 1, side - 2, 1) if r <= extents.rows)
        cols = min(max(c for c in _SIDES if rows * c + c + 1 <= registers), extents.n)
        count = -(-extents.n // cols)
        return {
            "lanes": max(lanes),
            "rows": rows,
            "cols": cols,
            "unroll": 1,
            "n_block": largest_divisor(_BLOCKS, count, count // target.threads),
            "m_tasks": 1,
            "inner": "rows",
        }

    constraints = [
        _register_constraint(registers),
        _step_constraint(extents.k),
        whole_blocks(extents.n, "cols", "n_block"),
    ]
    if extents.m.is_constant:
        constraints.append(whole_blocks(int(extents.m), "rows", "m_tasks"))
        row_tiles = ceildiv(int(extents.m), knob("rows")) // knob("m_tasks")
        idle = {"inner": one_order(knob("n_block"), row_tiles)}
    else:
        idle = {"inner": knob("n_block") == 1}
    return ConfigSpace(
        [
            up_to("lanes", lanes, full, "layout"),
            up_to("rows", _SIDES, extents.rows),
            up_to("cols", _SIDES, extents.n),
            _UNROLL,
            up_to("n_block", _BLOCKS, extents.n),
            up_to("m_tasks", _BLOCKS, extents.rows if extents.m.is_constant else 1),
            _INNER,
        ],
        constraints,
        derived=_DERIVED,
        fallback=fallback,
        idle=idle,
    )


@lru_cache(maxsize=256)
def _register_constraint(registers: int) -> Clause:
    return knob("rows") * knob("cols") + knob("cols") + 1 <= registers


@lru_cache(maxsize=1024)
def _step_constraint(k: int) -> Clause:
    """The steps unrolled, whole vectors, are no more than there are."""
    return knob("lanes") * knob("unroll") <= k


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """Sum per lane, the steps that fill no vector, and the sum over lanes by halves."""
    from tvm import te, tirx

    data, weight = inputs
    m, k = data.shape
    n, depth = int(out_type.shape[1]), int(k)
    rows, cols, lanes = (integer(config, name) for name in ("rows", "cols", "lanes"))
    dtype = accumulator(data.dtype)
    row, col = clamped_row(m), clamped_row(n)
    shape = (round_up(m, rows), round_up(n, cols))
    whole = depth // lanes * lanes

    def product(i: Any, j: Any, step: Any) -> Any:
        return data[row(i), step].astype(dtype) * weight[col(j), step].astype(dtype)

    r = te.reduce_axis((0, whole // lanes), name="r")
    sums = compute_stage(
        "tiles", (*shape, lanes), lambda i, j, lane: te.sum(product(i, j, r * lanes + lane), axis=r)
    )
    if whole < depth:
        tiles = sums

        def with_rest(i: Any, j: Any, lane: Any) -> Any:
            rest = tirx.if_then_else(
                lane < depth - whole, product(i, j, whole + lane), tirx.const(0, dtype)
            )
            return tiles[i, j, lane] + rest

        sums = compute_stage("rest", (*shape, lanes), with_rest)
    while lanes > 2:
        lanes //= 2
        sums = _halved(sums, (*shape, lanes))

    total = compute_stage(
        "total", shape, lambda i, j: sums[i, j, 0] + sums[i, j, 1] if lanes == 2 else sums[i, j, 0]
    )
    return [te.compute((m, n), lambda i, j: total[i, j].astype(out_type.dtype), name="dense")]


def _halved(sums: Any, shape: tuple[Any, Any, int]) -> Any:
    lanes = shape[2]
    return compute_stage(f"sum{lanes}", shape, lambda i, j, lane: sums[i, j, lane] + sums[i, j, lane + lanes])


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of columns × rows in parallel; in each, one register tile after the other."""
    sch, stages, output = start_schedule(outs)
    total = stages.pop("total")
    i, j = sch.get_loops(total)
    m_task, row_tile, rows = sch.split(i, [integer(config, "m_tasks"), None, integer(config, "rows")])
    n_task, col_tile, cols = sch.split(j, [None, integer(config, "n_block"), integer(config, "cols")])
    inner = (col_tile, row_tile) if config["inner"] == "rows" else (row_tile, col_tile)
    sch.reorder(n_task, m_task, *inner, rows, cols)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    # From the last stage back to the first: each needs its consumer in place.
    for block in reversed(stages.values()):
        sch.compute_at(block, inner[1], preserve_unit_loops=True)
    sch.parallel(sch.fuse(n_task, m_task))
    tiles = stages.pop("tiles")
    *_, rows, cols, lane, steps = sch.get_loops(tiles)
    sum_in_tile(sch, tiles, [rows, cols, lane], steps, integer(config, "unroll"))
    for block in stages.values():
        unroll_tile(sch, block)
    for block in (tiles, total, *stages.values()):
        sch.set_scope(block, 0, "local")
    for block in (total, output):
        for loop in sch.get_loops(block)[-2:]:
            sch.unroll(loop)
    return sch
