"""Fourier transforms of ONNX of fixed sizes, as products with constants."""

from __future__ import annotations

import math

import numpy as np

from plevel.onnx.node import Node, constant, register
from strategy.expr import Constant, Expr
from strategy.network import layer
from strategy.network.fourier import factors_of
from strategy.network.graph import NetworkError
from strategy.network.normal import extents


@register("DFT")
def _dft(node: Node, x: Expr, length: Expr | None = None, given: Expr | None = None) -> Expr:
    """The numbers along an axis, of which the last axis has one part or two."""
    rank, shape = len(extents(x)), extents(x)
    named = node.get("axis", 1) if node.version < 20 else -2
    axis = (named if given is None else int(constant(given, "axis").item())) % rank
    inverse, onesided = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    usual = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    size = usual if length is None else int(constant(length, "dft_length").item())
    count = min(shape[axis], size // 2 + 1 if inverse and onesided else size)
    x = layer.take_slice(x, axis, 0, count)
    order = [i for i in range(rank - 1) if i != axis]
    parts = layer.transpose(x, [*order, rank - 1, axis])  # the parts of all numbers behind each other
    flat = layer.reshape(parts, (*extents(parts)[:-2], math.prod(extents(parts)[-2:])))
    factors = factors_of(size, count, shape[-1], inverse, onesided) / (size if inverse else 1)
    outputs, wide, _, _ = factors.shape
    weight = Constant(factors.reshape(outputs * wide, -1).astype(x.tensor_type.dtype))
    found = layer.linear(flat, weight)
    split = layer.reshape(found, (*extents(found)[:-1], outputs, wide))
    return layer.transpose(split, np.argsort([*order, rank - 1, axis]).tolist())


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
    )  # fmt: skip
    frames = extents(found)[2]
    return layer.transpose(layer.reshape(found, (batch, outputs, wide, frames)), (0, 3, 2, 1))
