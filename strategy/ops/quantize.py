"""quantize, dequantize and requantize: real numbers as integers with a scale and a zero point.

The real number of an integer q is (q - zero point) · scale. References compute in float32, as kernels do, so that the
integers of both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import Caller, caller
from strategy.cpu.binding import keep_each
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_op,
    register_op_attr,
    register_reference,
)
from strategy.pattern import register_broadcast_schedule
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import normal_axis
from strategy.types import TensorType, Type

_NARROW = ("int8", "uint8")
_WHOLE = (*_NARROW, "int32")
_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}


class DequantizeAttrs(Attrs):
    """Attributes of dequantize."""

    axis: int = field(-1, "The axis along which scales and zero points lie, if they are vectors")


class QuantizeAttrs(DequantizeAttrs):
    """Attributes of quantize and requantize."""

    out_dtype: str = field("int8", "Data type of the output", choices=_NARROW)


def _register(
    name: str,
    description: str,
    accepted: Sequence[str],
    sides: Sequence[str],
    attrs: type[DequantizeAttrs],
    element: Callable[..., Any],
    example: tuple[dict[str, str], dict[str, Any]],
) -> Caller:
    """Register an operator, and return the function that calls it.

    Args:
        accepted: the dtypes of the data.
        sides: what has a scale and a zero point, in the order of inputs.
        element: of the function that rounds to an integer, the data, and each scale and zero point; of TE expressions
            and of arrays.
    """
    op = register_op(name).describe(description).add_argument("data", "Tensor", ", ".join(accepted))
    for side in sides:
        op.add_argument(f"{side}_scale", "Tensor", "float32, one number or one for each entry of the axis")
        op.add_argument(f"{side}_zero_point", "Tensor", "int32, as the scale")
    op.set_attrs_type(attrs).set_support_level(11).set_attr("TOpPattern", TOpPattern.kBroadcast)
    op.example(*example)

    def relation(types: Sequence[Type], attrs: Any, reporter: TypeReporter) -> bool:
        """The shape of the data, in `out_dtype` or float32."""
        data = reporter.known(0)
        reporter.check(data.dtype in accepted, 0, f"its dtype must be one of {', '.join(accepted)}")
        for index in range(1, 1 + 2 * len(sides)):
            given = reporter.known(index)
            dtype = "float32" if index % 2 else "int32"
            reporter.check(given.dtype == dtype, index, f"its dtype must be {dtype}")
            reporter.check(given.ndim <= 1, index, "expected one number, or one for each entry of the axis")
            if given.ndim:
                fits = given.shape[0] == data.shape[normal_axis(reporter, 0, attrs.axis, data.ndim)]
                reporter.check(fits, index, f"axis {attrs.axis} of {reporter.name(0)}, {data}, has another extent")
        reporter.assign(len(types) - 1, TensorType(data.shape, _out_dtype(attrs)))
        return True

    def compute(attrs: Any, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
        from tvm import te, topi

        data, *given = inputs
        place = attrs.axis % max(len(data.shape), 1)

        def at(*i: Any) -> Any:
            numbers = [x(i[place]) if len(x.shape) else x() for x in given]
            return keep_each(inputs, [data(*i), *numbers], partial(element, partial(_to_integer, out_type.dtype)))

        return [te.compute(data.shape, at, name=name, tag=topi.tag.BROADCAST)]

    def reference(attrs: Any, inputs: Sequence[Any]) -> Any:
        import numpy as np

        data, *given = map(np.asarray, inputs)

        def along(x: Any) -> Any:
            return x.reshape([-1 if i == attrs.axis % data.ndim else 1 for i in range(data.ndim)]) if x.ndim else x

        numbers = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in (data, *map(along, given))]
        with np.errstate(all="ignore"):
            return element(partial(_rounded, _out_dtype(attrs)), *numbers)

    op.add_type_rel(name.capitalize(), relation)
    register_compute(name, compute)
    register_reference(name, reference)
    register_broadcast_schedule(name)
    register_shape_func(name, False, elemwise_shape_func)

    return caller(name)


def _out_dtype(attrs: DequantizeAttrs) -> str:
    return attrs.out_dtype if isinstance(attrs, QuantizeAttrs) else "float32"


def _to_integer(dtype: str, value: Any, zero_point: Any) -> Any:
    """The integer of a real number in units of the scale; NaN is the least."""
    from tvm import tirx

    low, high = (tirx.const(bound, "float32") for bound in _BOUNDS[dtype])
    shifted = tirx.nearbyint(value) + zero_point.astype("float32")
    return tirx.Select(shifted > low, tirx.min(shifted, high), low).astype(dtype)


def _rounded(dtype: str, value: Any, zero_point: Any) -> Any:
    """NumPy's form of `_to_integer`."""
    import numpy as np

    low, high = map(np.float32, _BOUNDS[dtype])
    shifted = np.rint(value) + zero_point.astype(np.float32)
    return np.where(shifted > low, np.minimum(shifted, high), low).astype(dtype)


def _real(q: Any, scale: Any, zero_point: Any) -> Any:
    return (q.astype("int32") - zero_point).astype("float32") * scale


quantize = _register(
    "quantize",
    "Real numbers as integers: data / scale to the nearest, halves to even, plus the zero point, clipped.",
    ("float32",), ("output",), QuantizeAttrs,
    lambda to_integer, x, scale, zero_point: to_integer(x / scale, zero_point),
    ({"data": "float32[5,19]", "output_scale": "float32[]", "output_zero_point": "int32[]"}, {}),
)
register_op_attr("quantize", "TJumps", True)
dequantize = _register(
    "dequantize", "The real numbers of integers: (data - zero point) · scale.",
    _WHOLE, ("input",), DequantizeAttrs,
    lambda to_integer, q, scale, zero_point: _real(q, scale, zero_point),
    ({"data": "int8[5,19]", "input_scale": "float32[19]", "input_zero_point": "int32[]"}, {}),
)
requantize = _register(
    "requantize", "Integers of one scale and zero point as those of another, halves to even, clipped.",
    _WHOLE, ("input", "output"), QuantizeAttrs,
    lambda to_integer, q, scale, zero_point, out_scale, out_zero_point: to_integer(
        _real(q, scale / out_scale, zero_point), out_zero_point
    ),
    (
        {
            "data": "int32[5,19]", "input_scale": "float32[19]", "input_zero_point": "int32[]",
            "output_scale": "float32[]", "output_zero_point": "int32[]",
        },
        {"out_dtype": "uint8"},
    ),
)
