"""softmax along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, call
from strategy.generic_func import GenericFunc
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_op,
    register_reference,
    register_terms,
)
from strategy.pattern import in_float32, register_schedule, schedule_plain_cpu
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import normal_axis, require_float
from strategy.types import TensorType, Type


class SoftmaxAttrs(Attrs):
    """Attributes of softmax."""

    axis: int = field(-1, "The axis along which the elements sum to 1")


def softmax_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """The type of the input."""
    assert isinstance(attrs, SoftmaxAttrs)
    data = reporter.tensor(0)
    if data is None:
        return False
    require_float(reporter, 0, data)
    normal_axis(reporter, 0, attrs.axis, data.ndim)
    reporter.assign(1, data)
    return True


register_op("softmax").describe("exp(x) / sum(exp(x)) along an axis.").set_num_inputs(1).add_argument(
    "data", "Tensor", "The input tensor."
).set_attrs_type(SoftmaxAttrs).set_support_level(1).add_type_rel("Softmax", softmax_rel).set_attr(
    "TOpPattern", TOpPattern.kOpaque
)


@register_compute("softmax")
@in_float32
def compute_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.nn.softmax(inputs[0], axis=attrs.axis)]


@register_reference("softmax")
def reference_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    powers = np.exp(data - data.max(axis=attrs.axis, keepdims=True))
    return powers / powers.sum(axis=attrs.axis, keepdims=True)


@register_terms("softmax")
def softmax_terms(attrs: SoftmaxAttrs, inputs: Sequence[TensorType], out_type: Type) -> int:
    return int(inputs[0].shape[attrs.axis])


schedule_softmax = GenericFunc("schedule_softmax")
schedule_softmax.register("cpu", schedule_plain_cpu)
register_schedule("softmax", schedule_softmax)
register_shape_func("softmax", False, elemwise_shape_func)


@register_gradient("softmax")
def softmax_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [(grad - sum(grad * softmax(x))) * softmax(x)]."""
    assert isinstance(orig.attrs, SoftmaxAttrs)
    total = call("sum", grad * orig, axis=orig.attrs.axis, keepdims=True)
    return [(grad - total) * orig]


def softmax(data: Expr, axis: int = -1) -> Expr:
    """exp(x) / sum(exp(x)) along an axis, computed without overflow.

    Args:
        data: a floating-point tensor.
        axis: the axis along which the elements sum to 1.
    """
    return call("softmax", data, axis=axis)
