"""attention, attention_bias: types, NumPy reference, gradient and Python functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu.binding import share
from strategy.cpu.elementary import exp
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Call, Constant, Expr, call, const
from strategy.gradient import GradientError, register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_flops,
    register_op,
    register_reference,
    register_terms,
)
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.broadcast import collapse_sum_like, equal, where
from strategy.ops.elemwise import zeros_like
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape, reshape_like
from strategy.ops.softmax import softmax
from strategy.order import scaled
from strategy.pattern import broadcast_place, in_float32
from strategy.reference import widened
from strategy.schedule import ScheduleError
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    broadcast_shape,
    certainly,
    require_dtype_of,
    require_float,
    require_nonempty,
    require_rank,
    require_shape,
)
from strategy.types import TensorType, Type

NAMES = ("attention", "attention_bias")


class AttentionAttrs(Attrs):
    """Attributes of attention and attention_bias."""

    is_causal: bool = field(False, "A query sees the keys up to its own place only")
    scale: float | None = field(None, "The factor of the scores; default: 1 / sqrt(depth)")


def attention_rel(types: Sequence[Type], attrs: AttentionAttrs, reporter: TypeReporter) -> bool:
    """[b, h, m, e] of queries [b, h, m, d], keys [b, g, n, d] and values [b, g, n, e], where g divides h."""
    found = [reporter.tensor(i) for i in range(3)]
    for index, (kind, form) in enumerate(
        zip(found, ("[batch, heads, m, d]", "[batch, groups, n, d]", "[batch, groups, n, e]"), strict=True)
    ):
        if kind is not None:
            require_rank(reporter, index, kind, 4, form)
            require_float(reporter, index, kind)
            require_nonempty(reporter, index, kind)
    query, key, value = found
    if query is None or key is None or value is None:
        return False
    for index, kind in ((1, key), (2, value)):
        require_dtype_of(reporter, index, 0)
        reporter.check(kind.shape[0] == query.shape[0], index, f"its batch differs from that of query, {query}")
    reporter.check(key.shape[3] == query.shape[3], 1, f"its depth differs from that of query, {query}")
    reporter.check(query.shape[1] % key.shape[1] == 0, 1, f"its groups do not divide the heads of query, {query}")
    for axis, what in ((1, "groups"), (2, "length")):
        reporter.check(value.shape[axis] == key.shape[axis], 2, f"its {what} differs from that of key, {key}")
    scores = TensorType([*query.shape[:3], key.shape[2]], query.dtype)
    if reporter.op.name == "attention_bias":
        bias = reporter.known(3)
        if bias.dtype != "bool":
            reporter.check(bias.dtype == query.dtype, 3, f"expected bools, or the dtype of query, {query}")
        shape = broadcast_shape(reporter, 3, bias, scores)
        require_shape(reporter, 3, shape, scores.shape, f"does not broadcast to the scores, {scores}")
    reporter.assign(len(types) - 1, TensorType([*query.shape[:3], value.shape[3]], query.dtype))
    return True


for _name, _what in (
    ("attention", "softmax(scale query keyᵀ) value of each head"),
    ("attention_bias", "softmax(scale query keyᵀ + bias) value of each head; of bools, keys that are false are hidden"),
):
    _op = (
        register_op(_name)
        .describe(
            f"{_what}, as ONNX's Attention. Several heads may share keys and values (groups); a query that sees no "
            "key gives 0."
        )
        .add_argument("query", "Tensor", "[batch, heads, m, d]")
        .add_argument("key", "Tensor", "[batch, groups, n, d]")
        .add_argument("value", "Tensor", "[batch, groups, n, e]")
        .set_attrs_type(AttentionAttrs)
        .set_support_level(1)
        .add_type_rel("Attention", attention_rel)
        .set_attr("TOpPattern", TOpPattern.kOpaque)
    )
    _inputs = {"query": "float32[2,4,5,6]", "key": "float32[2,2,19,6]", "value": "float32[2,2,19,8]"}
    _narrow = {"query": "float16[1,2,3,8]", "key": "float16[1,1,19,8]", "value": "float16[1,1,19,8]"}
    if _name == "attention":
        _op.example(_inputs, {"is_causal": True}).example(_narrow)
        _op.example({"query": "float32[1,4,1,8]", "key": "float32[1,2,83,8]", "value": "float32[1,2,83,16]"})
    else:
        _op.add_argument("bias", "Tensor", "Added to the scores, or bools; it broadcasts to [batch, heads, m, n].")
        _op.example({**_inputs, "bias": "float32[2,1,5,19]"}, {"scale": 0.5})
        _op.example({**_narrow, "bias": "float16[3,19]"})
        _op.example({**_inputs, "bias": "bool[19]"}).example({
            "query": "float32[1,4,1,8]", "key": "float32[1,2,83,8]", "value": "float32[1,2,83,16]", "bias": "bool[83]",
        })


def factor(attrs: AttentionAttrs, depth: Any) -> float:
    """The factor of the scores; `depth` may be symbolic where the scale is given."""
    return 1 / math.sqrt(int(depth)) if attrs.scale is None else attrs.scale


def biased(attrs: AttentionAttrs, score: Any, bias: Any, index: Sequence[Any]) -> Any:
    """The score at [batch, head, query, key] with what is added to it, -infinity where the key is hidden.

    Args:
        bias: a TE tensor or buffer that broadcasts, or None.
    """
    from tvm import tirx

    hidden = tirx.const(-math.inf, str(score.ty.dtype))
    if bias is not None:
        value = bias[tuple(broadcast_place(bias.shape, index))]
        bools = str(bias.dtype) == "bool"
        score = tirx.Select(value, score, hidden) if bools else score + value.astype(str(score.ty.dtype))
    return tirx.Select(index[3] <= index[2], score, hidden) if attrs.is_causal else score


def shift(largest: Any) -> Any:
    """The number that scores are lessened by: the largest, or 0 where all keys are hidden."""
    from tvm import tirx

    dtype = str(largest.ty.dtype)
    return tirx.Select(largest == tirx.const(-math.inf, dtype), tirx.const(0, dtype), largest)


@in_float32
def compute_attention(attrs: AttentionAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """With all scores in memory, for any target and shapes.

    Raises:
        ScheduleError: the scale is that of a symbolic depth.
    """
    from tvm import te, tirx

    query, key, value = inputs[:3]
    bias = inputs[3] if len(inputs) > 3 else None
    batch, heads, m, depth = query.shape
    if attrs.scale is None and not isinstance(depth, tirx.IntImm):
        raise ScheduleError(f"attention: the depth '{depth}' is symbolic: give a constant, or a scale")
    _, groups, n, width = value.shape
    each, dtype = heads // groups, query.dtype
    scale = factor(attrs, depth)
    d, j, k = (te.reduce_axis((0, extent), name=name) for extent, name in ((depth, "d"), (n, "j"), (n, "k")))

    def product(b: Any, h: Any, i: Any, x: Any) -> Any:
        return te.sum(query[b, h, i, d] * key[b, h // each, x, d], axis=d)

    products = te.compute((batch, heads, m, n), product, name="products")
    scores = te.compute(
        products.shape, lambda *i: biased(attrs, scaled(products(*i), scale), bias, i), name="scores"
    )
    largest = te.compute((batch, heads, m), lambda *i: te.max(scores(*i, j), axis=j), name="largest")
    powers = te.compute(scores.shape, lambda *i: share(scores(*i) - shift(largest(*i[:3])), exp), name="powers")
    l = te.reduce_axis((0, n), name="l")
    total = te.compute(largest.shape, lambda *i: te.sum(powers(*i, l), axis=l), name="total")

    def weighted(b: Any, h: Any, i: Any, x: Any) -> Any:
        return te.sum(powers[b, h, i, k] * value[b, h // each, k, x], axis=k)

    values = te.compute((batch, heads, m, width), weighted, name="values")

    def quotient(*i: Any) -> Any:
        none = total(*i[:3]) == tirx.const(0, dtype)
        return values(*i) / tirx.Select(none, tirx.const(1, dtype), total(*i[:3]))

    return [te.compute(values.shape, quotient, name="attention")]


def reference_attention(attrs: AttentionAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    query, key, value, *further = map(widened, inputs)
    each = query.shape[1] // key.shape[1]
    key, value = (np.repeat(t, each, axis=1) for t in (key, value))
    with np.errstate(all="ignore"):
        scores = query @ key.swapaxes(2, 3) * factor(attrs, query.shape[3])
        for bias in further:
            scores = np.where(bias, scores, -np.inf) if bias.dtype == bool else scores + bias
        if attrs.is_causal:
            scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
        largest = scores.max(axis=3, keepdims=True)
        powers = np.exp(scores - np.where(largest == -np.inf, 0, largest))
        total = powers.sum(axis=3, keepdims=True)
        return powers @ value / np.where(total == 0, 1, total)


def attention_flops(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    """Those of the scores and of the weighted sums, of all keys that a query sees."""
    b, h, m, d = (int(x) for x in inputs[0].shape)
    n = int(inputs[1].shape[2])
    rows = min(m, n)  # of which each query sees one key more than the last; those behind see all
    seen = rows * (rows + 1) // 2 + (m - rows) * n if attrs.is_causal else m * n
    return 2 * b * h * seen * (d + int(out_type.shape[3]))


def attention_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """The gradients of both products and of softmax; the heads of a group are rows of one product."""
    attrs = orig.attrs
    query, key, value, *further = orig.args
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
    return [*flowing, *to_bias]


for _name in NAMES:
    register_compute(_name, compute_attention)
    register_reference(_name, reference_attention)
    register_flops(_name, attention_flops)
    register_terms(_name, lambda attrs, inputs, out_type: int(inputs[0].shape[3]) + int(inputs[1].shape[2]))
    register_shape_func(_name, False, lambda attrs, inputs: [(*inputs[0][:3], inputs[2][3])])
    register_gradient(_name, attention_grad)
register_plain_schedule("attention", *NAMES, version=5)


def constant_inner(inputs: Sequence[TensorType]) -> bool:
    """True if all extents but the batch and the numbers of queries and keys are constant."""
    return all(certainly(t.shape[axis] >= 1) and t.shape[axis].is_constant for t in inputs[:3] for axis in (1, 3))


def attention(
    query: Expr, key: Expr, value: Expr, bias: Expr | None = None, is_causal: bool = False, scale: float | None = None
) -> Expr:
    """softmax(scale query keyᵀ + bias) value of each head.

    Args:
        query: a floating-point tensor, [batch, heads, m, d].
        key: [batch, groups, n, d]; the number of groups divides that of heads, which share them in order.
        value: [batch, groups, n, e].
        bias: added to the scores, or bools, false where a key is hidden; it broadcasts to [batch, heads, m, n].
        is_causal: a query sees the keys up to its own place only.
        scale: the factor of the scores; default: 1 / sqrt(d).
    """
    name, further = ("attention", ()) if bias is None else ("attention_bias", (bias,))
    return call(name, query, key, value, *further, is_causal=is_causal, scale=scale)
