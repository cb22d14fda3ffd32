"""Operators of ATen that rank values, search among ordered ones, or run along an axis, as calls of plevel's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plevel.torch.aten import along_axis, cast, dtype_named, promoted, register, summed
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.scatter import require_few
from strategy.network.size import PROBED


@register("topk.default")
@along_axis
def _topk(x: Expr, k: int, axis: int = -1, largest: bool = True, ordered: bool = True) -> tuple[Expr, Expr]:
    found = layer.largest(x, k, axis, ascending=not largest)
    return call("gather", x, found, axis=axis), found


@register("sort.default")
@along_axis
def _sort(x: Expr, axis: int = -1, descending: bool = False) -> tuple[Expr, Expr]:
    found = call("argsort", x, axis=axis, is_ascend=not descending, dtype="int64")
    return call("gather", x, found, axis=axis), found


@register("sort.stable")
def _sort_stable(x: Expr, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Expr, Expr]:
    found: tuple[Expr, Expr] = _sort(x, dim, descending)
    return found


@register("kthvalue.default")
@along_axis
def _kth(x: Expr, k: int, axis: int = -1, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The k-th of the elements in ascending order, with its place; NaN is the largest."""
    axis %= len(extents(x))
    place = layer.take_slice(_sort(x, axis)[1], axis, k - 1, k)
    return _taken(x, place, axis, keepdim)


@register("median.dim")
@along_axis
def _median(x: Expr, axis: int = -1, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The lower one of two in the middle; NaN where there is one."""
    axis %= len(extents(x))
    place, n = _sort(x, axis)[1], extents(x)[axis]
    if n < PROBED:
        place = layer.take_slice(place, axis, (n - 1) // 2, (n + 1) // 2)
    else:
        middle = layer.reshape(_middle(layer.count(n, place)), (1,))
        place = call("take", place, middle, axis=axis)
    if "float" in x.tensor_type.dtype:
        missing = cast(call("isnan", x), "int32")
        first = call("argmax", missing, axis=(axis,), keepdims=True, dtype="int64")
        any_missing = call("max", missing, axis=(axis,), keepdims=True)
        place = call("where", cast(any_missing, "bool"), first, place)
    return _taken(x, place, axis, keepdim)


@register("nanmedian.dim")
@along_axis
def _median_of_numbers(x: Expr, axis: int = -1, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The median without NaN, or NaN where there is nothing else."""
    if "float" not in x.tensor_type.dtype:
        found: tuple[Expr, Expr] = _median(x, axis, keepdim)
        return found
    axis %= len(extents(x))
    missing = cast(call("isnan", x), "int64")
    count = call("sum", call("subtract", number(1, missing), missing), axis=(axis,), keepdims=True)
    middle = layer.clip(_middle(count), 0, None)
    return _taken(x, call("gather", _sort(x, axis)[1], middle, axis=axis), axis, keepdim)


@register("median.default")
def _median_of_all(x: Expr) -> Expr:
    found: Expr = _median(layer.reshape(x, (-1,)), 0)[0]
    return found


@register("nanmedian.default")
def _median_of_all_numbers(x: Expr) -> Expr:
    found: Expr = _median_of_numbers(layer.reshape(x, (-1,)), 0)[0]
    return found


@register("mode.default")
@along_axis
def _most_frequent(x: Expr, axis: int = -1, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The most frequent element of each row, the least of several such, with the last of its places."""
    axis %= len(extents(x))
    shape, kind = extents(x), x.tensor_type.dtype
    if max(shape) < PROBED:
        require_few(math.prod(shape) * shape[axis], f"the most frequent of {shape[axis]} elements in a row")
    each = [layer.reshape(x, (*shape[:i], 1, *shape[i:])) for i in (axis, axis + 1)]
    count = call("sum", cast(call("equal", *each), "int64"), axis=(axis + 1,), keepdims=False)
    is_most = call("equal", count, call("max", count, axis=(axis,), keepdims=True))
    end = number(math.inf if "float" in kind else np.iinfo(kind).max, x)
    least = call("min", call("where", is_most, x, end), axis=(axis,), keepdims=True)
    own = layer.reshape(layer.steps(0, shape[axis], 1, "int64"), (shape[axis], *(1,) * (len(shape) - 1 - axis)))
    place = call("where", call("equal", x, least), own, number(0, own))
    return _taken(x, call("max", place, axis=(axis,), keepdims=True), axis, keepdim)


def _middle(count: Expr) -> Expr:
    """The place in the middle of so many, the lower one of two."""
    return call("floor_divide", call("subtract", count, number(1, count)), number(2, count))


def _taken(x: Expr, place: Expr, axis: int, keepdim: bool) -> tuple[Expr, Expr]:
    """The elements at places along an axis, of which there is one for each row."""
    shape = [n for i, n in enumerate(extents(place)) if keepdim or i != axis]
    return layer.reshape(call("gather", x, place, axis=axis), shape), layer.reshape(place, shape)


@register("cumsum.default")
def _cumsum(x: Expr, axis: int, dtype: Any = None) -> Expr:
    return _scan("cumsum", x, axis, dtype)


@register("cumprod.default")
def _cumprod(x: Expr, axis: int, dtype: Any = None) -> Expr:
    return _scan("cumprod", x, axis, dtype)


def _scan(name: str, x: Expr, axis: int, dtype: Any) -> Expr:
    wanted = dtype_named(dtype, summed(x))
    if not extents(x):  # one element
        return cast(x, wanted)
    return call(name, cast(x, wanted) if x.tensor_type.dtype == "bool" else x, axis=axis, dtype=wanted)


@register("logcumsumexp.default")
@along_axis
def _log_of_running_sums(x: Expr, axis: int) -> Expr:
    """The logarithm of the running sum of exponentials, each by the greatest so far: each sees all before it."""
    axis %= len(extents(x))
    shape, n = extents(x), extents(x)[axis]
    if n < PROBED:
        require_few(math.prod(e for e in shape if e < PROBED) * n, f"running sums of exponentials along an axis of {n}")
    place, behind = layer.steps(0, n, 1, "int64"), (1,) * (len(shape) - 1 - axis)
    seen = call("less_equal", layer.reshape(place, (n, *behind)), layer.reshape(place, (n, 1, *behind)))
    beside = layer.reshape(x, (*shape[:axis], 1, *shape[axis:]))
    return call("logsumexp", call("where", seen, beside, number(-math.inf, x)), axis=(axis + 1,), keepdims=False)


@register("cummax.default")
@along_axis
def _running_maximum(x: Expr, axis: int) -> tuple[Expr, Expr]:
    """The largest elements so far, and the last places of each."""
    return _with_places(x, call("cummax", x, axis=axis), axis)


@register("cummin.default")
@along_axis
def _running_minimum(x: Expr, axis: int) -> tuple[Expr, Expr]:
    """The running minimum, as the maximum of the elements counted from the other end of their dtype."""
    kind = x.tensor_type.dtype
    if "float" in kind:
        return _with_places(x, call("negative", call("cummax", call("negative", x), axis=axis)), axis)
    ends = number(np.iinfo(kind).max if kind.startswith("u") else -1, x)
    return _with_places(x, call("subtract", ends, call("cummax", call("subtract", ends, x), axis=axis)), axis)


def _with_places(x: Expr, found: Expr, axis: int) -> tuple[Expr, Expr]:
    """The extremes so far, and the last place of each."""
    axis %= len(extents(x))
    n, new = extents(x)[axis], call("equal", x, found)
    if "float" in x.tensor_type.dtype:
        new = call("logical_or", new, call("isnan", x))
    place = layer.reshape(layer.steps(0, n, 1, "int64"), (n, *(1,) * (len(extents(x)) - 1 - axis)))
    return found, call("cummax", call("where", new, place, number(0, place)), axis=axis)


@register("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(x: Any, bounds: Expr, *, out_int32: bool = False, right: bool = False) -> Expr:
    return _search(bounds, x, out_int32, right)


@register("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    bounds: Expr, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Expr | None = None,
) -> Expr:
    if sorter is not None:
        bounds = call("gather", bounds, sorter, axis=len(extents(bounds)) - 1)
    return _search(bounds, x, out_int32, right or side == "right")


def _search(bounds: Expr, x: Any, out_int32: bool, right: bool) -> Expr:
    """The number of bounds below each element (or not above it, if `right`); of NaN, all of them."""
    bounds, x = promoted(bounds, x)
    *rows, n = extents(bounds)
    if max((*extents(x), n)) < PROBED:
        require_few(math.prod(extents(x)) * n, f"{math.prod(extents(x))} elements sought among {n} bounds")
    beside = layer.reshape(bounds, (*rows, 1, n)) if rows else bounds
    each = layer.reshape(x, (*extents(x), 1))
    behind = cast(call("greater" if right else "greater_equal", beside, each), "int64")
    count = call("sum", behind, axis=(len(extents(x)),), keepdims=False)
    return cast(call("subtract", layer.count(n, count), count), "int32" if out_int32 else "int64")
