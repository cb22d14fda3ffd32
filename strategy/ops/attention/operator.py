"""attention, attention_bias: types, NumPy reference and Python functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from strategy.attrs import Attrs, field
from strategy.cpu.binding import share
from strategy.cpu.elementary import exp
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Expr, call
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_flops,
    register_op,
    register_reference,
    register_terms,
)
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
PLAIN = "BHSD"  # the layout of an attention that names none
T = TypeVar("T")


class AttentionAttrs(Attrs):
    """Attributes of attention and attention_bias."""

    is_causal: bool = field(False, "A query sees the keys up to its own place only")
    scale: float | None = field(None, "The factor of the scores; default: 1 / sqrt(depth)")
    layout: str = field(
        PLAIN, "Order of batch, heads, sequence and depth in query, key, value and result", choices=(PLAIN, "BSHD")
    )

    def order(self, axes: Iterable[T]) -> tuple[T, T, T, T]:
        """Values of batch, heads, sequence and depth in the order of the layout; and from that order back."""
        first, second, third, last = axes
        return (first, second, third, last) if self.layout == PLAIN else (first, third, second, last)


def attention_rel(types: Sequence[Type], attrs: AttentionAttrs, reporter: TypeReporter) -> bool:
    """[b, h, m, e] of queries [b, h, m, d], keys [b, g, n, d] and values [b, g, n, e], where g divides h."""
    found = [reporter.tensor(i) for i in range(3)]
    forms = (("batch", "heads", "m", "d"), ("batch", "groups", "n", "d"), ("batch", "groups", "n", "e"))
    for index, (kind, form) in enumerate(zip(found, forms, strict=True)):
        if kind is not None:
            require_rank(reporter, index, kind, 4, f"[{', '.join(attrs.order(form))}]")
            require_float(reporter, index, kind)
            require_nonempty(reporter, index, kind)
    query, key, value = found
    if query is None or key is None or value is None:
        return False
    batch, heads, m, depth = attrs.order(query.shape)
    key_batch, groups, n, key_depth = attrs.order(key.shape)
    value_batch, value_groups, value_n, width = attrs.order(value.shape)
    for index, own in ((1, key_batch), (2, value_batch)):
        require_dtype_of(reporter, index, 0)
        reporter.check(own == batch, index, f"its batch differs from that of query, {query}")
    reporter.check(key_depth == depth, 1, f"its depth differs from that of query, {query}")
    reporter.check(heads % groups == 0, 1, f"its groups do not divide the heads of query, {query}")
    reporter.check(value_groups == groups, 2, f"its groups differ from those of key, {key}")
    reporter.check(value_n == n, 2, f"its length differs from that of key, {key}")
    scores = TensorType([batch, heads, m, n], query.dtype)
    if reporter.op.name == "attention_bias":
        bias = reporter.known(3)
        if bias.dtype != "bool":
            reporter.check(bias.dtype == query.dtype, 3, f"expected bools, or the dtype of query, {query}")
        shape = broadcast_shape(reporter, 3, bias, scores)
        require_shape(reporter, 3, shape, scores.shape, f"does not broadcast to the scores, {scores}")
    reporter.assign(len(types) - 1, TensorType([*query.shape[:3], width], query.dtype))
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
        .add_argument("query", "Tensor", "[batch, heads, m, d], or as layout says")
        .add_argument("key", "Tensor", "[batch, groups, n, d], or as layout says")
        .add_argument("value", "Tensor", "[batch, groups, n, e], or as layout says")
        .set_attrs_type(AttentionAttrs)
        .set_support_level(1)
        .add_type_rel("Attention", attention_rel)
        .set_attr("TOpPattern", TOpPattern.kOpaque)
    )
    _inputs = {"query": "float32[2,4,5,6]", "key": "float32[2,2,19,6]", "value": "float32[2,2,19,8]"}
    _narrow = {"query": "float16[1,2,3,8]", "key": "float16[1,1,19,8]", "value": "float16[1,1,19,8]"}
    _by_tokens = {"query": "float32[2,5,4,6]", "key": "float32[2,19,2,6]", "value": "float32[2,19,2,8]"}
    if _name == "attention":
        _op.example(_inputs, {"is_causal": True}).example(_narrow)
        _op.example({"query": "float32[1,4,1,8]", "key": "float32[1,2,83,8]", "value": "float32[1,2,83,16]"})
        _op.example(_by_tokens, {"layout": "BSHD", "is_causal": True})
        _op.example(
            {"query": "float32[2,1,4,8]", "key": "float32[2,83,2,8]", "value": "float32[2,83,2,16]"},
            {"layout": "BSHD"},
        )
    else:
        _op.add_argument("bias", "Tensor", "Added to the scores, or bools; it broadcasts to [batch, heads, m, n].")
        _op.example({**_inputs, "bias": "float32[2,1,5,19]"}, {"scale": 0.5})
        _op.example({**_narrow, "bias": "float16[3,19]"})
        _op.example({**_by_tokens, "bias": "float32[2,1,5,19]"}, {"layout": "BSHD"})
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
    batch, heads, m, depth = attrs.order(query.shape)
    if attrs.scale is None and not isinstance(depth, tirx.IntImm):
        raise ScheduleError(f"attention: the depth '{depth}' is symbolic: give a constant, or a scale")
    _, groups, n, width = attrs.order(value.shape)
    each, dtype = heads // groups, query.dtype
    scale = factor(attrs, depth)
    d, j, k = (te.reduce_axis((0, extent), name=name) for extent, name in ((depth, "d"), (n, "j"), (n, "k")))

    def product(b: Any, h: Any, i: Any, x: Any) -> Any:
        return te.sum(query[attrs.order((b, h, i, d))] * key[attrs.order((b, h // each, x, d))], axis=d)

    products = te.compute((batch, heads, m, n), product, name="products")
    scores = te.compute(
        products.shape, lambda *i: biased(attrs, scaled(products(*i), scale), bias, i), name="scores"
    )
    largest = te.compute((batch, heads, m), lambda *i: te.max(scores(*i, j), axis=j), name="largest")
    powers = te.compute(scores.shape, lambda *i: share(scores(*i) - shift(largest(*i[:3])), exp), name="powers")
    l = te.reduce_axis((0, n), name="l")
    total = te.compute(largest.shape, lambda *i: te.sum(powers(*i, l), axis=l), name="total")

    def weighted(b: Any, h: Any, i: Any, x: Any) -> Any:
        return te.sum(powers[b, h, i, k] * value[attrs.order((b, h // each, k, x))], axis=k)

    values = te.compute((batch, heads, m, width), weighted, name="values")

    def quotient(*place: Any) -> Any:
        i = attrs.order(place)
        none = total(*i[:3]) == tirx.const(0, dtype)
        return values(*i) / tirx.Select(none, tirx.const(1, dtype), total(*i[:3]))

    return [te.compute(attrs.order(values.shape), quotient, name="attention")]


def reference_attention(attrs: AttentionAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    query, key, value, *further = map(widened, inputs)
    query, key, value = (t.transpose(attrs.order(range(4))) for t in (query, key, value))
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
        return (powers @ value / np.where(total == 0, 1, total)).transpose(attrs.order(range(4)))


def attention_flops(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    """Those of the scores and of the weighted sums, of all keys that a query sees."""
    b, h, m, d = (int(x) for x in attrs.order(inputs[0].shape))
    n = int(attrs.order(inputs[1].shape)[2])
    rows = min(m, n)  # of which each query sees one key more than the last; those behind see all
    seen = rows * (rows + 1) // 2 + (m - rows) * n if attrs.is_causal else m * n
    return 2 * b * h * seen * (d + int(out_type.shape[3]))


def _terms(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    return int(inputs[0].shape[3]) + int(attrs.order(inputs[1].shape)[2])


for _name in NAMES:
    register_compute(_name, compute_attention)
    register_reference(_name, reference_attention)
    register_flops(_name, attention_flops)
    register_terms(_name, _terms)
    register_shape_func(_name, False, lambda attrs, inputs: [(*inputs[0][:3], inputs[2][3])])
register_plain_schedule("attention", *NAMES, version=5)


def constant_inner(attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> bool:
    """True if all extents but the batch and the numbers of queries and keys are constant."""
    return all(
        certainly(extent >= 1) and extent.is_constant for t in inputs[:3] for extent in attrs.order(t.shape)[1::2]
    )


def attention(
    query: Expr, key: Expr, value: Expr, bias: Expr | None = None, is_causal: bool = False, scale: float | None = None,
    layout: str = PLAIN,
) -> Expr:
    """softmax(scale query keyᵀ + bias) value of each head.

    Args:
        query: a floating-point tensor, [batch, heads, m, d].
        key: [batch, groups, n, d]; the number of groups divides that of heads, which share them in order.
        value: [batch, groups, n, e].
        bias: added to the scores, or bools, false where a key is hidden; it broadcasts to [batch, heads, m, n].
        is_causal: a query sees the keys up to its own place only.
        scale: the factor of the scores; default: 1 / sqrt(d).
        layout: BHSD, or BSHD for queries [batch, m, heads, d], likewise keys, values and the result.
    """
    name, further = ("attention", ()) if bias is None else ("attention_bias", (bias,))
    return call(name, query, key, value, *further, is_causal=is_causal, scale=scale, layout=layout)
