"""Layouts of images: NCHW, NHWC, and the blocked NCHW8c and NCHW16c.

A blocked image is [n, c / 16, h, w, 16]: the channels of a block lie together at each pixel, so that vectors of them
are read as they lie, in images of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from strategy.op import TypeReporter
from strategy.type_relation import require_rank
from strategy.types import Dim, TensorType

PLAIN = "NCHW"
LAYOUTS = (PLAIN, "NHWC", "NCHW8c", "NCHW16c")


def block_of(layout: str) -> int:
    """The number of channels that lie together; 1 where all do, or none."""
    return int(layout[4:-1] or 1)


def plain(shape: Sequence[Any], layout: str) -> list[Any]:
    """The extents of images of a layout, in the order of NCHW."""
    n, c, h, w = (shape[layout.index(axis)] for axis in PLAIN)
    return [n, c if block_of(layout) == 1 else c * block_of(layout), h, w]


def laid_out(shape: Sequence[Any], layout: str) -> list[Any]:
    """The extents of images [n, c, h, w] in a layout, whose blocks divide the channels."""
    block, (n, c, h, w) = block_of(layout), shape
    return [n, c // block, h, w, block] if block > 1 else [shape[PLAIN.index(axis)] for axis in layout]


def plain_index(index: Sequence[Any], layout: str) -> list[Any]:
    """The place in NCHW of an element of a layout."""
    n, c, h, w = (index[layout.index(axis)] for axis in PLAIN)
    return [n, c if block_of(layout) == 1 else c * block_of(layout) + index[4], h, w]


def laid_out_index(index: Sequence[Any], layout: str) -> list[Any]:
    """The place in a layout of an element of NCHW."""
    block, (n, c, h, w) = block_of(layout), index
    return [n, c // block, h, w, c % block] if block > 1 else [index[PLAIN.index(axis)] for axis in layout]


def plain_type(kind: TensorType, layout: str) -> TensorType:
    return TensorType(plain(kind.shape, layout), kind.dtype)


def plain_array(array: Any, layout: str) -> Any:
    """A NumPy array of a layout as one of NCHW."""
    if block_of(layout) > 1:
        return array.transpose(0, 1, 4, 2, 3).reshape(plain(array.shape, layout))
    return array.transpose([layout.index(axis) for axis in PLAIN])


def laid_out_array(array: Any, layout: str) -> Any:
    """A NumPy array of NCHW as one of a layout."""
    if block_of(layout) > 1:
        n, c, h, w, block = laid_out(array.shape, layout)
        return array.reshape(n, c, block, h, w).transpose(0, 1, 3, 4, 2)
    return array.transpose([PLAIN.index(axis) for axis in layout])


def plain_view(tensor: Any, layout: str) -> Any:
    """A TE tensor of a layout read as one of NCHW."""
    if layout == PLAIN:
        return tensor
    return _view(plain(tensor.shape, layout), lambda *i: tensor(*laid_out_index(i, layout)))


def laid_out_view(tensor: Any, layout: str) -> Any:
    """A TE tensor of NCHW read as one of a layout."""
    if layout == PLAIN:
        return tensor
    return _view(laid_out(tensor.shape, layout), lambda *i: tensor(*plain_index(i, layout)))


def _view(shape: Sequence[Any], element: Callable[..., Any]) -> Any:
    from tvm import te, topi

    return te.compute(shape, element, name="view", tag=topi.tag.INJECTIVE)


def transform_image(sch: Any, output: Any, layout: str, places: Callable[..., tuple[Any, ...]]) -> None:
    """Have a block go over the `places` of n, c, h and w, in place of the axes of the layout."""
    if block_of(layout) > 1:
        sch.transform_block_layout(output, lambda n, c, h, w, i: places(*plain_index((n, c, h, w, i), layout)))
    else:
        sch.transform_block_layout(output, lambda a, b, c, d: places(*plain_index((a, b, c, d), layout)))


def in_layouts(compute: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The compute of images [n, c, h, w] for images of the attribute `layout`, which are read and written in place."""

    @wraps(compute)
    def of_any(attrs: Any, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
        if attrs.layout == PLAIN:
            return compute(attrs, inputs, out_type)
        found = compute(attrs, [plain_view(t, attrs.layout) for t in inputs], plain_type(out_type, attrs.layout))
        return [laid_out_view(t, attrs.layout) for t in found]

    return of_any


def named_axes(layout: str) -> str:
    """The axes of a layout in words."""
    block = block_of(layout)
    names = {"N": "batch", "C": "channels" if block == 1 else f"channels / {block}", "H": "height", "W": "width"}
    return f"[{', '.join([names[axis] for axis in layout[:4]] + [str(block)] * (block > 1))}]"


def require_layout(reporter: TypeReporter, index: int, kind: TensorType, layout: str) -> TensorType:
    """The type in NCHW of an image; raise `TypeRelationError` unless the argument at `index` has the layout."""
    block = block_of(layout)
    require_rank(reporter, index, kind, 4 + (block > 1), named_axes(layout))
    if block > 1:
        reporter.check(kind.shape[4] == block, index, f"its blocks are not of {block} channels: {named_axes(layout)}")
    return plain_type(kind, layout)


def require_blocks(reporter: TypeReporter, index: int, channels: Dim, layout: str) -> None:
    """Raise `TypeRelationError` for the argument at `index` unless blocks of a layout divide the channels."""
    fits = channels % block_of(layout) == 0
    reporter.check(fits, index, f"its channels do not divide into blocks of {layout}: use another layout")
