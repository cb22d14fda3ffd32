"""Operators of ATen that move, select or make values, as calls of plevel's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from plevel.torch.aten import (
    OPERATORS,
    cast,
    common_dtype,
    dtype_named,
    dtype_of,
    promoted,
    register,
    scalar,
)
from plevel.torch.symbol import Computed
from strategy.expr import Constant, Expr, Tuple, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


@register("view.default", "view_copy.default", "reshape.default", "_unsafe_view.default")
def _view(x: Expr, shape: Sequence[int]) -> Expr:
    return layer.reshape(x, shape)


@register("unsqueeze.default")
def _unsqueeze(x: Expr, axis: int) -> Expr:
    shape = list(extents(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return layer.reshape(x, shape)


@register("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Expr, axes: Any = None) -> Expr:
    shape = extents(x)
    given = range(len(shape)) if axes is None else axes if isinstance(axes, list | tuple) else [axes]
    gone = {axis % len(shape) for axis in given} if shape else set()
    return layer.reshape(x, [n for i, n in enumerate(shape) if i not in gone or n != 1])


@register("permute.default", "permute_copy.default")
def _permute(x: Expr, axes: Sequence[int]) -> Expr:
    return layer.transpose(x, [axis % len(axes) for axis in axes])


@register("expand.default")
def _expand(x: Expr, shape: Sequence[int]) -> Expr:
    own = (1,) * (len(shape) - len(extents(x))) + extents(x)
    return layer.broadcast(x, [m if n == -1 else n for n, m in zip(shape, own, strict=True)])


@register("as_strided.default")
def _as_strided(x: Expr, shape: Sequence[int], steps: Sequence[int], offset: int | None, own: Sequence[int]) -> Expr:
    """The elements of the memory of x, which has the strides `own`, without gaps; those of single elements are free.

    The offset counts from the element of x that is first in memory, None for that one.
    """
    where = [(n, step) for n, step in zip(extents(x), own, strict=True) if n != 1]
    begin, wanted = offset or 0, [(n, step) for n, step in zip(shape, steps, strict=True) if n != 1]
    if not begin and where == wanted:
        return layer.reshape(x, shape)
    size = math.prod(extents(x))
    order, outward = _outward(own), sorted(where, key=lambda axis: axis[1])
    dense = all(step == math.prod(n for n, _ in outward[:i]) for i, (_, step) in enumerate(outward))
    reach = begin + sum((n - 1) * step for n, step in wanted)
    if max((*extents(x), *shape), default=0) >= PROBED or not dense or reach >= size:
        raise NetworkError(f"memory by strides {tuple(steps)}: make a copy with .contiguous() or .reshape()")
    memory = layer.transpose(x, order)
    laid = _outward(steps)
    axes = [axis for axis in laid if shape[axis] != 1]
    run = 1  # read as it lies, once for each of the axes that are left
    while axes and steps[axes[-1]] == run:
        run *= shape[axes.pop()]
    row = math.gcd(run, size, begin, *(steps[axis] for axis in axes))  # a run is one or several
    places = places_in_memory([*(shape[a] for a in axes), run // row], [*(steps[a] // row for a in axes), 1])
    found = call("take", layer.reshape(memory, (size // row, row)), Constant(places + begin // row), axis=0)
    return layer.transpose(layer.reshape(found, [shape[axis] for axis in laid]), np.argsort(laid).tolist())


def _outward(steps: Sequence[int]) -> list[int]:
    """The axes of a tensor from the one whose elements lie farthest from each other to the nearest."""
    return sorted(range(len(steps)), key=lambda axis: steps[axis], reverse=True)


def places_in_memory(shape: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """The places in memory of a tensor's elements."""
    axes = [np.arange(n) * step for n, step in zip(shape, steps, strict=True)]
    return np.asarray(sum(np.ix_(*axes), np.zeros((), np.int64)))


@register("cat.default")
def _cat(parts: Sequence[Expr], axis: int = 0) -> Expr:
    """Empty vectors, such as of a cache that is filled first, have no part in it, whatever the others' ranks."""
    wanted = reduce(common_dtype, (part.tensor_type.dtype for part in parts))
    joined = [cast(part, wanted) for part in parts if extents(part) != (0,)]
    return layer.concatenate(joined or parts[:1], axis)


@register("slice.Tensor", "slice_copy.Tensor")
def _slice(
    x: Expr, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Expr:
    return layer.take_slice(x, axis, start, end, step)


@register("narrow_copy.default")
def _narrow(x: Expr, axis: int, start: int, length: int) -> Expr:
    return layer.take_slice(x, axis, start, start + length)


@register("select.int")
def _select(x: Expr, axis: int, index: int) -> Expr:
    axis %= len(extents(x))
    at = index % extents(x)[axis]
    found = _slice(x, axis, at, at + 1)
    return layer.reshape(found, [n for i, n in enumerate(extents(x)) if i != axis])


@register("split_with_sizes.default")
def _split(x: Expr, sizes: Sequence[int], axis: int = 0) -> tuple[Expr, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(_slice(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@register("embedding.default")
def _embedding(weight: Expr, indices: Expr, *_: Any) -> Expr:
    return call("take", weight, indices, axis=0)


@register("where.self")
def _where(condition: Expr, x: Any, y: Any) -> Expr:
    return call("where", condition, *promoted(x, y))


@register("_to_copy.default")
def _to_copy(x: Expr, dtype: Any = None, **_: Any) -> Expr:
    return cast(x, dtype_named(dtype, x.tensor_type.dtype))


OPERATORS["prims.convert_element_type.default"] = _to_copy


@register("full.default")
def _full(shape: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Expr:
    return layer.broadcast(scalar(value, dtype_named(dtype, dtype_of(value))), shape)


@register("full_like.default")
def _full_like(x: Expr, value: Any, dtype: Any = None, **_: Any) -> Expr:
    return layer.broadcast(scalar(value, dtype_named(dtype, x.tensor_type.dtype)), extents(x))


@register("arange.start_step")
def _arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, **_: Any) -> Expr:
    kind = dtype_named(dtype, dtype_of(start, end, step))
    if "int" in kind and float in map(type, (start, end, step)):  # PyTorch takes the whole parts of numbers
        n = None if kind == "int64" else math.ceil((end - start) / step)
        start, end, step = (int(x) if type(x) is float else x for x in (start, end, step))
        end = end if n is None else start + n * step
    if not isinstance(start, Computed):
        return layer.steps(start, end, step, kind)
    return call("add", layer.steps(0, end - start, step, kind), scalar(start, kind))


@register("scalar_tensor.default")
def _scalar(value: float, dtype: Any = None, **_: Any) -> Expr:
    return scalar(value, dtype_named(dtype, "float32"))


@register("flip.default")
def _flip(x: Expr, axes: Sequence[int]) -> Expr:
    for axis in axes:
        x = call("reverse", x, axis=axis)
    return x


@register("repeat.default")
def _repeat(x: Expr, times: Sequence[int]) -> Expr:
    return layer.tile(x, times)


@register("constant_pad_nd.default")
def _pad(x: Expr, widths: Sequence[int], value: float = 0) -> Expr:
    """`widths` has the last axis first, two numbers for each; one below 0 takes elements away."""
    rank = len(extents(x))
    value = float(bool(value)) if x.tensor_type.dtype == "bool" else value
    pairs = [tuple(widths[2 * i : 2 * i + 2]) for i in range(len(widths) // 2)][::-1]
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs
    for axis, (before, behind) in enumerate(pairs):
        # `pad` has its value in float64.
        if isinstance(before, Computed) or isinstance(behind, Computed) or value != float(value):
            x = layer.padded(x, axis, before + extents(x)[axis] + behind, scalar(before, "int64"), value)
            pairs[axis] = (0, 0)
    for axis, (before, behind) in enumerate(pairs):
        x = layer.take_slice(x, axis, max(0, -before), extents(x)[axis] - max(0, -behind))
    added = tuple((max(0, before), max(0, behind)) for before, behind in pairs)
    return call("pad", x, pad_width=added, pad_value=value) if np.any(added) else x


@register("gather.default")
def _gather(x: Expr, axis: int, indices: Expr, **_: Any) -> Expr:
    """The indices may have less rows than the tensor."""
    if not extents(x):
        return layer.reshape(x, extents(indices))
    axis %= len(extents(x))
    for other, extent in enumerate(extents(indices)):
        if other != axis:
            x = layer.take_slice(x, other, 0, extent)
    return call("gather", x, indices, axis=axis)


@register("unfold.default")
def _unfold(x: Expr, axis: int, size: int, step: int) -> Expr:
    """Windows of an axis, whose elements are a new last axis."""
    if not extents(x):
        return layer.reshape(x, (size,))
    axis %= len(extents(x))
    begins = layer.steps(0, extents(x)[axis] - size + 1, step, "int64")
    places = call("add", layer.reshape(begins, (-1, 1)), Constant(np.arange(size)))
    found = call("take", x, places, axis=axis)
    rank = len(extents(found))
    return layer.transpose(found, [i for i in range(rank) if i != axis + 1] + [axis + 1])


@register("diagonal.default")
def _diagonal(x: Expr, offset: int = 0, first: int = 0, second: int = 1) -> Expr:
    return layer.diagonal(x, first, second, offset)


@register("index_select.default")
def _index_select(x: Expr, axis: int, indices: Expr) -> Expr:
    return call("take", x, indices, axis=axis) if extents(x) else x


@register("index.Tensor")
def _index(x: Expr, indices: Sequence[Expr | None]) -> Expr:
    """Elements by tensors of indices."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any(i.tensor_type.dtype == "bool" for _, i in given):
        raise NetworkError("elements are selected by a mask: how many there are depends on its values")
    if len(given) == 1:
        axis, only = given[0]
        return call("take", x, counted(only, extents(x)[axis]), axis=axis)
    axes, first = indexed_first(given, len(extents(x)))
    shape = np.broadcast_shapes(*(extents(i) for _, i in given))
    places = [layer.broadcast(cast(counted(i, extents(x)[axis]), "int64"), shape) for axis, i in given]
    found = call("gather_nd", layer.transpose(x, axes), call("stack", Tuple(places), axis=0))
    # The indices' axes stand first, and belong where the first indexed axis was.
    n, whole = len(shape), len(extents(found))
    return layer.transpose(found, [*range(n, n + first), *range(n), *range(n + first, whole)])


def indexed_first(given: Sequence[tuple[int, Expr]], rank: int) -> tuple[list[int], int]:
    """All axes, those that tensors index first, and the place of the tensors' own axes among the others.

    That is the place of the axes that they index, or the first one if these are not side by side.
    """
    indexed = [axis for axis, _ in given]
    first = indexed[0] if indexed == list(range(indexed[0], indexed[0] + len(indexed))) else 0
    return indexed + [axis for axis in range(rank) if axis not in indexed], first


def counted(indices: Expr, extent: int) -> Expr:
    """Indices counted from the front; those below 0 are counted from behind."""
    if isinstance(indices, Constant) and extent < PROBED:
        return Constant(np.where(indices.value < 0, indices.value + extent, indices.value))
    below = call("less", indices, layer.number(0, indices))
    return call("where", below, call("add", indices, layer.count(extent, indices)), indices)
