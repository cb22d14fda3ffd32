"""quantize, dequantize and requantize: real numbers as integers with a scale and a zero point.

The real number of an integer q is (q - zero point) · scale. References compute in float32, as kernels do, so that the
integers of both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, call
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.pattern import register_broadcast_schedule, register_injective_schedule
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import normal_axis
from strategy.types import TensorType, Type

_NARROW = ("int8", "uint8")
_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}


class DequantizeAttrs(Attrs):
    """Attributes of dequantize."""

    axis: int = field(-1, "The axis along which scales and zero points lie, if they are vectors")


class QuantizeAttrs(Attrs):
    """Attributes of quantize and requantize."""

    axis: int = field(-1, "The axis along which scales and zero points lie, if they are vectors")
    out_dtype: str = field("int8", "Data type of the output", choices=_NARROW)


def _data(
    reporter: TypeReporter, axis: int, accepted: Sequence[str], count: int
) -> TensorType | None:
    """The type of input 0, once it is known that `count` scales and zero points after it fit; None before."""
    data = reporter.tensor(0)
    if data is None:
        return None
    reporter.check(data.dtype in accepted, 0, f"its dtype must be one of {', '.join(accepted)}")
    for index in range(1, 1 + count):
        given = reporter.tensor(index)
        if given is None:
            return None
        dtype = "float32" if index % 2 else "int32"
        reporter.check(given.dtype == dtype, index, f"its dtype must be {dtype}")
        reporter.check(given.ndim <= 1, index, "expected one number, or one for each entry of the axis")
        if given.ndim:
            fits = given.shape[0] == data.shape[normal_axis(reporter, 0, axis, data.ndim)]
            reporter.check(fits, index, f"axis {axis} of {reporter.name(0)}, {data}, has another extent")
    return data


def quantize_rel(types: Sequence[Type], attrs: QuantizeAttrs, reporter: TypeReporter) -> bool:
    """The shape of the data, in `out_dtype`."""
    data = _data(reporter, attrs.axis, ("float32",), 2)
    if data is not None:
        reporter.assign(3, TensorType(data.shape, attrs.out_dtype))
    return data is not None


def dequantize_rel(types: Sequence[Type], attrs: DequantizeAttrs, reporter: TypeReporter) -> bool:
    """The shape of the data, in float32."""
    data = _data(reporter, attrs.axis, (*_NARROW, "int32"), 2)
    if data is not None:
        reporter.assign(3, TensorType(data.shape, "float32"))
    return data is not None


def requantize_rel(types: Sequence[Type], attrs: QuantizeAttrs, reporter: TypeReporter) -> bool:
    """The shape of the data, in `out_dtype`."""
    data = _data(reporter, attrs.axis, (*_NARROW, "int32"), 4)
    if data is not None:
        reporter.assign(5, TensorType(data.shape, attrs.out_dtype))
    return data is not None


(
    register_op("quantize")
    .describe("Real numbers as integers: data / scale to the nearest, halves to even, plus the zero point, clipped.")
    .add_argument("data", "Tensor", "float32")
    .add_argument("output_scale", "Tensor", "float32, one number or one for each entry of the axis")
    .add_argument("output_zero_point", "Tensor", "int32, as the scale")
    .set_attrs_type(QuantizeAttrs)
    .set_support_level(11)
    .add_type_rel("Quantize", quantize_rel)
    # Not joined to a product: a rounding error of its sum would decide between two integers.
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]", "output_scale": "float32[]", "output_zero_point": "int32[]"})
)
(
    register_op("dequantize")
    .describe("The real numbers of integers: (data - zero point) · scale.")
    .add_argument("data", "Tensor", "int8, uint8 or int32")
    .add_argument("input_scale", "Tensor", "float32, one number or one for each entry of the axis")
    .add_argument("input_zero_point", "Tensor", "int32, as the scale")
    .set_attrs_type(DequantizeAttrs)
    .set_support_level(11)
    .add_type_rel("Dequantize", dequantize_rel)
    .set_attr("TOpPattern", TOpPattern.kBroadcast)
    .example({"data": "int8[5,19]", "input_scale": "float32[19]", "input_zero_point": "int32[]"})
)
(
    register_op("requantize")
    .describe("Integers of one scale and zero point as those of another.")
    .add_argument("data", "Tensor", "int8, uint8 or int32")
    .add_argument("input_scale", "Tensor", "float32, one number or one for each entry of the axis")
    .add_argument("input_zero_point", "Tensor", "int32, as the scale")
    .add_argument("output_scale", "Tensor", "float32, one number or one for each entry of the axis")
    .add_argument("output_zero_point", "Tensor", "int32, as the scale")
    .set_attrs_type(QuantizeAttrs)
    .set_support_level(11)
    .add_type_rel("Requantize", requantize_rel)
    .set_attr("TOpPattern", TOpPattern.kBroadcast)
    .example(
        {
            "data": "int32[5,19]", "input_scale": "float32[19]", "input_zero_point": "int32[]",
            "output_scale": "float32[]", "output_zero_point": "int32[]",
        },
        {"out_dtype": "uint8"},
    )
)  # fmt: skip


def _compute(data: Any, given: Sequence[Any], axis: int, element: Any, name: str) -> list[Any]:
    from tvm import te, topi

    place = axis % max(len(data.shape), 1)

    def at(*i: Any) -> Any:
        return element(data(*i), *(x(i[place]) if len(x.shape) else x() for x in given))

    return [te.compute(data.shape, at, name=name, tag=topi.tag.BROADCAST)]


def _to_integer(value: Any, zero_point: Any, dtype: str) -> Any:
    """The integer of a real number in units of the scale; NaN is the least."""
    from tvm import tirx

    low, high = (tirx.const(bound, "float32") for bound in _BOUNDS[dtype])
    shifted = tirx.nearbyint(value) + zero_point.astype("float32")
    return tirx.Select(shifted > low, tirx.min(shifted, high), low).astype(dtype)


@register_compute("quantize")
def compute_quantize(attrs: QuantizeAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    def element(x: Any, scale: Any, zero_point: Any) -> Any:
        return _to_integer(x / scale, zero_point, attrs.out_dtype)

    return _compute(inputs[0], inputs[1:], attrs.axis, element, "quantize")


@register_compute("dequantize")
def compute_dequantize(attrs: DequantizeAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    def element(q: Any, scale: Any, zero_point: Any) -> Any:
        return (q.astype("int32") - zero_point).astype("float32") * scale

    return _compute(inputs[0], inputs[1:], attrs.axis, element, "dequantize")


@register_compute("requantize")
def compute_requantize(attrs: QuantizeAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    def element(q: Any, scale: Any, zero_point: Any, out_scale: Any, out_zero_point: Any) -> Any:
        value = (q.astype("int32") - zero_point).astype("float32") * (scale / out_scale)
        return _to_integer(value, out_zero_point, attrs.out_dtype)

    return _compute(inputs[0], inputs[1:], attrs.axis, element, "requantize")


def _float32(attrs: Any, inputs: Sequence[Any]) -> list[Any]:
    """The data as it is, and scales and zero points along their axis; numbers with a fraction as float32."""
    import numpy as np

    data, *given = map(np.asarray, inputs)
    shape = [1] * data.ndim
    if data.ndim:
        shape[attrs.axis] = -1
    found = [data, *(x.reshape(shape) if x.ndim else x for x in given)]
    return [x.astype(np.float32) if x.dtype.kind == "f" else x.astype(np.int32) for x in found]


def _integers(value: Any, zero_point: Any, dtype: str) -> Any:
    import numpy as np

    low, high = map(np.float32, _BOUNDS[dtype])
    shifted = np.rint(value) + zero_point.astype(np.float32)
    return np.where(shifted > low, np.minimum(shifted, high), low).astype(dtype)


@register_reference("quantize")
def reference_quantize(attrs: QuantizeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, scale, zero_point = _float32(attrs, inputs)
    with np.errstate(all="ignore"):
        return _integers(data / scale, zero_point, attrs.out_dtype)


@register_reference("dequantize")
def reference_dequantize(attrs: DequantizeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, scale, zero_point = _float32(attrs, inputs)
    with np.errstate(all="ignore"):
        return (data - zero_point).astype(np.float32) * scale


@register_reference("requantize")
def reference_requantize(attrs: QuantizeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, scale, zero_point, out_scale, out_zero_point = _float32(attrs, inputs)
    with np.errstate(all="ignore"):
        value = (data - zero_point).astype(np.float32) * (scale / out_scale)
        return _integers(value, out_zero_point, attrs.out_dtype)


register_injective_schedule("quantize")
for _name in ("dequantize", "requantize"):
    register_broadcast_schedule(_name)
for _name in ("quantize", "dequantize", "requantize"):
    register_shape_func(_name, False, elemwise_shape_func)


def quantize(
    data: Expr, output_scale: Expr, output_zero_point: Expr, *, axis: int = -1, out_dtype: str = "int8"
) -> Call:
    """Real numbers as integers: data / scale to the nearest, halves to even, plus the zero point, clipped.

    Args:
        data: float32.
        output_scale: float32, one number or one for each entry of the axis.
        output_zero_point: int32, as the scale.
        axis: the axis along which vectors of them lie.
        out_dtype: "int8" or "uint8".
    """
    return call("quantize", data, output_scale, output_zero_point, axis=axis, out_dtype=out_dtype)


def dequantize(data: Expr, input_scale: Expr, input_zero_point: Expr, *, axis: int = -1) -> Call:
    """The real numbers of integers, (data - zero point) · scale, in float32.

    Args:
        data: int8, uint8 or int32.
        input_scale: float32, one number or one for each entry of the axis.
        input_zero_point: int32, as the scale.
        axis: the axis along which vectors of them lie.
    """
    return call("dequantize", data, input_scale, input_zero_point, axis=axis)


def requantize(
    data: Expr,
    input_scale: Expr,
    input_zero_point: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
    *,
    axis: int = -1,
    out_dtype: str = "int8",
) -> Call:
    """Integers of one scale and zero point as those of another, halves to even, clipped.

    Args:
        data: int8, uint8 or int32.
        input_scale: float32, one number or one for each entry of the axis.
        input_zero_point: int32, as the scale.
        output_scale: as `input_scale`, of the output.
        output_zero_point: as `input_zero_point`, of the output.
        axis: the axis along which vectors of them lie.
        out_dtype: "int8" or "uint8".
    """
    return call(
        "requantize", data, input_scale, input_zero_point, output_scale, output_zero_point,
        axis=axis, out_dtype=out_dtype,
    )  # fmt: skip
