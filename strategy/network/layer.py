"""Layers that importers of models share, as calls of plevel's operators."""
# Over 300 lines: a table of layers.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from strategy.expr import Constant, Expr, Var, call
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED
from strategy.ops.concatenate import concatenate as joined
from strategy.ops.convolution import conv3d
from strategy.types import MAX_DIM

_OPEN = 2**31 - 1  # the end of a slice that has none
_KEPT = 256  # elements that CPUs take from an axis of a fixed size without sorting it


def number(value: float, like: Expr) -> Constant:
    """A number of the dtype of another value."""
    return Constant(np.asarray(value, like.tensor_type.dtype))


def count(extent: int, like: Expr) -> Expr:
    """The extent of an axis, without axes and of the dtype of another value: counted at the call if it is symbolic."""
    if extent < PROBED:
        return number(extent, like)
    counted = call("cumsum", filled(1, (extent,), like.tensor_type.dtype), axis=0)
    return reshape(take_slice(counted, 0, extent - 1, extent), ())


def reshape(x: Expr, shape: Sequence[int]) -> Expr:
    """The elements in another shape, of which one extent may be -1."""
    known = -math.prod(shape)
    given = tuple(math.prod(extents(x)) // known if n == -1 else int(n) for n in shape)
    if max(given, default=0) > MAX_DIM:
        raise NetworkError("an axis multiplies too many symbolic sizes, or three and many channels: export one fixed")
    return x if given == extents(x) else call("reshape", x, newshape=given)


def transpose(x: Expr, axes: Sequence[int]) -> Expr:
    if isinstance(x, Constant):
        return Constant(np.ascontiguousarray(x.value.transpose(axes)))
    return call("transpose", x, axes=tuple(int(a) for a in axes))


def swap(x: Expr) -> Expr:
    """Matrices transposed."""
    rank = len(extents(x))
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def broadcast(x: Expr, shape: Sequence[int]) -> Expr:
    """The value in the shape that it broadcasts to."""
    wanted = tuple(int(n) for n in shape)
    if extents(x) == wanted:
        return x
    is_symbolic = max(wanted) >= PROBED
    if isinstance(x, Constant) and not is_symbolic:
        return Constant(np.ascontiguousarray(np.broadcast_to(x.value, wanted)))
    if math.prod(extents(x)) == math.prod(wanted):
        return reshape(x, wanted)
    if is_symbolic:
        return call("broadcast_to_like", x, _shape(wanted))
    return call("broadcast_to", x, shape=wanted)


def _shape(wanted: Sequence[int]) -> Var:
    """A shape, whose extents may be symbolic, as an operand."""
    return Var("shape", f"bool[{','.join(map(str, wanted))}]")


def filled(value: Any, shape: Sequence[int], dtype: str) -> Expr:
    """One number everywhere."""
    return broadcast(Constant(np.full((1,) * len(shape), value, dtype)), shape)


def steps(start: Any, stop: Any, step: Any, dtype: str) -> Expr:
    """Evenly spaced numbers, as NumPy's `arange`."""
    if max(abs(start), abs(stop)) < PROBED:
        return Constant(np.arange(start, stop, step).astype(dtype))
    if abs(step) >= PROBED:
        raise NetworkError(f"a range by steps of {step}: only its start and end may depend on a symbolic size")
    if abs(start) >= PROBED:
        moved = steps(0, stop - start, step, dtype)
        return call("add" if start > 0 else "subtract", moved, count(abs(start), moved))
    whole = all(isinstance(n, int) for n in (start, stop, step))
    size = len(range(start, stop, step)) if whole else math.ceil((stop - start) / step)
    places = call("cumsum", filled(1, (size,), "int64"), axis=0, exclusive=True)
    scaled: Expr = places if dtype == "int64" else call("cast", places, dtype=dtype)
    return call("add", call("multiply", scaled, number(step, scaled)), number(start, scaled))


def truncated_quotient(x: Expr, y: Expr) -> Expr:
    """The quotient of integers, rounded towards 0; 0 of those divided by 0."""
    if x.tensor_type.dtype.startswith("uint"):
        return call("floor_divide", x, y)
    found, zero = call("floor_divide", x, y), number(0, x)
    signs = [call("less", v, zero) for v in (x, y)]
    rest = call("not_equal", call("floor_mod", x, y), zero)
    below = call("logical_and", rest, call("logical_xor", *signs))
    return call("where", below, call("add", found, number(1, x)), found)


def tile(x: Expr, times: Sequence[int]) -> Expr:
    """The tensor so many times along each axis, of which it may lack the first ones."""
    shape = (1,) * (len(times) - len(extents(x))) + extents(x)
    if max(times, default=0) < PROBED:
        return call("tile", reshape(x, shape), reps=tuple(times))
    # A symbolic size is no attribute.
    beside = reshape(x, [n for own in shape for n in (1, own)])
    wide = broadcast(beside, [n for own, t in zip(shape, times, strict=True) for n in (t, own)])
    return reshape(wide, [n * t for n, t in zip(shape, times, strict=True)])


def linear(x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """The product of the last axis with a weight [outputs, inputs], and a bias."""
    shape = extents(x)
    rows = reshape(x, (math.prod(shape[:-1]), shape[-1]))
    if "float" in x.tensor_type.dtype:
        found: Expr = call("dense", rows, weight)
    else:
        one = _products(*(reshape(v, (1, *extents(v))) for v in (rows, weight)), transpose_b=True)
        found = reshape(one, extents(one)[1:])
    if bias is not None:
        found = add_bias(found, bias)
    return reshape(found, (*shape[:-1], extents(weight)[0]))


def linear_along(x: Expr, axis: int, weight: Expr) -> Expr:
    """The product of an axis with a weight [outputs, inputs]."""
    rank = len(extents(x))
    order = [i for i in range(rank) if i != axis % rank] + [axis % rank]
    return transpose(linear(transpose(x, order), weight), np.argsort(order).tolist())


def add_bias(x: Expr, bias: Expr) -> Expr:
    """A sum with an entry for each of axis 1, or of all elements."""
    if extents(bias) == (extents(x)[1],):
        return call("bias_add", x, bias, axis=1)
    return call("add", x, bias)


def matmul(x: Expr, y: Expr) -> Expr:
    """The product as NumPy's `matmul`; sums of integers wrap around in their dtype."""
    if len(extents(y)) == 1:
        found = matmul(x, reshape(y, (-1, 1)))
        return reshape(found, extents(found)[:-1])
    if len(extents(x)) == 1:
        found = matmul(reshape(x, (1, -1)), y)
        return reshape(found, (*extents(found)[:-2], extents(found)[-1]))
    if not extents(x)[-1]:
        batch = np.broadcast_shapes(extents(x)[:-2], extents(y)[:-2])
        return filled(0, (*batch, extents(x)[-2], extents(y)[-1]), x.tensor_type.dtype)
    if len(extents(y)) == 2 and max(extents(y)) < PROBED and "float" in x.tensor_type.dtype:
        return linear(x, swap(y))
    if len(extents(y)) == 2:  # dense takes floats, and weights of fixed sizes
        shape = (*extents(x)[:-1], extents(y)[1])
        rows = reshape(x, (1, math.prod(shape[:-1]), extents(y)[0]))
        return reshape(_products(rows, reshape(y, (1, *extents(y))), transpose_b=False), shape)
    batch = np.broadcast_shapes(extents(x)[:-2], extents(y)[:-2])
    operands = [
        reshape(broadcast(o, (*batch, *extents(o)[-2:])), (-1, *extents(o)[-2:])) for o in (x, y)
    ]
    return reshape(_products(*operands, transpose_b=False), (*batch, extents(x)[-2], extents(y)[-1]))


def _products(x: Expr, y: Expr, *, transpose_b: bool) -> Expr:
    """A product for each entry of a batch; those of integers of 8 and 16 bits are the last bits of sums of 32."""
    kind = x.tensor_type.dtype
    is_narrow = kind in ("int8", "uint8", "int16", "uint16")
    wide = "int32" if is_narrow else None
    found: Expr = call("batch_matmul", x, y, transpose_a=False, transpose_b=transpose_b, out_dtype=wide)
    return call("cast", found, dtype=kind) if is_narrow else found


def convolution(
    x: Expr,
    weight: Expr,
    bias: Expr | None,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Expr:
    """A convolution of one, two or three dimensions; `padding` has all begins, then all ends."""
    if len(extents(x)) == 3:
        (begin, end), lifted = padding, [(*extents(v)[:2], 1, extents(v)[2]) for v in (x, weight)]
        found = convolution(
            reshape(x, lifted[0]), reshape(weight, lifted[1]), bias, strides=(1, *strides),
            padding=(0, begin, 0, end), dilation=(1, *dilation), groups=groups,
        )
        n, c, _, width = extents(found)
        return reshape(found, (n, c, width))
    given: dict[str, Any] = {
        "strides": tuple(strides), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups
    }
    if len(extents(x)) == 5:
        found = conv3d(x, weight, **given)
    elif len(extents(x)) == 4:
        found = call("conv2d", x, weight, **given)
    else:
        raise NetworkError(f"a convolution of {len(extents(x)) - 2} dimensions: plevel has one, two and three")
    return found if bias is None else add_bias(found, bias)


def transposed_convolution(
    x: Expr,
    weight: Expr,
    bias: Expr | None,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Expr:
    """A transposed convolution of one, two or three dimensions; `padding` has all begins, then all ends."""
    if len(extents(x)) == 3:
        lifted = [reshape(v, (*extents(v)[:2], 1, extents(v)[2])) for v in (x, weight)]
        begin, end = padding
        found = transposed_convolution(
            lifted[0], lifted[1], bias, strides=(1, *strides), padding=(0, begin, 0, end),
            output_padding=(0, *output_padding), dilation=(1, *dilation), groups=groups,
        )
        n, c, _, width = extents(found)
        return reshape(found, (n, c, width))
    if len(extents(x)) == 5:
        return _by_planes(x, weight, bias, strides, padding, output_padding, dilation, groups)
    if len(extents(x)) != 4:
        rank = len(extents(x)) - 2
        raise NetworkError(f"a transposed convolution of {rank} dimensions: plevel has one, two and three")
    if any(o >= s for o, s in zip(output_padding, strides, strict=True)):  # rows of the padding at first, then zeros
        found = transposed_convolution(
            x, weight, None, strides=strides, dilation=dilation, groups=groups, output_padding=(0, 0),
            padding=(*padding[:2], *(max(p - o, 0) for p, o in zip(padding[2:], output_padding, strict=True))),
        )
        zeros = [(0, max(o - p, 0)) for p, o in zip(padding[2:], output_padding, strict=True)]
        found = call("pad", found, pad_width=((0, 0), (0, 0), *zeros))
        return found if bias is None else add_bias(found, bias)
    found = call(
        "conv2d_transpose", x, weight, strides=tuple(strides), padding=tuple(padding),
        output_padding=tuple(output_padding), dilation=tuple(dilation), groups=groups,
    )
    extents(found)  # type errors name the weight that was given, not that of the phases
    if isinstance(weight, Constant) and strides[0] == strides[1] > 1 and tuple(dilation) == (1, 1):
        by_phases = _by_phases(x, weight.value, bias, strides[0], padding, output_padding, groups)
        if by_phases is not None:
            return by_phases
    return found if bias is None else add_bias(found, bias)


def _by_planes(
    x: Expr, weight: Expr, bias: Expr | None, strides: Sequence[int], padding: Sequence[int],
    output_padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Expr:
    """A transposed convolution of three dimensions as one of the planes that reach each of the result's, side by side.

    Between the planes of the data are as many of zeros as the stride says.
    """
    (n, channels, depth, *image), (_, own, size, *window) = extents(x), extents(weight)
    (step, *steps), (distance, *distances) = strides, dilation
    front, top, left, back, bottom, right = padding
    reach = (size - 1) * distance
    begin, end = reach - front, reach - back + output_padding[0]
    count = (depth - 1) * step + 1 + begin + end - reach
    planes: Expr = reshape(x, (n, channels, depth, 1, math.prod(image)))
    if step > 1:
        planes = call("pad", planes, pad_width=((0, 0), (0, 0), (0, 0), (0, step - 1), (0, 0)))
    planes = reshape(planes, (n, channels, depth * step, *image))
    planes = take_slice(planes, 2, max(0, -begin), depth * step - (step - 1) - max(0, -end))
    if max(begin, end) > 0:
        planes = call("pad", planes, pad_width=((0, 0), (0, 0), (max(0, begin), max(0, end)), (0, 0), (0, 0)))
    seen = [
        reshape(take_slice(planes, 2, k * distance, k * distance + count), (n, channels, 1, count, *image))
        for k in range(size)
    ]
    images = transpose(concatenate(seen, 2), (0, 3, 1, 2, 4, 5))
    backwards = Constant(weight.value[:, :, ::-1]) if isinstance(weight, Constant) else call("reverse", weight, axis=2)
    turned, shape = transpose(backwards, (0, 2, 1, 3, 4)), (channels * size, own, *window)
    found = transposed_convolution(
        reshape(images, (n * count, channels * size, *image)),
        Constant(turned.value.reshape(shape)) if isinstance(turned, Constant) else reshape(turned, shape),
        bias, strides=steps, padding=(top, left, bottom, right), output_padding=output_padding[1:],
        dilation=distances, groups=groups,
    )
    return transpose(reshape(found, (n, count, *extents(found)[1:])), (0, 2, 1, 3, 4))


def _by_phases(
    x: Expr, weight: Any, bias: Expr | None, step: int, padding: Sequence[int], output_padding: Sequence[int],
    groups: int,
) -> Expr | None:
    """A transposed convolution as one convolution for all step × step phases of the result, then put together.

    Row r of a block of `step` reads the data by those rows of the window that are r + padding modulo `step`. None where
    the windows of the phases begin or end within the data.
    """
    channels, own, *window = weight.shape
    sizes, begins, ends, places, reach = [], [], [], [], []
    for axis, (extent, size) in enumerate(zip(extents(x)[2:], window, strict=True)):
        begin = padding[axis]
        sizes.append((extent - 1) * step + size + output_padding[axis] - begin - padding[2 + axis])
        phases = [(k - begin) % step for k in range(size)]
        offsets = [(r + begin - k) // step for k, r in enumerate(phases)]
        begins.append(-min(offsets))
        ends.append(-(-sizes[axis] // step) - 1 + max(offsets) - (extent - 1))
        places.append([(r, offset - min(offsets)) for r, offset in zip(phases, offsets, strict=True)])
        reach.append(max(offsets) - min(offsets) + 1)
    if min(*begins, *ends) < 0:
        return None
    kernel = np.zeros((channels, own, step, step, *reach), weight.dtype)
    for y, (row, above) in enumerate(places[0]):
        for x_place, (column, left) in enumerate(places[1]):
            kernel[:, :, row, column, above, left] = weight[:, :, y, x_place]
    each = channels // groups
    kernel = kernel.reshape(groups, each, own, step, step, *reach).transpose(0, 2, 3, 4, 1, 5, 6)
    phases_of = Constant(np.ascontiguousarray(kernel).reshape(-1, each, *reach))
    found: Expr = call("conv2d", x, phases_of, padding=(*begins, *ends), groups=groups)
    if isinstance(bias, Constant):  # where it can be the convolution's epilogue
        found = add_bias(found, Constant(np.repeat(bias.value, step * step)))
    found = call("depth_to_space", found, block_size=step, mode="CRD")
    for axis, size in enumerate(sizes):
        found = take_slice(found, 2 + axis, 0, size)
    return found if bias is None or isinstance(bias, Constant) else add_bias(found, bias)


def clip(x: Expr, low: float | None, high: float | None) -> Expr:
    """The elements within bounds, as far as they are given; where they are not in order, the high one."""
    if low is None and high is None:
        return x
    if high is None:
        return call("relu", x) if low == 0 else call("maximum", x, number(low or 0, x))
    if low is None:
        return call("minimum", x, number(high, x))
    if "int" in x.tensor_type.dtype:  # whose bounds may be no floats
        return call("minimum", call("maximum", x, number(low, x)), number(high, x))
    return call("clip", x, a_min=float(min(low, high)), a_max=float(high))


def batch_norm(x: Expr, scale: Any, shift: Any, mean: Any, variance: Any, epsilon: float) -> Expr:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, with constants of each channel."""
    if not all(v is None or isinstance(v, Constant) for v in (scale, shift, mean, variance)):
        raise NetworkError("the statistics of a batch norm are not constant: export the model in eval mode")
    factor = 1 / np.sqrt(variance.value.astype(np.float64) + epsilon)
    factor = factor if scale is None else factor * scale.value
    summand = (0 if shift is None else shift.value) - mean.value * factor
    shape = (-1, *(1,) * (len(extents(x)) - 2))
    dtype = x.tensor_type.dtype
    scaled = call("multiply", x, Constant(factor.reshape(shape).astype(dtype)))
    return call("add", scaled, Constant(summand.reshape(shape).astype(dtype)))


def attention(q: Expr, k: Expr, v: Expr, mask: Expr | None, *, scale: float | None, causal: bool) -> Expr:
    """softmax(q kᵀ · scale + mask) v, by default 1 / √depth; a mask of bools says where to look."""
    given = {"is_causal": True if causal else None, "scale": scale}
    if mask is None:
        return call("attention", q, k, v, **given)
    return call("attention_bias", q, k, v, mask, **given)


def take_slice(x: Expr, axis: int, start: int | None, end: int | None, step: int = 1) -> Expr:
    """A part along one axis, as Python's slices."""
    axis %= len(extents(x))
    fixed = extents(x)[axis]
    if fixed < PROBED and end is not None and PROBED <= end < _OPEN:
        fixed = end  # a symbolic size, which is within the axis
    taken = range(*slice(start, end, step).indices(fixed))
    if taken == range(extents(x)[axis]):
        return x
    if max(extents(x)[axis], taken.stop) >= PROBED:
        return _take_symbolic(x, axis, taken)
    if isinstance(x, Constant):
        return Constant(np.ascontiguousarray(x.value.take(taken, axis)))
    stop = taken.stop if taken.stop >= 0 else -extents(x)[axis] - 1
    return call("strided_slice", x, begin=(taken.start,), end=(stop,), strides=(step,), axes=(axis,))


def _take_symbolic(x: Expr, axis: int, taken: range) -> Expr:
    """A part of an axis, where its extent or the end of the part may be symbolic."""
    extent = extents(x)[axis]
    if not taken:
        taken = range(0)
    if taken.step < 0 and taken.start < PROBED:
        part = take_slice(x, axis, taken.stop + 1, taken.start + 1)
        return take_slice(call("reverse", part, axis=axis), axis, 0, None, -taken.step)
    if taken.step < 0:  # forwards in what is turned
        turned = call("reverse", x, axis=axis)
        return take_slice(turned, axis, extent - 1 - taken.start, extent - 1 - taken.stop, -taken.step)
    if taken.start >= PROBED and taken.step > 1:
        return take_slice(take_slice(x, axis, taken.start, taken.stop), axis, 0, None, taken.step)
    if taken.start >= PROBED:  # counted from the end
        turned = call("reverse", x, axis=axis)
        found = take_slice(turned, axis, extent - taken.stop, extent - taken.start)
        return found if len(taken) == 1 else call("reverse", found, axis=axis)
    open_ended = taken.stop == extent
    if taken.start or taken.step > 1 or taken.stop < PROBED:
        end = _OPEN if open_ended or taken.stop >= PROBED else taken.stop
        x = call("strided_slice", x, begin=(taken.start,), end=(end,), strides=(taken.step,), axes=(axis,))
    if open_ended or taken.stop < PROBED:
        return x
    return call("take", x, steps(0, len(taken), 1, "int64"), axis=axis)


def diagonal(x: Expr, first: int, second: int, offset: int = 0) -> Expr:
    """The elements at equal places of two axes, or at places that differ by an offset, as a new last axis."""
    rank = len(extents(x))
    axes = [first % rank, second % rank]
    rows, columns = (extents(x)[axis] for axis in axes)
    last = transpose(x, [axis for axis in range(rank) if axis not in axes] + axes)
    flat = reshape(last, (*extents(last)[:-2], rows * columns))
    below, right = max(-offset, 0), max(offset, 0)
    row = steps(below, below + min(rows - below, columns - right), 1, "int64")
    column = call("add", row, number(right - below, row))
    places = call("add", call("multiply", row, count(columns, row)), column)
    return call("take", flat, places, axis=rank - 2)


def largest(x: Expr, k: int, axis: int, *, ascending: bool) -> Expr:
    """The places of the k largest elements of an axis, or of the smallest ones, in order, as int64."""
    if extents(x)[axis] < PROBED and k <= _KEPT:
        if x.tensor_type.dtype in ("int8", "uint8", "int16", "uint16"):  # which the kernel of topk does not take
            x = call("cast", x, dtype="int32")
        return call("topk", x, k=k, axis=axis, ret_type="indices", is_ascend=ascending, dtype="int64")
    return take_slice(call("argsort", x, axis=axis, is_ascend=ascending, dtype="int64"), axis, 0, k)


def padded(x: Expr, axis: int, extent: int, before: Expr, value: float) -> Expr:
    """An axis of another extent, on which the elements begin at a place that is computed at the call.

    Around them is the value; those that are before the new axis, or behind it, are gone.
    """
    new = steps(0, extent, 1, "int64")
    place = call("subtract", new, before)
    ends = [call("greater_equal", place, number(0, place)), call("less", place, count(extents(x)[axis], place))]
    inside = reshape(call("logical_and", *ends), (extent, *(1,) * (len(extents(x)) - 1 - axis)))
    return call("where", inside, call("take", x, place, axis=axis), number(value, x))


def concatenate(parts: Sequence[Expr], axis: int) -> Expr:
    return parts[0] if len(parts) == 1 else joined(parts, axis)
