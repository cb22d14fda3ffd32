"""Operators of several tensors that broadcast as in NumPy, and sums that undo a broadcast."""
# Over 300 lines: a table of operators that share their relations and schedules.

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from strategy.attrs import Attrs
from strategy.caller import Caller, caller
from strategy.cpu.binding import INDICES, keep_each, share
from strategy.cpu.remainder import remainder
from strategy.cpu.widened import NARROW
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.opaque import divisor, factor, opaque, opaque_truth
from strategy.order import FLOATS, larger, smaller
from strategy.pattern import (
    broadcast_place,
    in_float32,
    register_broadcast_schedule,
    register_reduce_schedule,
    wrapping,
)
from strategy.reference import numpy_function, wide
from strategy.shape_func import broadcast_shape_func, like_shape_func, register_shape_func
from strategy.type_relation import (
    KINDS,
    Requirement,
    broadcast_relation,
    broadcast_shape,
    require_any,
    require_bool,
    require_dtype_of,
    require_float,
    require_integer,
    require_number,
    require_shape,
)
from strategy.types import TensorType, Type

_DIVISIONS = frozenset({"divide", "floor_divide", "floor_mod"})
_FACTORS = _DIVISIONS | {"multiply", "swiglu", "geglu"}


def register_binary(
    name: str,
    description: str,
    reference: Callable[..., Any],
    gradient: Callable[[Call, Expr], list[Expr]] | None = None,
    *,
    require: Requirement = require_number,
    out_dtype: str | None = None,
    element: Callable[[Any, Any], Any] | None = None,
    real: Callable[[Any, Any], Any] | None = None,
    changes: int = 0,
) -> Caller:
    """Register a binary operator.

    Args:
        reference: NumPy's form, of two arrays.
        gradient: as `register_gradient` takes it, but in the shape of the output: it is summed to
            the shapes of the operands here. None where nothing flows.
        require: holds for each of the operands.
        out_dtype: of the result; default: that of the operands.
        element: the value of an element; default: `tvm.topi`'s function of the same name.
        real: the same of floating-point numbers, where it is another.
        changes: the times that the compute has changed, which are added to the versions.

    Returns:
        The function that calls it.
    """
    own = "bool" if require is require_bool else "int32" if require is require_integer else "float32"
    (
        register_op(name)
        .describe(description)
        .add_argument("lhs", "Tensor", f"The left operand, a tensor of {KINDS[require]}.")
        .add_argument("rhs", "Tensor", "The right operand, of the same dtype; they broadcast as NumPy's do.")
        .set_support_level(1)
        .add_type_rel("Broadcast", broadcast_relation(require, out_dtype=out_dtype))
        .set_attr("TOpPattern", TOpPattern.kBroadcast)
        .example({"lhs": f"{own}[5,19]", "rhs": f"{own}[19]"})
    )

    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import te, topi

        lhs, rhs = inputs
        is_square, dtype = lhs.same_as(rhs), str(lhs.dtype)
        chosen = real if real is not None and dtype in FLOATS else element
        if name in _FACTORS:
            rhs = (divisor if name in _DIVISIONS else factor)(rhs)
            lhs = rhs if is_square else factor(lhs)

        def plain(x: Any, y: Any) -> Any:
            function = getattr(topi, name)
            if dtype == "bool":  # TVM compares bools as floating-point numbers, which LLVM refuses
                x, y = topi.cast(x, "int8"), topi.cast(y, "int8")
            return function(x, y) if out_dtype else wrapping(function, (x, y), dtype)

        use = chosen or plain

        def both(*i: Any) -> Any:
            return keep_each((lhs, rhs), [t(*broadcast_place(t.shape, i)) for t in (lhs, rhs)], use)

        if chosen is None and not is_square and dtype not in INDICES:
            return [plain(lhs, rhs)]
        # The shape is as TVM broadcasts.
        return [te.compute(topi.add(lhs, rhs).shape, both, name=name, tag=topi.tag.BROADCAST)]

    def rule(orig: Call, grad: Expr) -> Sequence[Expr | None]:
        if gradient is None:
            return [None, None]
        whole = zip(gradient(orig, grad), orig.args, strict=True)
        return [collapse_sum_like(slope, operand) for slope, operand in whole]

    register_compute(name, in_float32(compute))
    register_reference(name, wide(_quiet(reference)))
    register_broadcast_schedule(name, changes=changes)
    register_shape_func(name, False, broadcast_shape_func)
    register_gradient(name, rule)
    return caller(name)


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's form without its warnings, as infinities and NaN are valid results."""

    def reference(x: Any, y: Any) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):
            return function(x, y)

    return reference


def _numpy_power(x: Any, y: Any) -> Any:
    import numpy as np

    # Of one exponent for all, 0.5, NumPy takes square roots, which are NaN of -inf.
    return np.power(*(np.array(a) for a in np.broadcast_arrays(x, y)))


def _power(x: Any, y: Any) -> Any:
    from tvm import tirx

    return tirx.power(x, y)


def _divisor(y: Any) -> tuple[Any, Any, Any]:
    """The conditions that a whole divisor is 0 and that it is -1, and a divisor that never traps in place of both.

    The smallest number divided by -1 is out of range, which a processor traps as it does a division by 0. The
    conditions are of bits, as TVM compares what integers would be without wrapping around. No choice by them may have
    the quotient within: there TVM takes the condition for false, and restores the divisor.
    """
    from tvm import tirx

    dtype = str(y.ty.dtype)
    bits = tirx.Cast(f"uint{dtype.lstrip('uint')}", y)
    none = bits == tirx.const(0, str(bits.ty.dtype))
    minus = tirx.const(0, "bool") if dtype.startswith("u") else bits == tirx.max_value(str(bits.ty.dtype))
    return none, minus, tirx.Select(tirx.any(none, minus), tirx.const(1, dtype), y)


def _remainder(x: Any, y: Any, use: Callable[[Any, Any], Any]) -> Any:
    """`use` of the exact remainder of floating-point numbers with the sign of x, and whether y has the other sign."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    zero = tirx.const(0, dtype)

    def differs(rest: Any) -> Any:
        return tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero))

    return share(remainder(x, y), lambda rest: use(rest, differs(rest)))


def _signed(value: Any, like: Any) -> Any:
    """A number with the sign of another, which a 0 has, too."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    return tirx.call_pure_extern(dtype, "copysign" if dtype == "float64" else "copysignf", value, like)


def _floor_mod(x: Any, y: Any) -> Any:
    from tvm import tirx

    dtype = str(x.ty.dtype)
    if dtype.startswith(("int", "uint")):
        return tirx.floormod(x, _divisor(y)[2])
    return _remainder(x, y, lambda rest, other: _signed(tirx.Select(other, rest + y, rest), y))


def _floor_divide(x: Any, y: Any) -> Any:
    """Of floating-point numbers from the remainder, as a rounded quotient may be the next integer."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    if dtype.startswith(("int", "uint")):
        none, minus, divisor = _divisor(y)
        sign = one if dtype.startswith("u") else tirx.Select(minus, tirx.const(-1, dtype), one)
        return tirx.floordiv(x, divisor) * tirx.Select(none, zero, sign)

    def rounded(rest: Any, other: Any) -> Any:
        quotient = tirx.nearbyint((x - rest) / y) - tirx.Select(other, one, zero)
        return tirx.Select(y == zero, x / y, _signed(quotient, x / y))

    return _remainder(x, y, rounded)


def _minus(x: Any, y: Any) -> Any:
    """The sum with the negative, of which LLVM makes a difference; TVM takes parts of differences for 0."""
    from tvm import tirx

    return x + y * tirx.const(-1, str(y.ty.dtype))


def _equals(x: Any, y: Any) -> Any:
    from tvm import tirx

    if str(y.ty.dtype) in NARROW:
        x, y = tirx.Cast("float32", x), tirx.Cast("float32", y)
    return opaque_truth(x == opaque(y))


def _differ(x: Any, y: Any) -> Any:
    """TVM's own comparison is false of NaN."""
    from tvm import tirx

    return tirx.Select(_equals(x, y), tirx.const(0, "bool"), tirx.const(1, "bool"))


def _divide_grad(orig: Call, grad: Expr) -> list[Expr]:
    y = orig.args[1]
    return [grad / y, -(grad * orig / y)]


def _power_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad y x^(y - 1), grad x^y log(x)]: 0 at y = 0, and, as the limit, at x = 0 for y of at least 0."""
    x, y = orig.args
    zeros, none = call("zeros_like", orig), call("zeros_like", y)
    limit = logical_and(equal(x, call("zeros_like", x)), greater_equal(y, none))
    return [
        where(equal(y, none), zeros, grad * y * power(x, y - call("ones_like", y))),
        where(limit, zeros, grad * orig * call("log", x)),
    ]


def _choice_grad(chosen: Callable[[Call], Expr]) -> Callable[[Call, Expr], list[Expr]]:
    """The gradient of an operator that is x where `chosen` holds, else y."""

    def rule(orig: Call, grad: Expr) -> list[Expr]:
        left, zeros = chosen(orig), call("zeros_like", grad)
        return [where(left, grad, zeros), where(left, zeros, grad)]

    return rule


add = register_binary(
    "add", "The sum of two tensors, element by element.", lambda x, y: x + y,
    lambda orig, grad: [grad, grad],
)
subtract = register_binary(
    "subtract", "The difference of two tensors, element by element.", lambda x, y: x - y,
    lambda orig, grad: [grad, -grad], real=_minus,
)
multiply = register_binary(
    "multiply", "The product of two tensors, element by element.", lambda x, y: x * y,
    lambda orig, grad: [grad * orig.args[1], grad * orig.args[0]],
)
divide = register_binary(
    "divide", "The quotient of two tensors, element by element.", lambda x, y: x / y, _divide_grad,
    require=require_float,
)
floor_divide = register_binary(
    "floor_divide", "The quotient of two tensors, element by element, rounded down; 0 of integers divided by 0.",
    lambda x, y: x // y, element=_floor_divide, changes=1,
)
floor_mod = register_binary(
    "floor_mod", "The remainder of floor_divide, with the sign of rhs; 0 of integers divided by 0.",
    lambda x, y: x % y, lambda orig, grad: [grad, -(grad * floor_divide(*orig.args))], element=_floor_mod,
    changes=1,
)
power = register_binary(
    "power", "Elements of lhs to the power of those of rhs.", _numpy_power, _power_grad,
    require=require_float, element=_power,
)
maximum = register_binary(
    "maximum", "The larger of two tensors' elements; where they are equal, the gradient is rhs's.",
    numpy_function("maximum"), _choice_grad(lambda orig: greater(*orig.args)), element=larger,
)
minimum = register_binary(
    "minimum", "The smaller of two tensors' elements; where they are equal, the gradient is rhs's.",
    numpy_function("minimum"), _choice_grad(lambda orig: less(*orig.args)), element=smaller,
)
equal = register_binary(
    "equal", "True where elements are equal.", operator.eq, require=require_any, out_dtype="bool", real=_equals,
    changes=1,
)
not_equal = register_binary(
    "not_equal", "True where elements differ, as NaN does from itself.", operator.ne, require=require_any,
    out_dtype="bool", real=_differ, changes=1,
)


def _register_comparison(name: str, description: str, compare: Callable[[Any, Any], Any]) -> Caller:
    return register_binary(name, description, compare, out_dtype="bool", real=lambda x, y: opaque_truth(compare(x, y)))


less: Caller = _register_comparison("less", "True where elements of lhs are smaller.", operator.lt)
less_equal = _register_comparison("less_equal", "True where elements of lhs are not larger.", operator.le)
greater: Caller = _register_comparison("greater", "True where elements of lhs are larger.", operator.gt)
greater_equal = _register_comparison("greater_equal", "True where elements of lhs are not smaller.", operator.ge)


def _register_logical(name: str, description: str) -> Caller:
    """Register NumPy's function of that name, of bools."""

    def element(x: Any, y: Any) -> Any:
        from tvm import tirx

        both, either = tirx.all(x, y), tirx.any(x, y)
        return {"logical_and": both, "logical_or": either, "logical_xor": tirx.all(either, tirx.Not(both))}[name]

    return register_binary(name, description, numpy_function(name), require=require_bool, element=element)


logical_and: Caller = _register_logical("logical_and", "True where both elements are true.")
logical_or: Caller = _register_logical("logical_or", "True where an element of either is true.")
logical_xor: Caller = _register_logical("logical_xor", "True where exactly one of the elements is true.")


def _register_bitwise(
    name: str, description: str, reference: Callable[..., Any], element: Callable[..., Any]
) -> Caller:
    return register_binary(name, description, reference, require=require_integer, element=element)


def _shifted(use: Callable[[Any, Any], Any], fill: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """`use` of x and a number of bits, or what is left once all of its bits are gone, which processors lack."""

    def element(x: Any, y: Any) -> Any:
        from tvm import tirx

        dtype = str(x.ty.dtype)
        # Without a comparison by size, of which TVM computes differences of unsigned numbers below 0.
        width = int(dtype.lstrip("uint"))
        within = y >> tirx.const(width.bit_length() - 1, dtype) == tirx.const(0, dtype)
        return tirx.Select(within, use(x, tirx.Select(within, y, tirx.const(0, dtype))), fill(x))

    return element


def _sign_bits(x: Any) -> Any:
    from tvm import tirx

    dtype = str(x.ty.dtype)
    zero = tirx.const(0, dtype)
    return zero if dtype.startswith("u") else tirx.Select(x < zero, tirx.const(-1, dtype), zero)


def _numpy_shift(name: str) -> Callable[[Any, Any], Any]:
    """NumPy's form, which takes shifts below 0 for those beyond all bits."""
    return lambda x, y: numpy_function(name)(x, numpy_function("where")(y < 0, 8 * x.itemsize, y).astype(y.dtype))


bitwise_and = _register_bitwise(
    "bitwise_and", "The bits that both elements have.", operator.and_, lambda x, y: x & y
)
bitwise_or = _register_bitwise("bitwise_or", "The bits that either element has.", operator.or_, lambda x, y: x | y)
bitwise_xor = _register_bitwise(
    "bitwise_xor", "The bits that exactly one of the elements has.", operator.xor, lambda x, y: x ^ y
)
left_shift = _register_bitwise(
    "left_shift", "Elements of lhs moved by as many bits as rhs says towards higher ones; 0 beyond the last one, or of "
    "less than none.", _numpy_shift("left_shift"), _shifted(lambda x, y: x << y, lambda x: x - x),
)
right_shift = _register_bitwise(
    "right_shift", "Elements of lhs moved by as many bits as rhs says towards lower ones, with the sign behind; "
    "the sign alone beyond the last one, or of less than none.", _numpy_shift("right_shift"),
    _shifted(lambda x, y: x >> y, _sign_bits),
)


def where_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """A condition of bools and two tensors of one dtype, all broadcast together."""
    condition, x, y = (reporter.tensor(i) for i in range(3))
    if condition is not None:
        require_bool(reporter, 0, condition)
    if condition is None or x is None or y is None:
        return False
    require_dtype_of(reporter, 2, 1)
    both = TensorType(broadcast_shape(reporter, 2, y, x), x.dtype)
    reporter.assign(3, TensorType(broadcast_shape(reporter, 0, condition, both), x.dtype))
    return True


(
    register_op("where")
    .describe("Elements of x where the condition holds, else of y.")
    .add_argument("condition", "Tensor", "Bools.")
    .add_argument("x", "Tensor", "The values where the condition holds.")
    .add_argument("y", "Tensor", "The values elsewhere, of the same dtype; all three broadcast as NumPy's do.")
    .set_support_level(4)
    .add_type_rel("Where", where_rel)
    .set_attr("TOpPattern", TOpPattern.kBroadcast)
    .example({"condition": "bool[5,19]", "x": "float32[5,19]", "y": "float32[19]"})
)


@register_compute("where")
@in_float32
def compute_where(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    plain = topi.where(*inputs)
    if not any(a.same_as(b) for a, b in combinations(inputs, 2)) and str(inputs[1].dtype) not in INDICES:
        return [plain]

    def element(*i: Any) -> Any:
        values = [t(*broadcast_place(t.shape, i)) for t in inputs]
        return keep_each(inputs, values, lambda condition, x, y: x if x.same_as(y) else tirx.Select(condition, x, y))

    return [te.compute(plain.shape, element, name="where", tag=topi.tag.BROADCAST)]


register_reference("where", wide(numpy_function("where")))
register_broadcast_schedule("where")
register_shape_func("where", False, broadcast_shape_func)


def collapse_sum_like_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """The type of the second input, which must broadcast to the first."""
    data, like = reporter.tensor(0), reporter.tensor(1)
    if data is not None:
        require_number(reporter, 0, data)
    if like is not None:
        if data is not None:
            whole = broadcast_shape(reporter, 0, data, like)
            remedy = f"cannot be summed to {like}, which does not broadcast to it"
            require_shape(reporter, 0, whole, data.shape, remedy)
        require_dtype_of(reporter, 0, 1)
        reporter.assign(2, like)
    return data is not None and like is not None


(
    register_op("collapse_sum_like")
    .describe("Sums the first tensor to the shape of the second: the opposite of broadcasting.")
    .add_argument("data", "Tensor", "The tensor to sum.")
    .add_argument("collapse_type", "Tensor", "The tensor whose type the result has; it must broadcast to data.")
    .set_support_level(10)
    .add_type_rel("CollapseSumLike", collapse_sum_like_rel)
    .set_attr("TOpPattern", TOpPattern.kCommReduce)
    .example({"data": "float32[5,19]", "collapse_type": "float32[19]"})
)


@register_compute("collapse_sum_like")
@in_float32
def compute_collapse_sum_like(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import sym, topi

    data, like = inputs
    same = sym.Analyzer().can_prove_equal
    if len(data.shape) == len(like.shape) and all(map(same, data.shape, like.shape)):
        return [topi.identity(data)]
    return [topi.collapse_sum(data, like.shape)]


@register_reference("collapse_sum_like")
def reference_collapse_sum_like(attrs: Attrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    def collapse(data: Any, like: Any) -> Any:
        data = data.sum(axis=tuple(range(data.ndim - like.ndim)), dtype=data.dtype)
        ones = tuple(i for i, n in enumerate(np.shape(like)) if n == 1)
        return data.sum(axis=ones, keepdims=True, dtype=data.dtype)

    return wide(collapse)(attrs, inputs)


register_reduce_schedule("collapse_sum_like")
register_shape_func("collapse_sum_like", False, like_shape_func)


@register_gradient("where")
def where_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return grad for the branch that was taken."""
    condition, x, y = orig.args
    zeros = call("zeros_like", grad)
    return [
        None,
        collapse_sum_like(where(condition, grad, zeros), x),
        collapse_sum_like(where(condition, zeros, grad), y),
    ]


register_gradient("collapse_sum_like", lambda orig, grad: [grad + call("zeros_like", orig.args[0]), None])


where = caller("where")
collapse_sum_like = caller("collapse_sum_like")
