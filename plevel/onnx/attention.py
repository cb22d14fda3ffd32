"""Attention as ONNX Runtime's optimizer writes it into models, with its masks, rotations and caches."""

from __future__ import annotations

import numpy as np

from plevel.onnx.node import OPERATORS, Node, constant, register
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


def _apart(x: Expr, heads: int) -> Expr:
    """Rows [batch, m, heads × depth] as heads [batch, heads, m, depth]."""
    batch, m, size = extents(x)
    return layer.transpose(layer.reshape(x, (batch, m, heads, size // heads)), (0, 2, 1, 3))


def _joined(x: Expr) -> Expr:
    """Heads as rows."""
    batch, heads, m, depth = extents(x)
    return layer.reshape(layer.transpose(x, (0, 2, 1, 3)), (batch, m, heads * depth))


def _behind(past: Expr | None, x: Expr) -> Expr:
    return x if past is None else layer.concatenate([past, x], 2)


def _scale(node: Node) -> float | None:
    return node.get("scale", 0.0) or None


def _attended(node: Node, q: Expr, k: Expr, v: Expr, mask: Expr | None, bias: Expr | None) -> Expr:
    """The rows of all heads; the last query is at the place of the last key."""
    m, n = extents(q)[2], extents(k)[2]
    if mask is not None:
        hidden = _hidden(node, mask, q, n)
        bias = hidden if bias is None else call("add", bias, hidden)
    causal = bool(node.get("unidirectional", 0)) and m > 1
    if causal and not (m == n and bias is None):
        own = layer.reshape(layer.steps(n - m, n, 1, "int64"), (m, 1))
        seen, causal = call("less_equal", layer.steps(0, n, 1, "int64"), own), False
        bias = seen if bias is None else call("where", seen, bias, number(-np.inf, bias))
    return _joined(layer.attention(q, k, v, bias, scale=_scale(node), causal=causal))


def _hidden(node: Node, mask: Expr, q: Expr, n: int) -> Expr:
    """The number that is added to the scores of hidden keys, and 0: a mask of keys, or the ends of each batch entry."""
    (batch, _, m, _), shape, dtype = extents(q), extents(mask), q.tensor_type.dtype
    if shape in ((batch,), (2 * batch,)):
        place = layer.steps(0, n, 1, mask.tensor_type.dtype)
        seen: Expr = call("less", place, layer.reshape(layer.take_slice(mask, 0, 0, batch), (batch, 1)))
        if shape != (batch,):
            begins = layer.reshape(layer.take_slice(mask, 0, batch, None), (batch, 1))
            seen = call("logical_and", seen, call("greater_equal", place, begins))
    elif shape in ((batch, n), (batch, m, n), (batch, 1, m, n)):
        seen = mask if mask.tensor_type.dtype == "bool" else call("greater", mask, number(0, mask))
    else:
        raise NetworkError(
            f"a mask of {mask.tensor_type} for {m} queries and {n} keys: plevel has one number for each key, for each "
            "pair of a query and a key, or the end, or both ends, of each batch entry"
        )
    if len(extents(seen)) < 4:
        seen = layer.reshape(seen, (batch, 1, *(extents(seen)[1:-1] or (1,)), n))
    most = float(np.finfo("float32" if dtype == "bfloat16" else dtype).max)
    least = max(node.get("mask_filter_value", -10000.0), -most)
    return call("where", seen, number(0, q), number(least, q))


def _of_one_projection(
    node: Node, whole: Expr, sizes: list[int], mask: Expr | None, past: Expr | None, bias: Expr | None
) -> tuple[Expr, ...]:
    """Attention to queries, keys and values that stand side by side in rows, and the present keys and values."""
    heads = node.require("num_heads")
    ends = np.cumsum(sizes).tolist()
    q, k, v = (_apart(layer.take_slice(whole, 2, end - n, end), heads) for n, end in zip(sizes, ends, strict=True))
    if past is not None:
        _, *own = extents(past)
        before = [layer.reshape(layer.take_slice(past, 0, i, i + 1), own) for i in (0, 1)]
        k, v = _behind(before[0], k), _behind(before[1], v)
    found = _attended(node, q, k, v, mask, bias)
    if node.count == 1:
        return (found,)
    return found, layer.concatenate([layer.reshape(x, (1, *extents(x))) for x in (k, v)], 0)


@register("com.microsoft.Attention")
def _attention(
    node: Node, x: Expr, weight: Expr, bias: Expr | None = None, mask: Expr | None = None, past: Expr | None = None,
    added: Expr | None = None, length: Expr | None = None,
) -> tuple[Expr, ...]:
    if node.get("do_rotary", 0) or node.get("past_present_share_buffer", 0):
        raise NetworkError("do_rotary or past_present_share_buffer: export the model without")
    sizes = node.get("qkv_hidden_sizes") or [extents(weight)[1] // 3] * 3
    return _of_one_projection(node, layer.linear(x, layer.swap(weight), bias), sizes, mask, past, added)


@register("com.microsoft.QAttention")
def _quantised_attention(
    node: Node, x: Expr, weight: Expr, bias: Expr, x_scale: Expr, w_scale: Expr, mask: Expr | None = None,
    x_zero_point: Expr | None = None, w_zero_point: Expr | None = None, past: Expr | None = None,
) -> tuple[Expr, ...]:
    if node.get("do_rotary", 0) or node.get("past_present_share_buffer", 0):
        raise NetworkError("do_rotary or past_present_share_buffer: export the model without")
    product = OPERATORS["com.microsoft.MatMulIntegerToFloat"]
    whole = product(node, x, weight, x_scale, w_scale, x_zero_point, w_zero_point, bias)
    return _of_one_projection(node, whole, [extents(weight)[1] // 3] * 3, mask, past, None)


@register("com.microsoft.MultiHeadAttention")
def _multi_head_attention(
    node: Node, q: Expr, k: Expr | None = None, v: Expr | None = None, bias: Expr | None = None,
    mask: Expr | None = None, added: Expr | None = None, past_k: Expr | None = None, past_v: Expr | None = None,
    *more: Expr | None,
) -> tuple[Expr, ...]:
    """Attention to queries, keys and values, apart or packed, and the present keys and values."""
    if any(value is not None for value in more):
        raise NetworkError("a cache of a longest sequence: export the model without past_sequence_length")
    heads = node.require("num_heads")
    if k is None:
        q, k, v = _unpacked(q, 3)
    elif v is None:
        q, (k, v) = _apart(q, heads), _unpacked(k, 2)
    else:
        q, k, v = (x if len(extents(x)) == 4 else _apart(x, heads) for x in (q, k, v))
    if bias is not None:
        q, k, v = _biased((q, k, v), bias)
    k, v = _behind(past_k, k), _behind(past_v, v)
    return _attended(node, q, k, v, mask, added), k, v


def _unpacked(x: Expr, count: int) -> list[Expr]:
    """Tensors that are packed as [batch, m, heads, count, depth]."""
    batch, m, heads, _, depth = extents(x)
    each = (layer.reshape(layer.take_slice(x, 3, i, i + 1), (batch, m, heads, depth)) for i in range(count))
    return [layer.transpose(value, (0, 2, 1, 3)) for value in each]


def _biased(values: tuple[Expr, Expr, Expr], bias: Expr) -> list[Expr]:
    """Queries, keys and values with the biases of their projections, which stand side by side."""
    begin = 0
    found: list[Expr] = []
    for x in values:
        _, heads, _, depth = extents(x)
        own = layer.take_slice(bias, 0, begin, begin + heads * depth)
        found.append(call("add", x, layer.reshape(own, (heads, 1, depth))))
        begin += heads * depth
    return found


@register("com.microsoft.RotaryEmbedding")
def _rotary_embedding(node: Node, x: Expr, places: Expr, cos: Expr, sin: Expr) -> Expr:
    if node.get("is_packed_batching", 0) or node.get("scale", 1.0) != 1:
        raise NetworkError("is_packed_batching, or a scale other than 1: export the model without")
    whole, depth = extents(x), 2 * extents(cos)[1]
    heads = node.get("num_heads", 0) or whole[-1] // depth
    apart = x if len(whole) == 4 else _apart(x, heads)
    batch, _, m, _ = extents(apart)
    if extents(places) != (batch, m):  # the place of the first
        places = call("add", layer.steps(0, m, 1, places.tensor_type.dtype), layer.reshape(places, (1, 1)))
    found = _turned(apart, places, cos, sin, interleaved=bool(node.get("interleaved", 0)))
    return found if len(whole) == 4 else _joined(found)


def _turned(x: Expr, places: Expr, cos: Expr, sin: Expr, *, interleaved: bool) -> Expr:
    """Pairs of the first elements of each vector of a head, turned by the angles of its place in [batch or 1, m]."""
    batch, heads, m, depth = extents(x)
    half = extents(cos)[1]
    c, s = (layer.reshape(call("take", v, places, axis=0), (extents(places)[0], 1, m, half)) for v in (cos, sin))
    turns = layer.take_slice(x, 3, 0, 2 * half)
    if interleaved:
        pairs = layer.reshape(turns, (batch, heads, m, half, 2))
        a, b = (layer.reshape(layer.take_slice(pairs, 4, i, i + 1), (batch, heads, m, half)) for i in (0, 1))
    else:
        a, b = layer.take_slice(turns, 3, 0, half), layer.take_slice(turns, 3, half, None)
    first = call("subtract", call("multiply", a, c), call("multiply", b, s))
    second = call("add", call("multiply", b, c), call("multiply", a, s))
    if interleaved:
        beside = [layer.reshape(v, (batch, heads, m, half, 1)) for v in (first, second)]
        found = layer.reshape(layer.concatenate(beside, 4), (batch, heads, m, 2 * half))
    else:
        found = layer.concatenate([first, second], 3)
    if 2 * half == depth:
        return found
    return layer.concatenate([found, layer.take_slice(x, 3, 2 * half, None)], 3)


@register("com.microsoft.GroupQueryAttention")
def _group_query_attention(
    node: Node, q: Expr, k: Expr | None, v: Expr | None, past_k: Expr | None, past_v: Expr | None, lengths: Expr,
    length: Expr, cos: Expr | None = None, sin: Expr | None = None, places: Expr | None = None,
    bias: Expr | None = None, *more: Expr | None,
) -> tuple[Expr, Expr, Expr]:
    """Attention of tokens to those up to their own, with a cache in which each batch entry has its own length."""
    if any(value is not None for value in more) or node.get("smooth_softmax", 0):
        raise NetworkError("smooth_softmax, head_sink or a quantized cache: export the model without")
    heads, groups = node.require("num_heads"), node.require("kv_num_heads")
    if k is None or v is None:
        depth = extents(q)[-1] // (heads + 2 * groups)
        ends = [heads * depth, (heads + groups) * depth, (heads + 2 * groups) * depth]
        q, k, v = (layer.take_slice(q, 2, begin, end) for begin, end in zip((0, *ends), ends, strict=False))
    q, k, v = (_apart(x, n) for x, n in ((q, heads), (k, groups), (v, groups)))
    batch, _, m, _ = extents(q)
    whole = int(constant(length, "total_sequence_length").item())
    begins = layer.filled(0, (batch, 1), "int64")
    if whole != m:  # else a prompt, which has nothing before it
        of_each = call("cast", layer.reshape(lengths, (batch, 1)), dtype="int64")
        begins = call("add", of_each, layer.count(1, of_each))
        begins = call("subtract", begins, layer.count(m, of_each))
    own = call("add", layer.reshape(layer.steps(0, m, 1, "int64"), (1, m)), begins)
    if node.get("do_rotary", 0):
        if cos is None or sin is None:
            raise NetworkError("do_rotary without cos_cache and sin_cache")
        at = own if places is None else places
        q, k = (_turned(x, at, cos, sin, interleaved=bool(node.get("rotary_interleaved", 0))) for x in (q, k))
    k, v = (_cached(past, x, begins, whole) for past, x in ((past_k, k), (past_v, v)))
    n = extents(k)[2]
    place, behind = layer.steps(0, n, 1, "int64"), layer.reshape(own, (extents(own)[0], 1, m, 1))
    seen = call("less_equal", place, behind)
    window = node.get("local_window_size", -1)
    if window > 0:
        near = call("less", call("subtract", behind, place), number(window, place))
        seen = call("logical_and", seen, near)
    mask = seen if bias is None else call("where", seen, bias, number(-np.inf, bias))
    return _joined(_capped(node, q, k, v, mask)), k, v


def _cached(past: Expr | None, x: Expr, begins: Expr, whole: int) -> Expr:
    """A cache with new rows from a place of each batch entry on, and zeros behind them."""
    batch, groups, m, depth = extents(x)
    if past is None:
        return x
    before = extents(past)[2]
    if before != whole and max(before, whole) >= PROBED:
        raise NetworkError("a cache of another symbolic size than total_sequence_length: give both with --dim")
    n = max(before, whole)
    added = ((0, 0), (0, 0), (0, n - before), (0, 0))
    wide = call("pad", past, pad_width=added) if n > before else past
    place = call("subtract", layer.reshape(layer.steps(0, n, 1, "int64"), (1, n)), begins)
    new = call("logical_and", *(call(c, place, v) for c, v in (
        ("greater_equal", number(0, place)), ("less", layer.count(m, place))
    )))
    near = call("where", new, place, number(0, place))
    shape = (batch, 1, n, 1)
    rows = call("gather", x, layer.broadcast(layer.reshape(near, shape), (batch, groups, n, depth)), axis=2)
    kept = call("where", layer.reshape(call("less", place, number(0, place)), shape), wide, number(0, x))
    return call("where", layer.reshape(new, shape), rows, kept)


def _capped(node: Node, q: Expr, k: Expr, v: Expr, mask: Expr) -> Expr:
    """Attention, whose scores a tangent bounds before the mask if the node says so."""
    cap = node.get("softcap", 0.0)
    if not cap:
        return layer.attention(q, k, v, mask, scale=_scale(node), causal=False)
    (batch, heads, m, depth), groups = extents(q), extents(k)[1]
    scale = _scale(node) or depth**-0.5
    rows = layer.reshape(q, (batch, groups, heads // groups * m, depth))
    scores = layer.matmul(rows, layer.swap(k))
    scores = layer.reshape(scores, (batch, heads, m, extents(k)[2]))
    bounded = call("tanh", call("multiply", scores, number(scale / cap, scores)))
    scores = call("multiply", bounded, number(cap, scores))
    if mask.tensor_type.dtype == "bool":
        scores = call("where", mask, scores, number(-np.inf, scores))
    else:
        scores = call("add", scores, mask)
    weights = layer.reshape(call("softmax", scores, axis=-1), (batch, groups, heads // groups * m, extents(k)[2]))
    return layer.reshape(layer.matmul(weights, v), (batch, heads, m, extents(v)[3]))
