"""`conv2d_nchw.cpu`: the sum over the window as it is written, for all strides, dilations and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros
from strategy.pattern import in_float32
from strategy.types import TensorType


@in_float32
def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """The convolution of [n, c, h, w] with [o, c / groups, kh, kw]."""
    from tvm import te, topi

    data, weight = (t if t.dtype == out_type.dtype else topi.cast(t, out_type.dtype) for t in inputs)
    stride_h, stride_w = attrs.strides
    dilation_h, dilation_w = attrs.dilation
    out_channels, group_channels, height, width = weight.shape
    per_group = out_channels // attrs.groups
    padded = pad_zeros(data, attrs.padding)
    c = te.reduce_axis((0, group_channels), name="c")
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
                padded[
                    n,
                    c if attrs.groups == 1 else o // per_group * group_channels + c,
                    h * stride_h + y * dilation_h,
                    w * stride_w + x * dilation_w,
                ]
                * weight[o, c, y, x],
                axis=[c, y, x],
            ),
            name="conv2d",
        )
    ]
