"""layer_norm: each vector along an axis brought to mean 0 and variance 1, then scaled and shifted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.row import reader, reduce_row, register_rows, row_extents
from strategy.cuda.rowwise import register_row_implementations
from strategy.expr import Call, Expr, call, const
from strategy.generic_func import GenericFunc
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    axis_terms,
    register_compute,
    register_condition,
    register_op,
    register_peaks,
    register_reference,
    register_terms,
)
from strategy.ops.bias_add import along, array_along, in_dtype, vector_grad, vector_relation
from strategy.ops.reduce import mean
from strategy.pattern import in_float32, register_schedule, schedule_plain_cpu
from strategy.reference import axis_peaks, norm_condition, widened
from strategy.schedule import accumulator
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.space import Config
from strategy.type_relation import require_float, require_nonempty
from strategy.types import TensorType, Type


class LayerNormAttrs(Attrs):
    """Attributes of layer_norm."""

    axis: int = field(-1, "The axis along which mean and variance are taken")
    epsilon: float = field(1e-5, "Added to the variance", lower=0)


def layer_norm_rel(types: Sequence[Type], attrs: LayerNormAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; gamma and beta have its extent along the axis, and its dtype or float32."""
    data = vector_relation(reporter, (1, 2), attrs.axis, may_be_wider=True)
    require_float(reporter, 0, data)
    require_nonempty(reporter, 0, data, [attrs.axis % data.ndim])
    reporter.assign(3, data)
    return True


(
    register_op("layer_norm")
    .describe(
        "(x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance along an axis."
    )
    .add_argument("data", "Tensor", "A floating-point tensor.")
    .add_argument("gamma", "Tensor", "The scale of each entry of the axis, of the data's dtype or of float32.")
    .add_argument("beta", "Tensor", "Added to each entry of the axis, of the data's dtype or of float32.")
    .set_attrs_type(LayerNormAttrs)
    .set_support_level(1)
    .add_type_rel("LayerNorm", layer_norm_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[5,19]", "gamma": "float32[19]", "beta": "float32[19]"})
    .example({"data": "float32[5,19]", "gamma": "float32[5]", "beta": "float32[5]"}, {"axis": 0})
)


@register_compute("layer_norm")
@in_float32
def compute_layer_norm(attrs: LayerNormAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """In two passes: the variance as a difference of sums would lose its digits."""
    from tvm import te, tirx, topi

    data, gamma, beta = inputs
    axis = attrs.axis % len(data.shape)
    count = tirx.Cast(data.dtype, data.shape[axis])
    centre = topi.sum(data, axis, keepdims=True)
    offset = te.compute(
        data.shape, lambda *i: data(*i) - centre(*i[:axis], 0, *i[axis + 1 :]) / count, name="offset"
    )
    square = topi.sum(topi.multiply(offset, offset), axis, keepdims=True)
    epsilon = tirx.const(attrs.epsilon, data.dtype)

    def scaled(*i: Any) -> Any:
        variance = square(*i[:axis], 0, *i[axis + 1 :]) / count
        return offset(*i) / tirx.sqrt(variance + epsilon) * gamma[i[axis]] + beta[i[axis]]

    return [te.compute(data.shape, scaled, name="layer_norm")]


@register_reference("layer_norm")
def reference_layer_norm(attrs: LayerNormAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, *vectors = map(widened, inputs)
    gamma, beta = (array_along(v, attrs.axis, data.ndim) for v in vectors)
    offset = data - data.mean(axis=attrs.axis, keepdims=True)
    variance = (offset * offset).mean(axis=attrs.axis, keepdims=True)
    return offset / np.sqrt(variance + attrs.epsilon) * gamma + beta


register_condition("layer_norm", lambda attrs, inputs: norm_condition(widened(inputs[0]), attrs.axis, attrs.epsilon))
register_terms("layer_norm", axis_terms)
register_peaks("layer_norm", axis_peaks)
schedule_layer_norm = GenericFunc("schedule_layer_norm")
schedule_layer_norm.register("cpu", schedule_plain_cpu)
register_schedule("layer_norm", schedule_layer_norm)
register_shape_func("layer_norm", False, elemwise_shape_func)


def compute_layer_norm_row(
    attrs: LayerNormAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Three passes over a row, which lies in the cache after the first."""
    from tvm import te, tirx

    rows, extent = row_extents(inputs[0])
    dtype = accumulator(out_type.dtype)
    data, gamma, beta = (reader(tensor, dtype) for tensor in inputs)
    part, epsilon = tirx.const(1 / extent, dtype), tirx.const(attrs.epsilon, dtype)
    centre = reduce_row("sum", rows, extent, dtype, data, config, "mean", lambda total: total * part)

    def square(*i: Any) -> Any:
        offset = data(*i) - centre(*i[:-1])
        return offset * offset

    def inverse(total: Any) -> Any:
        return tirx.const(1, dtype) / tirx.sqrt(total * part + epsilon)

    scale = reduce_row("sum", rows, extent, dtype, square, config, "scale", inverse)

    def scaled(*i: Any) -> Any:
        norm = (data(*i) - centre(*i[:-1])) * scale(*i[:-1])
        return (norm * gamma(i[-1]) + beta(i[-1])).astype(out_type.dtype)

    return [te.compute((*rows, extent), scaled, name="layer_norm")]


register_rows("layer_norm", compute_layer_norm_row)
register_row_implementations("layer_norm", compute_layer_norm)


@register_gradient("layer_norm")
def layer_norm_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [(g - mean(g) - n mean(g n)) / deviation, grad n, grad] with n the norm and g = grad gamma."""
    x, gamma, beta = orig.args
    axis, rank = orig.attrs.axis, x.tensor_type.ndim
    offset = x - mean(x, axis, keepdims=True)
    variance = mean(offset * offset, axis, keepdims=True)
    scale = call("rsqrt", variance + const(orig.attrs.epsilon, x.tensor_type.dtype))
    norm = offset * scale
    slope = grad * along(in_dtype(gamma, x.tensor_type.dtype), axis, rank)
    dx = slope - mean(slope, axis, keepdims=True) - norm * mean(slope * norm, axis, keepdims=True)
    return [dx * scale, vector_grad(grad * norm, gamma, axis), vector_grad(grad, beta, axis)]


layer_norm = caller("layer_norm")
