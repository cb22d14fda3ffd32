"""Layers of ATen as calls of plevel's: products, attention, convolutions, norms and bags of embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from plevel.torch.aten import NARROW, Operator, cast, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.scatter import require_few
from strategy.network.size import PROBED
from strategy.ops.matmul import einsum


@register("_trilinear.default")
def _trilinear(
    x: Expr, y: Expr, z: Expr, no_x: Sequence[int], no_y: Sequence[int], no_z: Sequence[int], summed: Sequence[int],
    unrolled: int = 1,
) -> Expr:
    """Sums of products of three tensors, each without some of the axes."""
    axes = "abcdefgh"[: len(extents(x)) + len(no_x)]
    terms = ("".join(a for i, a in enumerate(axes) if i not in gone) for gone in (no_x, no_y, no_z, summed))
    return einsum("{},{},{}->{}".format(*terms), x, y, z)


@register("addmm.default")
def _addmm(bias: Expr, x: Expr, y: Expr, beta: float = 1, alpha: float = 1) -> Expr:
    pairs = (layer.matmul(x, y), alpha), (bias, beta)
    product, summand = (v if factor == 1 else call("multiply", v, number(factor, v)) for v, factor in pairs)
    return layer.add_bias(product, summand) if beta else product


@register("addbmm.default")
def _addbmm(bias: Expr, x: Expr, y: Expr, *, beta: float = 1, alpha: float = 1) -> Expr:
    """The sum of a batch's products, as one product of all its matrices side by side."""
    (batch, rows, depth), columns = extents(x), extents(y)[2]
    left = layer.reshape(layer.transpose(x, (1, 0, 2)), (rows, batch * depth))
    found: Expr = _addmm(bias, left, layer.reshape(y, (batch * depth, columns)), beta, alpha)
    return found


@register("scaled_dot_product_attention.default")
def _attention(
    q: Expr, k: Expr, v: Expr, attn_mask: Expr | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Expr:
    if dropout_p:
        raise NetworkError(f"dropout_p {dropout_p}: export the model in eval mode, with 0")
    if extents(q)[-1] >= PROBED:
        raise NetworkError("attention with heads of a symbolic size: export the model with that size fixed")
    if {len(extents(v)) for v in (q, k, v)} != {4}:
        return _attention_of_any_rank(q, k, v, attn_mask, scale, is_causal)
    (batch,) = np.broadcast_shapes(*(extents(x)[:1] for x in (q, k, v)))
    (heads,) = extents(q)[1:2] if enable_gqa else np.broadcast_shapes(*(extents(x)[1:2] for x in (q, k, v)))
    q = layer.broadcast(q, (batch, heads, *extents(q)[2:]))
    # Heads of keys and values that queries share need not be repeated.
    (shared,) = np.broadcast_shapes(*(extents(x)[1:2] for x in (k, v)))
    k, v = (layer.broadcast(x, (batch, shared, *extents(x)[2:])) for x in (k, v))
    return layer.attention(q, k, v, attn_mask, scale=scale, causal=is_causal)


def _attention_of_any_rank(
    q: Expr, k: Expr, v: Expr, mask: Expr | None, scale: float | None, is_causal: bool
) -> Expr:
    """All axes before the last two as the batch, with one head."""
    batch = np.broadcast_shapes(*(extents(x)[:-2] for x in (q, k, v)))

    def joined(x: Expr) -> Expr:
        last = extents(x)[-2:]
        return layer.reshape(layer.broadcast(x, (*batch, *last)), (math.prod(batch), 1, *last))

    if mask is not None and len(extents(mask)) > 2:
        mask = joined(mask)
    found = layer.attention(joined(q), joined(k), joined(v), mask, scale=scale, causal=is_causal)
    return layer.reshape(found, (*batch, *extents(found)[-2:]))


@register("convolution.default")
def _convolution(
    x: Expr, weight: Expr, bias: Expr | None, strides: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Expr:
    padding = padding * ((len(extents(x)) - 2) // len(padding))  # by name it is one number for all axes
    if transposed:
        return layer.transposed_convolution(
            x, weight, bias, strides=strides, padding=(*padding, *padding), output_padding=output_padding,
            dilation=dilation, groups=groups,
        )
    return layer.convolution(
        x, weight, bias, strides=strides, padding=(*padding, *padding), dilation=dilation, groups=groups
    )


@register("_int_mm.default")
def _integer_product(x: Expr, y: Expr) -> Expr:
    """A product of signed bytes, in int32."""
    return call("qdense", x, layer.swap(y))


@register("_weight_int8pack_mm.default")
def _weight_only(x: Expr, weight: Constant, scales: Expr) -> Expr:
    """A product with a weight of signed bytes, a scale for each of its rows."""
    n, k = extents(weight)
    if not isinstance(weight, Constant):
        raise NetworkError("a weight that is computed cannot be packed: make it a parameter or a buffer")
    if k % 2:
        raise NetworkError(f"a weight of k = {k} cannot be packed: pad k to an even number")
    unsigned = Constant((weight.value.view(np.uint8) ^ 0x80).reshape(n, 1, k))
    return call("matmul_nbits", x, unsigned, layer.reshape(scales, (n, 1)), bits=8, block_size=k)


@register("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    x: Expr, scale: Any, shift: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> tuple[Expr]:
    return (layer.batch_norm(x, scale, shift, mean, variance, epsilon),)


@register("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default")
def _batch_norm_in_training(*_: Any) -> Expr:
    raise NetworkError("a batch norm that changes its statistics: export the model in eval mode")


def _widened(norm: Callable[..., tuple[Expr]]) -> Operator:
    """A norm in float32 where its data alone are narrower: autocast leaves scales and shifts as they are."""

    @wraps(norm)
    def compute(x: Expr, *args: Any) -> tuple[Expr]:
        kind = x.tensor_type.dtype
        if kind not in NARROW or all(a.tensor_type.dtype == kind for a in args if isinstance(a, Expr)):
            return norm(x, *args)
        (found,) = norm(cast(x, "float32"), *args)
        return (cast(found, kind),)

    return compute


@register("_native_batch_norm_legit.no_stats")
@_widened
def _batch_norm_of_batch(
    x: Expr, scale: Expr | None, shift: Expr | None, training: bool, momentum: float, epsilon: float
) -> tuple[Expr]:
    """Each channel by its own mean and variance in the batch, as an instance norm's decomposition has it."""
    (batch, channels, *image), dtype = extents(x), x.tensor_type.dtype
    one = layer.transpose(layer.reshape(x, (batch, channels, math.prod(image))), (1, 0, 2)) if batch > 1 else x
    size = batch * math.prod(image)
    whole = layer.reshape(one, (1, channels, size))
    if max(channels, size) < PROBED:
        gamma = Constant(np.ones(channels, dtype)) if scale is None else scale
        beta = Constant(np.zeros(channels, dtype)) if shift is None else shift
        found: Expr = call("instance_norm", whole, gamma, beta, epsilon=epsilon)
    else:  # an instance norm's, of all entries of a symbolic batch, or of an image of a symbolic size
        gamma, beta = (layer.filled(value, (size,), dtype) for value in (1, 0))
        found = call("layer_norm", layer.reshape(whole, (channels, size)), gamma, beta, axis=-1, epsilon=epsilon)
        found = found if scale is None else call("multiply", found, layer.reshape(scale, (channels, 1)))
        found = found if shift is None else call("add", found, layer.reshape(shift, (channels, 1)))
    if batch > 1:
        found = layer.transpose(layer.reshape(found, (channels, batch, math.prod(image))), (1, 0, 2))
    return (layer.reshape(found, extents(x)),)


@register("native_layer_norm.default")
@_widened
def _layer_norm(
    x: Expr, shape: Sequence[int], scale: Expr | None, shift: Expr | None, epsilon: float
) -> tuple[Expr]:
    size, dtype = math.prod(shape), x.tensor_type.dtype
    whole = layer.reshape(x, (*extents(x)[: -len(shape)], size))
    gamma = layer.filled(1, (size,), dtype) if scale is None else layer.reshape(scale, (size,))
    beta = layer.filled(0, (size,), dtype) if shift is None else layer.reshape(shift, (size,))
    found = call("layer_norm", whole, gamma, beta, axis=-1, epsilon=epsilon)
    return (layer.reshape(found, extents(x)),)


@register("native_group_norm.default")
@_widened
def _group_norm(
    x: Expr, scale: Expr | None, shift: Expr | None, n: int, c: int, hw: int, groups: int, epsilon: float
) -> tuple[Expr]:
    dtype = x.tensor_type.dtype
    gamma = Constant(np.ones(c, dtype)) if scale is None else scale
    beta = Constant(np.zeros(c, dtype)) if shift is None else shift
    return (call("group_norm", x, gamma, beta, num_groups=groups, axis=1, epsilon=epsilon),)


@register("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    weight: Expr, indices: Expr, offsets: Expr, scale_grad: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Expr | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Expr]:
    """Sums, means or maxima of rows, of bags that begin at offsets.

    Unless all bags have as many rows, each looks at all of them, by a product or a choice.
    """
    (n,), kind = extents(indices), weight.tensor_type.dtype
    begin = cast(offsets, "int64")
    if include_last_offset:
        begin = layer.take_slice(begin, 0, 0, -1)
    (bags,), columns = extents(begin), extents(weight)[1]
    rows = call("take", weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = call("multiply", rows, layer.reshape(per_sample_weights, (n, 1)))
    each = n // max(bags, 1)
    regular = isinstance(begin, Constant) and each and np.array_equal(begin.value, np.arange(0, n, each))
    if regular and n == bags * each and padding_idx < 0:
        whole = layer.reshape(rows, (bags, each, columns))
        return (call(("sum", "mean", "max")[mode], whole, axis=(1,), keepdims=False),)
    require_few(bags * n * (columns if mode == 2 else 1), f"{bags} bags of {n} embeddings")
    end = layer.concatenate([layer.take_slice(begin, 0, 1, None), Constant(np.asarray([n]))], 0)
    if include_last_offset:
        end = layer.take_slice(cast(offsets, "int64"), 0, 1, None)
    place = Constant(np.arange(n)[None])
    within = call(
        "logical_and", call("less_equal", layer.reshape(begin, (bags, 1)), place),
        call("less", place, layer.reshape(end, (bags, 1))),
    )
    if padding_idx >= 0:
        within = call("logical_and", within, call("not_equal", indices, number(padding_idx, indices)))
    if mode == 2:
        beside, wide = layer.reshape(within, (bags, n, 1)), layer.reshape(rows, (1, n, columns))
        most = call("max", call("where", beside, wide, number(-math.inf, rows)), axis=(1,), keepdims=False)
        return (call("where", call("any", within, axis=(1,), keepdims=True), most, number(0, rows)),)
    share = cast(within, kind)
    found = layer.matmul(share, rows)
    if mode == 1:
        count = call("sum", share, axis=(1,), keepdims=True)
        found = call("divide", found, layer.clip(count, 1, None))
    return (found,)
