"""Operators whose elements are elements of the input, or a constant.

These are broadcast_to, repeat, tile, reverse, pad, trilu, depth_to_space and space_to_depth: an entry below for each
has its shape, where an element comes from, NumPy's form, and its gradient.
"""
# Over 300 lines: a table of operators that share their relations and schedules.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import Caller, caller
from strategy.expr import Constant, Expr, call, const
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import collapse_sum_like
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape, reshape_like
from strategy.ops.strided_slice import strided_slice
from strategy.pattern import broadcast_place, register_injective_schedule
from strategy.reference import numpy_function, widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    broadcast_shape,
    normal_axis,
    represents,
    require_nonempty,
    require_rank,
    require_shape,
)
from strategy.types import TensorType, Type

Place = tuple[Sequence[Any], Any]
"""The index of an element of the input, and a condition that it is within, or None."""


def _register(
    name: str,
    description: str,
    attrs: type[Attrs],
    examples: Sequence[Mapping[str, Any]],
    *,
    check: Callable[[Any, TypeReporter, TensorType], None],
    shape: Callable[[Any, Sequence[Any]], Sequence[Any]],
    place: Callable[[Any, Sequence[Any], Sequence[Any]], Place],
    reference: Callable[[Any, Any], Any],
    gradient: Callable[[Any, Expr, Expr], Expr],
    data: str = "float32[5,19]",
) -> Caller:
    """Register an operator, and return the function that calls it.

    Args:
        check: reports what is wrong with the input's type.
        shape: of the result, from that of the input: of dimensions, integers or TE expressions.
        place: of the attributes, the index of an element of the result, and the input's shape.
        reference: NumPy's form, of an array and the attributes.
        gradient: of the attributes, the input, and the derivative with respect to the result.
        data: the type of the examples' input.
    """
    op = (
        register_op(name)
        .describe(description)
        .add_argument("data", "Tensor", "The input tensor.")
        .set_attrs_type(attrs)
        .set_support_level(3)
        .set_attr("TOpPattern", TOpPattern.kInjective)
    )
    for example in examples:
        op.example({"data": data}, example)

    def relation(types: Sequence[Type], attrs: Any, reporter: TypeReporter) -> bool:
        data = reporter.known(0)
        check(attrs, reporter, data)
        reporter.assign(1, TensorType(list(shape(attrs, data.shape)), data.dtype))
        return True

    def compute(attrs: Any, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import te, tirx

        data = inputs[0]

        def element(*index: Any) -> Any:
            found, within = place(attrs, index, data.shape)
            if within is None:
                return data(*found)
            return tirx.if_then_else(within, data(*found), tirx.const(getattr(attrs, "pad_value", 0), data.dtype))

        return [te.compute(tuple(shape(attrs, data.shape)), element, name=name)]

    op.add_type_rel(name, relation)
    register_compute(name, compute)
    register_reference(name, lambda attrs, inputs: reference(widened(inputs[0]), attrs))
    register_injective_schedule(name)
    register_shape_func(name, False, lambda attrs, inputs: [tuple(shape(attrs, inputs[0]))])
    register_gradient(name, lambda orig, grad: [gradient(orig.attrs, orig.args[0], grad)])
    return caller(name)


class BroadcastToAttrs(Attrs):
    """Attributes of broadcast_to."""

    shape: tuple[int, ...] = field(description="The extents of the result; -1 is that of the input", lower=-1)


class RepeatAttrs(Attrs):
    """Attributes of repeat."""

    repeats: int = field(description="The number of times that each element stands", lower=1)
    axis: int = field(-1, "The axis along which elements are repeated")


class TileAttrs(Attrs):
    """Attributes of tile."""

    reps: tuple[int, ...] = field(description="The number of times along each axis, the last ones' if fewer", lower=1)


class ReverseAttrs(Attrs):
    """Attributes of reverse."""

    axis: int = field(0, "The axis whose order is reversed")


class PadAttrs(Attrs):
    """Attributes of pad."""

    pad_width: tuple[tuple[int, int], ...] = field(description="The numbers of elements before and behind each axis")
    pad_value: float = field(0.0, "The value of constant elements; a whole one for tensors of integers")
    pad_mode: str = field("constant", "The source of new elements", choices=("constant", "edge", "reflect"))


class TriluAttrs(Attrs):
    """Attributes of trilu."""

    k: int = field(
        0, "The diagonal up to which, or from which, elements are kept; 0 is the main one",
        lower=-(2**31), upper=2**31 - 1,
    )
    upper: bool = field(True, "Keep the upper triangle; else the lower")


class BlockAttrs(Attrs):
    """Attributes of depth_to_space and space_to_depth."""

    block_size: int = field(description="The height and width of a block of pixels", lower=1, upper=2**31 - 1)
    mode: str = field(
        "DCR", "Order of the depth's parts: block then channel, or channel then block (CRD), as pixel_shuffle",
        choices=("DCR", "CRD"),
    )


def _check_axis(attrs: Any, reporter: TypeReporter, data: TensorType) -> None:
    normal_axis(reporter, 0, attrs.axis, data.ndim)


def _check_broadcast(attrs: BroadcastToAttrs, reporter: TypeReporter, data: TensorType) -> None:
    reporter.check(len(attrs.shape) >= data.ndim, 0, f"has more axes than shape = {attrs.shape}")
    new = attrs.shape[: len(attrs.shape) - data.ndim]
    reporter.check(-1 not in new, 0, f"has no extent for the -1 of shape = {attrs.shape}")
    whole = TensorType(_broadcast(attrs, data.shape), data.dtype)
    fits = broadcast_shape(reporter, 0, data, whole)
    require_shape(reporter, 0, fits, whole.shape, f"does not broadcast to shape = {attrs.shape}")


def _broadcast(attrs: BroadcastToAttrs, shape: Sequence[Any]) -> list[Any]:
    own = [None] * (len(attrs.shape) - len(shape)) + list(shape)
    return [mine if extent == -1 else extent for extent, mine in zip(attrs.shape, own, strict=True)]


def _reference_broadcast(x: Any, attrs: BroadcastToAttrs) -> Any:
    import numpy as np

    return np.broadcast_to(x, _broadcast(attrs, x.shape))


def _along(attrs: Any, values: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The values, that of the axis changed."""
    axis = attrs.axis % len(values)
    return [change(v) if i == axis else v for i, v in enumerate(values)]


def _repeat_grad(attrs: RepeatAttrs, x: Expr, grad: Expr) -> Expr:
    axis = attrs.axis % x.tensor_type.ndim
    behind = [int(d) for d in x.tensor_type.shape[axis + 1 :]]
    return reduce_sum(reshape(grad, (*[0] * axis, -1, attrs.repeats, *behind)), axis=axis + 1)


def _reps(attrs: TileAttrs, rank: int) -> list[int]:
    return [1] * (rank - len(attrs.reps)) + list(attrs.reps)


def _tile(attrs: TileAttrs, shape: Sequence[Any]) -> list[Any]:
    own = [1] * (len(attrs.reps) - len(shape)) + list(shape)
    return [n * r for n, r in zip(own, _reps(attrs, len(own)), strict=True)]


def _place_of_tile(attrs: TileAttrs, index: Sequence[Any], shape: Sequence[Any]) -> Place:
    from tvm import tirx

    own = index[len(index) - len(shape) :]
    return [i % tirx.max(n, 1) for i, n in zip(own, shape, strict=True)], None  # an empty one is never read


def _tile_grad(attrs: TileAttrs, x: Expr, grad: Expr) -> Expr:
    rank = grad.tensor_type.ndim
    own = [1] * (rank - x.tensor_type.ndim) + [int(d) for d in x.tensor_type.shape]
    parts = [n for pair in zip(_reps(attrs, rank), own, strict=True) for n in pair]
    return reshape_like(reduce_sum(reshape(grad, tuple(parts)), axis=tuple(range(0, 2 * rank, 2))), x)


def _check_pad(attrs: PadAttrs, reporter: TypeReporter, data: TensorType) -> None:
    named = len(attrs.pad_width) == data.ndim
    reporter.check(named, 0, f"pad_width names {len(attrs.pad_width)} axes: name two numbers for each")
    negative = any(n < 0 for pair in attrs.pad_width for n in pair)
    reporter.check(not negative, 0, "pad_width is negative: slice the tensor instead")
    known = represents(data.dtype, attrs.pad_value)
    reporter.check(known, 0, f"pad_value = {attrs.pad_value:g} is no number of its dtype")
    if attrs.pad_mode == "constant":
        return
    for axis, pair in enumerate(attrs.pad_width):
        if any(pair):
            require_nonempty(reporter, 0, data, [axis])
        if attrs.pad_mode == "reflect" and any(pair):
            fits = data.shape[axis] > max(pair)
            reporter.check(fits, 0, f"pad_width {pair} reflects more elements than axis {axis} has behind its edge")


def _pad(attrs: PadAttrs, shape: Sequence[Any]) -> list[Any]:
    return [n + before + after for n, (before, after) in zip(shape, attrs.pad_width, strict=True)]


def _place_of_pad(attrs: PadAttrs, index: Sequence[Any], shape: Sequence[Any]) -> Place:
    from tvm import tirx

    found, within = [], []
    for i, n, (before, after) in zip(index, shape, attrs.pad_width, strict=True):
        own = i - before if before else i
        if attrs.pad_mode == "edge" and (before or after):
            own = tirx.max(tirx.min(own, n - 1), 0)
        elif attrs.pad_mode == "reflect":
            own = tirx.max(own, -own) if before else own
            own = tirx.min(own, 2 * (n - 1) - own) if after else own
        else:
            within += [own >= 0] * bool(before) + [own < n] * bool(after)
        found.append(own)
    return found, tirx.all(*within) if within else None


def _reference_pad(x: Any, attrs: PadAttrs) -> Any:
    import numpy as np

    mode: Any = attrs.pad_mode
    more = {"constant_values": attrs.pad_value} if mode == "constant" else {}
    return np.pad(x, attrs.pad_width, mode, **more) if attrs.pad_width else x


def _pad_grad(attrs: PadAttrs, x: Expr, grad: Expr) -> Expr:
    """Cut off what is constant; add what is repeated to where it is from."""
    import numpy as np

    for axis, (extent, (before, after)) in enumerate(zip(x.tensor_type.shape, attrs.pad_width, strict=True)):
        if not before and not after:
            continue
        own = strided_slice(grad, (before,), (before + int(extent),), axes=(axis,))
        if attrs.pad_mode == "constant":
            grad = own
            continue
        mode: Any = attrs.pad_mode
        sources = np.pad(np.arange(int(extent), dtype="int32"), (before, after), mode)
        grad = call("take_backward", grad, Constant(sources), own, axis=axis)
    return grad


def _check_trilu(attrs: TriluAttrs, reporter: TypeReporter, data: TensorType) -> None:
    reporter.check(data.ndim >= 2, 0, "expected matrices, of two dimensions at least")


def _place_of_trilu(attrs: TriluAttrs, index: Sequence[Any], shape: Sequence[Any]) -> Place:
    distance = index[-1] - index[-2]
    return index, distance >= attrs.k if attrs.upper else distance <= attrs.k


def _check_depth(attrs: BlockAttrs, reporter: TypeReporter, data: TensorType) -> None:
    require_rank(reporter, 0, data, 4, "[batch, channels, height, width]")
    fits = data.shape[1] % attrs.block_size**2 == 0
    reporter.check(fits, 0, f"its channels do not divide by block_size² = {attrs.block_size**2}")


def _check_space(attrs: BlockAttrs, reporter: TypeReporter, data: TensorType) -> None:
    require_rank(reporter, 0, data, 4, "[batch, channels, height, width]")
    for axis in (2, 3):
        fits = data.shape[axis] % attrs.block_size == 0
        reporter.check(fits, 0, f"its axis {axis} does not divide by block_size = {attrs.block_size}")


def _place_in_depth(attrs: BlockAttrs, index: Sequence[Any], shape: Sequence[Any]) -> Place:
    (n, c, y, x), size = index, attrs.block_size
    part, channels = y % size * size + x % size, shape[1] // size**2
    depth = part * channels + c if attrs.mode == "DCR" else c * size**2 + part
    return [n, depth, y // size, x // size], None


def _place_in_space(attrs: BlockAttrs, index: Sequence[Any], shape: Sequence[Any]) -> Place:
    from tvm import tirx

    (n, depth, y, x), size = index, attrs.block_size
    channels = tirx.max(shape[1], 1)  # an empty one is never read
    by_part = attrs.mode == "DCR"
    part, c = (depth // channels, depth % channels) if by_part else (depth % size**2, depth // size**2)
    return [n, c, y * size + part // size, x * size + part % size], None


def _depth_to_space(x: Any, attrs: BlockAttrs) -> Any:
    (n, c, h, w), size = x.shape, attrs.block_size
    own = c // size**2
    if attrs.mode == "DCR":
        parts = x.reshape(n, size, size, own, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, own, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, own, h * size, w * size)


def _space_to_depth(x: Any, attrs: BlockAttrs) -> Any:
    (n, c, h, w), size = x.shape, attrs.block_size
    parts = x.reshape(n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if attrs.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(n, c * size**2, h // size, w // size)


broadcast_to = _register(
    "broadcast_to", "The input, broadcast to a shape.", BroadcastToAttrs, [{"shape": [3, 5, -1]}],
    check=_check_broadcast, shape=_broadcast, place=lambda attrs, index, shape: (broadcast_place(shape, index), None),
    reference=_reference_broadcast, gradient=lambda attrs, x, grad: collapse_sum_like(grad, x),
)
repeat = _register(
    "repeat", "Each element several times along an axis.", RepeatAttrs,
    [{"repeats": 3}, {"repeats": 2, "axis": 0}], check=_check_axis,
    shape=lambda attrs, shape: _along(attrs, shape, lambda n: n * attrs.repeats),
    place=lambda attrs, index, shape: (_along(attrs, index, lambda i: i // attrs.repeats), None),
    reference=lambda x, attrs: x.repeat(attrs.repeats, attrs.axis), gradient=_repeat_grad,
)
tile = _register(
    "tile", "The whole input several times along axes.", TileAttrs, [{"reps": [2, 1, 3]}],
    check=lambda attrs, reporter, data: None, shape=_tile, place=_place_of_tile,
    reference=lambda x, attrs: numpy_function("tile")(x, attrs.reps), gradient=_tile_grad,
)
reverse: Caller = _register(
    "reverse", "The elements along an axis in reverse order: flip.", ReverseAttrs, [{"axis": 1}, {}],
    check=_check_axis, shape=lambda attrs, shape: shape,
    place=lambda attrs, index, shape: (
        [n - 1 - i if a == attrs.axis % len(shape) else i for a, (i, n) in enumerate(zip(index, shape, strict=True))],
        None,
    ),
    reference=lambda x, attrs: numpy_function("flip")(x, attrs.axis),
    gradient=lambda attrs, x, grad: reverse(grad, axis=attrs.axis),
)
pad = _register(
    "pad", "The input with further elements at the ends of its axes, as Relay's nn.pad.", PadAttrs,
    [
        {"pad_width": [[1, 0], [2, 3]], "pad_value": 2}, {"pad_width": [[0, 2], [3, 1]], "pad_mode": "edge"},
        {"pad_width": [[2, 1], [0, 3]], "pad_mode": "reflect"},
    ],
    check=_check_pad, shape=_pad, place=_place_of_pad, reference=_reference_pad, gradient=_pad_grad,
)
trilu: Caller = _register(
    "trilu", "The upper or the lower triangle of each matrix, zeros elsewhere.", TriluAttrs,
    [{"k": 1}, {"upper": False}], check=_check_trilu, shape=lambda attrs, shape: shape, place=_place_of_trilu,
    reference=lambda x, attrs: numpy_function("triu" if attrs.upper else "tril")(x, attrs.k),
    gradient=lambda attrs, x, grad: trilu(grad, k=attrs.k, upper=attrs.upper),
)

depth_to_space: Caller = _register(
    "depth_to_space", "Blocks of pixels from the parts of the channels, as Relay's nn.depth_to_space.", BlockAttrs,
    [{"block_size": 2}, {"block_size": 2, "mode": "CRD"}], data="float32[2,12,3,5]", check=_check_depth,
    shape=lambda attrs, shape: [
        shape[0], shape[1] // attrs.block_size**2, shape[2] * attrs.block_size, shape[3] * attrs.block_size
    ],
    place=_place_in_depth, reference=_depth_to_space,
    gradient=lambda attrs, x, grad: space_to_depth(grad, block_size=attrs.block_size, mode=attrs.mode),
)
space_to_depth: Caller = _register(
    "space_to_depth", "Parts of the channels from blocks of pixels, as Relay's nn.space_to_depth.", BlockAttrs,
    [{"block_size": 2}, {"block_size": 2, "mode": "CRD"}], data="float32[2,3,6,10]", check=_check_space,
    shape=lambda attrs, shape: [
        shape[0], shape[1] * attrs.block_size**2, shape[2] // attrs.block_size, shape[3] // attrs.block_size
    ],
    place=_place_in_space, reference=_space_to_depth,
    gradient=lambda attrs, x, grad: depth_to_space(grad, block_size=attrs.block_size, mode=attrs.mode),
)


def full(shape: Sequence[int], fill_value: float, dtype: str = "float32") -> Expr:
    """A tensor of one value.

    Args:
        shape: its extents.
        fill_value: the value of all elements.
        dtype: its data type.
    """
    return broadcast_to(const(fill_value, dtype), shape=tuple(shape))


def arange(start: float, stop: float | None = None, step: float = 1, dtype: str = "int32") -> Expr:
    """A constant of equally spaced numbers.

    Args:
        start: the first number; the end, if `stop` is not given, and then the first is 0.
        stop: where the numbers end, itself not included.
        step: the distance of neighbours.
        dtype: the data type.
    """
    import numpy as np

    first, last = (0, start) if stop is None else (start, stop)
    return const(np.arange(first, last, step), dtype)
