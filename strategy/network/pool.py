"""Pools of images of one, two and three dimensions, as importers of models share them.

`padding` has all begins, then all ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED
from strategy.ops.window import sides_to_end


def pool(
    name: str, x: Expr, *, size: Sequence[int], strides: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], **attrs: Any,
) -> Expr:
    rank = len(size)
    if attrs.get("ceil_mode") and max(extents(x)[2:]) >= PROBED:
        return pool(
            name, x, size=size, strides=strides, padding=_to_any_end(padding, size, strides, dilation),
            dilation=dilation, **attrs | _without_end(attrs, padding),
        )
    if rank == 2:
        given = {"strides": strides, "padding": padding, "dilation": dilation}
        return call(name, x, pool_size=tuple(size), **{n: tuple(v) for n, v in given.items()}, **attrs)
    if rank == 1:
        lifted, (begin, end) = layer.reshape(x, (*extents(x)[:2], 1, extents(x)[2])), padding
        found = pool(
            name, lifted, size=(1, *size), strides=(1, *strides), padding=(0, begin, 0, end), dilation=(1, *dilation),
            **attrs,
        )
        return layer.reshape(found, (*extents(found)[:2], extents(found)[3]))
    if rank != 3:
        raise NetworkError(f"a pool of {rank} dimensions: plevel has one, two and three")
    # A window is a product of its sides: planes are pooled first, then what lies across them.
    (n, channels, depth, *image), (front, top, left, back, bottom, right) = extents(x), padding
    planes = pool(
        name, layer.reshape(x, (n, channels * depth, *image)), size=size[1:], strides=strides[1:],
        padding=(top, left, bottom, right), dilation=dilation[1:], **attrs,
    )
    image = list(extents(planes)[2:])
    found = pool(
        name, layer.reshape(planes, (n, channels, depth, math.prod(image))), size=(size[0], 1), strides=(strides[0], 1),
        padding=(front, 0, back, 0), dilation=(dilation[0], 1), **attrs,
    )
    return layer.reshape(found, (n, channels, extents(found)[2], *image))


def _to_any_end(
    padding: Sequence[int], size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """The padding at which as many windows fit as begin within an image of any size, or before it."""
    rank = len(size)
    ends = [behind + step - 1 for behind, step in zip(padding[rank:], strides, strict=True)]
    if any(end > (k - 1) * gap for end, k, gap in zip(ends, size, dilation, strict=True)):
        raise NetworkError(f"ceil_mode of windows of {list(size)} by {list(strides)} in images of a symbolic size")
    return (*padding[:rank], *ends)


def _without_end(attrs: Mapping[str, Any], padding: Sequence[int]) -> dict[str, Any]:
    """The attributes of a pool whose padding has what `ceil_mode` needs, which no mean counts."""
    if attrs.get("count_include_pad") and any(padding):
        raise NetworkError("ceil_mode with padding that is counted, in images of a symbolic size")
    return {"ceil_mode": False} | ({"count_include_pad": False} if "count_include_pad" in attrs else {})


def sum_pool(
    x: Expr, *, size: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool,
) -> Expr:
    """The sum of each window, which has zeros beyond the image."""
    if ceil_mode:
        image = extents(x)[2:]
        if max(image) >= PROBED:
            padding = _to_any_end(padding, size, strides, dilation)
        else:
            padding = sides_to_end(image, size, strides, dilation, padding)
    mean = pool(
        "avg_pool2d", x, size=size, strides=strides, padding=padding, dilation=dilation, count_include_pad=True
    )
    return call("multiply", mean, number(math.prod(size), mean))


def adaptive_places(x: Expr, size: Sequence[int]) -> Expr:
    """The place of the largest element of each window of an adaptive pool, as `largest_places` gives it.

    A window is a product of its sides: along the last axis, then across it. Of equals the first is in the first row.
    """
    image = extents(x)[2:]
    _require_fixed(image)
    found: Expr | None = None
    for axis, n, wanted in reversed([*zip(range(2, len(extents(x))), image, size, strict=True)]):
        begins = np.arange(wanted) * n // wanted
        ends = -(-(np.arange(wanted) + 1) * n // wanted)
        # Shorter windows have their last element several times.
        behind = np.arange((ends - begins).max())
        seen = call("take", x, Constant(np.minimum(begins[:, None] + behind, ends[:, None] - 1)), axis=axis)
        step = layer.reshape(_largest_along(seen, axis + 1), (*extents(seen)[: axis + 1], *extents(seen)[axis + 2 :]))
        beside = (wanted, *(1,) * (len(extents(x)) - 1 - axis))
        first, last = (Constant(n.reshape(beside)) for n in (begins, ends - 1))
        place = call("minimum", call("add", step, first), last)
        x = call("gather", x, place, axis=axis)
        if found is None:
            found = place
        else:
            rows = call("multiply", place, number(math.prod(image[axis - 1 :]), place))
            found = call("add", rows, call("gather", found, place, axis=axis))
    assert found is not None
    return found


def _largest_along(x: Expr, axis: int) -> Expr:
    """The place of the largest element along an axis, which is kept: of equals the first, of NaN the last."""
    about = {"axis": (axis,), "keepdims": True}
    missing = call("cast", call("isnan", x), dtype="int32")
    behind = call("argmax", call("reverse", missing, axis=axis), dtype="int64", **about)
    last = call("subtract", number(extents(x)[axis] - 1, behind), behind)
    is_missing = call("cast", call("max", missing, **about), dtype="bool")
    return call("where", is_missing, last, call("argmax", x, dtype="int64", **about))


def _require_fixed(image: Sequence[int]) -> None:
    if max(image) >= PROBED:
        raise NetworkError("places in images of a symbolic size: export the model with that size fixed")


def largest_places(
    x: Expr, *, size: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, by_columns: bool = False,
) -> Expr:
    """The place of each window's largest element in its image, whose places count row by row, as int64.

    It is the first of equals, and the last NaN, as in PyTorch. A step compares one place of all windows.

    Args:
        by_columns: places count along the first axis first.
    """
    rank, image, kind = len(size), extents(x)[2:], x.tensor_type.dtype
    _require_fixed(image)
    sides = sides_to_end(image, size, strides, dilation, padding) if ceil_mode else padding
    least = -math.inf if "float" in kind else int(np.iinfo(kind).min)
    around = ((0, 0), (0, 0), *zip(sides[:rank], sides[rank:], strict=True))
    padded = call("pad", x, pad_width=around, pad_value=float(least)) if any(sides) else x
    pitches = [math.prod(image[:axis] if by_columns else image[axis + 1 :]) for axis in range(rank)]
    reach = [(k - 1) * gap + 1 for k, gap in zip(size, dilation, strict=True)]
    counts = [(n - r) // step + 1 for n, r, step in zip(extents(padded)[2:], reach, strides, strict=True)]
    begins = [np.arange(n) * step - before for n, step, before in zip(counts, strides, sides[:rank], strict=True)]

    def places(along: Sequence[np.ndarray]) -> Constant:
        """The places in an image from those along its axes."""
        return Constant(sum(np.ix_(*(at * pitch for at, pitch in zip(along, pitches, strict=True)))))

    # At first the first place within the image, which stays if no element is greater than the least number.
    within = [b + -(np.minimum(b, 0) // gap) * gap for b, gap in zip(begins, dilation, strict=True)]
    shape = (*extents(x)[:2], *counts)
    found: Expr = layer.broadcast(places(within), shape)
    most = layer.filled(least, shape, kind)
    for place in product(*map(range, size)):
        steps = [k * gap for k, gap in zip(place, dilation, strict=True)]
        value = padded
        for axis, (begin, count, step) in enumerate(zip(steps, counts, strides, strict=True), 2):
            value = layer.take_slice(value, axis, begin, begin + (count - 1) * step + 1, step)
        wins = call("greater", value, most)
        wins = call("logical_or", wins, call("isnan", value)) if "float" in kind else wins
        most = call("where", wins, value, most)
        own = places([b + s for b, s in zip(begins, steps, strict=True)])
        found = call("where", wins, own, found)
    return found
