"""argsort on NVIDIA's GPUs: the indices of topk, of as many elements as there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cuda.limit import limits_of
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.argsort.operator import ArgsortAttrs
from strategy.ops.topk.cuda import compute, schedule, sorts_that_fit, space
from strategy.ops.topk.merge_cuda import level_of_merge, schedule_merge, space_of_merge
from strategy.ops.topk.operator import TopKAttrs
from strategy.ops.topk.radix_cuda import level_of_radix, schedule_radix, space_of_radix
from strategy.schedule import Outs
from strategy.target import Target
from strategy.types import TensorType, Type


def argsort_strategy_cuda(
    attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The implementations for NVIDIA's GPUs: one where twice a row fits shared memory, two for long rows."""
    strategy = OpStrategy()
    kind = inputs[0]
    if not kind.is_constant or not kind.size:
        return strategy
    taken = _all_of(attrs, kind.concrete_shape)
    if sorts_that_fit(kind.dtype, taken.k, limits_of(target).shared_bytes):
        strategy.add_implementation(
            compute, _of_all(schedule), "argsort_sort.cuda", 10, version=2, space=_of_all(space),
            symbolic=False,
        )
    level = level_of_merge(kind.concrete_shape, taken.axis, limits_of(target))
    if level is not None:
        strategy.add_implementation(
            compute, _of_all(schedule_merge), "argsort_merge.cuda", level, version=2,
            space=_of_all(space_of_merge), symbolic=False,
        )
    level = level_of_radix(taken.k, taken.k, limits_of(target))
    if level is not None:
        strategy.add_implementation(
            compute, _of_all(schedule_radix), "argsort_radix.cuda", level, space=_of_all(space_of_radix),
            symbolic=False,
        )
    return strategy


def _all_of(attrs: ArgsortAttrs, shape: Sequence[int]) -> TopKAttrs:
    return TopKAttrs(
        k=shape[attrs.axis], axis=attrs.axis, ret_type="indices", is_ascend=attrs.is_ascend,
        dtype=attrs.dtype,
    )


def _of_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """A space or a schedule of topk, of all elements."""

    def argsorted(attrs: ArgsortAttrs, given: Any, *more: Any) -> Any:
        shape = given.args[0].shape if isinstance(given, Outs) else given[0].shape
        return function(_all_of(attrs, [int(e) for e in shape]), given, *more)

    return argsorted


get_registered_op("argsort").get_attr("FTVMStrategy").register(["cuda", "gpu"], argsort_strategy_cuda)
