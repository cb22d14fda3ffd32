"""`depthwise_separable_conv2d_nchwc.cuda`: both convolutions by their definition, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.layout import laid_out_view, plain, plain_view
from strategy.ops.conv2d.pad import pad_zeros
from strategy.ops.depthwise_separable_conv2d.operator import DepthwiseSeparableConv2DAttrs
from strategy.ops.depthwise_separable_conv2d.rows import activate
from strategy.pattern import in_float32
from strategy.types import TensorType


@in_float32
def compute(attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """The sums of the windows, their activation, and the sums of their product."""
    from tvm import te

    data, depthwise, bias, pointwise = inputs
    batch, out_channels, height, width = (int(d) for d in plain(out_type.shape, attrs.out_layout))
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    padded = pad_zeros(plain_view(data, attrs.data_layout), attrs.padding)
    channels, _, kernel_h, kernel_w = (int(d) for d in depthwise.shape)
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    sums = te.compute(
        (batch, channels, height, width),
        lambda n, c, h, w: te.sum(
            padded[n, c, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w] * depthwise[c, 0, y, x],
            axis=[y, x],
        ),
        name="sums",
    )
    k = te.reduce_axis((0, channels), name="k")
    product = te.compute(
        (batch, out_channels, height, width),
        lambda n, o, h, w: te.sum(
            activate(sums[n, k, h, w] + bias[k], attrs.activation) * pointwise[o, k, 0, 0], axis=k
        ),
        name="product",
    )
    return [laid_out_view(product, attrs.out_layout)]
