"""conv1d and conv3d: convolutions of one and three dimensions, by those of two."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.expr import Expr, ExprError, Tuple, call
from strategy.ops.conv2d import conv2d
from strategy.ops.movement import pad
from strategy.ops.reshape import expand_dims, reshape, squeeze
from strategy.ops.strided_slice import strided_slice
from strategy.ops.transpose import transpose


def conv1d(
    data: Expr,
    weight: Expr,
    strides: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Expr:
    """One-dimensional convolution, as Relay's nn.conv1d: a conv2d of one row.

    Args:
        data: [batch, channels, width].
        weight: [out channels, channels / groups, width].
        strides: step of the window.
        padding: zeros around the data: one number, or (left, right).
        dilation: distance of the window's elements.
        groups: input and output channels are split into this many groups.

    Raises:
        ExprError: the data or the weight has not three dimensions, or the padding has another form.
    """
    for node in (data, weight):
        if node.tensor_type.ndim != 3:
            raise ExprError(f"conv1d: {node.tensor_type}: expected 3 dimensions")
    left, right = _sides("conv1d", padding, 1)
    (step,), (distance,) = _each("conv1d", strides, 1), _each("conv1d", dilation, 1)
    found = conv2d(
        expand_dims(data, 2), expand_dims(weight, 2), (1, step), (0, left, 0, right), (1, distance), groups
    )
    return squeeze(found, 2)


def conv3d(
    data: Expr,
    weight: Expr,
    strides: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Expr:
    """Three-dimensional convolution, as Relay's nn.conv3d: a conv2d of the images that a window sees, side by side.

    Args:
        data: [batch, channels, depth, height, width].
        weight: [out channels, channels / groups, depth, height, width].
        strides: steps of the window.
        padding: zeros around the data: one number, one for each axis, or all begins, then all ends.
        dilation: distance of the window's elements.
        groups: input and output channels are split into this many groups.

    Raises:
        ExprError: an extent is symbolic, or the padding has another form.
    """
    (n, c, depth, height, width), (o, own, size, *window) = (_extents(x, 5, "conv3d") for x in (data, weight))
    step, *steps = _each("conv3d", strides, 3)
    distance, *distances = _each("conv3d", dilation, 3)
    front, top, left, back, bottom, right = _sides("conv3d", padding, 3)
    if front or back:
        data = pad(data, pad_width=((0, 0), (0, 0), (front, back), (0, 0), (0, 0)))
    count = (depth + front + back - (size - 1) * distance - 1) // step + 1
    if count < 1:
        raise ExprError(f"conv3d: {data.tensor_type} has fewer images than the window, {weight.tensor_type}")
    seen = [
        reshape(
            strided_slice(data, (k * distance,), (k * distance + (count - 1) * step + 1,), (step,), axes=(2,)),
            (n, c, 1, count, height, width),
        )
        for k in range(size)
    ]
    images = seen[0] if size == 1 else call("concatenate", Tuple(seen), axis=2)
    images = reshape(transpose(images, (0, 3, 1, 2, 4, 5)), (n * count, c * size, height, width))
    found = conv2d(
        images, reshape(weight, (o, own * size, *window)), (steps[0], steps[1]), (top, left, bottom, right),
        (distances[0], distances[1]), groups,
    )
    out = _extents(found, 4, "conv3d")[2:]
    return transpose(reshape(found, (n, count, o, *out)), (0, 2, 1, 3, 4))


def _extents(node: Expr, rank: int, name: str) -> tuple[int, ...]:
    kind = node.tensor_type
    if not kind.is_constant or kind.ndim != rank:
        raise ExprError(f"{name}: {kind}: expected {rank} dimensions, all constant")
    return kind.concrete_shape


def _each(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """A number for each axis."""
    given = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(given) != rank:
        raise ExprError(f"{name}: {given}: give one number, or one for each of {rank} axes")
    return given


def _sides(name: str, padding: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """The padding: all begins, then all ends."""
    given = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    return given if len(given) == 2 * rank else _each(name, given, rank) * 2
