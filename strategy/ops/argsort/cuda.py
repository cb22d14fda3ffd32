"""argsort on NVIDIA's GPUs: the indices of topk, of as many elements as there are."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.cuda.limit import limits_of
from strategy.cuda.template import Template
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.argsort.operator import ArgsortAttrs
from strategy.ops.topk.cuda import compute, schedule, sorts_that_fit, space
from strategy.ops.topk.merge_cuda import level_of_merge, schedule_merge, space_of_merge
from strategy.ops.topk.operator import TopKAttrs
from strategy.schedule import Outs
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def argsort_strategy_cuda(
    attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The implementations for NVIDIA's GPUs: one where twice a row fits shared memory, one for long rows."""
    strategy = OpStrategy()
    kind = inputs[0]
    if not kind.is_constant:
        return strategy
    taken = _all_of(attrs, kind.concrete_shape)
    if sorts_that_fit(kind.dtype, taken.k, limits_of(target).shared_bytes):
        strategy.add_implementation(
            compute, schedule_argsort, "argsort_sort.cuda", 10, version=2, space=space_of_argsort,
            symbolic=False,
        )  # fmt: skip
    level = level_of_merge(kind.concrete_shape, taken.axis, limits_of(target))
    if level is not None:
        strategy.add_implementation(
            compute, schedule_argsort_merge, "argsort_merge.cuda", level, version=2,
            space=space_of_argsort_merge, symbolic=False,
        )  # fmt: skip
    return strategy


def _all_of(attrs: ArgsortAttrs, shape: Sequence[int]) -> TopKAttrs:
    return TopKAttrs(
        k=shape[attrs.axis], axis=attrs.axis, ret_type="indices", is_ascend=attrs.is_ascend,
        dtype=attrs.dtype,
    )  # fmt: skip


def space_of_argsort(
    attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space of the k largest, of all elements."""
    return space(_all_of(attrs, inputs[0].concrete_shape), inputs, out_type, target)


def schedule_argsort(attrs: ArgsortAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernel of the k largest, of all elements."""
    return schedule(_all_of(attrs, [int(e) for e in outs.args[0].shape]), outs, target, config)


def space_of_argsort_merge(
    attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space of merging, of all elements."""
    return space_of_merge(_all_of(attrs, inputs[0].concrete_shape), inputs, out_type, target)


def schedule_argsort_merge(attrs: ArgsortAttrs, outs: Outs, target: Target, config: Config) -> Template:
    """The kernels of merging, of all elements."""
    shape = [int(e) for e in outs.args[0].shape]
    return schedule_merge(_all_of(attrs, shape), outs, target, config)


get_registered_op("argsort").get_attr("FTVMStrategy").register(["cuda", "gpu"], argsort_strategy_cuda)
