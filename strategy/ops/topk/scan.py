"""`topk_scan.cpu`: one pass over a row, which keeps the k best so far in order, by vectors.

Few elements are better than the worst of those kept: about k ln(n / k) of n in random order. Blocks of
elements are compared with it by vectors, and passed over where none is better. One that is better comes
between those kept by comparing it with all of them at once: each stays, or takes the place of the next
worse. TVM's runtime sorts all of the row instead. A row along another axis than the last is first put together.
Narrow floats are kept as float32, which has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.cpu.loop import allocate, bound, run_tasks
from strategy.cpu.row import PARALLEL_BYTES, constant_size, reduction_accumulator
from strategy.op_strategy import OpStrategy
from strategy.ops.topk.operator import TopKAttrs
from strategy.order import fold, highest, is_nan, lowest
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType, Type

# Each element that is kept moves the worse ones: until how many that is faster than sorting.
_MOST = 256
_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int32", "int64"})


def space(attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
    """The vectors that are compared before it is asked whether any was better, and threads or none."""
    data = inputs[0]
    size = constant_size(data.shape)  # None: some extent is symbolic
    several = size is None or size > int(data.shape[attrs.axis])
    parallel = several and (size is None or size * dtype_bytes(data.dtype) >= PARALLEL_BYTES)
    return ConfigSpace(
        [Knob("block", (1, 2, 4, 8)), Knob("parallel", (False, True) if several else (False,))], [],
        fallback={"block": 2, "parallel": parallel},  # a better one costs a look at all of its block
    )


def compute(
    full: int, attrs: TopKAttrs, inputs: Sequence[Any], out_type: Type, config: Config
) -> list[Any]:
    """Values and indices, by insertion; among equals the first stays first. `full` is a vector's width."""
    from tvm import te

    data = inputs[0]
    shape = list(data.shape)
    shape[attrs.axis] = attrs.k
    values, indices = te.extern(
        [shape] * 2,
        [data],
        lambda ins, outs: _scan(full, attrs, config, ins[0], *outs),
        dtype=[str(data.dtype), attrs.dtype],
        name="topk",
    )
    return {"values": [values], "indices": [indices]}.get(attrs.ret_type, [values, indices])


def _scan(full: int, attrs: TopKAttrs, config: Config, data: Any, values: Any, indices: Any) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    shape = [int(d) if isinstance(d, tirx.IntImm) else d for d in data.shape]
    axis = attrs.axis % len(shape)
    extent, inner = shape[axis], math.prod(shape[axis + 1 :])
    is_whole = isinstance(inner, int) and inner == 1  # else a row's elements stand apart
    count, k, dtype = math.prod(shape[:axis]) * inner, attrs.k, reduction_accumulator(str(data.dtype))
    lanes, compared = min(full, 1 << (k - 1).bit_length()), integer(config, "block")
    vectors, block = -(-k // lanes), full * compared
    source, best, places = (script.buffer_proxy(buffer) for buffer in (data, values, indices))

    def no_worse(a: Any, b: Any) -> Any:
        return a <= b if attrs.is_ascend else a >= b

    # NaN is larger than all numbers.
    def stays_before(a: Any, b: Any) -> Any:
        return tirx.Or(no_worse(a, b), is_nan(b if attrs.is_ascend else a))

    def may_be_better(a: Any, b: Any) -> Any:
        return tirx.Or(a < b, is_nan(b)) if attrs.is_ascend else tirx.Or(a > b, is_nan(a))

    def scan_row(row: Any) -> None:
        # Before the kept ones stands what is no worse than anything.
        kept, found = (allocate(vectors * lanes + 1, kind) for kind in (dtype, attrs.dtype))
        hits = allocate(full, "int32")
        line = source
        if not is_whole:
            line = allocate(extent, dtype, "global")
            with script.serial(0, extent) as element:
                line[element] = source[(row // inner * extent + element) * inner + row % inner].astype(dtype)

        def read(element: Any) -> Any:
            return line[row * extent + element if is_whole else element].astype(dtype)

        def insert(element: Any, *, filling: bool) -> None:
            value = bound(read(element))

            def stays(slot: Any) -> Any:
                first = stays_before(kept[slot], value)
                return tirx.And(first, slot <= element) if filling else first

            with script.serial(0, vectors) as step:
                start = 1 + (vectors - 1 - step) * lanes
                for buffer, new in ((found, tirx.Cast(attrs.dtype, element)), (kept, value)):
                    with script.vectorized(0, lanes) as lane:
                        slot = start + lane
                        moved = tirx.Select(stays(slot - 1), new, buffer[slot - 1])
                        buffer[slot] = tirx.Select(stays(slot), buffer[slot], moved)

        def insert_if_better(element: Any) -> None:
            with script.If(may_be_better(read(element), kept[k])), script.Then():
                insert(element, filling=False)

        kept[0] = _unbeaten(attrs, dtype)
        with script.serial(0, k) as element:
            insert(element, filling=True)
        blocks = (extent - k) // block
        with script.serial(0, blocks) as number:
            first = k + number * block
            with script.vectorized(0, full) as lane:
                hits[lane] = tirx.const(0, "int32")
            with script.unroll(0, compared) as vector, script.vectorized(0, full) as lane:
                # NaN is worth a look too, so that this is a comparison alone.
                miss = no_worse(kept[k], read(first + vector * full + lane))
                hits[lane] = hits[lane] | tirx.Select(miss, tirx.const(0, "int32"), tirx.const(1, "int32"))
            some = fold(lambda a, b: a | b, [hits[n] for n in range(full)]) != 0
            with script.If(some), script.Then(), script.serial(0, block) as element:
                insert_if_better(first + element)
        with script.serial(k + blocks * block, extent) as element:
            insert_if_better(element)
        with script.serial(0, k) as slot:
            place = (row // inner * k + slot) * inner + row % inner
            best[place] = kept[slot + 1].astype(str(data.dtype))
            places[place] = found[slot + 1]

    return run_tasks(count, scan_row, parallel=bool(config["parallel"]))


def _unbeaten(attrs: TopKAttrs, dtype: str) -> Any:
    """The value that no other is better than."""
    from tvm import tirx

    if attrs.is_ascend:
        return lowest(dtype)
    return tirx.const(math.nan, dtype) if dtype.startswith("float") else highest(dtype)


def _add(
    strategy: OpStrategy, attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> None:
    data = inputs[0]
    known = data.shape[attrs.axis].is_constant and all(int(d) >= 1 for d in data.shape if d.is_constant)
    if known and data.dtype in _DTYPES and attrs.k <= _MOST:
        strategy.add_implementation(
            partial(compute, lanes_of(target, reduction_accumulator(data.dtype))), schedule_extern_cpu,
            "topk_scan.cpu", 12, version=4, space=space,
        )


register_cpu_implementations("topk", _add)
