"""Zeros around the data of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import round_up
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.schedule import compute_stage, stage
from strategy.space import Config

Padding = tuple[int, int, int, int]
Schedule = Callable[[Any, Any, int], None]


def pad_zeros(data: Any, padding: Padding) -> Any:
    """The TE tensor [n, c, h, w], or a blocked one, with zeros at top, left, bottom and right; itself without padding.

    A separate stage, as bound checks in the product would cost more than the copy.
    """
    from tvm import topi

    if not any(padding):
        return data
    top, left, bottom, right = padding
    blocks = (0,) * (len(data.shape) - 4)
    before, after = (0, 0, top, left, *blocks), (0, 0, bottom, right, *blocks)
    return topi.nn.pad(data, before, after, name="padded", attrs=stage("padded"))


def whole_padding(attrs: Any, image: Sequence[Any], outputs: Sequence[int], window: Sequence[int]) -> Padding:
    """The padding with which whole tiles read within the image; what they compute beyond the output is left out.

    Args:
        attrs: strides, dilation and padding.
        image: rows and columns of the data, not padded.
        outputs: those that the tiles compute.
        window: those of the weight.
    """
    top, left, bottom, right = attrs.padding
    down, across = (
        (count - 1) * stride + (size - 1) * dilation + 1 - int(extent)
        for extent, count, size, stride, dilation in zip(
            image, outputs, window, attrs.strides, attrs.dilation, strict=True
        )
    )
    return top, left, max(bottom, down - top), max(right, across - left)


def splits_columns(attrs: Conv2DAttrs, kernel_w: int) -> bool:
    """Return whether windows are read from an image whose columns are sorted by `read_windows`."""
    return attrs.strides[1] > 1 and kernel_w > 1


def padded_width(attrs: Conv2DAttrs, width: int, kernel_w: int) -> int:
    """The padded extent of rows of `width` pixels that `read_windows` needs."""
    extent = width + attrs.padding[1] + attrs.padding[3]
    return int(round_up(extent, attrs.strides[1])) if splits_columns(attrs, kernel_w) else extent


def read_windows(image: Any, attrs: Conv2DAttrs, kernel_w: int) -> Callable[..., Any]:
    """The pixel of a padded image at (n, channel, row and column in the window, row and column of the output).

    With a stride the image is first put as [n, c, h, stride, w / stride], each stride-th column together, so that
    neighbours in the output are neighbours there.
    """
    (stride_h, stride), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    if not splits_columns(attrs, kernel_w):
        return lambda n, c, y, x, h, w: image[n, c, h * stride_h + y * dilation_h, w * stride + x * dilation_w]
    batch, channels, height, width = image.shape
    split = compute_stage(
        "split", (batch, channels, height, stride, width // stride),
        lambda n, c, h, part, w: image[n, c, h, w * stride + part],
    )

    def pixel(n: Any, c: Any, y: Any, x: Any, h: Any, w: Any) -> Any:
        column = x * dilation_w
        return split[n, c, h * stride_h + y * dilation_h, column % stride, w + column // stride]

    return pixel


def pick_pixels(data: Any, attrs: Conv2DAttrs, out_h: Any, out_w: Any) -> Any:
    """The pixels that windows of one pixel see, next to each other: what a stride leaves out is not read again."""
    from tvm import tirx

    top, left, *_ = attrs.padding
    batch, channels, height, width = data.shape

    def pixel(n: Any, c: Any, h: Any, w: Any) -> Any:
        y, x = h * attrs.strides[0] - top, w * attrs.strides[1] - left
        if not any(attrs.padding):
            return data[n, c, y, x]
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.if_then_else(inside, data[n, c, y, x], tirx.const(0, data.dtype))

    return compute_stage("padded", (batch, channels, out_h, out_w), pixel)


def pick_phases(data: Any, attrs: Conv2DAttrs, height: int, width: int) -> Any:
    """Images of every d-th row and column of the padded image, where windows have no dilation: [n d d, c, h, w]."""
    from tvm import tirx

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
    return compute_stage("padded", shape, pixel)


def schedule_padding(sch: Any, padded: Any, lanes: int) -> None:
    """Copy channels in parallel, rows by vectors."""
    n, c, *_ = sch.get_loops(padded)
    copy_by_vectors(sch, padded, lanes)
    sch.parallel(sch.fuse(n, c))


def put_in_order(sch: Any, padded: Any, *, channels_last: bool) -> None:
    """Keep the padded image [n, c, h, w] in memory as tiles of all channels read it: [n, h, c, w], or [n, h, w, c]."""
    order = (0, 2, 3, 1) if channels_last else (0, 2, 1, 3)
    sch.transform_layout(padded, ("write", 0), lambda *axes: tuple(axes[i] for i in order))
    loops = sch.get_loops(padded)
    sch.reorder(*(loops[i] for i in order))


def schedule_split(sch: Any, split: Any, padded: Any, lanes: int, task: Any = None) -> None:
    """Pad a row and split it, in a `task` the rows it reads, else all in parallel; `padded` is None without padding."""
    if task is not None:
        sch.compute_at(split, task, preserve_unit_loops=True)
    n, c, y, *_ = sch.get_loops(split)[-5:]
    if padded is not None:
        sch.compute_at(padded, y, preserve_unit_loops=True)
        copy_by_vectors(sch, padded, lanes)
    copy_by_vectors(sch, split, lanes)
    if task is None:
        sch.parallel(sch.fuse(n, c, y))


def place_padding(
    sch: Any, padded: Any, config: Config, loops: tuple[Any, Any], lanes: int, apart: Schedule = schedule_padding
) -> None:
    """Pad, if there is padding, as the knob `pad` says: in a task, for a row of tiles, by bound checks, or `apart`."""
    if padded is None:
        return
    if config["pad"] == "inline":
        sch.compute_inline(padded)
    elif config["pad"] == "apart":
        apart(sch, padded, lanes)
    else:
        sch.compute_at(padded, loops[config["pad"] != "task"], preserve_unit_loops=True)
        copy_by_vectors(sch, padded, lanes)


def copy_by_vectors(sch: Any, block: Any, lanes: int) -> None:
    """Vectorise the last loop of a copy."""
    _, vector = sch.split(sch.get_loops(block)[-1], [None, lanes])
    sch.vectorize(vector)
