"""`depthwise_conv2d_nchw.cpu`: each output channel sees one input channel, so nothing sums over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros
from strategy.pattern import in_float32
from strategy.types import TensorType, Type


def is_depthwise(attrs: Conv2DAttrs, inputs: Sequence[TensorType]) -> bool:
    """Whether every group has one input channel."""
    return attrs.groups > 1 and (inputs[0].shape[1] == attrs.groups).decide() is True


@in_float32
def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """The convolution of [n, c, h, w] with [c * multiplier, 1, kh, kw]."""
    from tvm import te

    data, weight = inputs
    stride_h, stride_w = attrs.strides
    dilation_h, dilation_w = attrs.dilation
    out_channels, _, height, width = weight.shape
    multiplier = out_channels // attrs.groups
    padded = pad_zeros(data, attrs.padding)
    y = te.reduce_axis((0, height), name="y")
    x = te.reduce_axis((0, width), name="x")
    shape = (
        data.shape[0],
        out_channels,
        (padded.shape[2] - (height - 1) * dilation_h - 1) // stride_h + 1,
        (padded.shape[3] - (width - 1) * dilation_w - 1) // stride_w + 1,
    )
    return [
        te.compute(
            shape,
            lambda n, o, h, w: te.sum(
                padded[n, o // multiplier, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w]
                * weight[o, 0, y, x],
                axis=[y, x],
            ),
            name="depthwise_conv2d",
        )
    ]
