"""softmax along an axis, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu.elementary import exp
from strategy.cpu.row import (
    accumulator,
    keep_row,
    reader,
    reduce_row,
    register_rows,
    row_extents,
)
from strategy.cuda.rowwise import register_row_implementations
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
from strategy.pattern import (
    in_float32,
    register_schedule,
    schedule_plain_cpu,
)
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.space import Config
from strategy.type_relation import normal_axis, require_float, require_nonempty
from strategy.types import TensorType, Type


class SoftmaxAttrs(Attrs):
    """Attributes of softmax and log_softmax."""

    axis: int = field(-1, "The axis along which the elements sum to 1")


def softmax_rel(types: Sequence[Type], attrs: SoftmaxAttrs, reporter: TypeReporter) -> bool:
    """The type of the input."""
    data = reporter.tensor(0)
    if data is None:
        return False
    require_float(reporter, 0, data)
    require_nonempty(reporter, 0, data, [normal_axis(reporter, 0, attrs.axis, data.ndim)])
    reporter.assign(1, data)
    return True


for _name, _what in (
    ("softmax", "exp(x) / sum(exp(x)) along an axis."),
    ("log_softmax", "x - log(sum(exp(x))) along an axis."),
):
    (
        register_op(_name)
        .describe(_what)
        .add_argument("data", "Tensor", "The input tensor.")
        .set_attrs_type(SoftmaxAttrs)
        .set_support_level(1)
        .add_type_rel("Softmax", softmax_rel)
        .set_attr("TOpPattern", TOpPattern.kOpaque)
        .example({"data": "float32[5,19]"}, {"axis": 0})
        .example({"data": "float32[5,19]"}, {"axis": 1})
    )


@register_compute("softmax")
@in_float32
def compute_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.nn.softmax(inputs[0], axis=attrs.axis)]


@register_compute("log_softmax")
@in_float32
def compute_log_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    data = inputs[0]
    axis = attrs.axis % len(data.shape)
    largest = topi.max(data, axis, keepdims=True)
    total = topi.sum(topi.exp(topi.subtract(data, largest)), axis, keepdims=True)

    def shifted(*i: Any) -> Any:
        row = (*i[:axis], 0, *i[axis + 1 :])
        return data(*i) - largest(*row) - tirx.log(total(*row))

    return [te.compute(data.shape, shifted, name="log_softmax")]


@register_reference("softmax")
def reference_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    with np.errstate(invalid="ignore"):  # of infinities it is NaN
        powers = np.exp(data - data.max(axis=attrs.axis, keepdims=True))
        return powers / powers.sum(axis=attrs.axis, keepdims=True)


@register_reference("log_softmax")
def reference_log_softmax(attrs: SoftmaxAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    shifted = data - data.max(axis=attrs.axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=attrs.axis, keepdims=True))


@register_terms("softmax")
@register_terms("log_softmax")
def softmax_terms(attrs: SoftmaxAttrs, inputs: Sequence[TensorType], out_type: Type) -> int:
    return int(inputs[0].shape[attrs.axis])


schedule_softmax = GenericFunc("schedule_softmax")
schedule_softmax.register("cpu", schedule_plain_cpu)
for _name in ("softmax", "log_softmax"):
    register_schedule(_name, schedule_softmax)
    register_shape_func(_name, False, elemwise_shape_func)


def compute_softmax_row(
    attrs: SoftmaxAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Powers are kept between their sum and the division by it."""
    from tvm import te, tirx

    rows, extent = row_extents(inputs[0])
    dtype = accumulator(out_type.dtype)
    read, one = reader(inputs[0], dtype), tirx.const(1, dtype)
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
    read = reader(inputs[0], dtype)
    largest = reduce_row("max_number", rows, extent, dtype, read, config, "max")

    def power(*i: Any) -> Any:
        return exp(read(*i) - largest(*i[:-1]))

    logarithm = reduce_row("sum", rows, extent, dtype, power, config, "sum", tirx.log)

    def shifted(*i: Any) -> Any:
        return (read(*i) - largest(*i[:-1]) - logarithm(*i[:-1])).astype(out_type.dtype)

    return [te.compute((*rows, extent), shifted, name="log_softmax")]


register_rows("softmax", compute_softmax_row)
register_rows("log_softmax", compute_log_softmax_row)
register_row_implementations("softmax", compute_softmax)
register_row_implementations("log_softmax", compute_log_softmax)


@register_gradient("softmax")
def softmax_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [(grad - sum(grad * softmax(x))) * softmax(x)]."""
    assert isinstance(orig.attrs, SoftmaxAttrs)
    total = call("sum", grad * orig, axis=orig.attrs.axis, keepdims=True)
    return [(grad - total) * orig]


@register_gradient("log_softmax")
def log_softmax_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad - sum(grad) * softmax(x)]."""
    assert isinstance(orig.attrs, SoftmaxAttrs)
    total = call("sum", grad, axis=orig.attrs.axis, keepdims=True)
    return [grad - total * call("exp", orig)]


def softmax(data: Expr, axis: int = -1) -> Expr:
    """exp(x) / sum(exp(x)) along an axis, computed without overflow.

    Args:
        data: a floating-point tensor.
        axis: the axis along which the elements sum to 1.
    """
    return call("softmax", data, axis=axis)


def log_softmax(data: Expr, axis: int = -1) -> Expr:
    """The logarithm of softmax along an axis, computed without overflow.

    Args:
        data: a floating-point tensor.
        axis: the axis along which the exponentials of the elements sum to 1.
    """
    return call("log_softmax", data, axis=axis)
