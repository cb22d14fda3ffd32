"""prelu: each element, times a slope of its channel where it is not positive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.binding import keep_each
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.opaque import factor
from strategy.ops.bias_add import along, array_along, vector_grad, vector_relation
from strategy.ops.broadcast import greater, where
from strategy.ops.elemwise import zeros_like
from strategy.pattern import in_float32, register_broadcast_schedule
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import require_float
from strategy.types import Type


class PReluAttrs(Attrs):
    """Attributes of prelu."""

    axis: int = field(1, "The axis along which the slopes lie")


def prelu_rel(types: Sequence[Type], attrs: PReluAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; alpha has its extent along the axis."""
    data = vector_relation(reporter, (1,), attrs.axis)
    require_float(reporter, 0, data)
    reporter.assign(2, data)
    return True


(
    register_op("prelu")
    .describe("Each element x where it is positive, and elsewhere alpha x, with an alpha for each entry of an axis.")
    .add_argument("data", "Tensor", "A floating-point tensor.")
    .add_argument("alpha", "Tensor", "The slope of each entry of the axis, a vector of the same dtype.")
    .set_attrs_type(PReluAttrs)
    .set_support_level(3)
    .add_type_rel("PRelu", prelu_rel)
    .set_attr("TOpPattern", TOpPattern.kBroadcast)
    .example({"data": "float32[2,5,19]", "alpha": "float32[5]"})
    .example({"data": "float32[5,19]", "alpha": "float32[19]"}, {"axis": -1})
)


@register_compute("prelu")
@in_float32
def compute_prelu(attrs: PReluAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """NaN is not positive, and stays NaN as a product."""
    from tvm import te, tirx, topi

    data = factor(inputs[0])
    alpha = data if inputs[1].same_as(inputs[0]) else inputs[1]
    axis = attrs.axis % len(data.shape)

    def chosen(x: Any, slope: Any) -> Any:
        return tirx.Select(x > tirx.const(0, data.dtype), x, x * slope)

    def element(*i: Any) -> Any:
        return keep_each((data, alpha), [data(*i), alpha(i[axis])], chosen)

    return [te.compute(data.shape, element, name="prelu", tag=topi.tag.BROADCAST)]


@register_reference("prelu")
def reference_prelu(attrs: PReluAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, alpha = map(widened, inputs)
    with np.errstate(all="ignore"):
        return np.where(data > 0, data, data * array_along(alpha, attrs.axis, data.ndim))


register_broadcast_schedule("prelu")
register_shape_func("prelu", False, elemwise_shape_func)


@register_gradient("prelu")
def prelu_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad, times alpha where x is not positive; grad x summed where it is not]."""
    x, alpha = orig.args
    axis, zeros = orig.attrs.axis, zeros_like(x)
    positive = greater(x, zeros)
    slope = grad * along(alpha, axis, x.tensor_type.ndim)
    return [where(positive, grad, slope), vector_grad(where(positive, zeros, grad * x), alpha, axis)]


prelu = caller("prelu")
