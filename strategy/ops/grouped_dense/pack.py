"""`grouped_dense_pack.cpu`: each weight packed into panels, of which a row reads only those of its group.

`grouped_dense_dot.cpu` is the same by a dot-product instruction, with panels as those of `dense_dot.cpu`.

The rows of a group are computed in tiles: the highest as long as there are enough rows, then lower ones down to a
single row. So no tile has rows of another group.

Without the instruction, narrow floats of the data are widened once, before all tasks; those of the weight where they
are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.dot import Dot
from strategy.cpu.loop import allocate, fill, written
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    best_tile_of,
    register_constraint,
    up_to,
    usual_unroll,
    whole_blocks,
    width_knob,
)
from strategy.ops.dense.dot import packing
from strategy.ops.grouped_dense.loops import Loops, rows_of, task_knobs, usual_tasks
from strategy.schedule import accumulator, compute_stage, integer, lanes_of, zero_beyond
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_STREAMS = (1, 2, 4, 8)
_ROW_VECTORS = 4  # of an untuned panel that a single row reads


def space(
    dot: Dot | None, attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The highest tile, unrolling, and the tasks.

    `streams` are the parts of k that a single row reads side by side: memory hides the latency of one behind others.
    """
    (m, k), (groups, n, _) = inputs[0].shape, inputs[1].concrete_shape
    lanes, depth = lanes_of(target, accumulator(inputs[0].dtype)), int(k)
    if dot is not None:
        lanes, depth = dot.lanes, depth // dot.group
    streams = tuple(s for s in _STREAMS if depth % s == 0)

    def fallback() -> dict[str, Any]:
        registers, usual = target.vector_registers, -(-rows_of(m) // groups)
        # Tiles that divide the usual rows of a group may be lower than those that hide the instruction's latency.
        height, most = (usual, rows_of(m)) if dot is None else (rows_of(m), usual)
        rows, width = best_tile_of(height, n, lanes, registers, target.multiply_adds, most)
        if rows == 1:
            wide = (v for v in VECTORS if v <= _ROW_VECTORS and v * lanes * target.threads <= n)
            width = lanes * max(wide, default=1)
        side = max(s for s in streams if s == 1 or s * (width // lanes) <= registers // 2)
        tile = {"width": width, "rows": rows, "streams": side, "unroll": usual_unroll(depth // side)}
        return tile | usual_tasks(m, -(-n // width), target)

    return ConfigSpace(
        [
            width_knob(lanes, n), up_to("rows", ROWS, rows_of(m)), Knob("streams", streams),
            Knob("unroll", [u for u in (1, 2, 4, 8) if depth % u == 0]), *task_knobs(m, -(-n // lanes)),
        ],
        [
            register_constraint(target.vector_registers, lanes),
            knob("streams") * (knob("width") // lanes) + 2 <= target.vector_registers,
            depth % (knob("streams") * knob("unroll")) == 0,
            whole_blocks(n, "width", "n_block"),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )


def prepare(
    dot: Dot | None, attrs: Attrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weights are packed into panels [g, ceil(n / width), k, width], of an instruction [g, …, k / 2, width, 2]."""
    width = integer(config, "width")
    if dot is not None:
        return {1: packing(dot, width, is_transposed=True, summed=False)}

    def pack(weight: Any) -> Any:
        groups, n, k = (int(extent) for extent in weight.shape)
        shape = (groups, -(-n // width), k, width)

        def number(group: Any, panel: Any, step: Any, lane: Any) -> Any:
            column = panel * width + lane
            return zero_beyond(weight[group, column, step], column, n, width)

        return compute_stage("panels", shape, number)

    return {1: pack}


def compute(
    lanes: int, dot: Dot | None, attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The whole function as loops."""
    return written(lambda ins, out: _built(lanes, dot, ins, out, config), inputs, out_type, "grouped_dense")


def _heights(rows: int) -> Iterator[int]:
    """The rows of the highest tile, and of each lower one."""
    while rows > 1:
        yield rows
        rows //= 2
    yield 1


def _built(lanes: int, dot: Dot | None, ins: Sequence[Any], out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.ir import StringImm
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    data, weight, ends = ins
    m, k = data.shape[0], int(data.shape[1])
    _, count, depth, width, *_ = (int(extent) for extent in weight.shape)
    unroll, dtype = integer(config, "unroll"), accumulator(str(data.dtype))
    loops = Loops(out, ends, count, width, lanes, dtype, config)

    def multiply(rows: int, group: Any, panel: Any, row: Any, wide: Callable[[Any, Any], Any]) -> None:
        """A tile, or a single row by streams, each with sums of its own."""
        streams = integer(config, "streams") if rows == 1 else 1
        length, chains = depth // streams, rows * streams
        sums = allocate(chains * width, dtype)
        loops.each(chains, lambda c, j: fill(sums, c * width + j, tirx.const(0, dtype)))
        with script.serial(0, length // unroll) as outer, script.unroll(0, unroll) as inner:

            def step_of(c: Any) -> Any:
                return c // rows * length + outer * unroll + inner

            def add(c: Any, j: Any) -> None:
                at, step = c * width + j, step_of(c)
                number = weight[group, panel, step, j].astype(dtype)
                fill(sums, at, sums[at] + wide(row + c % rows, step) * number)

            def add_words(dot: Dot, c: Any, v: Any) -> None:
                at, step, side = tirx.Ramp(c * width + v * lanes, 1, lanes), step_of(c), dot.group
                pair = data[row + c % rows, tirx.Ramp(step * side, 1, side)]
                words = tirx.BufferLoad(weight, [group, panel, step, v * lanes, tirx.Ramp(0, 1, side * lanes)])
                broadcast = tirx.Broadcast(tirx.call_intrin("int32", "tirx.reinterpret", pair), lanes)
                vector = tirx.call_intrin(f"int32x{lanes}", "tirx.reinterpret", words)
                kind = f"{dtype}x{lanes}"
                fill(sums, at, tirx.call_pure_extern(kind, dot.symbol, sums[at], broadcast, vector))

            if dot is None:
                loops.each(chains, add)
            else:
                with script.unroll(0, chains) as c, script.unroll(0, width // lanes) as v:
                    add_words(dot, c, v)

        def write(i: Any, j: Any) -> None:
            first, *more = (sums[(s * rows + i) * width + j] for s in range(streams))
            loops.store(panel, row + i, j, sum(more, first))

        loops.each(rows, write)

    def widened() -> Callable[[Any, Any], Any]:
        """Read the data as they are, or from their copy in the dtype of the sums."""
        if str(data.dtype) == dtype or dot is not None:
            return lambda i, step: data[i, step]
        copy, side = allocate(m * k, dtype, "global"), math.gcd(k, lanes)
        with script.parallel(0, m) as i, script.serial(0, k // side) as part, script.vectorized(0, side) as lane:
            fill(copy, i * k + part * side + lane, data[i, part * side + lane].astype(dtype))
        return lambda i, step: copy[i * k + step]

    with IRBuilder() as builder, ExitStack() as scope:
        if dot is not None:
            scope.enter_context(script.attr(0, "pragma_import_llvm", StringImm(dot.source)))
        with script.serial(0, 1):  # one statement, which a function's body is
            wide = widened()

            def multiply_rows(group: Any, panel: Any, begin: Any, end: Any) -> None:
                at = allocate(1, str(m.ty.dtype))
                at[0] = begin
                for rows in _heights(integer(config, "rows")):
                    with script.serial(0, (end - at[0]) // rows) as tile:
                        multiply(rows, group, panel, at[0] + tile * rows, wide)
                    at[0] = at[0] + (end - at[0]) // rows * rows

            loops.run(multiply_rows)
        scope.close()
        return builder.get()
