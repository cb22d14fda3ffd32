"""Zeros around the data of a convolution."""

from __future__ import annotations

from typing import Any

from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.schedule import stage


def pad_zeros(data: Any, padding: tuple[int, int, int, int]) -> Any:
    """The TE tensor [n, c, h, w] with zeros at top, left, bottom and right; itself without padding.

    A separate stage, as bound checks in the product would cost more than the copy.
    """
    from tvm import topi

    if not any(padding):
        return data
    top, left, bottom, right = padding
    return topi.nn.pad(data, (0, 0, top, left), (0, 0, bottom, right), name="padded", attrs=stage("padded"))


def pick_pixels(data: Any, attrs: Conv2DAttrs, out_h: Any, out_w: Any) -> Any:
    """The pixels that windows of one pixel see, next to each other: what a stride leaves out is not read again."""
    from tvm import te, tirx

    top, left, *_ = attrs.padding
    batch, channels, height, width = data.shape

    def pixel(n: Any, c: Any, h: Any, w: Any) -> Any:
        y, x = h * attrs.strides[0] - top, w * attrs.strides[1] - left
        if not any(attrs.padding):
            return data[n, c, y, x]
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.if_then_else(inside, data[n, c, y, x], tirx.const(0, data.dtype))

    return te.compute((batch, channels, out_h, out_w), pixel, name="padded", attrs=stage("padded"))


def pick_phases(data: Any, attrs: Conv2DAttrs, height: int, width: int) -> Any:
    """Images of every d-th row and column of the padded image, where windows have no dilation: [n d d, c, h, w]."""
    from tvm import te, tirx

    top, left, *_ = attrs.padding
    dilation_h, dilation_w = attrs.dilation
    batch, channels, data_h, data_w = data.shape
    phases = dilation_h * dilation_w

    def pixel(n: Any, c: Any, h: Any, w: Any) -> Any:
        y = h * dilation_h + n // dilation_w % dilation_h - top
        x = w * dilation_w + n % dilation_w - left
        inside = tirx.all(y >= 0, y < data_h, x >= 0, x < data_w)
        return tirx.if_then_else(inside, data[n // phases, c, y, x], tirx.const(0, data.dtype))

    shape = (batch * phases, channels, height, width)
    return te.compute(shape, pixel, name="padded", attrs=stage("padded"))


def schedule_padding(sch: Any, padded: Any, lanes: int) -> None:
    """Copy channels in parallel, rows by vectors."""
    n, c, _, x = sch.get_loops(padded)
    _, vector = sch.split(x, [None, lanes])
    sch.vectorize(vector)
    sch.parallel(sch.fuse(n, c))
