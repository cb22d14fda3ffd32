"""softmax along an axis, and its logarithm; of scaled elements, and with a bias that hides some."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.elementary import exp
from strategy.cpu.row import keep_row, reader, reduce_row, register_rows, row_extents
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
from strategy.ops.broadcast import collapse_sum_like
from strategy.order import lowest, scaled
from strategy.pattern import broadcast_place, in_float32, register_schedule, schedule_plain_cpu
from strategy.reference import Peaks, widened
from strategy.schedule import accumulator
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.space import Config
from strategy.type_relation import (
    broadcast_shape,
    normal_axis,
    require_float,
    require_nonempty,
    require_shape,
)
from strategy.types import TensorType, Type


class SoftmaxAttrs(Attrs):
    """Attributes of softmax and log_softmax."""

    axis: int = field(-1, "The axis along which the elements sum to 1")
    scale: float = field(1.0, "The factor of the elements")


NAMES = ("softmax", "log_softmax", "softmax_bias")


def softmax_rel(types: Sequence[Type], attrs: SoftmaxAttrs, reporter: TypeReporter) -> bool:
    """The type of the input; a bias broadcasts to it."""
    data = reporter.known(0)
    require_float(reporter, 0, data)
    require_nonempty(reporter, 0, data, [normal_axis(reporter, 0, attrs.axis, data.ndim)])
    if reporter.op.name == "softmax_bias":
        bias = reporter.known(1)
        if bias.dtype != "bool":
            reporter.check(bias.dtype == data.dtype, 1, f"expected bools, or the dtype of data, {data}")
        shape = broadcast_shape(reporter, 1, bias, data)
        require_shape(reporter, 1, shape, data.shape, f"does not broadcast to data, {data}")
    reporter.assign(len(types) - 1, data)
    return True


for _name, _what in (
    ("softmax", "exp(x) / sum(exp(x)) along an axis."),
    ("log_softmax", "x - log(sum(exp(x))) along an axis."),
    ("softmax_bias", "softmax(x + bias) along an axis; of bools, the elements that are false are hidden."),
):
    _op = (
        register_op(_name)
        .describe(_what)
        .add_argument("data", "Tensor", "The input tensor, x divided by scale.")
        .set_attrs_type(SoftmaxAttrs)
        .set_support_level(1)
        .add_type_rel("Softmax", softmax_rel)
        .set_attr("TOpPattern", TOpPattern.kOpaque)
    )
    if _name == "softmax_bias":
        _op.add_argument("bias", "Tensor", "Added to the elements, or bools; it broadcasts to data.")
        _op.example({"data": "float32[2,3,5,19]", "bias": "float32[2,1,1,19]"}, {"scale": 0.125})
        _op.example({"data": "float32[5,19]", "bias": "bool[5,1]"}, {"axis": 0})
        _op.example({"data": "float32[3,5,19]", "bias": "bool[5,19]"})
    else:
        _op.example({"data": "float32[5,19]"}, {"axis": 0}).example({"data": "float32[5,19]"}, {"axis": 1})
        _op.example({"data": "float32[5,3,19]"}, {"axis": 1, "scale": 0.5})


def elements(attrs: SoftmaxAttrs, inputs: Sequence[Any], dtype: str) -> Callable[..., Any]:
    """Read elements of TE tensors, scaled and with their bias, in `dtype`."""
    from tvm import tirx

    data, *further = inputs
    read = reader(data, dtype)

    def element(*index: Any) -> Any:
        value = read(*index)
        if attrs.scale != 1:
            value = scaled(value, attrs.scale)
        for bias in further:
            found = bias(*broadcast_place(bias.shape, index))
            hides = str(bias.dtype) == "bool"
            value = tirx.Select(found, value, lowest(dtype)) if hides else value + found.astype(dtype)
        return value

    return element


def prepared(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Any:
    """The tensor that the powers are taken of."""
    from tvm import te, topi

    data = inputs[0]
    if attrs.scale == 1 and len(inputs) == 1:
        return data
    return te.compute(data.shape, elements(attrs, inputs, str(data.dtype)), name="scaled", tag=topi.tag.INJECTIVE)


@register_compute("softmax_bias")
@register_compute("softmax")
@in_float32
def compute_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.nn.softmax(prepared(attrs, inputs), axis=attrs.axis)]


@register_compute("log_softmax")
@in_float32
def compute_log_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    data = prepared(attrs, inputs)
    axis = attrs.axis % len(data.shape)
    largest = topi.max(data, axis, keepdims=True)
    total = topi.sum(topi.exp(topi.subtract(data, largest)), axis, keepdims=True)

    def shifted(*i: Any) -> Any:
        row = (*i[:axis], 0, *i[axis + 1 :])
        return data(*i) - largest(*row) - tirx.log(total(*row))

    return [te.compute(data.shape, shifted, name="log_softmax")]


@register_reference("softmax_bias")
@register_reference("softmax")
def reference_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, *further = map(widened, inputs)
    with np.errstate(invalid="ignore"):  # of infinities it is NaN
        data = data * attrs.scale
        for bias in further:
            data = np.where(bias, data, -np.inf) if bias.dtype == bool else data + bias
        powers = np.exp(data - data.max(axis=attrs.axis, keepdims=True))
        return powers / powers.sum(axis=attrs.axis, keepdims=True)


@register_reference("log_softmax")
def reference_log_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0]) * attrs.scale
    shifted = data - data.max(axis=attrs.axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=attrs.axis, keepdims=True))


def softmax_peaks(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Peaks:
    """A power of each is e times the sum of all others, if those are 1."""
    import numpy as np

    rows = np.moveaxis(inputs[0], attrs.axis, -1)
    return Peaks(rows, (1 + math.log(rows.shape[-1])) / (attrs.scale or math.inf))


schedule_softmax = GenericFunc("schedule_softmax")
schedule_softmax.register("cpu", schedule_plain_cpu)
for _name in NAMES:
    register_terms(_name, axis_terms)
    register_peaks(_name, softmax_peaks)
    register_schedule(_name, schedule_softmax)
    register_shape_func(_name, False, elemwise_shape_func)


def compute_softmax_row(
    attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Powers are kept between their sum and the division by it."""
    from tvm import te, tirx

    rows, extent = row_extents(inputs[0])
    dtype = accumulator(out_type.dtype)
    read, one = elements(attrs, inputs, dtype), tirx.const(1, dtype)
    largest = reduce_row("max_number", rows, extent, dtype, read, config, "max")
    powers = keep_row(rows, extent, lambda *i: exp(read(*i) - largest(*i[:-1])), config, "powers")
    scale = reduce_row("sum", rows, extent, dtype, powers, config, "sum", lambda total: one / total)

    def ratio(*i: Any) -> Any:
        return (powers(*i) * scale(*i[:-1])).astype(out_type.dtype)

    return [te.compute((*rows, extent), ratio, name="softmax")]


def compute_log_softmax_row(
    attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Powers are needed for their sum alone."""
    from tvm import te, tirx

    rows, extent = row_extents(inputs[0])
    dtype = accumulator(out_type.dtype)
    read = elements(attrs, inputs, dtype)
    largest = reduce_row("max_number", rows, extent, dtype, read, config, "max")

    def power(*i: Any) -> Any:
        return exp(read(*i) - largest(*i[:-1]))

    logarithm = reduce_row("sum", rows, extent, dtype, power, config, "sum", tirx.log)

    def shifted(*i: Any) -> Any:
        return (read(*i) - largest(*i[:-1]) - logarithm(*i[:-1])).astype(out_type.dtype)

    return [te.compute((*rows, extent), shifted, name="log_softmax")]


for _name, _compute, _row in (
    ("softmax", compute_softmax, compute_softmax_row),
    ("log_softmax", compute_log_softmax, compute_log_softmax_row),
    ("softmax_bias", compute_softmax, compute_softmax_row),
):
    register_rows(_name, _row)
    register_row_implementations(_name, _compute)


def _unscaled(attrs: SoftmaxAttrs, slope: Expr) -> Expr:
    """The gradient of the data by that of the scaled elements."""
    return slope if attrs.scale == 1 else slope * const(attrs.scale, slope.tensor_type.dtype)


@register_gradient("softmax_bias")
@register_gradient("softmax")
def softmax_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [(grad - sum(grad * softmax(x))) * softmax(x) * scale], and of a bias what is broadcast, summed."""
    total = call("sum", grad * orig, axis=orig.attrs.axis, keepdims=True)
    slope = (grad - total) * orig
    to_bias = [None if b.tensor_type.dtype == "bool" else collapse_sum_like(slope, b) for b in orig.args[1:]]
    return [_unscaled(orig.attrs, slope), *to_bias]


@register_gradient("log_softmax")
def log_softmax_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [(grad - sum(grad) * softmax(x)) * scale]."""
    total = call("sum", grad, axis=orig.attrs.axis, keepdims=True)
    return [_unscaled(orig.attrs, grad - total * call("exp", orig))]


def softmax(data: Expr, axis: int = -1, scale: float = 1.0, bias: Expr | None = None) -> Expr:
    """exp(x) / sum(exp(x)) along an axis, of x = scale data + bias, computed without overflow.

    Args:
        data: a floating-point tensor.
        axis: the axis along which the elements sum to 1.
        scale: the factor of the elements.
        bias: added to the elements, or bools, false where one is hidden; it broadcasts to data. The elements of a row
            that are all hidden are NaN.
    """
    if bias is None:
        return call("softmax", data, axis=axis, scale=scale)
    return call("softmax_bias", data, bias, axis=axis, scale=scale)


log_softmax = caller("log_softmax")
