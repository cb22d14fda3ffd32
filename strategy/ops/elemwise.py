"""Operators of one tensor, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import greater, where
from strategy.pattern import register_broadcast_schedule, register_injective_schedule
from strategy.reference import wide, widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import identity_relation
from strategy.types import DTYPES, TensorType, Type


def _register(
    name: str, description: str, reference: Callable[..., Any], *, floats: bool = True
) -> None:
    """Registers an operator that `tvm.topi` computes under the same name."""
    register_op(name).describe(description).set_num_inputs(1).add_argument(
        "data", "Tensor", "The input tensor."
    ).set_support_level(1).add_type_rel("Identity", identity_relation(floats=floats)).set_attr(
        "TOpPattern", TOpPattern.kElemWise
    )

    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import topi

        function = topi.nn.relu if name == "relu" else getattr(topi, name)
        return [function(inputs[0])]

    register_compute(name, compute)
    register_reference(name, wide(reference))
    register_broadcast_schedule(name)
    register_shape_func(name, False, elemwise_shape_func)


def _log(x: Any) -> Any:
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def _sqrt(x: Any) -> Any:
    import numpy as np

    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


def _exp(x: Any) -> Any:
    import numpy as np

    return np.exp(x)


def _tanh(x: Any) -> Any:
    import numpy as np

    return np.tanh(x)


def _sigmoid(x: Any) -> Any:
    import numpy as np

    # Either form alone overflows on one side.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _relu(x: Any) -> Any:
    import numpy as np

    return np.maximum(x, np.zeros((), x.dtype))


reference_sigmoid = wide(_sigmoid)

_register("negative", "The negative of each element.", lambda x: -x, floats=False)
_register("exp", "The exponential of each element.", _exp)
_register("log", "The natural logarithm of each element.", _log)
_register("sqrt", "The square root of each element.", _sqrt)
_register("sigmoid", "1 / (1 + exp(-x)) of each element.", _sigmoid)
_register("tanh", "The hyperbolic tangent of each element.", _tanh)
_register("relu", "Each element, zero where it is negative.", _relu, floats=False)


def _register_fill(name: str, description: str, value: int) -> None:
    register_op(name).describe(description).set_num_inputs(1).add_argument(
        "data", "Tensor", "The tensor whose type the result has."
    ).set_support_level(1).add_type_rel("Identity", identity_relation(numbers=False)).set_attr(
        # Elementwise, but no epilogue: what it would follow is never read, and so never computed.
        "TOpPattern",
        TOpPattern.kInjective,
    )

    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import te, tirx

        data = inputs[0]
        return [te.compute(data.shape, lambda *i: tirx.const(value, data.dtype), name=name)]

    def reference(attrs: Attrs, inputs: Sequence[Any]) -> Any:
        import numpy as np

        return np.full_like(widened(inputs[0]), value)

    register_compute(name, compute)
    register_reference(name, reference)
    register_injective_schedule(name)
    register_shape_func(name, False, elemwise_shape_func)
    register_gradient(name, lambda orig, grad: [None])


_register_fill("ones_like", "A tensor of ones, of the type of the input.", 1)
_register_fill("zeros_like", "A tensor of zeros, of the type of the input.", 0)


class CastAttrs(Attrs):
    """Attributes of cast."""

    dtype: str = field(description="The data type of the result", choices=DTYPES)


def cast_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """The shape of the input, the dtype of the attributes."""
    assert isinstance(attrs, CastAttrs)
    data = reporter.tensor(0)
    if data is None:
        return False
    reporter.assign(1, TensorType(data.shape, attrs.dtype))
    return True


register_op("cast").describe("The elements in another data type.").set_num_inputs(1).add_argument(
    "data", "Tensor", "The input tensor."
).set_attrs_type(CastAttrs).set_support_level(1).add_type_rel("Cast", cast_rel).set_attr(
    "TOpPattern", TOpPattern.kElemWise
)


@register_compute("cast")
def compute_cast(attrs: CastAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.cast(inputs[0], attrs.dtype)]


@register_reference("cast")
def reference_cast(attrs: CastAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    # A narrow float keeps the precision of the reference; what reads it rounds.
    wide_float = attrs.dtype.startswith(("float", "bfloat"))
    return data.astype(np.float64 if wide_float else attrs.dtype)


register_broadcast_schedule("cast")
register_shape_func("cast", False, elemwise_shape_func)


@register_gradient("cast")
def cast_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad in the input's dtype]."""
    return [cast(grad, orig.args[0].tensor_type.dtype)]


@register_gradient("negative")
def negative_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [-grad]."""
    return [-grad]


@register_gradient("exp")
def exp_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad * exp(x)]."""
    return [grad * orig]


@register_gradient("log")
def log_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad / x]."""
    return [grad / orig.args[0]]


@register_gradient("sqrt")
def sqrt_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad / (2 * sqrt(x))]."""
    return [grad / (orig + orig)]


@register_gradient("sigmoid")
def sigmoid_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad * sigmoid(x) * (1 - sigmoid(x))]."""
    return [grad * orig * (ones_like(orig) - orig)]


@register_gradient("tanh")
def tanh_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad * (1 - tanh(x) * tanh(x))]."""
    return [grad * (ones_like(orig) - orig * orig)]


@register_gradient("relu")
def relu_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Returns [grad where x > 0, else 0]."""
    zeros = zeros_like(orig)
    return [where(greater(orig.args[0], zeros), grad, zeros)]


def negative(data: Expr) -> Expr:
    """The negative of each element.

    Args:
        data: a tensor of numbers.
    """
    return call("negative", data)


def exp(data: Expr) -> Expr:
    """The exponential of each element.

    Args:
        data: a floating-point tensor.
    """
    return call("exp", data)


def log(data: Expr) -> Expr:
    """The natural logarithm of each element.

    Args:
        data: a floating-point tensor.
    """
    return call("log", data)


def sqrt(data: Expr) -> Expr:
    """The square root of each element.

    Args:
        data: a floating-point tensor.
    """
    return call("sqrt", data)


def sigmoid(data: Expr) -> Expr:
    """The logistic function of each element: 1 / (1 + exp(-x)).

    Args:
        data: a floating-point tensor.
    """
    return call("sigmoid", data)


def tanh(data: Expr) -> Expr:
    """The hyperbolic tangent of each element.

    Args:
        data: a floating-point tensor.
    """
    return call("tanh", data)


def relu(data: Expr) -> Expr:
    """Each element, zero where it is negative.

    Args:
        data: a tensor of numbers.
    """
    return call("relu", data)


def ones_like(data: Expr) -> Expr:
    """A tensor of ones.

    Args:
        data: the tensor whose shape and dtype the result has.
    """
    return call("ones_like", data)


def zeros_like(data: Expr) -> Expr:
    """A tensor of zeros.

    Args:
        data: the tensor whose shape and dtype the result has.
    """
    return call("zeros_like", data)


def cast(data: Expr, dtype: str) -> Expr:
    """The elements in another data type.

    Args:
        data: the input tensor.
        dtype: the data type of the result.
    """
    return call("cast", data, dtype=dtype)
