"""depthwise_separable_conv2d: a depthwise convolution, then a pointwise (1×1) one, of blocked images as one kernel.

    depthwise_separable_conv2d_nchwc.cpu     rows of the image between at a time, which is never in memory
    depthwise_separable_conv2d_nchwc.cuda    one after the other

As the blocks of MobileNet have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.cpu.widened import for_types
from strategy.cuda.schedule import schedule_plain_cuda
from strategy.generic_func import GenericFunc
from strategy.op import register_strategy
from strategy.op_strategy import OpStrategy
from strategy.ops.depthwise_separable_conv2d import plain, rows
from strategy.ops.depthwise_separable_conv2d.operator import (
    DepthwiseSeparableConv2DAttrs,
    depthwise_separable_conv2d,
)
from strategy.target import Target
from strategy.types import TensorType

__all__ = ["DepthwiseSeparableConv2DAttrs", "depthwise_separable_conv2d", "plain", "rows"]

depthwise_separable_conv2d_strategy = GenericFunc("depthwise_separable_conv2d_strategy")


@depthwise_separable_conv2d_strategy.register("cpu")
def depthwise_separable_conv2d_strategy_cpu(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementation for processors, of fixed shapes."""
    strategy = OpStrategy()
    if _is_fixed(inputs):
        strategy.add_implementation(
            rows.compute, rows.schedule, "depthwise_separable_conv2d_nchwc.cpu", 10, space=rows.space,
            prepare=rows.prepare,
        )
    return for_types(strategy, inputs)


@depthwise_separable_conv2d_strategy.register(["cuda", "gpu"])
def depthwise_separable_conv2d_strategy_cuda(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementation for NVIDIA's GPUs, of fixed shapes."""
    strategy = OpStrategy()
    if _is_fixed(inputs):
        strategy.add_implementation(plain.compute, schedule_plain_cuda, "depthwise_separable_conv2d_nchwc.cuda", 5)
    return strategy


def _is_fixed(inputs: Sequence[TensorType]) -> bool:
    return all(kind.is_constant for kind in inputs)


register_strategy("depthwise_separable_conv2d", depthwise_separable_conv2d_strategy)
