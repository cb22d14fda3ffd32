"""Scans: cumulative sums, products and maxima along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, call
from strategy.gradient import GradientError, register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_op,
    register_op_attr,
    register_reference,
    register_terms,
)
from strategy.ops.broadcast import equal, where
from strategy.ops.elemwise import cast, ones_like, zeros_like
from strategy.ops.reshape import reshape_like
from strategy.order import larger, lowest
from strategy.pattern import register_extern_strategy
from strategy.reference import widened
from strategy.shape_func import register_shape_func, scan_shape_func
from strategy.type_relation import normal_axis, product, require_number
from strategy.types import DTYPES, TensorType, Type

Start = Callable[[str], Any]
"""The value of a scan of no elements, as an expression of a dtype."""


def zero(dtype: str) -> Any:
    from tvm import tirx

    return tirx.const(0, dtype)


def one(dtype: str) -> Any:
    from tvm import tirx

    return tirx.const(1, dtype)


class ScanopAttrs(Attrs):
    """Attributes of cumsum, cumprod and cummax."""

    axis: int | None = field(None, "The axis to operate over; default: the flattened input")
    dtype: str | None = field(None, "Output data type; default: the input's", choices=DTYPES)
    exclusive: bool = field(False, "The first element is not included")


def scanop_rel(types: Sequence[Type], attrs: ScanopAttrs, reporter: TypeReporter) -> bool:
    """The input's shape, or one dimension where the axis is None."""
    data = reporter.known(0)
    require_number(reporter, 0, data)
    dtype = attrs.dtype or data.dtype
    reporter.check(dtype != "bool", 0, "dtype = bool: scans are of numbers: cast the result, or name another dtype")
    if attrs.axis is None:
        reporter.assign(1, TensorType([product(data.shape)], dtype))
    else:
        normal_axis(reporter, 0, attrs.axis, data.ndim)
        reporter.assign(1, TensorType(data.shape, dtype))
    return True


def _scan(attrs: ScanopAttrs, data: Any, combine: Callable[[Any, Any], Any], start: Start, name: str) -> list[Any]:
    from tvm import te, tirx, topi

    dtype = attrs.dtype or str(data.dtype)
    if any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in data.shape):  # TVM's scan has a first element
        return [topi.full([0] if attrs.axis is None else data.shape, dtype, 0)]
    narrow = dtype in ("float16", "bfloat16")
    wide = "float32" if narrow else dtype
    found = topi.scan.scanop(data, combine, start(wide), f"{name}_generic", attrs.axis, wide, attrs.exclusive)
    if any(not isinstance(n, tirx.IntImm) for n in data.shape):  # it may be 0 at run time
        made, (size, *more) = found.op, data.shape if attrs.axis is None else [data.shape[attrs.axis]]
        for extent in more:
            size = size * extent
        body = tirx.IfThenElse(size > 0, made.body, None)
        found = te.ExternOp(
            made.name, made.tag, made.attrs, made.inputs, made.input_placeholders, made.output_placeholders, body
        ).output(0)
    return [topi.cast(found, dtype) if narrow else found]


def scan_terms(attrs: ScanopAttrs, inputs: Sequence[TensorType], out_type: Type) -> int:
    return inputs[0].size if attrs.axis is None else int(inputs[0].shape[attrs.axis])


def _reference(attrs: ScanopAttrs, data: Any, scan: Callable[..., Any], start: float | None) -> Any:
    import numpy as np

    dtype = attrs.dtype or data.dtype.name
    data = widened(data)
    # As the operator does: elements are converted first, then accumulated in the output's type.
    data = data.astype(np.float64 if dtype.startswith(("float", "bfloat")) else dtype)
    if attrs.axis is None:
        data = data.reshape(-1)
    axis = attrs.axis or 0
    if attrs.exclusive and data.shape[axis]:
        least = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
        first = np.full_like(np.take(data, [0], axis), least if start is None else start)
        data = np.concatenate([first, np.delete(data, -1, axis)], axis)
    return scan(data, axis=axis, dtype=data.dtype)


def _register(
    name: str, what: str, combine: Callable[[Any, Any], Any], begin: Start, scan: str, start: float | None
) -> None:
    """Register a scan.

    Args:
        begin: what it begins with, as `start`, which is None for the smallest number.
        scan: NumPy's form, by its name.
    """
    (
        register_op(name)
        .describe(f"Return the cumulative {what} of the elements along a given axis.")
        .add_argument("data", "Tensor", "The input tensor.")
        .set_attrs_type(ScanopAttrs)
        .set_support_level(3)
        .add_type_rel(name.capitalize(), scanop_rel)
        .set_attr("TOpPattern", TOpPattern.kOpaque)
        .example({"data": "float32[5,19]"}, {"axis": 0})
        .example({"data": "int32[4099]"})
        .example({"data": "float32[5,19]"}, {"axis": 1})
        .example({"data": "float32[5,19]"}, {"axis": 1, "dtype": "int32"})
        .example({"data": "float32[5,19]"}, {"axis": 1, "dtype": "float32"})
    )

    def compute(attrs: ScanopAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        return _scan(attrs, inputs[0], combine, begin, name)

    def reference(attrs: ScanopAttrs, inputs: Sequence[Any]) -> Any:
        import numpy as np

        found: Any = np
        for part in scan.split("."):
            found = getattr(found, part)
        return _reference(attrs, inputs[0], found, start)

    register_compute(name, compute)
    register_reference(name, reference)
    register_terms(name, scan_terms)
    register_extern_strategy(name, compute)
    register_shape_func(name, False, scan_shape_func)


_register("cumsum", "sum", lambda a, b: a + b, zero, "cumsum", 0)
_register("cumprod", "product", lambda a, b: a * b, one, "cumprod", 1)
register_op_attr("cumprod", "TFactors", True)
_register("cummax", "maximum", larger, lowest, "maximum.accumulate", None)


@register_gradient("cumsum")
def cumsum_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [the sum of grad from each element on]."""
    data = orig.args[0]
    return [cast(reshape_like(_sums_onward(orig, grad), data), data.tensor_type.dtype)]


@register_gradient("cumprod")
def cumprod_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [for each element, the sum of grad times the products that it is in, without it].

    Up to the first zero these are the products divided by the element, at the first zero those of the
    others; what comes after it is only in products that are zero without it too.
    """
    data, axis = orig.args[0], orig.attrs.axis or 0
    x = reshape_like(cast(data, orig.tensor_type.dtype), orig)
    zeros, ones = zeros_like(x), ones_like(x)
    zero = equal(x, zeros)
    met = call("cumsum", where(zero, ones, zeros), axis=axis)
    others = where(zero, where(equal(met, ones), ones, zeros), x)
    products = call("cumprod", others, axis=axis, exclusive=orig.attrs.exclusive)
    at_first = where(equal(met, ones), _sums_onward(orig, grad * products), zeros)
    before = where(equal(met, zeros), _sums_onward(orig, grad * orig) / where(zero, ones, x), zeros)
    return [cast(reshape_like(where(zero, at_first, before), data), data.tensor_type.dtype)]


@register_gradient("cummax")
def cummax_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [for each element that is the largest so far, the sum of grad as long as it is; the last of equals]."""
    if orig.attrs.exclusive:
        raise GradientError("cummax: it has no gradient where it is exclusive")
    data, axis = orig.args[0], orig.attrs.axis or 0
    x = reshape_like(cast(data, orig.tensor_type.dtype), orig)
    new = equal(x, orig)
    if "float" in orig.tensor_type.dtype:
        new = call("logical_or", new, call("not_equal", x, x))  # NaN is the largest
    numbers = call("cumsum", cast(new, "int32"), axis=axis)
    places = numbers - ones_like(numbers)
    sums = call("scatter_add", zeros_like(grad), places, grad, axis=axis)
    taken = where(new, call("gather", sums, places, axis=axis), zeros_like(grad))
    return [cast(reshape_like(taken, data), data.tensor_type.dtype)]


def _sums_onward(orig: Call, terms: Expr) -> Expr:
    """The sums of what the scan `orig` has from each element on, from the end: the total less the rest would cancel."""
    axis = orig.attrs.axis or 0
    found = call("cumsum", call("reverse", terms, axis=axis), axis=axis, exclusive=orig.attrs.exclusive)
    return call("reverse", found, axis=axis)


def cumsum(
    data: Expr, axis: int | None = None, dtype: str | None = None, exclusive: bool | None = None
) -> Expr:
    """Numpy style cumsum op. Return the cumulative inclusive sum of the elements along an axis.

    Args:
        data: the input data to the operator.
        axis: axis along which the cumulative sum is computed. The default (None) is to compute the
            cumsum over the flattened array.
        dtype: type of the returned array and of the accumulator in which the elements are summed.
            If dtype is not specified, it defaults to the dtype of data.
        exclusive: if true will return exclusive sum in which the first element is not included. In
            other terms, if true, the j-th output element would be the sum of the first (j-1)
            elements. Otherwise, it would be the sum of the first j elements. The sum of zero
            elements is 0.

    Returns:
        The result has the same size as data, and the same shape as data if axis is not None. If
        axis is None, the result is a 1-d array.
    """
    return call("cumsum", data, axis=axis, dtype=dtype, exclusive=exclusive)


def cumprod(
    data: Expr, axis: int | None = None, dtype: str | None = None, exclusive: bool | None = None
) -> Expr:
    """Numpy style cumprod op. Return the cumulative inclusive product of the elements along an axis.

    Args:
        data: the input data to the operator.
        axis: axis along which the cumulative product is computed. The default (None) is to compute
            the cumprod over the flattened array.
        dtype: type of the returned array and of the accumulator in which the elements are
            multiplied. If dtype is not specified, it defaults to the dtype of data.
        exclusive: if true will return exclusive product in which the first element is not included.
            In other terms, if true, the j-th output element would be the product of the first (j-1)
            elements. Otherwise, it would be the product of the first j elements. The product of
            zero elements will be 1.

    Returns:
        The result has the same size as data, and the same shape as data if axis is not None. If
        axis is None, the result is a 1-d array.
    """
    return call("cumprod", data, axis=axis, dtype=dtype, exclusive=exclusive)


def cummax(data: Expr, axis: int | None = None, dtype: str | None = None, exclusive: bool = False) -> Expr:
    """The largest element so far along an axis; NaN from the first NaN on.

    Args:
        data: a tensor of numbers.
        axis: the axis along which the scan runs; default: the flattened input.
        dtype: data type of the result, to which the elements are converted; default: that of data.
        exclusive: of the elements before each; the first is the smallest number of the dtype, or -infinity.
    """
    return call("cummax", data, axis=axis, dtype=dtype, exclusive=exclusive)
