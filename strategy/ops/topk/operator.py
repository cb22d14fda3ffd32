"""topk: the k largest or smallest elements along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, TupleGetItem, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_op, register_reference
from strategy.ops.broadcast import equal, where
from strategy.ops.elemwise import cast, ones_like, zeros_like
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import expand_dims
from strategy.order import sort_key
from strategy.pattern import register_extern_strategy
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import normal_axis, require_number
from strategy.types import Dim, TensorType, TupleType, Type


class TopKAttrs(Attrs):
    """Attributes of topk."""

    k: int = field(1, "Number of elements to take", lower=1)
    axis: int = field(-1, "The axis along which they are taken")
    ret_type: str = field("both", "The tensors that are returned", choices=("both", "values", "indices"))
    is_ascend: bool = field(False, "Take the smallest, in ascending order")
    dtype: str = field("int32", "Data type of the indices", choices=("int32", "int64"))


def topk_rel(types: Sequence[Type], attrs: TopKAttrs, reporter: TypeReporter) -> bool:
    """The input's shape with k along the axis; values, indices, or a tuple of both."""
    data = reporter.known(0)
    require_number(reporter, 0, data)
    axis = normal_axis(reporter, 0, attrs.axis, data.ndim)
    reporter.check(data.shape[axis] >= attrs.k, 0, f"has fewer than k = {attrs.k} along axis {axis}")
    shape = (*data.shape[:axis], Dim(attrs.k), *data.shape[axis + 1 :])
    values, indices = TensorType(shape, data.dtype), TensorType(shape, attrs.dtype)
    reporter.assign(1, {"values": values, "indices": indices}.get(attrs.ret_type, TupleType([values, indices])))
    return True


(
    register_op("topk")
    .describe("The k largest or smallest elements along an axis, in order, with their indices.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(TopKAttrs)
    .set_support_level(6)
    .add_type_rel("TopK", topk_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[5,190]"}, {"k": 7, "is_ascend": True})
    .example({"data": "float32[5,190]"}, {"k": 7, "is_ascend": False})
    .example({"data": "float32[5,7,3]"}, {"k": 7, "axis": 1, "dtype": "int64", "ret_type": "values"})
    .example({"data": "float32[5,19]"}, {"k": 3, "axis": 0, "ret_type": "indices"})
    .example({"data": "float32[4,4096]"})
    .example({"data": "float32[2,1100]"}, {"k": 600})
)


def sort_keys(data: Any) -> Any:
    """Integers that order as the elements of a TE tensor: TVM's runtime sorts few dtypes, and NaN at random."""
    from tvm import te, topi

    return te.compute(data.shape, lambda *i: sort_key(data(*i)), name="keys", tag=topi.tag.ELEMWISE)


def compute_topk(attrs: TopKAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """By the sort of TVM's runtime, and the elements at the indices that it gives."""
    from tvm import te, topi

    data, axis = inputs[0], attrs.axis % len(inputs[0].shape)
    indices = topi.topk(sort_keys(data), attrs.k, axis, "indices", attrs.is_ascend, attrs.dtype)

    def value(*i: Any) -> Any:
        return data(*i[:axis], indices(*i), *i[axis + 1 :])

    values = te.compute(indices.shape, value, name="values")
    return {"values": [values], "indices": [indices]}.get(attrs.ret_type, [values, indices])


def sorted_order(data: Any, axis: int, *, is_ascend: bool) -> Any:
    """The indices of NumPy's stable sort along an axis, the lower first among equals."""
    import numpy as np

    if is_ascend:
        return np.argsort(data, axis=axis, kind="stable")
    # Sort the reverse, then reverse.
    order = np.flip(np.argsort(np.flip(data, axis), axis=axis, kind="stable"), axis)
    return data.shape[axis] - 1 - order


@register_reference("topk")
def reference_topk(attrs: TopKAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    order = sorted_order(data, attrs.axis, is_ascend=attrs.is_ascend)
    indices = np.take(order, range(attrs.k), axis=attrs.axis).astype(attrs.dtype)
    values = np.take_along_axis(data, indices, axis=attrs.axis)
    return {"values": values, "indices": indices}.get(attrs.ret_type, (values, indices))


register_extern_strategy("topk", compute_topk, version=2)


@register_shape_func("topk", False)
def topk_shape_func(attrs: TopKAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    axis = attrs.axis % len(inputs[0])
    shape = (*inputs[0][:axis], attrs.k, *inputs[0][axis + 1 :])
    return [shape, shape] if attrs.ret_type == "both" else [shape]


@register_gradient("topk")
def topk_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [grad of the values where each was taken from, zeros elsewhere]."""
    attrs, data = orig.attrs, orig.args[0]
    if attrs.ret_type == "indices":
        return [None]
    indices: Expr
    if attrs.ret_type == "both":
        grad, indices = TupleGetItem(grad, 0), TupleGetItem(orig, 1)
    else:
        indices = call(
            "topk", data, k=attrs.k, axis=attrs.axis, ret_type="indices", is_ascend=attrs.is_ascend,
            dtype=attrs.dtype,
        )
    axis = attrs.axis % data.tensor_type.ndim
    places = call("cumsum", cast(ones_like(data), attrs.dtype), axis=axis, exclusive=True)
    # [..., taken, place, ...]
    here = equal(expand_dims(places, axis), expand_dims(indices, axis + 1))
    grad = expand_dims(grad, axis + 1)
    return [reduce_sum(where(here, grad, zeros_like(grad)), axis)]


def topk(
    data: Expr,
    k: int = 1,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: str = "int32",
) -> Any:
    """The k largest or smallest elements along an axis, in order.

    Args:
        data: the input tensor.
        k: number of elements to take.
        axis: the axis along which they are taken.
        ret_type: "both", "values" or "indices".
        is_ascend: take the smallest, in ascending order; otherwise the largest, descending.
        dtype: data type of the indices.

    Returns:
        The values, the indices, or a pair of both expressions.
    """
    result = call("topk", data, k=k, axis=axis, ret_type=ret_type, is_ascend=is_ascend, dtype=dtype)
    return (TupleGetItem(result, 0), TupleGetItem(result, 1)) if ret_type == "both" else result
