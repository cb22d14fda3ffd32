"""softmax on NVIDIA's GPUs: a block of threads for each row, which is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.limit import limits_of
from strategy.cuda.row import row_space, schedule_rows
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.softmax import SoftmaxAttrs, compute_softmax
from strategy.schedule import Outs
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


def softmax_strategy_cuda(
    attrs: SoftmaxAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """The implementation for NVIDIA's GPUs."""
    strategy = OpStrategy()
    strategy.add_implementation(compute, schedule, "softmax_rows.cuda", 10, space=space)
    return strategy


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """See `row_space`."""
    assert isinstance(attrs, SoftmaxAttrs)
    extent = inputs[0].shape[attrs.axis]
    return row_space(limits_of(target), int(extent) if extent.is_constant else None)


def compute(
    attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: Type, config: Config
) -> list[Any]:
    """The same on all targets."""
    return compute_softmax(attrs, inputs, out_type)


def schedule(attrs: SoftmaxAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_rows`."""
    return schedule_rows(outs, (attrs.axis % len(outs.args[0].shape),), config)


get_registered_op("softmax").get_attr("FTVMStrategy").register("cuda", softmax_strategy_cuda)
