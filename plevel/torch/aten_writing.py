"""Operators of ATen that write values into a tensor's places, as calls of plevel's, which move and choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from plevel.torch.aten import cast, register
from plevel.torch.aten_movement import counted, indexed_first, places_in_memory
from strategy.expr import Call, Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.scatter import (
    add_elements,
    place_of,
    reduce_elements,
    write_elements,
    write_rows,
)
from strategy.network.size import PROBED


@register("copy.default")
def _copy(x: Expr, source: Expr, *_: Any) -> Expr:
    return layer.broadcast(cast(source, x.tensor_type.dtype), extents(x))


@register("slice_scatter.default")
def _slice_scatter(
    x: Expr, source: Expr, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Expr:
    axis %= len(extents(x))
    extent = extents(x)[axis]
    if step != 1 and extent >= PROBED:
        raise NetworkError(f"a slice of step {step} of a symbolic axis is written: plevel writes slices of step 1")
    first, behind, _ = slice(start, end).indices(extent)
    if first >= behind:
        return x
    if step != 1:
        places = np.arange(extent)
        places[first:behind:step] = extent + np.arange(len(range(first, behind, step)))
        return call("take", layer.concatenate([x, source], axis), Constant(places), axis=axis)
    whole = [layer.take_slice(x, axis, 0, first), source, layer.take_slice(x, axis, behind, None)]
    return layer.concatenate([part for part in whole if extents(part)[axis]], axis)


@register("diagonal_scatter.default")
def _diagonal_scatter(x: Expr, source: Expr, offset: int = 0, first: int = 0, second: int = 1) -> Expr:
    rank = len(extents(x))
    axes = [axis for axis in range(rank) if axis not in (first % rank, second % rank)] + [first % rank, second % rank]
    into = layer.transpose(x, axes)
    rows, columns = (layer.steps(0, n, 1, "int64") for n in extents(into)[-2:])
    row = layer.reshape(rows, (-1, 1))
    place = call("subtract", rows, number(max(-offset, 0), rows))
    # The source's last axis as the rows, of which those without an element of the diagonal read any.
    beside = call("take", cast(source, x.tensor_type.dtype), layer.clip(place, 0, None), axis=rank - 2)
    is_on = call("equal", call("add", row, number(offset, row)), columns)
    found = call("where", is_on, layer.reshape(beside, (*extents(beside), 1)), into)
    return layer.transpose(found, np.argsort(axes).tolist())


@register("as_strided_scatter.default")
def _as_strided_scatter(
    x: Expr, source: Expr, shape: Sequence[int], steps: Sequence[int], offset: int | None, own: Sequence[int]
) -> Expr:
    """Elements by their places in the memory of x, which has the strides `own`, as a filled diagonal's."""
    size = math.prod(extents(x))
    is_fixed = max((*extents(x), *shape), default=0) < PROBED
    row_major = [math.prod(extents(x)[axis + 1 :]) for axis in range(len(own))]
    is_whole = all(n == 1 or a == b for n, a, b in zip(extents(x), own, row_major, strict=True))
    written = places_in_memory(shape, steps) + (offset or 0) if is_fixed and is_whole else None
    if written is None or written.max(initial=0) >= size:
        raise NetworkError(f"memory by strides {tuple(steps)} is written: make a copy with .contiguous() first")
    places = np.arange(size)
    places[written] = size + np.arange(written.size).reshape(written.shape)
    parts = [layer.reshape(v, (-1,)) for v in (x, cast(source, x.tensor_type.dtype))]
    return layer.reshape(call("take", layer.concatenate(parts, 0), Constant(places), axis=0), extents(x))


@register("index_put.default")
def _index_put(x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False) -> Expr:
    """Elements by tensors of indices, or by a mask."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any(i.tensor_type.dtype == "bool" for _, i in given):
        return _masked(x, given, values, accumulate)
    own = extents(x)
    axes, first = indexed_first(given, len(own))
    shape = np.broadcast_shapes(*(extents(i) for _, i in given))
    inner, rest = ([own[axis] for axis in some] for some in (axes[: len(given)], axes[len(given) :]))
    place = place_of(
        [(layer.broadcast(cast(counted(i, own[axis]), "int64"), shape), own[axis]) for axis, i in given]
    )
    rows, columns = math.prod(inner), math.prod(rest)
    into = layer.reshape(layer.transpose(x, axes), (rows, columns))
    # Values have the shape of the elements that are read so.
    wide = layer.broadcast(cast(values, x.tensor_type.dtype), (*rest[:first], *shape, *rest[first:]))
    n = len(shape)
    moved = layer.transpose(wide, [*range(first, first + n), *range(first), *range(first + n, len(extents(wide)))])
    source = layer.reshape(moved, (math.prod(shape), columns))
    place = layer.reshape(place, (math.prod(shape), 1))
    found = write_rows(into, place, source, accumulate)
    back = layer.reshape(found, (*inner, *rest))
    return layer.transpose(back, np.argsort(axes).tolist())


def _masked(x: Expr, given: Sequence[tuple[int, Expr]], values: Expr, accumulate: bool) -> Expr:
    """The elements where a mask is true, all of them alike, or each by a row of the values, in their order."""
    (axis, mask), *more = given
    if more:
        raise NetworkError("values are written by a mask and other indices: which goes where depends on its values")
    rank, own = len(extents(x)), len(extents(mask))
    axes = [*range(axis, axis + own), *range(axis), *range(axis + own, rank)]
    into = layer.transpose(x, axes) if axis else x
    chosen = layer.reshape(mask, (*extents(mask), *(1,) * (rank - own)))
    # An axis of the values stands for all of the mask's, and is moved to the front with these.
    count = rank - own + 1
    source = layer.reshape(cast(values, x.tensor_type.dtype), (1,) * (count - len(extents(values))) + extents(values))
    source = layer.transpose(source, [axis, *range(axis), *range(axis + 1, count)]) if axis else source
    n, *each = extents(source)
    if n == 1:
        written = layer.reshape(source, each)
    else:
        written = _masked_scatter(into, chosen, layer.broadcast(source, (n, *extents(into)[own:])))
    found = call("where", chosen, call("add", into, written) if accumulate else written, into)
    return layer.transpose(found, np.argsort(axes).tolist()) if axis else found


@register("scatter_add.default")
def _scatter_add(x: Expr, axis: int, indices: Expr, source: Expr) -> Expr:
    return add_elements(x, axis, indices, source)


@register("scatter.src", "scatter.value")
def _scatter(x: Expr, axis: int, indices: Expr, source: Any) -> Expr:
    if not isinstance(source, Expr):
        source = layer.filled(source, extents(indices), x.tensor_type.dtype)
    return write_elements(x, axis, indices, source)


@register("scatter.reduce", "scatter.value_reduce")
def _scatter_by(x: Expr, axis: int, indices: Expr, source: Any, *, reduce: str) -> Expr:
    if not isinstance(source, Expr):
        source = layer.filled(source, extents(indices), x.tensor_type.dtype)
    found: Expr = _scatter_reduce(x, axis, indices, source, {"add": "sum", "multiply": "prod"}[reduce])
    return found


@register("put.default")
def _put(x: Expr, indices: Expr, source: Expr, accumulate: bool = False) -> Expr:
    """Elements by their places in the tensor as one row."""
    flat, places, written = (layer.reshape(v, (math.prod(extents(v)),)) for v in (x, indices, source))
    return layer.reshape(_index_put(flat, [places], written, accumulate), extents(x))


@register("scatter_reduce.two")
def _scatter_reduce(
    x: Expr, axis: int, indices: Expr, source: Expr, reduce: str, *, include_self: bool = True
) -> Expr:
    if reduce == "sum" and include_self:
        return add_elements(x, axis, indices, source)
    return reduce_elements(x, axis, indices, source, reduce.removeprefix("a"), include_self)


@register("index_reduce.default")
def _index_reduce(
    x: Expr, axis: int, index: Expr, source: Expr, reduce: str, *, include_self: bool = True
) -> Expr:
    row, source = (layer.reshape(v, extents(v) or (1,)) for v in (x, source))
    axis %= len(extents(row))
    shape = extents(source)
    beside = layer.reshape(index, (shape[axis], *(1,) * (len(shape) - 1 - axis)))
    found = _scatter_reduce(row, axis, layer.broadcast(beside, shape), source, reduce, include_self=include_self)
    return layer.reshape(found, extents(x))


@register("masked_scatter.default")
def _masked_scatter(x: Expr, mask: Expr, source: Expr) -> Expr:
    """The elements of the source, in their order, in the places where the mask is true.

    A mask that is the same along the last axes counts rows, as where images take their places among a text's tokens.
    """
    shape = np.broadcast_shapes(extents(x), extents(mask))
    rank, x = len(shape), layer.broadcast(x, shape)
    if isinstance(mask, Call) and mask.op.name == "broadcast_to":
        mask = mask.args[0]
    own = (1,) * (rank - len(extents(mask))) + extents(mask)
    counted_axes = max((axis + 1 for axis, n in enumerate(own) if n != 1 and shape[axis] != 1), default=0)
    columns = math.prod(shape[counted_axes:])
    if math.prod(extents(source)) % columns:
        counted_axes, columns = rank, 1
    lead = shape[:counted_axes]
    chosen = layer.reshape(layer.broadcast(layer.reshape(mask, own[:counted_axes]), lead), (math.prod(lead),))
    place = call("cumsum", cast(chosen, "int64"), axis=0, exclusive=True)
    taken = call("take", layer.reshape(source, (-1, columns)), place, axis=0)
    rows = layer.reshape(x, (math.prod(lead), columns))
    found = call("where", layer.reshape(chosen, (math.prod(lead), 1)), taken, rows)
    return layer.reshape(found, shape)
