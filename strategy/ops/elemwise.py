"""Operators of one tensor, element by element.

Each is a line of the tables below: its compute, NumPy's form, and its gradient.
"""
# Over 300 lines: a table of operators that share their relations and schedules.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import Caller, caller
from strategy.cpu import elementary
from strategy.cpu.binding import INDICES, keep
from strategy.expr import Call, Expr, const
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_op,
    register_op_attr,
    register_reference,
)
from strategy.ops.broadcast import equal, greater, greater_equal, less_equal, where
from strategy.order import FLOATS, at_least, at_most, is_infinite, is_nan
from strategy.pattern import (
    in_float32,
    register_broadcast_schedule,
    register_injective_schedule,
    wrapping,
)
from strategy.reference import numpy_function, widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import (
    KINDS,
    Requirement,
    identity_relation,
    represents,
    require_bool,
    require_float,
    require_number,
    require_signed,
)
from strategy.types import DTYPES, TensorType, Type


def register_unary(
    name: str,
    description: str,
    reference: Callable[..., Any],
    gradient: Callable[[Call, Expr], Expr] | None = None,
    *,
    require: Requirement = require_float,
    out_dtype: str | None = None,
    vector: Callable[..., Any] | None = None,
    attrs: type[Attrs] = Attrs,
    examples: Sequence[Mapping[str, Any]] = ({},),
    changes: int = 0,
) -> Caller:
    """Register an operator, and return the function that calls it.

    Args:
        reference: NumPy's form, of one array; and of the attributes if there are any.
        gradient: the derivative with respect to the input; None: nothing flows.
        require: holds for the input.
        out_dtype: of the result; default: that of the input.
        vector: the value of an element, of its arguments as `reference`; default: `tvm.topi`'s
            function of the same name.
        attrs: the attributes' type.
        examples: the attributes of each.
        changes: the times that the compute has changed.
    """
    own = "bool" if require is require_bool else "float32"
    op = (
        register_op(name)
        .describe(description)
        .add_argument("data", "Tensor", f"A tensor of {KINDS[require]}.")
        .set_attrs_type(attrs)
        .set_support_level(1)
        .add_type_rel("Identity", identity_relation(require, out_dtype=out_dtype))
        .set_attr("TOpPattern", TOpPattern.kElemWise)
    )
    for example in examples:
        op.example({"data": f"{own}[5,19]"}, example)

    def further(attrs: Attrs) -> tuple[Attrs, ...]:
        return (attrs,) if attrs.fields() else ()

    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import te, topi

        tensor = inputs[0]
        if vector is None:
            return [wrapping(getattr(topi, name), inputs, str(tensor.dtype))]

        def element(*i: Any) -> Any:
            return keep(tensor, tensor(*i), lambda value: vector(value, *further(attrs)))

        return [te.compute(tensor.shape, element, name=name, tag=topi.tag.ELEMWISE)]

    def answer(attrs: Attrs, inputs: Sequence[Any]) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):  # infinities and NaN are valid results
            return reference(widened(inputs[0]), *further(attrs))

    register_compute(name, in_float32(compute))
    register_reference(name, answer)
    register_broadcast_schedule(name, changes=changes)
    register_shape_func(name, False, elemwise_shape_func)
    register_gradient(name, lambda orig, grad: [gradient and gradient(orig, grad)])
    return caller(name)


def reference_sigmoid(x: Any) -> Any:
    import numpy as np

    # Either form alone overflows on one side.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def reference_erf(x: Any) -> Any:
    import numpy as np

    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _relu(x: Any) -> Any:
    from tvm import tirx

    dtype = str(x.ty.dtype)
    return x if dtype.startswith("uint") else at_least(x, tirx.const(0, dtype))


def like(node: Expr, value: float) -> Expr:
    """A constant of the dtype of a node."""
    return const(value, node.tensor_type.dtype)


def _abs_grad(orig: Call, grad: Expr) -> Expr:
    x, zeros = orig.args[0], zeros_like(orig)
    return where(equal(x, zeros), zeros, where(greater(x, zeros), grad, -grad))


def _relu_grad(orig: Call, grad: Expr) -> Expr:
    zeros = zeros_like(orig)
    return where(greater(orig.args[0], zeros), grad, zeros)


def _erf_grad(orig: Call, grad: Expr) -> Expr:
    x = orig.args[0]
    return grad * exp(-(x * x)) * like(x, 2 / math.sqrt(math.pi))


def _vector(name: str) -> Callable[[Any], Any]:
    """TVM's function of an expression."""

    def function(x: Any) -> Any:
        from tvm import tirx

        return getattr(tirx, name)(x)

    return function


def _abs(x: Any) -> Any:
    """A choice, where x is of integers: TVM makes one of it later, where nothing can be bound any more."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    if dtype in FLOATS or dtype.startswith("uint"):
        return tirx.abs(x)
    return wrapping(lambda v: tirx.Select(v < 0, -v, v), (x,), dtype)


def _negative(x: Any) -> Any:
    return wrapping(lambda v: -v, (x,), str(x.ty.dtype))


def _sign(x: Any) -> Any:
    """NaN stays as it is, as 0 does."""
    from tvm import tirx

    zero, one, minus = (tirx.const(n, str(x.ty.dtype)) for n in (0, 1, -1))
    return tirx.Select(x < zero, minus, tirx.Select(x > zero, one, x))


abs = register_unary(
    "abs", "The absolute value of each element.", numpy_function("abs"), _abs_grad, require=require_number, vector=_abs,
)
negative = register_unary(
    "negative", "The negative of each element.", lambda x: -x, lambda orig, grad: -grad,
    require=require_signed, vector=_negative,
)
exp = register_unary(
    "exp", "The exponential of each element.", numpy_function("exp"),
    lambda orig, grad: grad * orig, vector=elementary.exp,
)
log = register_unary(
    "log", "The natural logarithm of each element.", numpy_function("log"),
    lambda orig, grad: grad / orig.args[0],
)
sqrt = register_unary(
    "sqrt", "The square root of each element.", numpy_function("sqrt"),
    lambda orig, grad: grad / (orig + orig),
)
rsqrt = register_unary(
    "rsqrt", "1 / sqrt(x) of each element.", lambda x: 1 / x**0.5,
    lambda orig, grad: -(grad * orig / (orig.args[0] + orig.args[0])),
)
sigmoid = register_unary(
    "sigmoid", "The logistic function of each element: 1 / (1 + exp(-x)).", reference_sigmoid,
    lambda orig, grad: grad * orig * (ones_like(orig) - orig), vector=elementary.sigmoid,
)
tanh = register_unary(
    "tanh", "The hyperbolic tangent of each element.", numpy_function("tanh"),
    lambda orig, grad: grad * (ones_like(orig) - orig * orig), vector=elementary.tanh, changes=1,
)
erf = register_unary(
    "erf", "The error function of each element.", reference_erf, _erf_grad,
    vector=elementary.erf,
)
sin = register_unary(
    "sin", "The sine of each element.", numpy_function("sin"),
    lambda orig, grad: grad * cos(orig.args[0]), vector=elementary.sin, changes=1,
)
cos: Caller = register_unary(
    "cos", "The cosine of each element.", numpy_function("cos"),
    lambda orig, grad: -(grad * sin(orig.args[0])), vector=elementary.cos, changes=1,
)
atan = register_unary(
    "atan", "The inverse tangent of each element.", numpy_function("arctan"),
    lambda orig, grad: grad / (like(orig, 1) + orig.args[0] * orig.args[0]), vector=elementary.atan, changes=1,
)
floor = register_unary(
    "floor", "The largest integer that is not above each element.", numpy_function("floor"), vector=_vector("floor")
)
ceil = register_unary(
    "ceil", "The smallest integer that is not below each element.", numpy_function("ceil"), vector=_vector("ceil")
)
round = register_unary(
    "round", "The integer that is nearest to each element; the even one of two, as ONNX's.", numpy_function("rint"),
    vector=_vector("nearbyint"),
)
sign = register_unary(
    "sign", "-1, 0 or 1 as each element is negative, zero or positive; NaN of NaN.", numpy_function("sign"),
    require=require_signed, vector=_sign,
)
for _name in ("floor", "ceil", "round", "sign", "floor_divide", "floor_mod"):
    register_op_attr(_name, "TJumps", True)
isnan: Caller = register_unary(
    "isnan", "True where an element is NaN.", numpy_function("isnan"), out_dtype="bool", vector=is_nan
)
isinf: Caller = register_unary(
    "isinf", "True where an element is an infinity.", numpy_function("isinf"), out_dtype="bool", vector=is_infinite
)
logical_not: Caller = register_unary(
    "logical_not", "True where an element is false.", numpy_function("logical_not"), require=require_bool,
    vector=_vector("Not"),
)
relu = register_unary(
    "relu", "Each element, zero where it is negative.", lambda x: x.clip(0), _relu_grad,
    require=require_number, vector=_relu,
)


def _register_fill(name: str, description: str, value: int) -> Caller:
    (
        register_op(name)
        .describe(description)
        .add_argument("data", "Tensor", "The tensor whose type the result has.")
        .set_support_level(1)
        .add_type_rel("Identity", identity_relation(None))
        # Elementwise, but no epilogue, as its input's values are never read.
        .set_attr("TOpPattern", TOpPattern.kInjective)
        .example({"data": "float32[5,19]"})
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
    return caller(name)


ones_like: Caller = _register_fill("ones_like", "A tensor of ones, of the type of the input.", 1)
zeros_like: Caller = _register_fill("zeros_like", "A tensor of zeros, of the type of the input.", 0)


class CastAttrs(Attrs):
    """Attributes of cast."""

    dtype: str = field(description="The data type of the result", choices=DTYPES)


class ClipAttrs(Attrs):
    """Attributes of clip."""

    a_min: float = field(description="The least value; an integer for a tensor of integers")
    a_max: float = field(description="The largest value, at least a_min")


def cast_rel(types: Sequence[Type], attrs: CastAttrs, reporter: TypeReporter) -> bool:
    """The shape of the input, the dtype of the attributes."""
    data = reporter.known(0)
    reporter.assign(1, TensorType(data.shape, attrs.dtype))
    return True


def clip_rel(types: Sequence[Type], attrs: ClipAttrs, reporter: TypeReporter) -> bool:
    """The type of the input; the bounds are in order, and integers for a tensor of integers."""
    ordered = attrs.a_min <= attrs.a_max
    reporter.check(ordered, 0, f"a_min = {attrs.a_min:g} is more than a_max = {attrs.a_max:g}")
    known = identity_relation()(types, attrs, reporter)
    data = reporter.tensor(0)
    if data is not None and data.dtype.startswith(("int", "uint")):
        whole = attrs.a_min.is_integer() and attrs.a_max.is_integer()
        reporter.check(whole, 0, f"bounds {attrs.a_min:g} and {attrs.a_max:g} must be integers too")
        fits = represents(data.dtype, attrs.a_min) and represents(data.dtype, attrs.a_max)
        reporter.check(fits, 0, f"bounds {attrs.a_min:g} and {attrs.a_max:g} are out of its range")
    return known


_cast = (
    register_op("cast")
    .describe("The elements in another data type.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(CastAttrs)
    .set_support_level(1)
    .add_type_rel("Cast", cast_rel)
    .set_attr("TOpPattern", TOpPattern.kElemWise)
)
for _dtype in sorted(DTYPES):
    _cast.example({"data": "float32[5,19]"}, {"dtype": _dtype})
(
    register_op("clip")
    .describe("Each element, brought between two bounds.")
    .add_argument("data", "Tensor", "The input tensor.")
    .set_attrs_type(ClipAttrs)
    .set_support_level(3)
    .add_type_rel("Clip", clip_rel)
    .set_attr("TOpPattern", TOpPattern.kElemWise)
    .example({"data": "float32[5,19]"}, {"a_min": 1, "a_max": 3})
    .example({"data": "float32[5,19]"}, {"a_min": -0.5, "a_max": 0.25})
)


@register_compute("cast")
def compute_cast(attrs: CastAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, topi

    (data,) = inputs
    is_narrowed = str(data.dtype) in FLOATS and attrs.dtype in ("int8", "uint8", "int16", "uint16")
    if str(data.dtype) not in INDICES and not is_narrowed:
        return [topi.cast(data, attrs.dtype)]

    def element(*i: Any) -> Any:
        if is_narrowed:
            # LLVM takes a direct cast and the one back to floats for a rounding, which leaves larger numbers in.
            return data(*i).astype("int32").astype(attrs.dtype)
        return keep(data, data(*i), lambda value: topi.cast(value, attrs.dtype))

    return [te.compute(data.shape, element, name="cast", tag=topi.tag.ELEMWISE)]


@register_compute("clip")
@in_float32
def compute_clip(attrs: ClipAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    data = inputs[0]
    whole = str(data.dtype).startswith(("int", "uint"))  # others' bounds may be integers beyond 64 bits
    low, high = (tirx.const(int(b) if whole else b, data.dtype) for b in (attrs.a_min, attrs.a_max))

    def element(*i: Any) -> Any:
        return keep(data, data(*i), lambda x: at_most(at_least(x, low), high))

    return [te.compute(data.shape, element, name="clip", tag=topi.tag.ELEMWISE)]


@register_reference("cast")
def reference_cast(attrs: CastAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    # A narrow float keeps the precision of the reference; its reader rounds.
    wide_float = attrs.dtype.startswith(("float", "bfloat"))
    return data.astype(np.float64 if wide_float else attrs.dtype)


@register_reference("clip")
def reference_clip(attrs: ClipAttrs, inputs: Sequence[Any]) -> Any:
    data = widened(inputs[0])
    return data.clip(data.dtype.type(attrs.a_min), data.dtype.type(attrs.a_max))


for _name in ("cast", "clip"):
    register_broadcast_schedule(_name)
    register_shape_func(_name, False, elemwise_shape_func)


register_gradient("cast", lambda orig, grad: [cast(grad, orig.args[0].tensor_type.dtype)])


@register_gradient("clip")
def clip_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad where x is within the bounds, else 0]."""
    x, zeros = orig.args[0], zeros_like(grad)
    below = where(less_equal(x, like(x, orig.attrs.a_max)), grad, zeros)
    return [where(greater_equal(x, like(x, orig.attrs.a_min)), below, zeros)]


cast: Caller = caller("cast")
clip = caller("clip")
