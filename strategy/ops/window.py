"""Windows that slide over two axes, as convolutions and pooling share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import field, repeated

pair = repeated(2)
_FARTHEST = 2**24  # code has places within a padded image in 32 bits, also of the last of a tile's 128 windows


def four_sides(value: Any) -> Any:
    """Padding as (top, left, bottom, right), from one number, (vertical, horizontal), or all four."""
    value = pair(value)
    if isinstance(value, tuple | list) and len(value) == 2:
        return (value[0], value[1], value[0], value[1])
    return value


def distances(default: Any = (1, 1), description: str = "Distance of the window's elements") -> Any:
    """Declare numbers of rows and columns, such as steps of the window, of which one stands for both."""
    return field(default, description, lower=1, upper=_FARTHEST, form=pair)


def padding_sides(description: str = "Top, left, bottom, right; or vertical, horizontal; or one number") -> Any:
    """Declare padding, by default none."""
    return field((0, 0, 0, 0), description, lower=0, upper=_FARTHEST, form=four_sides)


def sides_to_end(
    image: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int], padding: Sequence[int]
) -> tuple[int, ...]:
    """The padding, all begins, then all ends, with what the last windows need.

    Windows begin in the image, or before it, and may end beyond it and its padding.
    """
    rank, ends = len(window), []
    for axis, size in enumerate(image):
        step, before, behind = strides[axis], padding[axis], padding[rank + axis]
        room = size + before + behind - (window[axis] - 1) * dilation[axis] - 1
        count = min(-(-room // step) + 1, -(-(size + before) // step))
        ends.append(behind + max((count - 1) * step - room, 0))
    return (*padding[:rank], *ends)


def windowed_extents(
    attrs: Any, image: Sequence[Any], window: Sequence[Any], sides: Sequence[int] | None = None
) -> list[Any]:
    """Numbers of windows that fit an image down and across: of integers, dimensions, or TE expressions.

    Args:
        attrs: strides, dilation and padding.
        image: its height and width.
        window: its height and width.
        sides: the padding; default: that of `attrs`.
    """
    sides = attrs.padding if sides is None else sides
    return [
        _windowed_extent(image[i], window[i], attrs.strides[i], attrs.dilation[i], sides[i], sides[2 + i])
        for i in range(2)
    ]


def _windowed_extent(extent: Any, kernel: Any, stride: int, dilation: int, before: int, after: int) -> Any:
    more = before + after - (kernel - 1) * dilation - 1
    if getattr(more, "value", None) is not None:
        more = int(more.value)  # so that a symbolic extent stays short: (h - 2) // 2 + 1
    room = extent - -more if isinstance(more, int) and more < 0 else extent + more
    return room // stride + 1


def windows(
    data: Any,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    fill: float = 0,
) -> Any:
    """All windows of a NumPy array [n, c, h, w], as a view [n, c, out_h, out_w, kernel_h, kernel_w]."""
    import numpy as np

    top, left, bottom, right = padding
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilation[0], :: dilation[1]]
