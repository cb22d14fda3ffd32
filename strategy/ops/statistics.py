"""Statistics over axes: variance, std and logsumexp of numbers, any and all of bools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import field
from strategy.caller import Caller, caller
from strategy.cpu.elementary import exp
from strategy.expr import Call, Expr, call, const
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    register_compute,
    register_op,
    register_peaks,
    register_reference,
)
from strategy.ops.broadcast import equal, where
from strategy.ops.reduce import kept, mean, reduced_axes, reduced_rows, shared_out, sum_peaks
from strategy.ops.reduce.operator import ReduceAttrs, reduce_relation
from strategy.ops.reduce.passes import Passes, converted, register_passes
from strategy.order import is_infinite
from strategy.pattern import in_float32, register_reduce_schedule
from strategy.reference import Peaks, widened
from strategy.schedule import accumulator
from strategy.shape_func import reduce_shape_func, register_shape_func
from strategy.type_relation import Requirement, require_bool, require_float
from strategy.types import TensorType, Type


class VarianceAttrs(ReduceAttrs):
    """Attributes of variance and std."""

    unbiased: bool = field(False, "Divide by the number of elements less 1")


def _register(
    name: str,
    description: str,
    compute: Callable[[Any, Any], Any],
    reference: Callable[..., Any],
    gradient: Callable[[Call, Expr], Expr] | None = None,
    *,
    require: Requirement = require_float,
    attrs: type[ReduceAttrs] = ReduceAttrs,
    nonempty: bool = True,
) -> Caller:
    """Register a statistic, and return the function that calls it.

    Args:
        compute: of the attributes and a TE tensor, with the reduced axes kept.
        reference: NumPy's form, of an array and the attributes as arguments, with the reduced axes kept.
        gradient: the derivative with respect to the input; None: nothing flows.
    """
    own = "bool" if require is require_bool else "float32"
    (
        register_op(name)
        .describe(description)
        .add_argument("data", "Tensor", "The input tensor.")
        .set_attrs_type(attrs)
        .set_support_level(4)
        .add_type_rel("Reduce", reduce_relation(require, nonempty=nonempty))
        .set_attr("TOpPattern", TOpPattern.kCommReduce)
        .example({"data": f"{own}[3,5,19]"}, {"axis": [1]})
        .example({"data": f"{own}[5,19]"}, {"axis": [1], "keepdims": True})
        .example({"data": f"{own}[3,5,19]"}, {"axis": [1], "exclude": True})
    )

    def computed(attrs: Any, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import topi

        if isinstance(out_type, TensorType) and out_type.is_constant and not out_type.size:
            return [topi.full(out_type.concrete_shape, out_type.dtype, 0)]
        found = compute(attrs, inputs[0])
        axes = list(reduced_axes(attrs, len(inputs[0].shape)))
        return [found if attrs.keepdims else topi.squeeze(found, axes)]

    def answer(attrs: Any, inputs: Sequence[Any]) -> Any:
        import numpy as np

        data = widened(inputs[0])
        axes = reduced_axes(attrs, data.ndim)
        with np.errstate(all="ignore"):
            found = reference(data, attrs, axes)
        return found if attrs.keepdims else found.squeeze(axes)

    register_compute(name, in_float32(computed))
    register_reference(name, answer)
    register_reduce_schedule(name)
    register_shape_func(name, False, reduce_shape_func)
    register_gradient(name, lambda orig, grad: [gradient and gradient(orig, kept(orig, grad))])

    return caller(name)


def _size(attrs: ReduceAttrs, shape: Sequence[Any]) -> Any:
    """The number of elements over the reduced axes."""
    return math.prod(shape[axis] for axis in reduced_axes(attrs, len(shape)))


def _count(attrs: VarianceAttrs, shape: Sequence[Any]) -> Any:
    """The number of elements that a variance divides by."""
    return _size(attrs, shape) - attrs.unbiased


def _variance(attrs: VarianceAttrs, data: Any) -> Any:
    """In two passes: as a difference of sums it would lose its digits."""
    from tvm import te, tirx, topi

    axes = list(reduced_axes(attrs, len(data.shape)))
    number = tirx.Cast(data.dtype, tirx.convert(_size(attrs, data.shape)))
    total = topi.sum(data, axes, keepdims=True)

    def squared(*i: Any) -> Any:
        offset = data(*i) - total(*(0 if a in axes else x for a, x in enumerate(i))) / number
        return offset * offset

    squares = topi.sum(te.compute(data.shape, squared, name="squares"), axes, keepdims=True)
    count = tirx.convert(_count(attrs, data.shape))
    if isinstance(count, tirx.IntImm) and not int(count):  # which TVM does not divide by
        return topi.multiply(squares, tirx.const(math.nan, data.dtype))
    return topi.divide(squares, tirx.Cast(data.dtype, count))


def _std(attrs: VarianceAttrs, data: Any) -> Any:
    from tvm import topi

    return topi.sqrt(_variance(attrs, data))


def _logsumexp(attrs: ReduceAttrs, data: Any) -> Any:
    """Elements are lessened by the largest, unless it is infinite."""
    from tvm import te, tirx, topi

    axes = list(reduced_axes(attrs, len(data.shape)))
    largest = topi.max(data, axes, keepdims=True)

    def least(*i: Any) -> Any:
        found = largest(*(0 if a in axes else x for a, x in enumerate(i)))
        return tirx.Select(is_infinite(found), tirx.const(0, data.dtype), found)

    powers = te.compute(data.shape, lambda *i: exp(data(*i) - least(*i)), name="powers")
    total = topi.sum(powers, axes, keepdims=True)
    return te.compute(total.shape, lambda *i: tirx.log(total(*i)) + least(*i), name="logsumexp")


def _reference_variance(x: Any, attrs: VarianceAttrs, axes: tuple[int, ...]) -> Any:
    offset = x - x.mean(axis=axes, keepdims=True)
    return (offset * offset).sum(axis=axes, keepdims=True) / _count(attrs, x.shape)


def _reference_logsumexp(x: Any, attrs: ReduceAttrs, axes: tuple[int, ...]) -> Any:
    import numpy as np

    largest = x.max(axis=axes, keepdims=True)
    least = np.where(np.isinf(largest), 0, largest)
    return np.log(np.exp(x - least).sum(axis=axes, keepdims=True)) + least


def _logsumexp_peaks(attrs: ReduceAttrs, inputs: Sequence[Any]) -> Peaks:
    """As of softmax; but where rows are whole sums the logarithm is near 0, as little of it is rounded then."""
    rows, terms = reduced_rows(attrs, inputs[0]), _size(attrs, inputs[0].shape)
    above = 1 + math.log(terms)
    return Peaks(rows, 0, -above) if rows.shape[-1] == terms else Peaks(rows, above)


def _flow(orig: Call, grad: Expr) -> Expr:
    """`grad` times the offsets from the mean, divided by the number that a variance divides by."""
    attrs, x = orig.attrs, orig.args[0]
    axes = reduced_axes(attrs, x.tensor_type.ndim)
    return shared_out(grad * (x - mean(x, attrs.axis, True, attrs.exclude)), x, axes, attrs.unbiased)


def _std_grad(orig: Call, grad: Expr) -> Expr:
    """The gradient of std; nothing flows through a deviation of 0, as in PyTorch."""
    deviation = kept(orig, orig)
    zeros = call("zeros_like", deviation)
    return _flow(orig, where(equal(deviation, zeros), zeros, grad / deviation))


def _bools(name: str) -> Callable[[Any, Any], Any]:
    """The reduction `max` or `min` of bools as integers: TVM cannot join bools over threads of a GPU."""

    def compute(attrs: ReduceAttrs, data: Any) -> Any:
        from tvm import tirx, topi

        axes = list(reduced_axes(attrs, len(data.shape)))
        if 0 in [int(n) for n in data.shape if isinstance(n, tirx.IntImm)]:
            # TVM does not store vectors of the comparison of two numbers.
            shape = [1 if axis in axes else extent for axis, extent in enumerate(data.shape)]
            return topi.full(shape, "bool", name == "min")
        found = getattr(topi, name)(topi.cast(data, "int32"), axes, keepdims=True)
        return topi.greater(found, tirx.const(0, "int32"))

    return compute


variance = _register(
    "variance", "The variance over axes.", _variance, _reference_variance,
    lambda orig, grad: _flow(orig, grad * const(2, orig.tensor_type.dtype)), attrs=VarianceAttrs,
)
std = _register(
    "std", "The standard deviation over axes.", _std, lambda *given: _reference_variance(*given) ** 0.5,
    _std_grad, attrs=VarianceAttrs,
)
logsumexp = _register(
    "logsumexp", "log(sum(exp(x))) over axes, computed without overflow.", _logsumexp, _reference_logsumexp,
    lambda orig, grad: grad * call("exp", orig.args[0] - kept(orig, orig)),
)
register_peaks("variance", sum_peaks)
register_peaks("std", sum_peaks)
register_peaks("logsumexp", _logsumexp_peaks)
any = _register(
    "any", "True where any element over axes is true.", _bools("max"),
    lambda x, attrs, axes: x.any(axes, keepdims=True), require=require_bool, nonempty=False,
)
all = _register(
    "all", "True where all elements over axes are true.", _bools("min"),
    lambda x, attrs, axes: x.all(axes, keepdims=True), require=require_bool, nonempty=False,
)


def _quotient(attrs: VarianceAttrs, squares: Any, centre: Any, count: int) -> Any:
    """The variance by the sum of squares; NaN of one element that is divided by 0."""
    from tvm import tirx

    divisor = count - attrs.unbiased
    return squares * tirx.const(1 / divisor if divisor else math.nan, str(squares.ty.dtype))


def _root(attrs: VarianceAttrs, squares: Any, centre: Any, count: int) -> Any:
    from tvm import tirx

    return tirx.sqrt(_quotient(attrs, squares, centre, count))


def _centre(total: Any, count: int) -> Any:
    from tvm import tirx

    return total * tirx.const(1 / count, str(total.ty.dtype))


def _square(number: Any, centre: Any, place: Any) -> Any:
    return (number - centre) * (number - centre)


def _finite(largest: Any, count: int) -> Any:
    from tvm import tirx

    return tirx.Select(is_infinite(largest), tirx.const(0, str(largest.ty.dtype)), largest)


def _logarithm(attrs: ReduceAttrs, total: Any, least: Any, count: int) -> Any:
    from tvm import tirx

    return tirx.log(total) + least


def _is_true(attrs: ReduceAttrs, total: Any, taken: Any, count: int) -> Any:
    from tvm import tirx

    return total > tirx.const(0, str(total.ty.dtype))


for _name, _result in (("variance", _quotient), ("std", _root)):
    register_passes(_name, Passes(accumulator, converted, "sum", _result, _centre, "sum", _square))
register_passes("logsumexp", Passes(
    accumulator, converted, "max_number", _logarithm, _finite, "sum",
    lambda number, least, place: exp(number - least),
))
for _name, _how in (("any", "max"), ("all", "min")):
    register_passes(_name, Passes(lambda dtype: "int8", converted, _how, _is_true))
