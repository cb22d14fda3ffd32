"""transpose: the axes in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.pattern import register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import normal_axes
from strategy.types import TensorType, Type


class TransposeAttrs(Attrs):
    """Attributes of transpose."""

    axes: tuple[int, ...] | None = field(None, "The input's axes in their new order; reversed where None")


def _order(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(a % rank for a in attrs.axes)


def transpose_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """The input's extents in the new order."""
    assert isinstance(attrs, TransposeAttrs)
    data = reporter.tensor(0)
    if data is None:
        return False
    if attrs.axes is not None:
        reporter.check(len(attrs.axes) == data.ndim, 0, f"axes {attrs.axes} do not name each axis once")
        normal_axes(reporter, 0, attrs.axes, data.ndim)
    shape = [data.shape[a] for a in _order(attrs, data.ndim)]
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


register_op("transpose").describe("The axes in another order.").set_num_inputs(1).add_argument(
    "data", "Tensor", "The input tensor."
).set_attrs_type(TransposeAttrs).set_support_level(3).add_type_rel("Transpose", transpose_rel).set_attr(
    "TOpPattern", TOpPattern.kInjective
)


@register_compute("transpose")
def compute_transpose(attrs: TransposeAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.transpose(inputs[0], _order(attrs, len(inputs[0].shape)))]


@register_reference("transpose")
def reference_transpose(attrs: TransposeAttrs, inputs: Sequence[Any]) -> Any:
    return widened(inputs[0]).transpose(attrs.axes)


@register_shape_func("transpose", False)
def transpose_shape_func(attrs: TransposeAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(inputs[0][a] for a in _order(attrs, len(inputs[0])))]


register_injective_schedule("transpose")


@register_gradient("transpose")
def transpose_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad with the axes put back]."""
    assert isinstance(orig.attrs, TransposeAttrs)
    order = _order(orig.attrs, orig.args[0].tensor_type.ndim)
    return [transpose(grad, tuple(order.index(i) for i in range(len(order))))]


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Expr:
    """Puts the axes in another order.

    Args:
        data: the input tensor.
        axes: the input's axes in their new order; reversed where None.
    """
    return call("transpose", data, axes=None if axes is None else tuple(axes))
