"""conv2d: direct, winograd and depthwise implementations, and the operators of its gradient."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.generic_func import GenericFunc, get_native_generic_func
from strategy.op import register_strategy
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d import depthwise, direct, gradient, winograd
from strategy.ops.conv2d.operator import Conv2DAttrs, conv2d
from strategy.pattern import schedule_plain_cpu
from strategy.target import Target
from strategy.types import TensorType, Type

__all__ = ["Conv2DAttrs", "conv2d", "conv2d_strategy", "depthwise", "direct", "gradient", "winograd"]

conv2d_strategy: GenericFunc = get_native_generic_func("conv2d_strategy")


@conv2d_strategy.register("cpu")
def conv2d_strategy_cpu(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """conv2d cpu strategy."""
    strategy = OpStrategy()
    strategy.add_implementation(direct.compute, schedule_plain_cpu, name="conv2d_nchw.cpu", plevel=10)
    if winograd.winograd_condition(attrs, inputs):
        strategy.add_implementation(
            winograd.compute,
            schedule_plain_cpu,
            name="conv2d_nchw_winograd.cpu",
            plevel=15,
            prepare=winograd.prepare,
        )
    if depthwise.is_depthwise(attrs, inputs):
        strategy.add_implementation(
            depthwise.compute, schedule_plain_cpu, name="depthwise_conv2d_nchw.cpu", plevel=15
        )
    return strategy


register_strategy("conv2d", conv2d_strategy)
