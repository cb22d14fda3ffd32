"""`softmax_column.cpu`, `log_softmax_column.cpu`, `softmax_bias_column.cpu`: along an axis before the last, by vectors.

A task takes some columns, three times from the first element to the last: for the largest, for the sum of powers, and
for the result. What it reads are whole vectors, and largest and sum stay in registers. A bias has one number for all
neighbours, or one for each. Narrow floats are widened as they are read; their result would round the powers that it
kept, which are computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from strategy.cpu.elementary import exp, exp_of_difference, log_of_sum
from strategy.cpu.loop import allocate, fill, run_tasks, written
from strategy.cpu.row import PARALLEL_BYTES
from strategy.op_strategy import OpStrategy
from strategy.ops.softmax.operator import SoftmaxAttrs
from strategy.order import FLOATS, lowest, scaled
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import accumulator, dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type


def space(attrs: SoftmaxAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Width and number of vectors, unrolling, and threads or none."""
    data = inputs[0]
    columns = math.prod(int(d) for d in data.shape[attrs.axis % data.ndim + 1 :])
    parallel = target.threads > 1 and data.size * dtype_bytes(data.dtype) >= PARALLEL_BYTES
    return _space(int(data.shape[attrs.axis]), columns, lanes_of(target, accumulator(data.dtype)), parallel)


@lru_cache(maxsize=1024)
def _space(extent: int, columns: int, full: int, parallel: bool) -> ConfigSpace:
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    vectors = tuple(v for v in (1, 2, 4, 8) if (v - 1) * lanes[0] < columns)
    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("vectors", vectors),
            Knob("unroll", tuple(u for u in (1, 2, 4) if extent % u == 0)),
            Knob("parallel", (False, True)),
        ],
        [knob("vectors") * knob("unroll") <= 16],
        fallback=lambda: {
            "lanes": full, "vectors": max(v for v in vectors if v == 1 or (v <= 4 and v * full <= columns)),
            "unroll": 1, "parallel": parallel,
        },
    )


def compute(
    logarithm: bool, attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """All three passes as loops."""
    return written(lambda ins, out: _loops(logarithm, attrs, ins, out, config), inputs, out_type, "softmax")


def _loops(logarithm: bool, attrs: SoftmaxAttrs, inputs: Sequence[Any], out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    data, *biases = inputs
    shape, dtype = [int(n) for n in data.shape], accumulator(str(data.dtype))
    narrow = dtype != str(data.dtype)
    axis = attrs.axis % len(shape)
    count, extent, columns = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    lanes, vectors, unroll = (integer(config, name) for name in ("lanes", "vectors", "unroll"))
    width = lanes * vectors
    blocks, zero = -(-columns // width), tirx.const(0, dtype)
    source, result = script.buffer_proxy(data), script.buffer_proxy(out)

    def take_columns(task: Any) -> None:
        largest, total, powers = (allocate(width, dtype) for _ in range(3))

        def each(step: Callable[[Any], None]) -> None:
            with script.unroll(0, vectors) as vector, script.vectorized(0, lanes) as lane:
                step(vector * lanes + lane)

        def column(x: Any) -> Any:
            return task % blocks * width + x

        def read(j: Any, x: Any) -> Any:
            found = source[(task // blocks * extent + j) * columns + column(x)].astype(dtype)
            found = found if attrs.scale == 1 else scaled(found, attrs.scale)
            for bias in biases:
                own = [1] * (len(shape) - len(bias.shape)) + [int(n) for n in bias.shape]
                place = _broadcast_place(shape, own, axis, task // blocks, j, column(x))
                more = script.buffer_proxy(bias)[place]
                hides = str(bias.dtype) == "bool"
                found = tirx.Select(more, found, lowest(dtype)) if hides else found + more.astype(dtype)
            return found if columns % width == 0 else tirx.if_then_else(column(x) < columns, found, zero)

        def write(j: Any, x: Any, found: Any) -> None:
            place, found = (task // blocks * extent + j) * columns + column(x), found.astype(str(out.dtype))
            if columns % width == 0:
                result[place] = found
                return
            with script.If(column(x) < columns), script.Then():
                result[place] = found

        def pass_over(step: Callable[[Any], None]) -> None:
            with script.serial(0, extent // unroll) as outer, script.unroll(0, unroll) as inner:
                step(outer * unroll + inner)

        power = exp_of_difference if logarithm else exp

        def add(j: Any) -> None:
            each(lambda x: fill(powers, x, power(read(j, x) - largest[x])))
            if not logarithm and not narrow:
                each(lambda x: write(j, x, powers[x]))
            each(lambda x: fill(total, x, total[x] + powers[x]))

        def finish(j: Any) -> None:
            if logarithm:
                each(lambda x: write(j, x, read(j, x) - largest[x] - total[x]))
            elif narrow:
                each(lambda x: fill(powers, x, power(read(j, x) - largest[x]) * total[x]))
                each(lambda x: write(j, x, powers[x]))
            else:
                each(lambda x: write(j, x, result[(task // blocks * extent + j) * columns + column(x)] * total[x]))

        each(lambda x: fill(largest, x, lowest(dtype)))
        each(lambda x: fill(total, x, zero))
        pass_over(lambda j: each(lambda x: fill(largest, x, tirx.max(largest[x], read(j, x)))))
        pass_over(add)
        each(lambda x: fill(total, x, log_of_sum(total[x]) if logarithm else tirx.const(1, dtype) / total[x]))
        pass_over(finish)

    return run_tasks(count * blocks, take_columns, parallel=bool(config["parallel"]))


def _broadcast_place(shape: Sequence[int], own: Sequence[int], axis: int, row: Any, j: Any, column: Any) -> Any:
    """The element of a bias of extents `own` for the row before the axis, the place on it, and the column."""
    place: Any = 0
    for i, extent in enumerate(own[: axis + 1]):
        index = j if i == axis else row // math.prod(shape[i + 1 : axis]) % shape[i]
        place = place * extent + (index if extent > 1 else 0)
    behind = math.prod(own[axis + 1 :])
    return place * behind + (column if behind > 1 else 0)


def _reads_vectors(data: TensorType, bias: TensorType, axis: int) -> bool:
    """Return whether neighbours in the data have one number of the bias, or neighbours."""
    behind = bias.shape[max(0, axis + 1 - data.ndim + bias.ndim) :]
    if not all(d.is_constant for d in bias.shape):
        return False
    return math.prod(map(int, behind)) in (1, math.prod(map(int, data.shape[axis + 1 :])))


def _add(name: str) -> None:
    def add(
        strategy: OpStrategy, attrs: SoftmaxAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> None:
        data, *biases = inputs
        known = all(d.is_constant and int(d) >= 1 for d in data.shape)
        if not known or data.dtype not in FLOATS:
            return
        axis = attrs.axis % data.ndim
        if axis < data.ndim - 1 and all(_reads_vectors(data, bias, axis) for bias in biases):
            strategy.add_implementation(
                partial(compute, name == "log_softmax"), schedule_extern_cpu, f"{name}_column.cpu", 12, space=space,
                symbolic=False, version=2 if name == "log_softmax" else 1,
            )

    register_cpu_implementations(name, add)


for _name in ("softmax", "log_softmax", "softmax_bias"):
    _add(_name)
