"""Values written into places that indices name, by operators that move and choose, as importers of models share it.

Indices count from the front. For products and extremes each place looks at all that may go there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

Scatter = Callable[..., Expr]
MOST_PAIRS = 2**28


def require_few(pairs: int, what: str) -> None:
    """Refuse an operator that looks at each pair of a place and what goes there, where there are too many of them."""
    if pairs > MOST_PAIRS:
        raise NetworkError(f"{what}: plevel compares all pairs of them, at most {MOST_PAIRS}")


def _within(function: Scatter) -> Scatter:
    """The operator for indices with less rows than the tensor, which stays beyond them, or than what is written."""

    @wraps(function)
    def whole(x: Expr, axis: int, indices: Expr, source: Expr, *more: Any) -> Expr:
        if not extents(x):
            row, places, source = (layer.reshape(v, (1,)) for v in (x, indices, source))
            return layer.reshape(whole(row, 0, places, source, *more), ())
        axis %= len(extents(x))
        for other, extent in enumerate(extents(indices)):
            source = layer.take_slice(source, other, 0, extent)
            if other != axis and extent < extents(x)[other]:
                inner, beyond = layer.take_slice(x, other, 0, extent), layer.take_slice(x, other, extent, None)
                return layer.concatenate([whole(inner, axis, indices, source, *more), beyond], other)
        return function(x, axis, indices, source, *more)

    return whole


@_within
def add_elements(x: Expr, axis: int, indices: Expr, source: Expr) -> Expr:
    """The sum of each element and those that indices of its row along the axis send there."""
    if x.tensor_type.dtype == "bool":  # as 0 and 1
        x, source = (call("cast", v, dtype="int64") for v in (x, source))
        return call("cast", call("scatter_add", x, indices, source, axis=axis), dtype="bool")
    return call("scatter_add", x, indices, source, axis=axis)


@_within
def write_elements(x: Expr, axis: int, indices: Expr, source: Expr) -> Expr:
    """Each element, or the last of those that indices of its row along the axis send there."""
    if x.tensor_type.dtype == "bool":
        x, source = (call("cast", v, dtype="uint8") for v in (x, source))
        return call("cast", call("scatter", x, indices, source, axis=axis), dtype="bool")
    return call("scatter", x, indices, source, axis=axis)


@_within
def reduce_elements(x: Expr, axis: int, indices: Expr, source: Expr, name: str, own: bool = True) -> Expr:
    """The sum, product, mean, largest or smallest (`max`, `min`) of each element and those that are sent there.

    Args:
        own: False: of those that are sent there alone; a place that none is sent to stays as it is.
    """
    if x.tensor_type.dtype == "bool":  # as 0 and 1
        x, source = (call("cast", v, dtype="int64") for v in (x, source))
        return call("cast", reduce_elements(x, axis, indices, source, name, own), dtype="bool")
    if name in ("sum", "mean"):
        return _sum_elements(x, axis, indices, source, own, is_mean=name == "mean")
    _require_few(indices, extents(x)[axis])
    kind = x.tensor_type.dtype
    hits, shape = _hits(indices, extents(x)[axis], axis), extents(source)
    beside = layer.reshape(source, (*shape[:axis], 1, *shape[axis:]))
    least, greatest = (-math.inf, math.inf) if "float" in kind else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    combine, none = {"prod": ("multiply", 1), "max": ("maximum", least), "min": ("minimum", greatest)}[name]

    def over(values: Expr, how: str) -> Expr:
        found: Expr = call(how, values, axis=(axis + 1,), keepdims=False)
        return found

    found = over(call("where", hits, beside, number(none, x)), name)
    return call(combine, x, found) if own else call("where", over(hits, "any"), found, x)


def _sum_elements(x: Expr, axis: int, indices: Expr, source: Expr, own: bool, *, is_mean: bool) -> Expr:
    """The sum or mean as of `reduce_elements`, of numbers."""
    found = add_elements(x if own else call("zeros_like", x), axis, indices, source)
    if own and not is_mean:
        return found
    kind = x.tensor_type.dtype
    counted = kind if kind in ("float32", "float64") else "int64"
    none, one = (v if counted == kind else call("cast", v, dtype=counted) for v in (x, source))
    count = call("scatter_add", call("zeros_like", none), indices, call("ones_like", one), axis=axis)
    if is_mean:
        terms = layer.clip(call("add", count, number(own, count)), 1, None)
        terms = terms if counted == kind else call("cast", terms, dtype=kind)
        found = call("divide" if "float" in kind else "floor_divide", found, terms)
    return found if own else call("where", call("greater", count, number(0, count)), found, x)


def write_rows(x: Expr, places: Expr, source: Expr, accumulate: bool) -> Expr:
    """Rows of a matrix, or the last of those of `source` that go there; or the sum of all of them.

    Args:
        places: [m, 1], of the rows of `source`.
    """
    if accumulate:
        return add_elements(x, 0, layer.broadcast(places, extents(source)), source)
    rows, written = extents(x)[0], extents(source)[0]
    own, turns = layer.steps(0, rows, 1, "int64"), layer.steps(rows, rows + written, 1, "int64")
    chosen = call("scatter", own, layer.reshape(places, (written,)), turns, axis=0)
    return call("take", layer.concatenate([x, source], 0), chosen, axis=0)


def place_of(indices: Sequence[tuple[Expr, int]]) -> Expr:
    """The place in axes that are joined of an index along each, given with its extent; below 0 if one is beyond."""
    (place, _), *more = indices
    beyond = _beyond(*indices[0])
    for index, extent in more:
        place = call("add", call("multiply", place, layer.count(extent, place)), index)
        beyond = call("logical_or", beyond, _beyond(index, extent))
    return call("where", beyond, number(-1, place), place) if more else place


def _beyond(index: Expr, extent: int) -> Expr:
    return call(
        "logical_or", call("less", index, number(0, index)), call("greater_equal", index, layer.count(extent, index))
    )


def _require_few(indices: Expr, extent: int) -> None:
    if max(*extents(indices), extent) < PROBED:
        written = math.prod(extents(indices))
        require_few(written * extent, f"{written} elements written into an axis of {extent}")


def _hits(indices: Expr, extent: int, axis: int) -> Expr:
    """Return whether each index names each of the places of an axis, which stands before the one of the indices."""
    shape = extents(indices)
    beside = layer.reshape(indices, (*shape[:axis], 1, *shape[axis:]))
    own = layer.steps(0, extent, 1, indices.tensor_type.dtype)
    return call("equal", beside, layer.reshape(own, (extent, *(1,) * (len(shape) - axis))))
