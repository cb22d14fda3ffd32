"""`batch_matmul_pack.cpu`: the register tile of `dense`, for each entry of a batch.

Rows of x are read in place. Vectors run along n: y as [b, k, n] is read in place, too; a transposed y is packed into
panels [b, ceil(n / width), k, width].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.condition import ceildiv
from strategy.cpu.tile import (
    ROWS,
    accumulators,
    best_tile_of,
    clamped_row,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    schedule_tile,
    tile_registers,
    up_to,
    usual_unroll,
    whole_blocks,
    width_knob,
)
from strategy.ops.batch_matmul.operator import BatchMatmulAttrs
from strategy.pattern import extents_of
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    pack_by_vectors,
    start_schedule,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_TASKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_INNER = Knob("inner", ["rows", "panels"])
_PACK_APART = Knob("pack_apart", [False, True])


def space(
    attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The space: tile, unrolling, tasks of columns and rows, and the place of packing y.

    Tasks pack their own panels, or all is packed before (`pack_apart`).
    """
    batch, (m, n) = out_type.shape[0], (int(d) for d in out_type.shape[1:])
    depth = int(inputs[0].shape[1 if attrs.transpose_a else 2])
    lanes = lanes_of(target, accumulator(inputs[0].dtype))

    def fallback() -> dict[str, Any]:
        rows, width = best_tile_of(m, n, lanes, tile_registers(target), target.multiply_adds)
        panels = -(-n // width)
        # A batch that is known at run time only is taken to be large.
        shared = batch.is_constant and int(batch) < target.threads
        return {
            "rows": rows,
            "width": width,
            "unroll": usual_unroll(depth),
            "n_tasks": largest_divisor(_TASKS, panels, 2 * target.threads) if shared else 1,
            "m_tasks": 1,
            "inner": "rows",
            "pack_apart": shared or not attrs.transpose_b,
        }

    return ConfigSpace(
        [
            width_knob(lanes, n),
            up_to("rows", ROWS, 2 * m),
            up_to("unroll", (1, 2, 4, 8), depth),
            up_to("n_tasks", _TASKS, -(-n // lanes)),
            up_to("m_tasks", _TASKS, m),
            _INNER,
            _PACK_APART if attrs.transpose_b else Knob("pack_apart", [True]),
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(n, "width", "n_tasks"),
            whole_blocks(m, "rows", "m_tasks"),
            # A task that shares its columns with another would pack them again.
            (knob("pack_apart") == 1) | (knob("m_tasks") == 1),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={
            "inner": one_order(
                ceildiv(n, knob("width")) // knob("n_tasks"), ceildiv(m, knob("rows")) // knob("m_tasks")
            )
        },
    )


def prepare(attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """A transposed y is packed into panels [b, ceil(n / width), k, width]."""
    width = integer(config, "width")

    def pack(y: Any) -> Any:
        batch, n, k = y.shape[0], int(y.shape[1]), int(y.shape[2])

        def read(b: Any, panel: Any, step: Any, lane: Any) -> Any:
            column = panel * width + lane
            return zero_beyond(y[b, column, step], column, n, width)

        return compute_stage("panels", (batch, -(-n // width), k, width), read)

    return {1: pack} if attrs.transpose_b else {}


def compute(attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The products over whole tiles, and their part within m × n."""
    from tvm import te, tirx

    x, y = inputs
    batch, m, n = extents_of(out_type, inputs)
    rows, width = integer(config, "rows"), integer(config, "width")
    dtype, row = accumulator(str(x.dtype)), clamped_row(m)
    r = te.reduce_axis((0, int(x.shape[1 if attrs.transpose_a else 2])), name="r")

    def entry(tensor: Any, b: Any) -> Any:
        """The entry of a batch; the only one is used for all."""
        return 0 if isinstance(tensor.shape[0], tirx.IntImm) and int(tensor.shape[0]) == 1 else b

    def left(b: Any, i: Any) -> Any:
        b = entry(x, b)
        return x[b, r, row(i)] if attrs.transpose_a else x[b, row(i), r]

    def right(b: Any, j: Any) -> Any:
        b = entry(y, b)
        return y[b, j // width, r, j % width] if attrs.transpose_b else zero_beyond(y[b, r, j], j, n, width)

    tiles = compute_stage(
        "tiles", (batch, round_up(m, rows), round_up(n, width)),
        lambda b, i, j: te.sum(left(b, i).astype(dtype) * right(b, j).astype(dtype), axis=r),
    )
    return [te.compute((batch, m, n), lambda b, i, j: tiles[b, i, j].astype(out_type.dtype), name="batch_matmul")]


def schedule(attrs: BatchMatmulAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of entries × panels × rows in parallel; in each, one register tile after the other."""
    sch, stages, output = start_schedule(outs)
    tiles = stages["tiles"]
    lanes = lanes_of(target, accumulator(outs.args[0].dtype))
    sch.set_scope(tiles, 0, "local")
    b, i, j, steps = sch.get_loops(tiles)
    m_task, row_tile, rows = sch.split(i, [integer(config, "m_tasks"), None, integer(config, "rows")])
    n_task, panel, columns = sch.split(j, [integer(config, "n_tasks"), None, integer(config, "width")])
    inner = (panel, row_tile) if config["inner"] == "rows" else (row_tile, panel)
    sch.reorder(b, n_task, m_task, *inner, rows, columns, steps)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    task = sch.fuse(b, n_task, m_task)
    sch.parallel(task)
    if "panels" in stages:
        apart = bool(config["pack_apart"])
        if not apart:
            sch.compute_at(stages["panels"], task, preserve_unit_loops=True)
        pack_by_vectors(sch, stages["panels"], lanes, parallel=apart)
    schedule_tile(sch, tiles, output, (rows, columns, steps), lanes, integer(config, "unroll"))
    return sch
