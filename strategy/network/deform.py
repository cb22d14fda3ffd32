"""Convolutions whose windows' elements lie where offsets move them, as importers of models share them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategy.expr import Constant, Expr, Tuple, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


def deformable_convolution(
    x: Expr, weight: Expr, offsets: Expr, mask: Expr | None, bias: Expr | None, *, strides: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int, offset_groups: int,
) -> Expr:
    """A product of the weight with samples between pixels, which are 0 beyond the image.

    Args:
        x: [batch, channels, height, width].
        offsets: [batch, offset groups · elements of a window · 2, rows, columns], down and across of each element.
        mask: [batch, offset groups · elements of a window, rows, columns], a factor of each sample.
        padding: that above the image, and that before its columns.
    """
    dtype = x.tensor_type.dtype
    (batch, channels, *image), window, (*_, rows, columns) = extents(x), extents(weight)[2:], extents(offsets)
    if max(*image, rows, columns) >= PROBED:
        raise NetworkError("a deformable convolution of a symbolic size: export the model with that size fixed")
    places, images = window[0] * window[1], batch * offset_groups
    moved = layer.reshape(_wide(offsets), (images, places, 2, rows, columns))
    elements = np.indices(window).reshape(2, places)
    pair = []
    for axis, (count, extent) in enumerate(zip((rows, columns), image, strict=True)):
        begins = np.arange(count) * strides[axis] - padding[axis]
        still = (elements[axis, :, None] * dilation[axis] + begins).reshape(1, places, *((count, 1), (1, count))[axis])
        offset = layer.reshape(layer.take_slice(moved, 2, axis, axis + 1), (images, places, rows, columns))
        place = call("add", offset, Constant(still.astype(offset.tensor_type.dtype)))
        # From -1 to 1 between the outer edges of the image.
        edge = call("multiply", call("add", place, number(0.5, place)), number(2 / extent, place))
        pair.append(call("subtract", edge, number(1, edge)))
    grid = layer.reshape(call("stack", Tuple(pair[::-1]), axis=4), (images, places * rows, columns, 2))
    split = layer.reshape(_wide(x), (images, channels // offset_groups, *image))
    found: Expr = call("grid_sample", split, grid)
    if mask is not None:
        found = call("multiply", found, layer.reshape(_wide(mask), (images, 1, places * rows, columns)))
    found = layer.reshape(found, (batch, channels * places, rows, columns))
    found = found if found.tensor_type.dtype == dtype else call("cast", found, dtype=dtype)
    flat = layer.reshape(weight, (extents(weight)[0], extents(weight)[1] * places, 1, 1))
    return layer.convolution(
        found, flat, bias, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=groups
    )


def _wide(x: Expr) -> Expr:
    return call("cast", x, dtype="float32") if x.tensor_type.dtype in ("float16", "bfloat16") else x
