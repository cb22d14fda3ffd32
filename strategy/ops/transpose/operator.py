"""transpose: the axes in another order.

Where the last axis stays, `elementwise.cpu` copies rows. Where it moves, `transpose_tile.cpu` reads a tile
along the input's memory into vector registers and writes it along the output's: LLVM makes shuffles of what
lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu.transpose import can_tile, schedule_transposed, space, transposed
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.op_strategy import OpStrategy
from strategy.pattern import (
    add_elementwise,
    register_cpu_implementations,
    register_injective_schedule,
)
from strategy.reference import widened
from strategy.schedule import Outs, join_epilogue, new_schedule
from strategy.shape_func import register_shape_func
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.type_relation import normal_axes
from strategy.types import TensorType, Type


class TransposeAttrs(Attrs):
    """Attributes of transpose."""

    axes: tuple[int, ...] | None = field(None, "The input's axes in their new order; default: reversed")


def order_of(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """The input's axes in the order of the output."""
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(a % rank for a in attrs.axes)


def transpose_rel(types: Sequence[Type], attrs: TransposeAttrs, reporter: TypeReporter) -> bool:
    """The input's extents in the new order."""
    data = reporter.known(0)
    if attrs.axes is not None:
        reporter.check(len(attrs.axes) == data.ndim, 0, f"axes {attrs.axes} do not name each axis once")
        normal_axes(reporter, 0, attrs.axes, data.ndim)
    shape = [data.shape[a] for a in order_of(attrs, data.ndim)]
    reporter.assign(1, TensorType(shape, data.dtype))
    return True


(
    register_op("transpose")
    .describe("The axes in another order.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(TransposeAttrs)
    .set_support_level(3)
    .add_type_rel("Transpose", transpose_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,3,19]"}, {"axes": [2, 0, 1]})
    .example({"data": "float32[5,19]"})
    .example({"data": "float32[16,5]"})
    .example({"data": "float32[3,5,19]"}, {"axes": [1, 0, 2]})
)


@register_compute("transpose")
def compute_transpose(attrs: TransposeAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.transpose(inputs[0], order_of(attrs, len(inputs[0].shape)))]


register_reference("transpose", lambda attrs, inputs: widened(inputs[0]).transpose(attrs.axes))


@register_shape_func("transpose", False)
def transpose_shape_func(attrs: TransposeAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(inputs[0][a] for a in order_of(attrs, len(inputs[0])))]


register_injective_schedule("transpose")


def tile_space(attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """The space of tiles of the output."""
    return space(out_type, int(inputs[0].shape[-1]), int(out_type.shape[-1]), target)


def compute_transpose_tile(
    attrs: TransposeAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The output in tiles."""
    return [transposed(inputs[0], order_of(attrs, out_type.ndim), out_type.concrete_shape, config)]


def schedule_transpose_tile(attrs: TransposeAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Blocks of tiles; each within registers."""
    sch = new_schedule(outs)
    schedule_transposed(sch, join_epilogue(sch), order_of(attrs, len(outs.tensors[0].shape)), config)
    return sch


def _add_tile(strategy: OpStrategy, attrs: Any, inputs: Any, out_type: Any, target: Target) -> None:
    order = order_of(attrs, out_type.ndim)
    if not out_type.ndim or order[-1] == out_type.ndim - 1:
        add_elementwise(strategy, attrs, inputs, out_type, target)  # rows stay as they are
    elif can_tile(out_type, out_type.shape[-1]):
        strategy.add_implementation(
            compute_transpose_tile, schedule_transpose_tile, "transpose_tile.cpu", 12,
            space=tile_space, symbolic=False,
        )


register_cpu_implementations("transpose", _add_tile)


@register_gradient("transpose")
def transpose_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad with the axes put back]."""
    order = order_of(orig.attrs, orig.args[0].tensor_type.ndim)
    return [transpose(grad, tuple(order.index(i) for i in range(len(order))))]


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Expr:
    """Put the axes in another order.

    Args:
        data: the input tensor.
        axes: the input's axes in their new order; default: reversed.
    """
    return call("transpose", data, axes=None if axes is None else tuple(axes))
