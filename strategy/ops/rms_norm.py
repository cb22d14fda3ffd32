"""rms_norm: each vector along an axis, divided by the root of the mean of its squares, then scaled."""

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
    register_op,
    register_peaks,
    register_reference,
    register_terms,
)
from strategy.ops.bias_add import along, array_along, in_dtype, vector_grad, vector_relation
from strategy.ops.reduce import mean
from strategy.pattern import in_float32, register_schedule, schedule_plain_cpu
from strategy.reference import axis_peaks, widened
from strategy.schedule import accumulator
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.space import Config
from strategy.type_relation import require_float, require_nonempty
from strategy.types import TensorType, Type


class RMSNormAttrs(Attrs):
    """Attributes of rms_norm."""

    axis: int = field(-1, "The axis along which the mean is taken")
    epsilon: float = field(1e-5, "Added to the mean of the squares", lower=0)


def rms_norm_rel(types: Sequence[Type], attrs: RMSNormAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; gamma has its extent along the axis, and its dtype or float32."""
    data = vector_relation(reporter, (1,), attrs.axis, may_be_wider=True)
    require_float(reporter, 0, data)
    require_nonempty(reporter, 0, data, [attrs.axis % data.ndim])
    reporter.assign(2, data)
    return True


(
    register_op("rms_norm")
    .describe("x / sqrt(mean(x²) + epsilon) * gamma, with the mean along an axis, as ONNX's RMSNormalization.")
    .add_argument("data", "Tensor", "A floating-point tensor.")
    .add_argument("gamma", "Tensor", "The scale of each entry of the axis, of the data's dtype or of float32.")
    .set_attrs_type(RMSNormAttrs)
    .set_support_level(1)
    .add_type_rel("RMSNorm", rms_norm_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example({"data": "float32[5,19]", "gamma": "float32[19]"})
    .example({"data": "float32[5,19]", "gamma": "float32[5]"}, {"axis": 0})
)


@register_compute("rms_norm")
@in_float32
def compute_rms_norm(attrs: RMSNormAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    data, gamma = inputs
    axis = attrs.axis % len(data.shape)
    count, epsilon = tirx.Cast(data.dtype, data.shape[axis]), tirx.const(attrs.epsilon, data.dtype)
    square = topi.sum(topi.multiply(data, data), axis, keepdims=True)

    def scaled(*i: Any) -> Any:
        return data(*i) / tirx.sqrt(square(*i[:axis], 0, *i[axis + 1 :]) / count + epsilon) * gamma[i[axis]]

    return [te.compute(data.shape, scaled, name="rms_norm")]


@register_reference("rms_norm")
def reference_rms_norm(attrs: RMSNormAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, gamma = map(widened, inputs)
    norm = data / np.sqrt((data * data).mean(axis=attrs.axis, keepdims=True) + attrs.epsilon)
    return norm * array_along(gamma, attrs.axis, data.ndim)


register_terms("rms_norm", axis_terms)
register_peaks("rms_norm", axis_peaks)
schedule_rms_norm = GenericFunc("schedule_rms_norm")
schedule_rms_norm.register("cpu", schedule_plain_cpu)
register_schedule("rms_norm", schedule_rms_norm)
register_shape_func("rms_norm", False, elemwise_shape_func)


def compute_rms_norm_row(attrs: RMSNormAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """Two passes over a row, which lies in the cache after the first."""
    from tvm import te, tirx

    rows, extent = row_extents(inputs[0])
    dtype = accumulator(out_type.dtype)
    data, gamma = (reader(tensor, dtype) for tensor in inputs)
    part, epsilon = tirx.const(1 / extent, dtype), tirx.const(attrs.epsilon, dtype)

    def inverse(total: Any) -> Any:
        return tirx.const(1, dtype) / tirx.sqrt(total * part + epsilon)

    scale = reduce_row("sum", rows, extent, dtype, lambda *i: data(*i) * data(*i), config, "scale", inverse)

    def scaled(*i: Any) -> Any:
        return (data(*i) * scale(*i[:-1]) * gamma(i[-1])).astype(out_type.dtype)

    return [te.compute((*rows, extent), scaled, name="rms_norm")]


register_rows("rms_norm", compute_rms_norm_row)
register_row_implementations("rms_norm", compute_rms_norm)


@register_gradient("rms_norm")
def rms_norm_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [(g - n mean(g n)) scale, grad n] with n the norm and g = grad gamma."""
    x, gamma = orig.args
    axis = orig.attrs.axis
    scale = call("rsqrt", mean(x * x, axis, keepdims=True) + const(orig.attrs.epsilon, x.tensor_type.dtype))
    norm = x * scale
    slope = grad * along(in_dtype(gamma, x.tensor_type.dtype), axis, x.tensor_type.ndim)
    return [
        (slope - norm * mean(slope * norm, axis, keepdims=True)) * scale,
        vector_grad(grad * norm, gamma, axis),
    ]


rms_norm = caller("rms_norm")
