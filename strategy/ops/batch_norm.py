"""batch_norm: the channels of a tensor, scaled and shifted by the mean and variance that training has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.binding import keep_each
from strategy.expr import Call, Expr, call, const
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.bias_add import along, array_along, vector_grad, vector_relation
from strategy.pattern import in_float32, register_broadcast_schedule
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import require_float
from strategy.types import Type


class BatchNormAttrs(Attrs):
    """Attributes of batch_norm."""

    axis: int = field(1, "The axis of the channels")
    epsilon: float = field(1e-5, "Added to the variance", lower=0)


def batch_norm_rel(types: Sequence[Type], attrs: BatchNormAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; the vectors have its extent along the axis."""
    data = vector_relation(reporter, (1, 2, 3, 4), attrs.axis)
    require_float(reporter, 0, data)
    reporter.assign(5, data)
    return True


(
    register_op("batch_norm")
    .describe(
        "(x - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta for each channel: Relay's nn.batch_norm in "
        "inference, whose result is one tensor."
    )
    .add_argument("data", "Tensor", "A floating-point tensor.")
    .add_argument("gamma", "Tensor", "The scale of each channel, a vector.")
    .add_argument("beta", "Tensor", "Added to each channel, a vector.")
    .add_argument("moving_mean", "Tensor", "The mean of each channel.")
    .add_argument("moving_var", "Tensor", "The variance of each channel.")
    .set_attrs_type(BatchNormAttrs)
    .set_support_level(1)
    .add_type_rel("BatchNorm", batch_norm_rel)
    .set_attr("TOpPattern", TOpPattern.kBroadcast)
    .example(
        {"data": "float32[2,5,19]", **dict.fromkeys(("gamma", "beta", "moving_mean", "moving_var"), "float32[5]")},
        {"epsilon": 1.5},  # as variances of tests may be negative
    )
)


@register_compute("batch_norm")
@in_float32
def compute_batch_norm(attrs: BatchNormAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    data, *vectors = inputs
    axis, epsilon = attrs.axis % len(data.shape), tirx.const(attrs.epsilon, data.dtype)

    def norm(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
        return (x - mean) * (gamma / tirx.sqrt(variance + epsilon)) + beta

    def element(*i: Any) -> Any:
        return keep_each(inputs, [data(*i), *(vector(i[axis]) for vector in vectors)], norm)

    return [te.compute(data.shape, element, name="batch_norm", tag=topi.tag.BROADCAST)]


@register_reference("batch_norm")
def reference_batch_norm(attrs: BatchNormAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, *vectors = map(widened, inputs)
    gamma, beta, mean, variance = (array_along(v, attrs.axis, data.ndim) for v in vectors)
    with np.errstate(all="ignore"):
        return (data - mean) / np.sqrt(variance + attrs.epsilon) * gamma + beta


register_broadcast_schedule("batch_norm")
register_shape_func("batch_norm", False, elemwise_shape_func)


@register_gradient("batch_norm")
def batch_norm_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad gamma r, grad offset r, grad, -grad gamma r, -grad gamma offset r³ / 2], summed to each input."""
    attrs = orig.attrs
    x, gamma, beta, mean, variance = orig.args
    axis, dtype = attrs.axis, x.tensor_type.dtype
    scale, offset = (along(v, axis, x.tensor_type.ndim) for v in (_inverse(variance, attrs.epsilon), mean))
    norm = (x - offset) * scale
    slope = grad * along(gamma, axis, x.tensor_type.ndim) * scale
    return [
        slope,
        vector_grad(grad * norm, gamma, axis),
        vector_grad(grad, beta, axis),
        vector_grad(-slope, mean, axis),
        vector_grad(slope * norm * scale * const(-0.5, dtype), variance, axis),
    ]


def _inverse(variance: Expr, epsilon: float) -> Expr:
    """1 / sqrt(variance + epsilon)."""
    return call("rsqrt", variance + const(epsilon, variance.tensor_type.dtype))


batch_norm = caller("batch_norm")
