"""The gradient of attention: those of both products and of softmax."""

from __future__ import annotations

import math

from strategy.expr import Call, Constant, Expr, const
from strategy.gradient import GradientError, register_gradient
from strategy.ops.attention.operator import NAMES, PLAIN, AttentionAttrs, factor
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.broadcast import collapse_sum_like, equal, where
from strategy.ops.elemwise import zeros_like
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape, reshape_like
from strategy.ops.softmax import softmax
from strategy.ops.transpose import transpose


def attention_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """The gradients of both products and of softmax; the heads of a group are rows of one product."""
    attrs = orig.attrs
    query, key, value, grad = (_turned(attrs, node) for node in (*orig.args[:3], grad))
    further = orig.args[3:]
    (_, heads, m, d), (_, groups, n, _) = query.tensor_type.shape, key.tensor_type.shape
    extents = (heads, groups, m, n, d, value.tensor_type.shape[3])
    if not all(x.is_constant for x in extents):
        raise GradientError(f"{orig.op.name}: its gradient needs constant extents but for the batch")
    rows, dtype = int(heads) // int(groups) * int(m), query.tensor_type.dtype
    scale, hidden = const(factor(attrs, d), dtype), const(-math.inf, dtype)

    def grouped(node: Expr, count: int) -> Expr:
        return reshape(node, (-1, count, int(node.tensor_type.shape[3])))

    q, k, v, g = grouped(query, rows), grouped(key, int(n)), grouped(value, int(n)), grouped(grad, rows)
    scores = reshape(batch_matmul(q, k) * scale, (-1, int(heads), int(m), int(n)))
    for bias in further:
        scores = where(bias, scores, hidden) if bias.tensor_type.dtype == "bool" else scores + bias
    if attrs.is_causal:
        import numpy as np

        scores = where(Constant(np.tri(int(m), int(n)) > 0), scores, hidden)
    # A query that sees no key takes nothing, where softmax would be NaN.
    weights = where(equal(scores, hidden), zeros_like(scores), softmax(scores))
    slope = reshape_like(batch_matmul(g, v), scores)
    slope = weights * (slope - reduce_sum(slope * weights, axis=3, keepdims=True))
    s, w = grouped(slope, rows) * scale, grouped(weights, rows)
    flowing = [
        reshape_like(batch_matmul(s, k, transpose_b=False), query),
        reshape_like(batch_matmul(s, q, transpose_a=True, transpose_b=False), key),
        reshape_like(batch_matmul(w, g, transpose_a=True, transpose_b=False), value),
    ]
    to_bias = [None if b.tensor_type.dtype == "bool" else collapse_sum_like(slope, b) for b in further]
    return [*(_turned(attrs, node) for node in flowing), *to_bias]


def _turned(attrs: AttentionAttrs, node: Expr) -> Expr:
    """A tensor of the layout as [batch, heads, sequence, depth], or back."""
    return node if attrs.layout == PLAIN else transpose(node, attrs.order(range(4)))


for _name in NAMES:
    register_gradient(_name, attention_grad)
