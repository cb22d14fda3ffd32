"""Operators that ONNX Runtime's optimizer writes into models: functions, products and norms of sums."""

from __future__ import annotations

import math

import numpy as np

from plevel.onnx.node import OPERATORS, Node, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents

_EPSILON = 1e-12  # of norms with a summand


@register("com.microsoft.Gelu", "com.microsoft.BiasGelu")
def _gelu(node: Node, x: Expr, bias: Expr | None = None) -> Expr:
    return call("gelu", x if bias is None else call("add", x, bias), approximate="none")


@register("com.microsoft.FastGelu")
def _fast_gelu(node: Node, x: Expr, bias: Expr | None = None) -> Expr:
    return call("gelu", x if bias is None else call("add", x, bias), approximate="tanh")


@register("com.microsoft.QuickGelu")
def _quick_gelu(node: Node, x: Expr) -> Expr:
    alpha = node.get("alpha", 1.702)
    if alpha == 1:
        return call("silu", x)
    return call("multiply", x, call("sigmoid", call("multiply", x, number(alpha, x))))


@register("com.microsoft.BiasSplitGelu")
def _bias_split_gelu(node: Node, x: Expr, bias: Expr) -> Expr:
    whole = call("add", x, bias)
    half = extents(x)[-1] // 2
    gate = call("gelu", layer.take_slice(whole, -1, half, None), approximate="none")
    return call("multiply", layer.take_slice(whole, -1, 0, half), gate)


@register("com.microsoft.BiasAdd")
def _bias_add(node: Node, x: Expr, bias: Expr, skip: Expr) -> Expr:
    return call("add", call("add", x, bias), skip)


@register("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def _fused_matmul(node: Node, x: Expr, y: Expr) -> Expr:
    """A product of matrices, each transposed or not, times a number; vectors stay as they are."""
    if node.get("transBatchA", 0) or node.get("transBatchB", 0):
        raise NetworkError("transBatchA or transBatchB: plevel transposes the last two axes alone")
    x, y = (
        layer.swap(v) if node.get(f"trans{name}", 0) and len(extents(v)) > 1 else v for v, name in ((x, "A"), (y, "B"))
    )
    found = layer.matmul(x, y)
    alpha = node.get("alpha", 1.0)
    return found if alpha == 1 else call("multiply", found, number(alpha, found))


def _activated(node: Node, x: Expr, numbers: list[float]) -> Expr:
    """The activation behind a product, by its name."""
    name = node.get("activation", "")
    if name in ("", "Relu", "Tanh", "Sigmoid"):
        return call(name.lower(), x) if name else x
    if name == "LeakyRelu":
        return call("leaky_relu", x, alpha=float(numbers[0]))
    if name == "Clip":
        return layer.clip(x, *numbers)
    if name == "HardSigmoid":
        return call("hardsigmoid", x, alpha=float(numbers[0]), beta=float(numbers[1]))
    raise NetworkError(f"activation {name!r}: plevel has Relu, Tanh, Sigmoid, LeakyRelu, Clip and HardSigmoid here")


@register("com.microsoft.FusedConv")
def _fused_convolution(node: Node, x: Expr, weight: Expr, bias: Expr | None = None, skip: Expr | None = None) -> Expr:
    found = OPERATORS["Conv"](node, x, weight, bias)
    found = found if skip is None else call("add", found, skip)
    return _activated(node, found, node.get("activation_params", []))


@register("com.microsoft.FusedGemm")
def _fused_gemm(node: Node, x: Expr, y: Expr, bias: Expr | None = None) -> Expr:
    names = ("activation_alpha", "activation_beta")
    return _activated(node, OPERATORS["Gemm"](node, x, y, bias), [node.get(n, 0.0) for n in names])


@register("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def _root_norm(node: Node, x: Expr, scale: Expr) -> tuple[Expr, Expr]:
    """Each row by the root of the mean of its squares; behind it the inverse of that root, in float32."""
    axis = node.get("axis", -1) % len(extents(x))
    size, epsilon = math.prod(extents(x)[axis:]), node.get("epsilon", 1e-5)
    wide = x if x.tensor_type.dtype == "float32" else call("cast", x, dtype="float32")
    given = wide if scale.tensor_type.dtype == "float32" else x  # the norm has the dtype of its scale
    rows = layer.reshape(given, (*extents(x)[:axis], size))
    found = call("rms_norm", rows, layer.reshape(scale, (size,)), axis=-1, epsilon=float(epsilon))
    about = {"axis": tuple(range(axis, len(extents(x)))), "keepdims": True}
    mean = call("mean", call("multiply", wide, wide), **about)
    return layer.reshape(found, extents(x)), call("rsqrt", call("add", mean, number(epsilon, wide)))


def _sum_of(x: Expr, *more: Expr | None) -> Expr:
    """A sum with those that are given; ranks may differ."""
    for value in more:
        x = x if value is None else call("add", x, value)
    return x


@register("com.microsoft.SkipLayerNormalization")
def _skip_layer_norm(
    node: Node, x: Expr, skip: Expr, scale: Expr, shift: Expr | None = None, bias: Expr | None = None
) -> tuple[Expr | None, ...]:
    """The norm of a sum, and as the last output the sum."""
    found = _sum_of(x, skip, bias)
    return _norm(found, scale, shift, node.get("epsilon", _EPSILON)), None, None, found


@register("com.microsoft.SkipSimplifiedLayerNormalization")
def _skip_root_norm(
    node: Node, x: Expr, skip: Expr, scale: Expr, bias: Expr | None = None
) -> tuple[Expr | None, ...]:
    found = _sum_of(x, skip, bias)
    return call("rms_norm", found, scale, axis=-1, epsilon=float(node.get("epsilon", _EPSILON))), None, None, found


def _norm(x: Expr, scale: Expr, shift: Expr | None, epsilon: float) -> Expr:
    zeros = Constant(np.zeros(extents(scale), x.tensor_type.dtype))
    found: Expr = call("layer_norm", x, scale, zeros if shift is None else shift, axis=-1, epsilon=float(epsilon))
    return found


@register("com.microsoft.EmbedLayerNormalization")
def _embed_layer_norm(
    node: Node, tokens: Expr, segments: Expr | None, words: Expr, positions: Expr, kinds: Expr | None, scale: Expr,
    shift: Expr, mask: Expr | None = None, places: Expr | None = None,
) -> tuple[Expr, Expr, Expr]:
    """The norm of sums of embeddings; behind it the number of ones in each row of the mask, and the sums."""
    batch, count = extents(tokens)
    own = layer.take_slice(positions, 0, 0, count) if places is None else call("take", positions, places, axis=0)
    if places is None and node.sizes is not None:
        node.limits.append((count, extents(positions)[0]))
    of_kinds = None if segments is None or kinds is None else call("take", kinds, segments, axis=0)
    found = _sum_of(call("take", words, tokens, axis=0), own, of_kinds)
    ones = layer.filled(0, (batch,), "int32")
    if mask is not None:
        hit = call("cast", call("equal", mask, number(1, mask)), dtype="int32")
        ones = call("sum", hit, axis=(1,), keepdims=False)
    return _norm(found, scale, shift, node.get("epsilon", _EPSILON)), ones, found
