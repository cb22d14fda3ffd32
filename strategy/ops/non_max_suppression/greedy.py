"""`non_max_suppression_greedy.cpu`: candidates in the order of their scores, each beside the chosen ones by vectors.

The boxes above the threshold are sorted by digits. Each in turn is compared with vectors of those chosen before it.
Classes and images are done in parallel, and what they chose is put together at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from strategy.cpu.loop import allocate
from strategy.cpu.radix import Radix
from strategy.op_strategy import OpStrategy
from strategy.ops.non_max_suppression.operator import (
    AllClassNonMaxSuppressionAttrs,
    corners,
    is_candidate,
    overlap,
)
from strategy.order import fold
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import accumulator, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType, Type

_PARALLEL_FROM = 1 << 10  # boxes


def space(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The width of a vector, how many are compared at a time, the bits of a digit, and threads or none."""
    batch, classes, boxes = inputs[1].concrete_shape
    full = lanes_of(target, accumulator(inputs[0].dtype))
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    several = batch * classes > 1
    return ConfigSpace(
        [
            Knob("lanes", lanes), Knob("vectors", (1, 2, 4)), Knob("bits", (4, 6, 8, 11)),
            Knob("parallel", (False, True) if several else (False,)),
        ], [],
        fallback={
            "lanes": full, "vectors": 1, "bits": 8 if boxes < 1 << 15 else 11,
            "parallel": several and target.threads > 1 and batch * classes * boxes >= _PARALLEL_FROM,
        },
    )


def compute(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[Any], out_type: Type, config: Config
) -> list[Any]:
    """Both outputs as loops."""
    from tvm import te

    batch, classes, boxes = (int(n) for n in inputs[1].shape)
    return list(
        te.extern(
            [[batch * classes * attrs.most(boxes), 3], [1]], list(inputs),
            lambda ins, outs: _loops(attrs, config, ins, outs), dtype=["int64"] * 2, name="non_max_suppression",
        )
    )


def _loops(
    attrs: AllClassNonMaxSuppressionAttrs, config: Config, ins: Sequence[Any], outs: Sequence[Any]
) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    batch, classes, boxes = (int(n) for n in ins[1].shape)
    own, most = str(ins[0].dtype), attrs.most(boxes)
    dtype, lanes, vectors = accumulator(own), integer(config, "lanes"), integer(config, "vectors")
    block = lanes * vectors
    room = -(-most // block) * block
    zero = tirx.const(0, dtype)
    coordinates, scores, rows, count = (script.buffer_proxy(b) for b in (*ins, *outs))

    def read(buffer: Any, place: Any) -> Any:
        return buffer[place] if own == dtype else tirx.Cast(dtype, buffer[place])

    def choose(task: Any, chosen: Any, counts: Any) -> None:
        """The boxes that are chosen of a class in an image."""
        sorter = Radix(boxes, dtype, integer(config, "bits"), is_ascend=False)
        state = allocate(2, "int32", "global")  # candidates, chosen
        kept = [allocate(room, dtype, "global") for _ in range(4)]
        mine, hits = allocate(4, dtype), allocate(lanes, "int32")

        def score(j: Any) -> Any:
            return read(scores, task * boxes + j)

        sorter.clear()
        state[0] = 0
        lowest = tirx.const(-math.inf, dtype)
        with script.serial(0, boxes) as j, script.If(is_candidate(attrs, score(j), lowest)), script.Then():
            sorter.put(state[0], score(j), tirx.Cast("int32", j))
            state[0] = state[0] + 1
        sorter.sort(state[0])
        for part in kept:
            with script.serial(0, room) as n:
                part[n] = zero  # no box overlaps one of no size
        state[1] = 0
        with script.serial(0, state[0]) as turn, script.If(state[1] < most), script.Then():
            at = script.bind(sorter.index(turn))
            first = (task // classes * boxes + at) * 4
            box = [read(coordinates, first + i) for i in range(4)]
            # Not bound to names: TVM leaves the conversion of a bfloat16 that is bound undone.
            for n, value in enumerate(chain(*corners(attrs, box, tirx.Select))):
                mine[n] = value

            def hit(place: Any) -> Any:
                other = [part[place] for part in kept]
                one = [mine[n] for n in range(4)]
                found = overlap(attrs, (other[:2], other[2:]), (one[:2], one[2:]), tirx.Select, zero)
                return tirx.Select(found, tirx.const(1, "int32"), tirx.const(0, "int32"))

            with script.vectorized(0, lanes) as lane:
                hits[lane] = tirx.const(0, "int32")
            blocks = (state[1] + block - 1) // block
            with script.serial(0, blocks) as n, script.unroll(0, vectors) as v, script.vectorized(0, lanes) as lane:
                hits[lane] = hits[lane] | hit(n * block + v * lanes + lane)
            with script.If(fold(lambda a, b: a | b, [hits[n] for n in range(lanes)]) == 0), script.Then():
                for n, part in enumerate(kept):
                    part[state[1]] = mine[n]
                chosen[task * most + state[1]] = at
                state[1] = state[1] + 1
        counts[task] = state[1]

    def gather(chosen: Any, counts: Any) -> None:
        """The rows of all classes, one after the other, and what is left of them."""
        total = allocate(1, "int32", "global")
        total[0] = 0
        with script.serial(0, batch * classes) as task:
            with script.serial(0, counts[task]) as n:
                for i, value in enumerate((task // classes, task % classes, chosen[task * most + n])):
                    rows[(total[0] + n) * 3 + i] = tirx.Cast("int64", value)
            total[0] = total[0] + counts[task]
        with script.serial(total[0] * 3, batch * classes * most * 3) as n:
            rows[n] = tirx.const(-1, "int64")
        count[0] = tirx.Cast("int64", total[0])

    with IRBuilder() as builder:
        with script.serial(0, 1):  # one statement, which a function's body is
            chosen, counts = (allocate(batch * classes * n, "int32", "global") for n in (most, 1))
            with (script.parallel if config["parallel"] else script.serial)(0, batch * classes) as task:
                choose(task, chosen, counts)
            gather(chosen, counts)
        return builder.get()


def _add(
    strategy: OpStrategy, attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[TensorType], out_type: Type,
    target: Target,
) -> None:
    if all(t.is_constant for t in inputs):
        strategy.add_implementation(
            compute, schedule_extern_cpu, "non_max_suppression_greedy.cpu", 10, space=space, symbolic=False
        )


register_cpu_implementations("all_class_non_max_suppression", _add)
