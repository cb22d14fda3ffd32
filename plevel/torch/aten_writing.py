"""Operators of ATen that write values into a tensor's places, as calls of plevel's, which move and choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from plevel.torch.aten import cast, register, require_few
from plevel.torch.aten_movement import counted, side_by_side
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.normal import extents
from strategy.network.size import PROBED

Scatter = Callable[..., Expr]


@register("copy.default")
def _copy(x: Expr, source: Expr, *_: Any) -> Expr:
    return layer.broadcast(cast(source, x.tensor_type.dtype), extents(x))


@register("slice_scatter.default")
def _slice_scatter(
    x: Expr, source: Expr, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Expr:
    if step != 1:
        raise NetworkError(f"every {step} elements of an axis are written: plevel writes those side by side")
    axis %= len(extents(x))
    first, behind, _ = slice(start, end).indices(extents(x)[axis])
    if first >= behind:
        return x
    whole = [layer.take_slice(x, axis, 0, first), source, layer.take_slice(x, axis, behind, None)]
    return layer.concatenate([part for part in whole if extents(part)[axis]], axis)


@register("select_scatter.default")
def _select_scatter(x: Expr, source: Expr, axis: int, index: int) -> Expr:
    axis %= len(extents(x))
    at = index % extents(x)[axis]
    row = layer.reshape(source, [1 if i == axis else n for i, n in enumerate(extents(x))])
    found: Expr = _slice_scatter(x, row, axis, at, at + 1)
    return found


@register("index_put.default")
def _index_put(x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False) -> Expr:
    """Elements by tensors of indices, of axes side by side, or by a mask if one number is written."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any(i.tensor_type.dtype == "bool" for _, i in given):
        return _masked(x, given, values, accumulate)
    first, behind = side_by_side(given)
    shape, own = np.broadcast_shapes(*(extents(i) for _, i in given)), extents(x)
    rest = (*own[:first], *own[behind:])
    place: Expr | None = None
    for axis, index in given:
        one = layer.broadcast(cast(counted(index, own[axis]), "int64"), shape)
        place = one if place is None else call("add", call("multiply", place, layer.count(own[axis], place)), one)
    assert place is not None
    axes = [*range(first, behind), *range(first), *range(behind, len(own))]
    rows, columns = math.prod(own[first:behind]), math.prod(rest)
    into = layer.reshape(layer.transpose(x, axes), (rows, columns))
    # Values have the shape of the elements that are read so.
    wide = layer.broadcast(cast(values, x.tensor_type.dtype), (*own[:first], *shape, *own[behind:]))
    n = len(shape)
    moved = layer.transpose(wide, [*range(first, first + n), *range(first), *range(first + n, len(extents(wide)))])
    source = layer.reshape(moved, (math.prod(shape), columns))
    place = layer.reshape(place, (math.prod(shape), 1))
    if accumulate:
        found = _added(into, 0, layer.broadcast(place, extents(source)), source)
    else:
        chosen = layer.reshape(_writers(place, (rows, 1), 0), (rows,))
        found = call("take", layer.concatenate([into, source], 0), chosen, axis=0)
    back = layer.reshape(found, (*own[first:behind], *rest))
    return layer.transpose(back, np.argsort(axes).tolist())


def _masked(x: Expr, given: Sequence[tuple[int, Expr]], values: Expr, accumulate: bool) -> Expr:
    (axis, mask), *more = given
    if more or axis or math.prod(extents(values)) != 1:
        raise NetworkError("values are written by a mask: which goes where depends on the mask's values")
    mask = layer.reshape(mask, (*extents(mask), *(1,) * (len(extents(x)) - len(extents(mask)))))
    value = layer.reshape(cast(values, x.tensor_type.dtype), ())
    return call("where", mask, call("add", x, value) if accumulate else value, x)


def _added(x: Expr, axis: int, indices: Expr, source: Expr) -> Expr:
    _require_few(indices, extents(x)[axis])
    return call("scatter_add", x, indices, source, axis=axis)


def _require_few(indices: Expr, extent: int) -> None:
    pairs = math.prod(extents(indices)) * extent
    if max(*extents(indices), extent) < PROBED:
        require_few(pairs, f"{math.prod(extents(indices))} elements written into an axis of {extent}")


def _hits(indices: Expr, extent: int, axis: int) -> Expr:
    """Whether each index names each of the places of an axis, which stands before the one of the indices."""
    shape = extents(indices)
    _require_few(indices, extent)
    beside = layer.reshape(indices, (*shape[:axis], 1, *shape[axis:]))
    own = layer.steps(0, extent, 1, indices.tensor_type.dtype)
    return call("equal", beside, layer.reshape(own, (extent, *(1,) * (len(shape) - axis))))


def _writers(indices: Expr, shape: Sequence[int], axis: int) -> Expr:
    """The place of each element, in the tensor with what is written behind it along the axis; the last one wins."""
    extent, written = shape[axis], extents(indices)[axis]
    tail = (1,) * (len(shape) - 1 - axis)
    turn = layer.reshape(layer.steps(1, written + 1, 1, "int64"), (written, *tail))
    last = call("where", _hits(indices, extent, axis), turn, number(0, turn))
    last = call("max", last, axis=(axis + 1,), keepdims=False)
    own = layer.reshape(layer.steps(0, extent, 1, "int64"), (extent, *tail))
    behind = call("add", last, number(extent - 1, last))
    return call("where", call("greater", last, number(0, last)), behind, own)


def _within(function: Scatter) -> Scatter:
    """The operator for indices with less rows than the tensor, which stays beyond them, or than what is written."""

    @wraps(function)
    def whole(x: Expr, axis: int, indices: Expr, source: Any, *more: Any, **named: Any) -> Expr:
        if not extents(x):
            row, places = layer.reshape(x, (1,)), layer.reshape(indices, (1,))
            source = layer.reshape(source, (1,)) if isinstance(source, Expr) else source
            return layer.reshape(whole(row, 0, places, source, *more, **named), ())
        axis %= len(extents(x))
        for other, extent in enumerate(extents(indices)):
            source = layer.take_slice(source, other, 0, extent) if isinstance(source, Expr) else source
            if other != axis and extent < extents(x)[other]:
                inner, beyond = layer.take_slice(x, other, 0, extent), layer.take_slice(x, other, extent, None)
                return layer.concatenate([whole(inner, axis, indices, source, *more, **named), beyond], other)
        return function(x, axis, indices, source, *more, **named)

    return whole


@register("scatter_add.default")
@_within
def _scatter_add(x: Expr, axis: int, indices: Expr, source: Expr) -> Expr:
    return _added(x, axis, indices, source)


@register("scatter.src", "scatter.value")
@_within
def _scatter(x: Expr, axis: int, indices: Expr, source: Any) -> Expr:
    if not isinstance(source, Expr):
        source = layer.filled(source, extents(indices), x.tensor_type.dtype)
    return call("gather", layer.concatenate([x, source], axis), _writers(indices, extents(x), axis), axis=axis)


@register("scatter_reduce.two")
@_within
def _scatter_reduce(
    x: Expr, axis: int, indices: Expr, source: Expr, reduce: str, *, include_self: bool = True
) -> Expr:
    if reduce not in ("sum", "amax", "amin") or not include_self:
        own = "" if include_self else " without the tensor's own elements"
        raise NetworkError(f"a scatter that reduces by {reduce!r}{own}: plevel has sum, amax and amin with them")
    if reduce == "sum":
        return _added(x, axis, indices, source)
    kind = x.tensor_type.dtype
    if "float" not in kind:
        raise NetworkError(f"a scatter of {kind} that reduces by {reduce!r}: plevel has it of floats")
    shape = extents(source)
    beside = layer.reshape(source, (*shape[:axis], 1, *shape[axis:]))
    none = number(-math.inf if reduce == "amax" else math.inf, x)
    kept = call("where", _hits(indices, extents(x)[axis], axis), beside, none)
    found = call("max" if reduce == "amax" else "min", kept, axis=(axis + 1,), keepdims=False)
    return call("maximum" if reduce == "amax" else "minimum", x, found)
