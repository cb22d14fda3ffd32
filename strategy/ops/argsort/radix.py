"""`argsort_radix.cpu`: each row sorted by the digits of its keys, from the lowest on, rows in parallel.

A pass moves keys and indices to where the count of smaller digits says, and keeps the order of equal ones; one whose
digits are all equal is left out. There are no comparisons, so that the time does not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.cpu.loop import allocate, written
from strategy.cpu.row import PARALLEL_BYTES
from strategy.op_strategy import OpStrategy
from strategy.ops.argsort.operator import ArgsortAttrs, argsort_strategy
from strategy.order import sort_key
from strategy.pattern import element_bytes, schedule_extern_cpu
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType, Type


def space(attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """The bits of a digit, and threads or none."""
    data = inputs[0]
    extent = int(data.shape[attrs.axis])
    parallel = target.threads > 1 and data.size * element_bytes(data.dtype) >= PARALLEL_BYTES // 16
    bits = 4 if extent < 64 else 8 if extent < 1 << 15 else 11
    return ConfigSpace(
        [Knob("bits", (4, 6, 8, 11)), Knob("parallel", (False, True))], [],
        fallback={"bits": bits, "parallel": parallel},
    )  # fmt: skip


def compute(attrs: ArgsortAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """All passes as loops."""
    return written(lambda ins, out: _sort(attrs, ins[0], out, config), inputs, out_type, "argsort")


def _sort(attrs: ArgsortAttrs, data: Any, out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    shape = [int(n) for n in data.shape]
    axis = attrs.axis % len(shape)
    extent, inner = shape[axis], math.prod(shape[axis + 1 :])
    rows, bits = math.prod(shape[:axis]) * inner, integer(config, "bits")
    source, result = script.buffer_proxy(data), script.buffer_proxy(out)
    kind = str(sort_key(tirx.Var("x", str(data.dtype))).ty.dtype)
    passes, bins = -(-int(kind.removeprefix("int")) // bits), 1 << bits

    place = partial(allocate, scope="global")

    def slot(key: Any, turn: int) -> Any:
        """The counter of a key's digit; below those of later passes."""
        digit = (key >> tirx.const(turn * bits, kind)) & tirx.const(bins - 1, kind)
        return tirx.Cast("int32", digit) + turn * bins

    def sort_row(row: Any) -> None:
        keys, order = place(2 * extent, kind), place(2 * extent, "int32")
        counts, state = place(passes * bins, "int32"), place(2, "int32")

        def spot(j: Any) -> Any:
            return (row // inner * extent + j) * inner + row % inner

        with script.serial(0, passes * bins) as n:
            counts[n] = 0
        with script.serial(0, extent) as j:
            key = sort_key(source[spot(j)])
            # In the order of unsigned numbers; of a descending one all bits are turned.
            ordered = key ^ (tirx.min_value(kind) if attrs.is_ascend else tirx.max_value(kind))
            keys[j] = ordered
            order[j] = tirx.Cast("int32", j)
            for turn in range(passes):
                counts[slot(keys[j], turn)] = counts[slot(keys[j], turn)] + 1
        state[0] = 0  # the half of both arrays that is in order
        for turn in range(passes):
            with script.If(counts[slot(keys[state[0] * extent], turn)] < extent), script.Then():
                state[1] = 0
                with script.serial(0, bins) as n:
                    count = script.bind(counts[turn * bins + n])
                    counts[turn * bins + n] = state[1]
                    state[1] = state[1] + count
                with script.serial(0, extent) as j:
                    key = script.bind(keys[state[0] * extent + j])
                    at = script.bind(counts[slot(key, turn)])
                    counts[slot(key, turn)] = at + 1
                    keys[(1 - state[0]) * extent + at] = key
                    order[(1 - state[0]) * extent + at] = order[state[0] * extent + j]
                state[0] = 1 - state[0]
        with script.serial(0, extent) as j:
            result[spot(j)] = tirx.Cast(attrs.dtype, order[state[0] * extent + j])

    with IRBuilder() as builder:
        with (script.parallel if config["parallel"] else script.serial)(0, rows) as row:
            sort_row(row)
        return builder.get()


@argsort_strategy.register("cpu")
def argsort_strategy_cpu(
    attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The sort of TVM's runtime, and by digits where all extents are constant."""
    assert argsort_strategy.default is not None
    strategy: OpStrategy = argsort_strategy.default(attrs, inputs, out_type, target)
    if all(d.is_constant and int(d) >= 1 for d in inputs[0].shape):
        strategy.add_implementation(
            compute, schedule_extern_cpu, "argsort_radix.cpu", 12, space=space, symbolic=False
        )
    return strategy
