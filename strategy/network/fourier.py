"""Fourier transforms of fixed sizes, as products with constants, as importers of models share them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategy.expr import Constant, Expr
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.normal import extents
from strategy.network.size import PROBED

_MOST = 4096  # elements of a transform, whose product takes their square


def transform(
    parts: Sequence[Expr], axis: int, size: int, *, scale: float = 1, inverse: bool = False, onesided: bool = False
) -> list[Expr]:
    """The real and imaginary parts of a transform along an axis; only the real one of an inverse that is `onesided`.

    Args:
        parts: the real part, and the imaginary one if there is any, of which what is beyond the size has no part.
        size: that of the signal, of whose transform half is given or wanted if it is `onesided`.
    """
    rank = len(extents(parts[0]))
    axis %= rank
    count = min(extents(parts[0])[axis], size // 2 + 1 if inverse and onesided else size)
    order = [i for i in range(rank) if i != axis] + [axis]
    side_by_side = layer.concatenate([layer.transpose(layer.take_slice(p, axis, 0, count), order) for p in parts], -1)
    factors = factors_of(size, count, len(parts), inverse, onesided) * scale
    outputs, wide, *_ = factors.shape
    weight = Constant(factors.reshape(outputs * wide, -1).astype(parts[0].tensor_type.dtype))
    found = layer.linear(side_by_side, weight)
    back = np.argsort(order).tolist()
    return [layer.transpose(layer.take_slice(found, -1, i * wide, (i + 1) * wide), back) for i in range(outputs)]


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
