"""Images of one, two and three dimensions at other sizes, as importers of models share it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.normal import extents


def resize(x: Expr, size: Sequence[int], scales: Sequence[float | None], **attrs: Any) -> Expr:
    """An image of one, two or three dimensions at another size; scales that are given must be the sizes' ratio."""
    for extent, wanted, scale in zip(extents(x)[2:], size, scales, strict=True):
        if scale is not None and not math.isclose(extent * scale, wanted, rel_tol=1e-6):
            raise NetworkError(f"a scale of {scale:g} for {extent} to {wanted} pixels: give sizes, or a whole ratio")
    shape = extents(x)
    if len(shape) == 3:
        found = resize(layer.reshape(x, (*shape[:2], 1, shape[2])), (1, *size), (None, *scales), **attrs)
        return layer.reshape(found, (*shape[:2], size[0]))
    if len(shape) == 5:  # of the planes, then across them
        n, channels, depth, *image = shape
        planes = resize(layer.reshape(x, (n, channels * depth, *image)), size[1:], scales[1:], **attrs)
        area = size[1] * size[2]
        found = resize(layer.reshape(planes, (n, channels, depth, area)), (size[0], area), (scales[0], None), **attrs)
        return layer.reshape(found, (n, channels, *size))
    if len(shape) != 4:
        raise NetworkError(f"an image of {len(shape) - 2} dimensions is resized: plevel has one, two and three")
    if tuple(size) == shape[2:]:
        return x
    return call("resize2d", x, size=tuple(int(n) for n in size), **attrs)
