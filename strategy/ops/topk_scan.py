"""`topk_scan.cpu`: one pass over a row, which keeps the k best so far in order.

Few elements are better than the worst of those kept: about k ln(n / k) of n in random order. For the
others there is one comparison. TVM's runtime sorts all of the row instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.op_strategy import OpStrategy
from strategy.ops.row import PARALLEL_BYTES, rowwise
from strategy.ops.topk import TopKAttrs, topk_strategy
from strategy.pattern import element_bytes
from strategy.schedule import Outs, new_schedule
from strategy.target import Target
from strategy.types import TensorType, Type

# Each element that is kept moves the worse ones: until how many that is surely faster than sorting, and
# may be.
_FEW, _MOST = 16, 128
_DTYPES = frozenset({"float32", "float64", "int32", "int64"})


def compute(attrs: TopKAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """Values and indices, by insertion; among equals the first stays first."""
    from tvm import te

    data = inputs[0]
    rows = [int(d) for d in data.shape[:-1]]
    values, indices = te.extern(
        [(*rows, attrs.k)] * 2,
        [data],
        lambda ins, outs: _scan(attrs, ins[0], *outs),
        dtype=[str(data.dtype), attrs.dtype],
        name="topk",
    )
    return {"values": [values], "indices": [indices]}.get(attrs.ret_type, [values, indices])


def _scan(attrs: TopKAttrs, data: Any, values: Any, indices: Any) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    *rows, extent = (int(d) for d in data.shape)
    count, k = 1, attrs.k
    for n in rows:
        count *= n

    def better(a: Any, b: Any) -> Any:
        return a < b if attrs.is_ascend else a > b

    with IRBuilder() as builder:
        source, best, places = (script.buffer_proxy(b) for b in (data, values, indices))

        def put(row: Any, slot: Any, element: Any) -> None:
            best[row * k + slot] = source[row * extent + element]
            places[row * k + slot] = tirx.Cast(attrs.dtype, element)

        def rise(row: Any, slot: Any) -> None:
            """Brings what stands in a slot before what it is better than."""
            with script.serial(0, slot) as step:
                above = row * k + (slot - 1 - step)
                with script.If(better(best[above + 1], best[above])), script.Then():
                    value, place = script.bind(best[above]), script.bind(places[above])
                    best[above] = best[above + 1]
                    places[above] = places[above + 1]
                    best[above + 1] = value
                    places[above + 1] = place

        parallel = count > 1 and count * extent * element_bytes(str(data.dtype)) >= PARALLEL_BYTES
        with (script.parallel if parallel else script.serial)(0, count) as row:
            with script.serial(0, k) as slot:
                put(row, slot, slot)
                rise(row, slot)
            with (
                script.serial(k, extent) as element,
                script.If(better(source[row * extent + element], best[row * k + (k - 1)])),
                script.Then(),
            ):
                put(row, k - 1, element)
                rise(row, k - 1)
        return builder.get()


def schedule(attrs: TopKAttrs, outs: Outs, target: Target) -> Any:
    """As it is written."""
    return new_schedule(outs)


@topk_strategy.register("cpu")
def topk_strategy_cpu(
    attrs: TopKAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The pass over rows where k is small, beside the generic one."""
    assert topk_strategy.default is not None
    strategy: OpStrategy = topk_strategy.default(attrs, inputs, out_type, target)
    data = inputs[0]
    if data.dtype in _DTYPES and attrs.k <= _MOST and rowwise(attrs.axis, inputs):
        plevel = 12 if attrs.k <= _FEW else 8
        strategy.add_implementation(compute, schedule, "topk_scan.cpu", plevel, symbolic=False)
    return strategy
