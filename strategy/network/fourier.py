"""Fourier transforms as products with their factors, as importers of models share them.

Those of fixed sizes are constants; those of symbolic sizes are computed at the call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

_MOST = 4096  # elements of a transform, whose product takes their square


def transform(
    parts: Sequence[Expr], axis: int, size: int, *, scale: float | Expr = 1, inverse: bool = False,
    onesided: bool = False,
) -> list[Expr]:
    """The real and imaginary parts of a transform along an axis; only the real one of an inverse that is `onesided`.

    Args:
        parts: the real part, and the imaginary one if there is any, of which what is beyond the size has no part.
        size: that of the signal, of whose transform half is given or wanted if it is `onesided`.
        scale: a factor of the result, which is computed at the call where it depends on sizes.
    """
    rank = len(extents(parts[0]))
    axis %= rank
    count = min(extents(parts[0])[axis], size // 2 + 1 if inverse and onesided else size)
    order = [i for i in range(rank) if i != axis] + [axis]
    last = [layer.transpose(layer.take_slice(p, axis, 0, count), order) for p in parts]
    if max(size, count) >= PROBED:
        found = _at_call(last, size, inverse, onesided)
    else:
        factors = factors_of(size, count, len(parts), inverse, onesided) * (1 if isinstance(scale, Expr) else scale)
        outputs, wide, *_ = factors.shape
        weight = Constant(factors.reshape(outputs * wide, -1).astype(parts[0].tensor_type.dtype))
        both = layer.linear(layer.concatenate(last, -1), weight)
        found = [layer.take_slice(both, -1, i * wide, (i + 1) * wide) for i in range(outputs)]
    if isinstance(scale, Expr):
        found = [call("multiply", x, call("cast", scale, dtype=x.tensor_type.dtype)) for x in found]
    return [layer.transpose(x, np.argsort(order).tolist()) for x in found]


def _at_call(parts: Sequence[Expr], size: int, inverse: bool, onesided: bool) -> list[Expr]:
    """The parts of a transform of the last axis of a symbolic size, not scaled."""
    given = layer.steps(0, extents(parts[0])[-1], 1, "int64")
    made = layer.steps(0, size // 2 + 1 if onesided and not inverse else size, 1, "int64")
    whole = layer.count(size, given)

    def times(x: Expr, factor: float) -> Expr:
        return call("multiply", x, number(factor, x))

    turned = call("floor_mod", call("multiply", layer.reshape(given, (-1, 1)), made), whole)
    part = call("divide", *(call("cast", x, dtype="float64") for x in (turned, whole)))
    angles, zero = times(part, 2 * np.pi), number(0, part)
    # Exact zeros, as below.
    no_cosine = call("equal", call("floor_mod", times(turned, 4), times(whole, 2)), whole)
    no_sine = call("equal", call("floor_mod", times(turned, 2), whole), number(0, whole))
    cosine = call("where", no_cosine, zero, call("cos", angles))
    sine = call("where", no_sine, zero, call("sin", angles))
    if inverse and onesided:  # those that are left out are the conjugates of what is there but once
        inner = call("logical_and", call("greater", given, number(0, given)), call("less", times(given, 2), whole))
        weight = layer.reshape(call("add", call("cast", inner, dtype="float64"), number(1, part)), (-1, 1))
        cosine, sine = (call("multiply", x, weight) for x in (cosine, sine))
    sine = sine if inverse else call("negative", sine)
    cosine, sine = (call("cast", x, dtype=parts[0].tensor_type.dtype) for x in (cosine, sine))
    real, *imaginary = parts
    found = [layer.matmul(real, cosine), layer.matmul(real, sine)][: 1 if inverse and onesided else 2]
    if imaginary:
        others = [call("negative", layer.matmul(imaginary[0], sine)), layer.matmul(imaginary[0], cosine)]
        found = [call("add", x, y) for x, y in zip(found, others, strict=False)]
    return found


def factors_of(size: int, count: int, parts: int, inverse: bool, onesided: bool) -> np.ndarray:
    """The factors of a transform, not scaled: [parts of the result, its numbers, parts of the data, its numbers]."""
    if max(size, count) >= PROBED:
        raise NetworkError("a transform of a symbolic size: give a fixed one")
    if not 0 < size <= _MOST:
        raise NetworkError(f"a transform of {size} numbers: plevel multiplies all pairs of them, of 1 … {_MOST}")
    numbers = np.arange(size // 2 + 1 if onesided and not inverse else size)
    turned = numbers[:, None] * np.arange(count) % size
    angles = 2 * np.pi / size * turned
    # Exact zeros: what has no imaginary part has none by a rounding either, whose sign would turn an angle.
    cosine = np.where(4 * turned % (2 * size) == size, 0, np.cos(angles))
    sine = np.where(2 * turned % size == 0, 0, np.sin(angles if inverse else -angles))
    if inverse and onesided:  # those that are left out are the conjugates of what is there but once
        twice = np.ones(count)
        twice[1 : (size + 1) // 2] = 2
        cosine, sine = cosine * twice, sine * twice
    real = np.stack([cosine, -sine][:parts], 1)
    imaginary = np.stack([sine, cosine][:parts], 1)
    return np.stack([real] if inverse and onesided else [real, imaginary])
