"""bias_add: one number per entry of an axis, added along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.binding import keep_each
from strategy.cpu.widened import NARROW
from strategy.expr import Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import collapse_sum_like
from strategy.ops.reshape import expand_dims, reshape_like
from strategy.pattern import in_float32, register_broadcast_schedule
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import normal_axis, require_dtype_of, require_number, require_rank
from strategy.types import TensorType, Type


class BiasAddAttrs(Attrs):
    """Attributes of bias_add."""

    axis: int = field(1, "The axis along which the bias lies")


def vector_relation(
    reporter: TypeReporter, indices: Sequence[int], axis: int, *, may_be_wider: bool = False
) -> TensorType:
    """The type of input 0, once it is known that the inputs at `indices` are vectors along its axis.

    The type of a vector that is unknown follows from the data.

    Args:
        may_be_wider: vectors beside data of 16 bits may be of float32.
    """
    data = reporter.known(0)
    require_number(reporter, 0, data)
    extent = data.shape[normal_axis(reporter, 0, axis, data.ndim)]
    for index in indices:
        vector = reporter.tensor(index)
        if vector is None:
            reporter.assign(index, TensorType([extent], data.dtype))
            continue
        require_rank(reporter, index, vector, 1, f"as many numbers as axis {axis} of the data has")
        if not (may_be_wider and vector.dtype == "float32" and data.dtype in NARROW):
            require_dtype_of(reporter, index, 0)
        fits = vector.shape[0] == extent
        reporter.check(fits, index, f"axis {axis} of {reporter.name(0)}, {data}, has another extent")
    return data


def along(vector: Expr, axis: int, rank: int) -> Expr:
    """A vector with as many axes of extent 1 behind it as let it broadcast along an axis."""
    behind = rank - 1 - axis % rank
    return expand_dims(vector, tuple(range(1, behind + 1))) if behind else vector


def array_along(vector: Any, axis: int, rank: int) -> Any:
    """As `along`, of a NumPy array and with axes before it."""
    return vector.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def vector_grad(grad: Expr, vector: Expr, axis: int) -> Expr:
    """`grad`, summed to a vector that was broadcast along an axis, in the vector's dtype."""
    wide = in_dtype(grad, vector.tensor_type.dtype)
    return reshape_like(collapse_sum_like(wide, along(vector, axis, grad.tensor_type.ndim)), vector)


def in_dtype(value: Expr, dtype: str) -> Expr:
    """The value itself where it has the dtype, else cast to it."""
    return value if value.tensor_type.dtype == dtype else call("cast", value, dtype=dtype)


def bias_add_rel(types: Sequence[Type], attrs: BiasAddAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; the bias has its extent along the axis."""
    data = vector_relation(reporter, (1,), attrs.axis)
    reporter.assign(2, data)
    return True


(
    register_op("bias_add")
    .describe("A bias, added along an axis.")
    .add_argument("data", "Tensor", "A tensor of numbers.")
    .add_argument("bias", "Tensor", "A vector with one number per entry of the axis, of the same dtype.")
    .set_attrs_type(BiasAddAttrs)
    .set_support_level(1)
    .add_type_rel("BiasAdd", bias_add_rel)
    .set_attr("TOpPattern", TOpPattern.kBroadcast)
    .example({"data": "float32[2,5,19]", "bias": "float32[5]"})
)


@register_compute("bias_add")
@in_float32
def compute_bias_add(attrs: BiasAddAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, topi

    data, bias = inputs
    axis = attrs.axis % len(data.shape)

    def element(*i: Any) -> Any:
        return keep_each(inputs, [data(*i), bias(i[axis])], lambda x, y: x + y)

    return [te.compute(data.shape, element, name="bias_add", tag=topi.tag.BROADCAST)]


@register_reference("bias_add")
def reference_bias_add(attrs: BiasAddAttrs, inputs: Sequence[Any]) -> Any:
    data, bias = map(widened, inputs)
    return data + array_along(bias, attrs.axis, data.ndim)


register_broadcast_schedule("bias_add")
register_shape_func("bias_add", False, elemwise_shape_func)
register_gradient("bias_add", lambda orig, grad: [grad, vector_grad(grad, orig.args[1], orig.attrs.axis)])


bias_add = caller("bias_add")
