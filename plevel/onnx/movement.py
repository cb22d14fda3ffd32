"""Operators of ONNX that move elements: shapes, parts, elements by index, and pads."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math

import numpy as np
import onnx.helper
import onnx.numpy_helper

from plevel.onnx.constant import compute_at_call, is_symbolic
from plevel.onnx.node import OPERATORS, Node, constant, integers, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.extent import Extent
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
from strategy.network.size import MOST, PROBED

OPERATORS |= {
    "Transpose": lambda node, x: layer.transpose(x, node.get("perm", range(len(extents(x)))[::-1])),
    "Concat": lambda node, *parts: layer.concatenate(parts, node.get("axis")),
}


@register("Reshape")
def _reshape(node: Node, x: Expr, shape: Expr) -> Expr:
    given = [int(n) for n in constant(shape, "the shape")]
    if not node.get("allowzero", 0):
        given = [extents(x)[i] if n == 0 else n for i, n in enumerate(given)]
    if node.sizes is not None and -1 in given:
        others = math.prod(n for n in given if n != -1)
        whole = Extent.number(1)
        for extent in extents(x):
            whole *= node.sizes.encode(extent)
        if 0 < others < PROBED and any((left := whole // others).quotients):
            node.known.append(left)
    return layer.reshape(x, given)


@register("Tile")
def _tile(node: Node, x: Expr, times: Expr) -> Expr:
    return layer.tile(x, [int(n) for n in constant(times, "repeats")])


@register("Trilu", "com.microsoft.Trilu")
def _trilu(node: Node, x: Expr, diagonal: Expr | None = None) -> Expr:
    k = 0 if diagonal is None else int(constant(diagonal, "k").item())
    return call("trilu", x, k=k, upper=bool(node.get("upper", 1)))


@register("Flatten")
def _flatten(node: Node, x: Expr) -> Expr:
    axis = node.get("axis", 1)
    axis = axis if axis >= 0 else axis + len(extents(x))
    return layer.reshape(x, (math.prod(extents(x)[:axis]), math.prod(extents(x)[axis:])))


@register("Squeeze")
def _squeeze(node: Node, x: Expr, given: Expr | None = None) -> Expr:
    axes, shape = integers(node, "axes", given), extents(x)
    gone = {a % len(shape) for a in axes} if axes else {i for i, n in enumerate(shape) if n == 1}
    return layer.reshape(x, [n for i, n in enumerate(shape) if i not in gone])


@register("Unsqueeze")
def _unsqueeze(node: Node, x: Expr, given: Expr | None = None) -> Expr:
    axes = integers(node, "axes", given) or []
    rank = len(extents(x)) + len(axes)
    new, left = {a % rank for a in axes}, iter(extents(x))
    return layer.reshape(x, [1 if i in new else next(left) for i in range(rank)])


@register("Expand")
def _expand(node: Node, x: Expr, shape: Expr) -> Expr:
    given = tuple(int(n) for n in constant(shape, "the shape"))
    return layer.broadcast(x, np.broadcast_shapes(extents(x), given))


@register("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Expr) -> Expr:
    value = node.get("value")
    filling = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    return layer.filled(filling[0], [int(n) for n in constant(shape, "the shape")], filling.dtype.name)


@register("Range")
def _range(node: Node, start: Expr, limit: Expr, delta: Expr) -> Expr:
    first, end, step = (constant(v, "a bound").item() for v in (start, limit, delta))
    if step == 0:
        raise NetworkError("delta is 0: write another step")
    return layer.steps(first, end, step, start.tensor_type.dtype)


@register("Slice")
def _slice(node: Node, x: Expr, *given: Expr | None) -> Expr:
    names = ("starts", "ends", "axes", "steps")
    inputs = (*given, *(None for _ in range(4 - len(given))))
    starts, ends, axes, steps = (integers(node, n, v) for n, v in zip(names, inputs, strict=True))
    axes = list(range(len(starts or []))) if axes is None else axes
    for axis, start, end, step in zip(axes, starts or [], ends or [], steps or [1] * len(axes), strict=True):
        x = layer.take_slice(x, axis, *_bounds(node, start, end, extents(x)[axis], step), step)
    return x


def _bounds(node: Node, start: int, end: int, extent: int, step: int) -> tuple[int, int | None]:
    """The start and the end of a part of an axis, to be read as Python does.

    With symbolic sizes it adds the limits at which the part is of the same form at every call: what it has lies within
    the axis, and its start stays before its end, or behind it.
    """
    forwards = step > 0
    of, first, last = (
        node.sizes is not None and isinstance(node.sizes.encode(abs(n)), Extent) for n in (extent, start, end)
    )
    if not (of or first or last):
        # Backwards from before the beginning it begins there.
        return start if forwards else max(start, -extent), min(end, extent)
    refused = NetworkError(f"a part of an axis of {extent} from {start} to {end} by {step}")
    if not of and (first or not forwards or end < 0):
        raise refused
    if abs(start) >= MOST:  # the beginning of the axis, or its last element
        start = 0 if start < 0 else start if forwards else -1
    if end >= MOST if forwards else end <= -MOST:
        end = extent if forwards else -1 - extent
    begins, ends = (n + extent if n < 0 else n for n in (start, end))  # as indices
    if begins < 0 or (last and ends < 0):
        raise refused
    if start:
        node.limits.append((start + 1, extent) if start > 0 else (-start, extent))
    taken, whole = range(begins, ends, step), end in (extent, -1 - extent)
    if (start < 0) == (end < 0) and not (first or last or whole):  # as many at every call
        if taken:
            node.limits.append((taken[-1] + 1 if start >= 0 else extent - taken[-1], extent))
        return start, end
    node.limits.append((begins, ends) if forwards == bool(taken) else (ends, begins))
    if taken and forwards and end >= 0 and not whole:
        node.limits.append((extent, end) if of and end > extent else (end, extent))
    return start, end


@register("Split")
def _split(node: Node, x: Expr, given: Expr | None = None) -> tuple[Expr, ...]:
    axis, sizes = node.get("axis", 0), integers(node, "split", given)
    whole = extents(x)[axis]
    if sizes is None:
        count = node.get("num_outputs") or node.count
        if not node.count <= count <= max(whole, node.count):
            raise NetworkError(f"num_outputs = {count} for an axis of {whole} and {node.count} outputs")
        size = -(-whole // count)
        sizes = [min(size, whole - i * size) for i in range(count)]
    ends = np.cumsum(sizes).tolist()
    return tuple(layer.take_slice(x, axis, e - n, e) for n, e in zip(sizes, ends, strict=True))


@register("Gather")
def _gather(node: Node, x: Expr, indices: Expr) -> Expr:
    axis = node.get("axis", 0)
    if isinstance(indices, Constant) and indices.value.size and node.sizes is not None:
        whole = extents(x)[axis]
        if isinstance(node.sizes.encode(whole), Extent):
            outermost = int(indices.value.min()), int(indices.value.max())
            node.limits += [(n + 1 if n >= 0 else -n, whole) for n in outermost]
    if isinstance(indices, Constant) and indices.value.size == 1:
        at = int(indices.value.reshape(())) % extents(x)[axis]
        taken, shape = layer.take_slice(x, axis, at, at + 1), list(extents(x))
        shape[axis : axis % len(shape) + 1] = extents(indices)
        return layer.reshape(taken, shape)
    return call("take", x, indices, axis=axis, mode="wrap")  # from the end where negative


@register("Compress")
def _compress(node: Node, x: Expr, condition: Expr) -> Expr:
    """The entries of an axis, or of all elements, at which a constant holds."""
    axis = node.get("axis")
    x, axis = (layer.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    places = np.flatnonzero(constant(condition, "the condition"))
    if node.sizes is not None:
        node.limits.append((int(places.max(initial=-1)) + 1, extents(x)[axis]))
    return call("take", x, Constant(places.astype(np.int64)), axis=axis)


@register("GatherElements")
def _gather_elements(node: Node, x: Expr, indices: Expr) -> Expr:
    """The indices may have less rows than the tensor."""
    axis = node.get("axis", 0) % len(extents(x))
    for other, extent in enumerate(extents(indices)):
        x = x if other == axis else layer.take_slice(x, other, 0, extent)
    return call("gather", x, _counted(indices, extents(x)[axis]), axis=axis)


@register("OneHot")
def _one_hot(node: Node, indices: Expr, depth: Expr, values: Expr) -> Expr:
    count, rank = int(constant(depth, "depth").item()), len(extents(indices)) + 1
    shape, axis = list(extents(indices)), node.get("axis", -1) % rank
    shape.insert(axis, 1)
    places = layer.reshape(layer.steps(0, count, 1, indices.tensor_type.dtype), (count, *(1,) * (rank - 1 - axis)))
    hit = call("equal", layer.reshape(_counted(indices, count), shape), places)
    off, on = (layer.reshape(layer.take_slice(values, 0, i, i + 1), ()) for i in (0, 1))
    return call("where", hit, on, off)


@register("GatherND", "com.microsoft.GatherND")
def _gather_nd(node: Node, x: Expr, indices: Expr) -> Expr:
    """The coordinates stand on the last axis of the indices, and on the first of plevel's."""
    rank, batch = len(extents(indices)), node.get("batch_dims", 0)
    front = layer.transpose(indices, [rank - 1, *range(rank - 1)])
    return call("gather_nd", x, front, batch_dims=batch)


@register("ScatterElements", "Scatter")
def _scatter_elements(node: Node, x: Expr, indices: Expr, updates: Expr) -> Expr:
    axis, reduction = node.get("axis", 0), node.get("reduction", "none")
    places = _counted(indices, extents(x)[axis])
    if reduction == "none":
        return write_elements(x, axis, places, updates)
    if reduction == "add":
        return add_elements(x, axis, places, updates)
    return _reduced(x, axis, places, updates, reduction)


def _reduced(x: Expr, axis: int, places: Expr, updates: Expr, reduction: str) -> Expr:
    if reduction not in ("mul", "max", "min"):
        raise NetworkError(f"reduction {reduction!r}: plevel has 'none', 'add', 'mul', 'max' and 'min'")
    return reduce_elements(x, axis, places, updates, "prod" if reduction == "mul" else reduction)


@register("ScatterND")
def _scatter_nd(node: Node, x: Expr, indices: Expr, updates: Expr) -> Expr:
    """The first axes as one, and the others as one."""
    reduction, (*shape, count) = node.get("reduction", "none"), extents(indices)
    own, written = extents(x), math.prod(shape)
    rows, columns = math.prod(own[:count]), math.prod(own[count:])
    coordinates = layer.reshape(indices, (written, count))
    if not 1 <= count <= len(own):
        raise NetworkError(f"indices of {count} coordinates for {len(own)} axes")
    place = place_of(
        [(_counted(layer.take_slice(coordinates, 1, i, i + 1), own[i]), own[i]) for i in range(count)]
    )
    source = layer.reshape(updates, (written, columns))
    flat = layer.reshape(x, (rows, columns))
    if reduction in ("none", "add"):
        found = write_rows(flat, place, source, reduction == "add")
    else:
        found = _reduced(flat, 0, layer.broadcast(place, extents(source)), source, reduction)
    return layer.reshape(found, own)


@register("ReverseSequence")
def _reverse_sequence(node: Node, x: Expr, lengths: Expr) -> Expr:
    """The first elements of each row along the axis of time, as many as its length, from behind."""
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    shape = [n if i in (time, batch) else 1 for i, n in enumerate(extents(x))]
    ends = layer.reshape(lengths, [1 if i == time else n for i, n in enumerate(shape)])
    own = layer.steps(0, extents(x)[time], 1, lengths.tensor_type.dtype)
    own = layer.reshape(own, [n if i == time else 1 for i, n in enumerate(shape)])
    turned = call("subtract", call("subtract", ends, own), number(1, own))
    places = call("where", call("less", own, ends), turned, own)
    return call("gather", x, layer.broadcast(places, extents(x)), axis=time)


@register("TensorScatter")
def _tensor_scatter(node: Node, cache: Expr, update: Expr, begins: Expr | None = None) -> Expr:
    """A cache with new rows from a place of each batch entry on, around its end if it is circular."""
    axis, whole = node.get("axis", -2) % len(extents(cache)), extents(cache)
    count = extents(update)[axis]
    begins = layer.filled(0, (whole[0],), "int64") if begins is None else begins
    shape = [n if i in (0, axis) else 1 for i, n in enumerate(whole)]
    own = layer.steps(0, whole[axis], 1, begins.tensor_type.dtype)
    own = layer.reshape(own, [n if i == axis else 1 for i, n in enumerate(whole)])
    place = call("subtract", own, layer.reshape(begins, (whole[0], *(1,) * (len(whole) - 1))))
    if node.get("mode", "linear") == "circular":
        place = call("floor_mod", place, layer.count(whole[axis], place))
    within = call("less", place, layer.count(count, place))
    within = call("logical_and", within, call("greater_equal", place, number(0, place)))
    near = call("where", within, place, number(0, place))
    wide = layer.broadcast(layer.reshape(near, shape), whole)
    return call("where", layer.reshape(within, shape), call("gather", update, wide, axis=axis), cache)


@register("EyeLike")
def _eye_like(node: Node, x: Expr) -> Expr:
    rows, columns = extents(x)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(node.get("dtype")).name if node.get("dtype") else x.tensor_type.dtype
    own = layer.reshape(layer.steps(0, rows, 1, "int64"), (rows, 1))
    found = call("equal", call("add", own, number(node.get("k", 0), own)), layer.steps(0, columns, 1, "int64"))
    return call("cast", found, dtype=dtype)


def _counted(indices: Expr, extent: int) -> Expr:
    """Indices counted from the front; those below 0 are counted from behind."""
    below = call("less", indices, number(0, indices))
    return call("where", below, call("add", indices, layer.count(extent, indices)), indices)


def _symbolic_begin(
    node: Node, x: Expr, axis: int, of: list[int], pair: tuple[int, int], pads: Expr | None
) -> Expr | None:
    """The width before an axis, as it is computed at the call, if either width depends on a symbolic size."""
    if node.sizes is None or axis not in of:
        return None
    if is_symbolic(np.asarray(pair), node.sizes):
        return compute_at_call(np.asarray(pair[0]), node.sizes)
    place, shares = of.index(axis), node.parts[1] if len(node.parts) > 1 else None
    if shares is None or pads is None:
        return None
    widths = shares[place].extent + shares[place + len(of)].extent
    if not widths.variables:
        return None
    node.known.append(widths + node.sizes.encode(extents(x)[axis]))
    return layer.reshape(layer.take_slice(pads, 0, place, place + 1), ())


def _at_probes(node: Node, parts: np.ndarray) -> list[int]:
    """The whole numbers that parts of sizes are where numbers stand for the sizes."""
    assert node.sizes is not None
    if any(part.divisor > 1 for part in parts):
        raise NetworkError("a width that is a fraction of a size")
    return [int(part.extent.at(node.sizes.probes)) for part in parts]


@register("Pad")
def _pad(
    node: Node, x: Expr, pads: Expr | None = None, value: Expr | None = None, axes: Expr | None = None
) -> Expr:
    """`pads` has what goes before each axis, then what goes behind; one below 0 takes elements away."""
    rank, mode = len(extents(x)), node.get("mode", "constant")
    shares = node.parts[1] if len(node.parts) > 1 else None
    widths = _at_probes(node, shares) if shares is not None else integers(node, "pads", pads) or []
    given = range(rank) if axes is None else [int(a) for a in constant(axes, "axes").reshape(-1)]
    of = [a % rank for a in given if -rank <= a < rank]
    if not len(given) == len(of) == len(set(of)) == len(widths) / 2:
        raise NetworkError(f"pads {widths} of axes {list(given)} do not fit a tensor of rank {rank}")
    pairs = [(0, 0)] * rank
    for axis, pair in zip(of, zip(widths[: len(of)], widths[len(of) :], strict=True), strict=True):
        pairs[axis] = pair
    fill = node.get("value", 0.0) if value is None else constant(value, "constant_value").reshape(-1)[0]
    for axis, pair in enumerate(pairs):
        begin = _symbolic_begin(node, x, axis, of, pair, pads)
        if begin is None:
            continue
        if mode != "constant":
            raise NetworkError(f"mode {mode!r} by a symbolic width: plevel pads so by constant alone")
        x, pairs[axis] = layer.padded(x, axis, sum(pair) + extents(x)[axis], begin, float(fill)), (0, 0)
    for axis, (before, behind) in enumerate(pairs):
        x = layer.take_slice(x, axis, max(0, -before), extents(x)[axis] - max(0, -behind))
    added = tuple((max(0, before), max(0, behind)) for before, behind in pairs)
    if mode == "wrap":
        for axis, (before, behind) in enumerate(added):
            around = np.arange(-before, extents(x)[axis] + behind) % extents(x)[axis]
            x = call("take", x, Constant(around), axis=axis) if before or behind else x
        return x
    if mode not in ("constant", "edge", "reflect"):
        raise NetworkError(f"mode {mode!r}: plevel pads by constant, edge, reflect and wrap")
    return call("pad", x, pad_width=added, pad_value=float(fill), pad_mode=mode) if np.any(added) else x
