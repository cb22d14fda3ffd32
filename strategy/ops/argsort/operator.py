"""argsort: the order of the elements along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Expr
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_op, register_reference
from strategy.ops.gather import gather
from strategy.ops.topk import sort_keys, sorted_order
from strategy.pattern import register_extern_strategy
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import normal_axis, require_number
from strategy.types import TensorType, Type


class ArgsortAttrs(Attrs):
    """Attributes of argsort."""

    axis: int = field(-1, "The axis along which the elements are ordered")
    is_ascend: bool = field(True, "The smallest first; otherwise the largest")
    dtype: str = field("int32", "Data type of the indices", choices=("int32", "int64"))


def argsort_rel(types: Sequence[Type], attrs: ArgsortAttrs, reporter: TypeReporter) -> bool:
    """The input's shape, of indices."""
    data = reporter.known(0)
    require_number(reporter, 0, data)
    normal_axis(reporter, 0, attrs.axis, data.ndim)
    reporter.assign(1, TensorType(data.shape, attrs.dtype))
    return True


(
    register_op("argsort")
    .describe(
        "The indices that put the elements along an axis in order; equal ones stay in theirs."
    )
    .add_argument("data", "Tensor", "A tensor of numbers.")
    .set_attrs_type(ArgsortAttrs)
    .set_support_level(6)
    .add_type_rel("Argsort", argsort_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[5,19]"}, {"is_ascend": True})
    .example({"data": "float32[5,19]"}, {"is_ascend": False})
    .example({"data": "float32[5,7,3]"}, {"axis": 1, "dtype": "int64"})
    .example({"data": "float32[4,4096]"})
)


def compute_argsort(attrs: ArgsortAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """By the stable sort of TVM's runtime."""
    from tvm import topi

    keys = sort_keys(inputs[0])
    return [topi.argsort(keys, axis=attrs.axis, is_ascend=attrs.is_ascend, dtype=attrs.dtype)]


@register_reference("argsort")
def reference_argsort(attrs: ArgsortAttrs, inputs: Sequence[Any]) -> Any:
    order = sorted_order(widened(inputs[0]), attrs.axis, is_ascend=attrs.is_ascend)
    return order.astype(attrs.dtype)


register_extern_strategy("argsort", compute_argsort, version=2)
register_shape_func("argsort", False, elemwise_shape_func)
register_gradient("argsort", lambda orig, grad: [None])


def sort(data: Expr, axis: int = -1, is_ascend: bool = True) -> Expr:
    """The elements along an axis in order, by their `argsort`.

    Args:
        data: a tensor of numbers.
        axis: the axis along which the elements are ordered.
        is_ascend: the smallest first; otherwise the largest. NaN is larger than all numbers.
    """
    return gather(data, argsort(data, axis, is_ascend), axis)


argsort = caller("argsort")
