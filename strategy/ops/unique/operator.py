"""unique: the elements of a vector that differ, in order, as Relay's operator: padded, with their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Call, Expr, TupleGetItem, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import equal, where
from strategy.ops.elemwise import cast, ones_like, zeros_like
from strategy.ops.take import take
from strategy.ops.topk import sort_keys
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_number, require_rank
from strategy.types import Dim, TensorType, TupleType, Type


class UniqueAttrs(Attrs):
    """Attributes of unique."""

    return_counts: bool = field(False, "Return how often each element occurs, too")
    dtype: str = field("int32", "Data type of indices, number and counts", choices=("int32", "int64"))


def unique_rel(types: Sequence[Type], attrs: UniqueAttrs, reporter: TypeReporter) -> bool:
    """[n] gives elements, indices and inverse indices of as many, the number of elements, and counts."""
    data = reporter.known(0)
    require_rank(reporter, 0, data, 1, "[elements]")
    require_number(reporter, 0, data)
    places = TensorType(data.shape, attrs.dtype)
    found = [data, places, places, TensorType([Dim(1)], attrs.dtype)]
    reporter.assign(1, TupleType([*found, places] if attrs.return_counts else found))
    return True


(
    register_op("unique")
    .describe(
        "The elements of a vector that differ, in ascending order, padded with 0; for each the index of its first "
        "occurrence, padded with -1; for each element of the vector its place among them; their number; and with "
        "return_counts how often each occurs. As Relay's unique; NaN equals NaN and is last, as NumPy's."
    )
    .add_argument("data", "Tensor", "[elements]")
    .set_attrs_type(UniqueAttrs)
    .set_support_level(10)
    .add_type_rel("Unique", unique_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[37]"}, {"return_counts": True})
    .example({"data": "int32[83]"}, {"dtype": "int64"})
)


@register_compute("unique")
def compute_unique(attrs: UniqueAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """By comparing all pairs, for any target and shape."""
    from tvm import te, tirx

    (data,) = inputs
    keys, dtype = sort_keys(data), attrs.dtype
    (extent,) = data.shape

    def one_if(claim: Any) -> Any:
        return tirx.Select(claim, tirx.const(1, dtype), tirx.const(0, dtype))

    def count(claim: Any, name: str) -> Any:
        """For each place, of how many others a claim is true."""
        other = te.reduce_axis((0, extent), name="other")
        return te.compute([extent], lambda i: te.sum(one_if(claim(i, other)), axis=other), name=name)

    before = count(lambda i, j: tirx.all(j < i, keys(j) == keys(i)), "before")

    def is_first(j: Any) -> Any:
        return before(j) == tirx.const(0, dtype)

    inverse = count(lambda i, j: tirx.all(is_first(j), keys(j) < keys(i)), "inverse")
    counts = count(lambda i, j: inverse(j) == tirx.Cast(dtype, i), "counts")
    places, others = (te.reduce_axis((0, extent), name=name) for name in ("place", "first"))
    number = te.compute([1], lambda i: te.sum(one_if(is_first(others)), axis=others), name="number")

    def following(i: Any) -> Any:
        """The place behind the first occurrence, 0 without one; TVM has indices in int64."""
        found = tirx.all(is_first(places), inverse(places) == tirx.Cast(dtype, i))
        return te.sum(tirx.Select(found, tirx.Cast("int64", places) + 1, tirx.const(0, "int64")), axis=places)

    after = te.compute([extent], following, name="after")
    indices = te.compute([extent], lambda i: tirx.Cast(dtype, after(i) - 1), name="indices")

    def value(i: Any) -> Any:
        return tirx.if_then_else(after(i) > 0, data(tirx.max(after(i) - 1, 0)), tirx.const(0, data.dtype))

    values = te.compute([extent], value, name="unique")
    return [values, indices, inverse, number, *([counts] if attrs.return_counts else [])]


@register_reference("unique")
def reference_unique(attrs: UniqueAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    values, *places = np.unique(data, return_index=True, return_inverse=True, return_counts=True)
    indices, inverse, counts = (p.astype(attrs.dtype) for p in places)
    rest = (0, len(data) - len(values))
    found = [
        np.pad(data[indices], rest), np.pad(indices, rest, constant_values=-1), inverse,
        np.asarray([len(values)], attrs.dtype), np.pad(counts, rest),
    ]
    return tuple(found if attrs.return_counts else found[:4])


register_plain_schedule("unique", "unique")


@register_shape_func("unique", False)
def unique_shape_func(attrs: UniqueAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    shape = inputs[0]
    return [shape, shape, shape, (1,), *([shape] if attrs.return_counts else [])]


@register_gradient("unique")
def unique_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad of the elements where each occurs first, zeros elsewhere]."""
    (data,) = orig.args
    indices, inverse = TupleGetItem(orig, 1), TupleGetItem(orig, 2)
    places = call("cumsum", cast(ones_like(data), orig.attrs.dtype), axis=0, exclusive=True)
    taken = take(TupleGetItem(grad, 0), inverse, axis=0)
    return [where(equal(take(indices, inverse, axis=0), places), taken, zeros_like(taken))]


def unique(data: Expr, return_counts: bool = False, dtype: str = "int32") -> tuple[Expr, ...]:
    """The elements of a vector that differ, in ascending order, padded to as many as there may be.

    Args:
        data: a vector of numbers; NaN equals NaN and is larger than all others.
        return_counts: return how often each element occurs, too.
        dtype: data type of indices, number and counts.

    Returns:
        The elements, padded with 0; the index where each occurs first, padded with -1; the place of each element of the
        vector among them; their number, [1]; and counts, padded with 0.
    """
    found = call("unique", data, return_counts=return_counts, dtype=dtype)
    return tuple(TupleGetItem(found, i) for i in range(5 if return_counts else 4))
