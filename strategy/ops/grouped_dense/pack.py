"""`grouped_dense_pack.cpu`: each weight packed into panels, of which a row reads only those of its group.

A task has some panels of all groups, and a part of the rows. It finds the rows of each group in turn, and computes them
in tiles: the highest as long as there are enough rows, then lower ones down to a single row. So no tile has rows of
another group, and memory is read for as many weights as there are groups with rows.

Narrow floats of the data are widened once, before all tasks; those of the weight where they are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from strategy.attrs import Attrs
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
from strategy.pattern import schedule_plain_cpu
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    new_schedule,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_STREAMS = (1, 2, 4, 8)
_ROW_VECTORS = 4  # of an untuned panel that a single row reads
_ANY_ROWS = 64  # that a fallback takes m for, where it is symbolic


def space(attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """The highest tile, unrolling, a task's panels, and the tasks that share the rows of a panel (`parts`).

    `streams` are the parts of k that a single row reads side by side: memory hides the latency of one behind others.
    """
    (m, k), (groups, n, _) = inputs[0].shape, inputs[1].concrete_shape
    lanes = lanes_of(target, accumulator(inputs[0].dtype))
    rows, depth = int(m) if m.is_constant else _ANY_ROWS, int(k)
    streams = tuple(s for s in _STREAMS if depth % s == 0)

    def fallback() -> dict[str, Any]:
        high, width = best_tile_of(-(-rows // groups), n, lanes, target.vector_registers, target.multiply_adds)
        if high == 1:
            wide = (v for v in VECTORS if v <= _ROW_VECTORS and v * lanes * target.threads <= n)
            width = lanes * max(wide, default=1)
        side = max(s for s in streams if s == 1 or s * (width // lanes) <= target.vector_registers // 2)
        tasks = -(-n // width)
        return {
            "width": width, "rows": high, "streams": side, "unroll": usual_unroll(depth // side), "n_block": 1,
            "parts": max(b for b in _BLOCKS if b <= max(min(target.threads // tasks, rows), 1)),
        }  # fmt: skip

    return ConfigSpace(
        [
            width_knob(lanes, n), up_to("rows", ROWS, rows), Knob("streams", streams),
            Knob("unroll", [u for u in (1, 2, 4, 8) if depth % u == 0]), up_to("n_block", _BLOCKS, -(-n // lanes)),
            up_to("parts", _BLOCKS, rows),
        ],
        [
            register_constraint(target.vector_registers, lanes),
            knob("streams") * (knob("width") // lanes) + 2 <= target.vector_registers,
            depth % (knob("streams") * knob("unroll")) == 0,
            whole_blocks(n, "width", "n_block"),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )  # fmt: skip


def prepare(attrs: Attrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weights are packed into panels [g, ceil(n / width), k, width]."""
    width = integer(config, "width")

    def pack(weight: Any) -> Any:
        groups, n, k = (int(extent) for extent in weight.shape)
        shape = (groups, -(-n // width), k, width)

        def number(group: Any, panel: Any, step: Any, lane: Any) -> Any:
            column = panel * width + lane
            return zero_beyond(weight[group, column, step], column, n, width)

        return compute_stage("panels", shape, number)

    return {1: pack}


def compute(
    lanes: int, attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The whole function as loops."""
    return written(lambda ins, out: _loops(lanes, ins, out, config), inputs, out_type, "grouped_dense")


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """The loops as they are; packing, and what follows, by pattern."""
    sch = new_schedule(outs)
    is_alone = sch.mod["main"].body.block.name_hint != "root"
    return sch if is_alone else schedule_plain_cpu(attrs, outs, target)


def _heights(rows: int) -> Iterator[int]:
    """The rows of the highest tile, and of each lower one."""
    while rows > 1:
        yield rows
        rows //= 2
    yield 1


def _loops(lanes: int, ins: Sequence[Any], out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    data, weight, ends = ins
    (m, n), k = out.shape, int(data.shape[1])
    groups, count, _, width = (int(extent) for extent in weight.shape)
    n_block, parts, unroll = (integer(config, name) for name in ("n_block", "parts", "unroll"))
    result, dtype, place = script.buffer_proxy(out), accumulator(str(data.dtype)), str(m.ty.dtype)

    def each(rows: int, step: Callable[[Any, Any], None]) -> None:
        """Each row of a tile and column of a panel."""
        with script.unroll(0, rows) as i, script.unroll(0, width // lanes) as v, script.vectorized(0, lanes) as lane:
            step(i, v * lanes + lane)

    def store(row: Any, column: Any, value: Any) -> None:
        if int(n) % width == 0:
            fill(result, (row, column), value)
            return
        with script.If(column < n), script.Then():
            fill(result, (row, column), value)

    def rounded(number: Any) -> Any:
        return number.astype(str(out.dtype))

    def multiply(rows: int, group: Any, panel: Any, row: Any, wide: Any) -> None:
        """A tile, or a single row by streams, each with sums of its own."""
        streams = integer(config, "streams") if rows == 1 else 1
        length, chains = k // streams, rows * streams
        sums = allocate(chains * width, dtype)
        each(chains, lambda c, j: fill(sums, c * width + j, tirx.const(0, dtype)))
        with script.serial(0, length // unroll) as outer, script.unroll(0, unroll) as inner:

            def add(c: Any, j: Any) -> None:
                at, step = c * width + j, c // rows * length + outer * unroll + inner
                number = weight[group, panel, step, j].astype(dtype)
                fill(sums, at, sums[at] + wide(row + c % rows, step) * number)

            each(chains, add)

        def write(i: Any, j: Any) -> None:
            parts = [sums[(s * rows + i) * width + j] for s in range(streams)]
            store(row + i, panel * width + j, rounded(sum(parts[1:], parts[0])))

        each(rows, write)

    def multiply_rows(group: Any, block: Any, begin: Any, end: Any, wide: Any) -> None:
        """The rows of a group, by the panels of a task."""
        with script.serial(0, n_block) as p:
            at = allocate(1, place)
            at[0] = begin
            for rows in _heights(integer(config, "rows")):
                with script.serial(0, (end - at[0]) // rows) as tile:
                    multiply(rows, group, block * n_block + p, at[0] + tile * rows, wide)
                at[0] = at[0] + (end - at[0]) // rows * rows

    def widened() -> Callable[[Any, Any], Any]:
        """Read the data as they are, or from their copy in the dtype of the sums."""
        if str(data.dtype) == dtype:
            return lambda i, step: data[i, step]
        copy, side = allocate(m * k, dtype, "global"), math.gcd(k, lanes)
        with script.parallel(0, m) as i, script.serial(0, k // side) as part, script.vectorized(0, side) as lane:
            fill(copy, i * k + part * side + lane, data[i, part * side + lane].astype(dtype))
        return lambda i, step: copy[i * k + step]

    with IRBuilder() as builder:
        with script.serial(0, 1):  # one statement, which a function's body is
            wide = widened()
            size = (m + parts - 1) // parts
            with script.parallel(0, count // n_block * parts) as task:
                block, part = task // parts, task % parts
                at = allocate(1, place)
                at[0] = tirx.min(part * size, m)
                last = script.bind(tirx.min((part + 1) * size, m))
                with script.serial(0, groups) as group:
                    end = script.bind(tirx.min(tirx.max(ends[group].astype(place), at[0]), last))
                    multiply_rows(group, block, at[0], end, wide)
                    at[0] = end
                with script.serial(at[0], last) as row, script.serial(0, n_block) as p:
                    # Not a constant of bfloat16: a vector of those TVM leaves as it is.
                    zeros = allocate(width, dtype)
                    each(1, lambda _, j: fill(zeros, j, tirx.const(0, dtype)))
                    each(1, lambda i, j: store(row + i, (block * n_block + p) * width + j, rounded(zeros[j])))
        return builder.get()
