"""one_hot: a vector for each index, whose entry of that index alone is on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.op_strategy import OpStrategy
from strategy.pattern import (
    add_elementwise,
    register_cpu_implementations,
    register_injective_schedule,
)
from strategy.schedule import lanes_of
from strategy.shape_func import register_shape_func
from strategy.target import Target
from strategy.type_relation import represents
from strategy.types import DTYPES, TensorType, Type


class OneHotAttrs(Attrs):
    """Attributes of one_hot."""

    depth: int = field(description="The extent of the new axis", lower=1)
    axis: int = field(-1, "The new axis, counted in the result")
    on_value: float = field(1.0, "The value of the entry that an index names")
    off_value: float = field(0.0, "The value of all others")
    dtype: str = field("float32", "Data type of the result", choices=DTYPES)


def _shape(attrs: OneHotAttrs, shape: Sequence[Any]) -> list[Any]:
    axis = attrs.axis % (len(shape) + 1)
    return [*shape[:axis], attrs.depth, *shape[axis:]]


def one_hot_rel(types: Sequence[Type], attrs: OneHotAttrs, reporter: TypeReporter) -> bool:
    """The shape of the indices with the depth as a further axis."""
    indices = reporter.known(0)
    reporter.check(indices.dtype.startswith(("int", "uint")), 0, "expected integers: cast it first")
    rank = indices.ndim + 1
    reporter.check(-rank <= attrs.axis < rank, 0, f"axis {attrs.axis} is out of range for {rank} dimensions")
    for name in ("on_value", "off_value"):
        value = getattr(attrs, name)
        reporter.check(represents(attrs.dtype, value), 0, f"{name} = {value:g} is no {attrs.dtype}")
    reporter.assign(1, TensorType(_shape(attrs, indices.shape), attrs.dtype))
    return True


(
    register_op("one_hot")
    .describe("For each index, a vector that is on_value at the index and off_value elsewhere, also if it is beyond.")
    .add_argument("indices", "Tensor", "Integers.")
    .set_attrs_type(OneHotAttrs)
    .set_support_level(10)
    .add_type_rel("OneHot", one_hot_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"indices": "int32[5,3]"}, {"depth": 7})
    .example({"indices": "int32[3]"}, {"depth": 70})
    .example({"indices": "int32[19]"}, {"depth": 5, "axis": 0, "off_value": -1, "dtype": "int8"})
)


@register_compute("one_hot")
def compute_one_hot(attrs: OneHotAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx

    indices = inputs[0]
    axis = attrs.axis % (len(indices.shape) + 1)
    on, off = (tirx.const(v if attrs.dtype.startswith(("float", "bfloat")) else int(v), attrs.dtype)
               for v in (attrs.on_value, attrs.off_value))

    def element(*i: Any) -> Any:
        index = tirx.Cast("int64", indices(*i[:axis], *i[axis + 1 :]))
        return tirx.Select(index == tirx.Cast("int64", i[axis]), on, off)

    return [te.compute(tuple(_shape(attrs, indices.shape)), element, name="one_hot")]


@register_reference("one_hot")
def reference_one_hot(attrs: OneHotAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    indices = np.expand_dims(np.asarray(inputs[0], np.int64), attrs.axis)
    places = np.arange(attrs.depth).reshape([-1 if n == attrs.axis % indices.ndim else 1 for n in range(indices.ndim)])
    found = np.where(indices == places, attrs.on_value, attrs.off_value)
    return found if attrs.dtype.startswith(("float", "bfloat")) else found.astype(attrs.dtype)


register_injective_schedule("one_hot")


def _add(
    strategy: OpStrategy, attrs: OneHotAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    """Add the tunable schedule, whose stores may pass the caches, where rows fill its vectors."""
    columns = out_type.shape[-1]
    if columns.is_constant and int(columns) >= lanes_of(target, out_type.dtype):
        add_elementwise(strategy, attrs, inputs, out_type, target)


register_cpu_implementations("one_hot", _add)
register_gradient("one_hot", lambda orig, grad: [None])
register_shape_func("one_hot", False, lambda attrs, inputs: [tuple(_shape(attrs, inputs[0]))])


one_hot = caller("one_hot")
