"""`dense_pack.cpu`: the weight packed into panels, the data read in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import ceildiv
from strategy.cpu.ahead import fits_ahead, prefetch_panels
from strategy.cpu.tile import (
    ALWAYS,
    ROWS,
    Extents,
    accumulators,
    best_tile,
    clamped_row,
    largest_divisor,
    one_order,
    panels,
    register_constraint,
    round_up,
    rows_in_place,
    schedule_tile,
    up_to,
    usual_unroll,
    whole_blocks,
    width_knob,
)
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    pack_by_vectors,
    start_schedule,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 32, 48, 64)
_INNER = Knob("inner", ["rows", "panels"])
_AHEAD = Knob("ahead", [False, True])


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Tile, unrolling, and how tiles are grouped into tasks.

    A task is `n_block` panels × one of `m_tasks` parts of the rows; within it, `inner` is the innermost loop: rows (the
    panel stays in cache) or panels (the rows do). With `ahead` the next panel is prefetched meanwhile, where the number
    of rows is known.
    """
    extents = Extents.of(inputs)
    dtype = accumulator(inputs[0].dtype)
    lanes = lanes_of(target, dtype)

    def fallback() -> dict[str, Any]:
        row_bytes = extents.k * dtype_bytes(inputs[0].dtype)
        rows, width = best_tile(extents, target, dtype, rows_in_place(row_bytes, target))
        tiles, count = -(-extents.rows // rows), -(-extents.n // width)
        usual = {"rows": rows, "width": width, "unroll": usual_unroll(extents.k)}
        # Rows that leave no half of the second level come through it once for as many panels as half of it holds.
        half = target.l2_bytes // 2
        if extents.m.is_constant and extents.rows >= extents.n and extents.rows * row_bytes > half:
            m_tasks = max(b for b in _BLOCKS if b == 1 or (tiles % b == 0 and b % target.threads == 0))
            most = count if m_tasks > 1 else count // target.threads
            n_block = largest_divisor(_BLOCKS, count, min(most, half // (width * row_bytes)))
            if n_block > 1:
                return usual | {"n_block": n_block, "m_tasks": m_tasks, "inner": "panels", "ahead": False}
        split_rows = count < target.threads and extents.m.is_constant
        return usual | {
            "n_block": 1,
            "m_tasks": largest_divisor(_BLOCKS, tiles, target.threads) if split_rows else 1,
            "inner": "rows",
            "ahead": extents.rows > 1 and fits_ahead(width * row_bytes, target),
        }

    constraints = [
        register_constraint(target.vector_registers, lanes),
        whole_blocks(extents.n, "width", "n_block"),
    ]
    if extents.m.is_constant:
        constraints.append(whole_blocks(int(extents.m), "rows", "m_tasks"))
        row_tiles = ceildiv(int(extents.m), knob("rows")) // knob("m_tasks")
        idle = {"inner": one_order(knob("n_block"), row_tiles, ahead=True)}
    else:
        idle = {"ahead": ALWAYS, "inner": knob("n_block") == 1}
    return ConfigSpace(
        [
            width_knob(lanes, extents.n),
            up_to("rows", ROWS, 2 * extents.rows),
            up_to("unroll", (1, 2, 4, 8), extents.k),
            up_to("n_block", _BLOCKS, -(-extents.n // lanes)),
            up_to("m_tasks", _BLOCKS, extents.rows if extents.m.is_constant else 1),
            _INNER,
            _AHEAD,
        ],
        constraints,
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle=idle,
    )


def prepare(attrs: Attrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(n / width), k, width]."""
    return {1: panels(integer(config, "width"))}


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product over whole tiles, and its part within m × n."""
    from tvm import te

    data, weight = inputs
    m, k = data.shape
    n = int(out_type.shape[1])
    rows, width = integer(config, "rows"), integer(config, "width")
    dtype = accumulator(data.dtype)
    row = clamped_row(m)
    r = te.reduce_axis((0, k), name="r")
    tiles = compute_stage(
        "tiles", (round_up(m, rows), round_up(n, width)),
        lambda i, j: te.sum(
            data[row(i), r].astype(dtype) * weight[j // width, r, j % width].astype(dtype), axis=r
        ),
    )
    return [te.compute((m, n), lambda i, j: tiles[i, j].astype(out_type.dtype), name="dense")]


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels × rows in parallel; in each, one register tile after the other."""
    from tvm import tirx

    sch, stages, output = start_schedule(outs)
    tiles = stages["tiles"]
    lanes = lanes_of(target, accumulator(outs.args[0].dtype))
    if "panels" in stages:
        pack_by_vectors(sch, stages["panels"], lanes)
    sch.set_scope(tiles, 0, "local")
    i, j, steps = sch.get_loops(tiles)
    m_task, row_tile, rows = sch.split(i, [integer(config, "m_tasks"), None, integer(config, "rows")])
    n_task, panel, columns = sch.split(j, [None, integer(config, "n_block"), integer(config, "width")])
    inner = (panel, row_tile) if config["inner"] == "rows" else (row_tile, panel)
    sch.reorder(n_task, m_task, *inner, rows, columns, steps)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    sch.parallel(sch.fuse(n_task, m_task))
    schedule_tile(sch, tiles, output, (rows, columns, steps), lanes, integer(config, "unroll"))
    m, k = outs.args[0].shape
    if config["ahead"] and isinstance(m, tirx.IntImm):
        width, tile_count = integer(config, "width"), -(-int(m) // integer(config, "rows"))
        along = tile_count // integer(config, "m_tasks") if config["inner"] == "rows" else 1
        prefetch_panels(
            sch, *sch.get_loops(tiles)[-6:-4], panel=int(k) * width, step=width * integer(config, "unroll"),
            tiles=along, dtype=str(outs.args[1].dtype),
        )
    return sch
