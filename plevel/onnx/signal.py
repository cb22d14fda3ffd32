"""Fourier transforms of ONNX, as products with their factors."""

from __future__ import annotations

import numpy as np

from plevel.onnx.node import Node, constant, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.extent import Extent
from strategy.network.fourier import factors_of, transform
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


@register("DFT")
def _dft(node: Node, x: Expr, length: Expr | None = None, given: Expr | None = None) -> Expr:
    """The numbers along an axis, of which the last axis has one part or two."""
    rank, shape = len(extents(x)), extents(x)
    named = node.get("axis", 1) if node.version < 20 else -2
    axis = (named if given is None else int(constant(given, "axis").item())) % rank
    inverse, onesided = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    usual = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    size = usual if length is None else int(constant(length, "dft_length").item())
    extent = node.sizes.encode(size) if node.sizes else size
    if onesided and isinstance(extent, Extent):
        node.known.append(extent // 2 + 1)
    read = size // 2 + 1 if inverse and onesided else size
    node.limits.append((min(read, shape[axis]), max(read, shape[axis])))
    parts = [layer.reshape(layer.take_slice(x, -1, i, i + 1), shape[:-1]) for i in range(shape[-1])]
    scale: float | Expr = 1 / max(size, 1) if inverse else 1
    if inverse and size >= PROBED:
        one = Constant(np.ones(()))
        scale = call("divide", one, layer.reshape(layer.count(size, one), ()))
    found = transform(parts, axis, size, scale=scale, inverse=inverse, onesided=onesided)
    return layer.concatenate([layer.reshape(part, (*extents(part), 1)) for part in found], rank - 1)


@register("STFT")
def _stft(node: Node, x: Expr, step: Expr, window: Expr | None = None, length: Expr | None = None) -> Expr:
    """A convolution over [batch, parts, time] with the transform's factors, times the window, as its weight."""
    weights = None if window is None else constant(window, "window").reshape(-1)
    x = layer.reshape(x, (*extents(x), 1)) if len(extents(x)) == 2 else x  # as PyTorch exports real signals
    batch, whole, parts = extents(x)
    usual = whole if weights is None else len(weights)
    size = usual if length is None else int(constant(length, "frame_length").item())
    if weights is not None and len(weights) != size:
        raise NetworkError(f"a window of {len(weights)} for frames of {size}: make them equal")
    factors = factors_of(size, size, parts, False, bool(node.get("onesided", 1)))
    factors = factors if weights is None else factors * weights
    outputs, wide, _, _ = factors.shape
    kernel = Constant(factors.reshape(outputs * wide, parts, size).astype(x.tensor_type.dtype))
    found = layer.convolution(
        layer.transpose(x, (0, 2, 1)), kernel, None, strides=(int(constant(step, "frame_step").item()),),
        padding=(0, 0), dilation=(1,), groups=1,
    )
    frames = extents(found)[2]
    return layer.transpose(layer.reshape(found, (batch, outputs, wide, frames)), (0, 3, 2, 1))
