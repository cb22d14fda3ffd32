"""Operators of ATen as calls of plevel's, by their full names; those of elements, and what all others share."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from plevel.torch.symbol import Computed
from strategy.expr import Constant, Expr, call
from strategy.network import elementary, layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}
NARROW = {"float16", "bfloat16"}


def register(*names: str) -> Callable[[Operator], Operator]:
    def decorate(function: Operator) -> Operator:
        OPERATORS.update({f"aten.{name}": function for name in names})
        return function

    return decorate


def _same(x: Expr, *_: Any, **__: Any) -> Expr:
    return x


def _unary(name: str) -> Operator:
    return lambda x: call(name, x)


def dtype_of(*numbers: Any) -> str:
    """The dtype that PyTorch gives numbers by default."""
    if all(isinstance(n, bool) for n in numbers):
        return "bool"
    return "float32" if any(isinstance(n, float) for n in numbers) else "int64"


def _category(dtype: str) -> int:
    """The place of a dtype among bools, integers and floats; the higher one wins."""
    return 0 if dtype == "bool" else 1 if "int" in dtype else 2


def _operand(value: Any, like: Expr) -> Expr:
    """A number as a tensor: of another's dtype, unless its own is of a higher category."""
    if isinstance(value, Expr):
        return value
    own, kind = dtype_of(value), like.tensor_type.dtype
    return scalar(value, own if _category(own) > _category(kind) else kind)


def scalar(value: Any, dtype: str) -> Expr:
    """A number as a tensor, computed at the call if it depends on symbolic sizes; a whole one wraps around."""
    if isinstance(value, Computed):
        return cast(value.made, dtype)
    is_whole = "int" in dtype and isinstance(value, int)
    return Constant(np.asarray(value, "int64" if is_whole else dtype).astype(dtype))


_OF_TRUTHS = {
    "add": "logical_or", "maximum": "logical_or", "multiply": "logical_and", "minimum": "logical_and",
}
_ORDERS = ("less", "less_equal", "greater", "greater_equal")


def _binary(name: str) -> Operator:
    """A binary operator of tensors, or of one and a number; `alpha` scales the second."""

    def make(x: Any, y: Any, alpha: float = 1) -> Expr:
        if name == "multiply" and _is_rounded(x, y):
            return cast(make(cast(x, "float32"), y), x.tensor_type.dtype)
        left, right = promoted(x, y)
        if alpha != 1:
            right = call("multiply", right, scalar(alpha, right.tensor_type.dtype))
        if left.tensor_type.dtype == "bool":
            if name in _OF_TRUTHS:
                return call(_OF_TRUTHS[name], left, right)
            if name in _ORDERS:
                left, right = cast(left, "uint8"), cast(right, "uint8")
        return call(name, left, right)

    return make


def _is_rounded(x: Any, y: Any) -> bool:
    """Return whether y is a number that x's dtype of 16 bits would round; PyTorch multiplies in float32.

    A constant of rank 0 is a number, too, beside a tensor that has axes.
    """
    if not isinstance(x, Expr) or x.tensor_type.dtype not in NARROW:
        return False
    if isinstance(y, Constant) and extents(x) and not extents(y):
        y = y.value.item()
    if isinstance(y, Expr):
        return False
    with np.errstate(over="ignore"):
        return bool(number(y, x).value.astype(np.float64) != y)


def promoted(left: Any, right: Any) -> tuple[Expr, Expr]:
    """Two tensors, or one and a number, in one dtype: of the higher category, then not of rank 0, then the wider."""
    like = left if isinstance(left, Expr) else right
    x, y = _operand(left, like), _operand(right, like)
    kinds = [v.tensor_type.dtype for v in (x, y)]
    orders = [(_category(kind), bool(extents(v))) for kind, v in zip(kinds, (x, y), strict=True)]
    wanted = kinds[orders.index(max(orders))] if orders[0] != orders[1] else common_dtype(*kinds)
    return cast(x, wanted), cast(y, wanted)


def common_dtype(first: str, second: str) -> str:
    """The dtype that PyTorch gives two tensors with axes."""
    if _category(first) != _category(second):
        return max(first, second, key=_category)
    return "float32" if {first, second} == NARROW else np.promote_types(first, second).name


def cast(x: Expr, dtype: str) -> Expr:
    return x if x.tensor_type.dtype == dtype else call("cast", x, dtype=dtype)


def in_float32(function: Callable[..., Expr]) -> Operator:
    """The operator by parts that lose too much in 16 bits: between two casts, as PyTorch computes it."""

    @wraps(function)
    def wide(x: Expr, *more: Any, **named: Any) -> Expr:
        dtype = x.tensor_type.dtype
        return cast(function(cast(x, "float32") if dtype in NARROW else x, *more, **named), dtype)

    return wide


def along_axis(function: Operator) -> Operator:
    """The operator along an axis: a tensor without axes is a row of one element, and bools are 0 and 1."""

    @wraps(function)
    def make(x: Expr, *more: Any, **named: Any) -> Any:
        is_bool, is_row = x.tensor_type.dtype == "bool", bool(extents(x))
        row = x if is_row else layer.reshape(x, (1,))
        made = function(cast(row, "uint8") if is_bool else row, *more, **named)

        def back(found: Expr) -> Expr:
            found = cast(found, "bool") if is_bool and found.tensor_type.dtype == "uint8" else found
            return found if is_row else layer.reshape(found, ())

        return tuple(map(back, made)) if isinstance(made, tuple) else back(made)

    return make


def _of_floats(function: Callable[[Expr], Expr]) -> Operator:
    """A function of floats; integers and bools are taken as float32."""
    return lambda x: function(x if _category(x.tensor_type.dtype) == 2 else cast(x, "float32"))


def _of_fractions(name: str) -> Operator:
    """A rounding, which leaves integers as they are."""
    return lambda x: call(name, x) if _category(x.tensor_type.dtype) == 2 else x


def _of_odd_floats(name: str) -> Operator:
    """A test for floats that are no numbers, of which integers and bools have none."""

    def make(x: Expr) -> Expr:
        is_float = _category(x.tensor_type.dtype) == 2
        return call(name, x) if is_float else layer.filled(False, extents(x), "bool")

    return make


for _name in ("relu", "silu", "hardswish", "mish", "abs"):
    OPERATORS[f"aten.{_name}.default"] = _unary(_name)
for _name in ("isinf", "isnan"):
    OPERATORS[f"aten.{_name}.default"] = _of_odd_floats(_name)
for _name in ("floor", "round", "ceil"):
    OPERATORS[f"aten.{_name}.default"] = _of_fractions(_name)
for _name in ("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "atan"):
    OPERATORS[f"aten.{_name}.default"] = _of_floats(partial(call, _name))
for _name in (
    "tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "erfinv", "i0", "lgamma", "log1p"
):
    OPERATORS[f"aten.{_name}.default"] = _of_floats(getattr(elementary, _name))
for _name, _own in {
    "add": "add", "sub": "subtract", "mul": "multiply", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "remainder": "floor_mod",
}.items():
    for _overload in ("Tensor", "Scalar"):
        OPERATORS[f"aten.{_name}.{_overload}"] = _binary(_own)
OPERATORS["aten.maximum.default"] = _binary("maximum")
OPERATORS["aten.minimum.default"] = _binary("minimum")
for _name in ("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "resolve_conj", "resolve_neg"):
    OPERATORS[f"aten.{_name}.default"] = _same
OPERATORS |= {
    **dict.fromkeys(("aten.matmul.default", "aten.mm.default", "aten.bmm.default"), layer.matmul),
    "aten.reciprocal.default": _of_floats(lambda x: call("divide", number(1, x), x)),
    "aten.special_i0e.default": _of_floats(elementary.i0e),
    "aten.exp2.default": _of_floats(lambda x: call("power", number(2, x), x)),
    "aten.gelu.default": lambda x, approximate="none": call("gelu", x, approximate=approximate),
    "aten.leaky_relu.default": lambda x, negative_slope=0.01: call("leaky_relu", x, alpha=float(negative_slope)),
    "aten.hardsigmoid.default": lambda x: call("hardsigmoid", x, alpha=1 / 6),
    "aten.relu6.default": lambda x: call("clip", x, a_min=0.0, a_max=6.0),
    "aten.hardtanh.default": lambda x, low=-1, high=1: layer.clip(x, low, high),
    "aten._softmax.default": along_axis(lambda x, axis, half_to_float: call("softmax", x, axis=axis)),
    "aten._log_softmax.default": along_axis(lambda x, axis, half_to_float: call("log_softmax", x, axis=axis)),
}


@register("linear.default")
def _linear(x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """A weight without an axis of outputs gives one number for each row."""
    if len(extents(weight)) > 1:
        return layer.linear(x, weight, bias)
    found = layer.matmul(x, weight)
    return found if bias is None else call("add", found, bias)


@register("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Expr:
    if _is_rounded(x, y):
        return cast(_divide(cast(x, "float32"), y, rounding_mode), x.tensor_type.dtype)
    if rounding_mode == "floor":
        found: Expr = _binary("floor_divide")(x, y)
        return found
    left, right = promoted(x, y)
    if "float" not in left.tensor_type.dtype:
        if rounding_mode is not None:
            return layer.truncated_quotient(left, right)
        left, right = cast(left, "float32"), cast(right, "float32")
    quotient = call("divide", left, right)
    return quotient if rounding_mode is None else _truncate(quotient)


@register("fmod.Tensor", "fmod.Scalar")
def _fmod(x: Expr, y: Any) -> Expr:
    """The remainder with the sign of x."""
    left, right = promoted(x, y)
    zero = number(0, left)
    if _category(left.tensor_type.dtype) == 2:
        rest = call("floor_mod", call("abs", left), call("abs", right))
        return call("where", call("less", left, zero), call("negative", rest), rest)
    rest = call("floor_mod", left, right)  # the least integer has no absolute value
    signs = call("logical_xor", *(call("less", v, zero) for v in (left, right)))
    is_other = call("logical_and", call("not_equal", rest, zero), signs)
    return call("where", is_other, call("subtract", rest, right), rest)


@register("trunc.default")
def _truncate(x: Expr) -> Expr:
    if _category(x.tensor_type.dtype) < 2:
        return x
    return call("where", call("less", x, number(0, x)), call("ceil", x), call("floor", x))


@register("round.decimals")
def _round_decimals(x: Expr, *, decimals: int = 0) -> Expr:
    """As PyTorch does it, by a power of 10 that is an integer."""
    if _category(x.tensor_type.dtype) < 2:
        return x
    power = number(10 ** abs(decimals), x)
    before, behind = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    return call(behind, call("round", call(before, x, power)), power)


@register("neg.default", "_neg_view.default")
def _negative(x: Expr) -> Expr:
    is_unsigned = x.tensor_type.dtype.startswith("uint")
    return call("subtract", number(0, x), x) if is_unsigned else call("negative", x)


@register("sign.default")
def _sign(x: Expr) -> Expr:
    """0 of NaN, too."""
    kind = x.tensor_type.dtype
    if kind == "bool" or kind.startswith("uint"):
        return cast(truth(x), kind)
    found = call("sign", x)
    return call("where", call("isnan", x), number(0, x), found) if _category(kind) == 2 else found


def _logarithm(base: int) -> Operator:
    """A logarithm, exact at powers of the base."""

    @in_float32
    def make(x: Expr) -> Expr:
        found = call("multiply", call("log", x), number(1 / math.log(base), x))
        whole = call("round", found)
        exact = call("equal", call("power", number(base, x), whole), x)
        if base != 2:  # a subnormal number may only be rounded to a power
            least = float(np.finfo(x.tensor_type.dtype).tiny)
            exact = call("logical_and", exact, call("greater_equal", x, number(least, x)))
        return call("where", exact, whole, found)

    return _of_floats(make)


OPERATORS["aten.log2.default"] = _logarithm(2)
OPERATORS["aten.log10.default"] = _logarithm(10)


@register("atan2.default")
def _angle_of(y: Any, x: Any) -> Expr:
    """The angle of a point, by the quotient of the lesser size and the greater one, so that none overflows."""
    y, x = promoted(y, x)
    if _category(x.tensor_type.dtype) < 2:
        y, x = cast(y, "float32"), cast(x, "float32")
    if x.tensor_type.dtype in NARROW:
        return cast(_angle_of(cast(y, "float32"), cast(x, "float32")), x.tensor_type.dtype)
    up, right = call("abs", y), call("abs", x)
    steep = call("greater", up, right)
    least, most = call("minimum", up, right), call("maximum", up, right)
    # Two zeros, and two infinities, lie on an axis, and on a diagonal.
    quotient = call("where", call("equal", least, most), call("sign", most), call("divide", least, most))
    angle = call("atan", quotient)
    angle = call("where", steep, call("subtract", number(math.pi / 2, x), angle), angle)
    angle = call("where", _is_negative(x), call("subtract", number(math.pi, x), angle), angle)
    found = call("where", _is_negative(y), call("negative", angle), angle)
    return call("where", call("logical_or", call("isnan", x), call("isnan", y)), call("add", x, y), found)


def _is_negative(x: Expr) -> Expr:
    """Return whether the sign is set, of -0, too, whose inverse is below 0."""
    zero = number(0, x)
    inverse = call("less", call("divide", number(1, x), x), zero)
    return call("logical_or", call("less", x, zero), call("logical_and", call("equal", x, zero), inverse))


@register("signbit.default")
def _signbit(x: Expr) -> Expr:
    return _is_negative(x) if _category(x.tensor_type.dtype) == 2 else _binary("less")(x, 0)


@register("copysign.Tensor", "copysign.Scalar")
def _copysign(x: Any, y: Any) -> Expr:
    x, y = promoted(x, y)
    if _category(x.tensor_type.dtype) < 2:
        x, y = cast(x, "float32"), cast(y, "float32")
    size = call("abs", x)
    return call("where", _is_negative(y), call("negative", size), size)


def _extreme_number(name: str) -> Operator:
    """The larger or smaller of two, of which NaN is none."""

    def make(x: Any, y: Any) -> Expr:
        x, y = promoted(x, y)
        found: Expr = _binary(name)(x, y)
        if _category(x.tensor_type.dtype) < 2:
            return found
        return call("where", call("isnan", x), y, call("where", call("isnan", y), x, found))

    return make


OPERATORS["aten.fmax.default"] = _extreme_number("maximum")
OPERATORS["aten.fmin.default"] = _extreme_number("minimum")


@register("hypot.default")
def _hypot(x: Any, y: Any) -> Expr:
    """The greater size times √(1 + the square of their quotient), which overflows only where the result does."""
    x, y = promoted(x, y)
    if x.tensor_type.dtype in NARROW:
        return cast(_hypot(cast(x, "float32"), cast(y, "float32")), x.tensor_type.dtype)
    sizes = call("abs", x), call("abs", y)
    least, most = call("minimum", *sizes), call("maximum", *sizes)
    quotient = call("where", call("equal", least, most), call("sign", most), call("divide", least, most))
    found = call("multiply", most, call("sqrt", call("add", number(1, x), call("multiply", quotient, quotient))))
    infinite = call("logical_or", *(call("isinf", size) for size in sizes))  # beside NaN, too
    return call("where", infinite, number(math.inf, x), found)


@register("expm1.default")
@_of_floats
@in_float32
def _expm1(x: Expr) -> Expr:
    """As tanh(x / 2) (exp(x) + 1), which is precise near zero."""
    half = call("tanh", call("multiply", x, number(0.5, x)))
    return call("multiply", half, call("add", call("exp", x), number(1, x)))


@register("elu.default")
def _elu(x: Expr, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    below = call("multiply", _expm1(call("multiply", x, number(input_scale, x))), number(alpha * scale, x))
    above = call("multiply", x, number(scale, x))
    return call("where", call("greater", x, number(0, x)), above, below)


@register("dropout.default")
def _dropout(x: Expr, share: float, train: bool) -> Expr:
    if train and share:
        raise NetworkError("a dropout that draws random numbers: export the model in eval mode")
    return x


@register("rrelu_with_noise_functional.default")
def _rrelu(
    x: Expr, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Expr]:
    """A leaky ReLU, whose slope is the mean of those that training draws."""
    if training:
        raise NetworkError("an RReLU that draws random numbers: export the model in eval mode")
    return (call("leaky_relu", x, alpha=(lower + upper) / 2),)


@register("pow.Tensor_Scalar")
def _pow(x: Expr, exponent: Any) -> Expr:
    x, power = promoted(x, exponent)
    if exponent == 2:
        return call("multiply", x, x)
    if _category(x.tensor_type.dtype) == 2:
        return call("sqrt", x) if exponent == 0.5 else call("power", x, power)
    if isinstance(exponent, Computed):
        return _power_of_integers(x, power)
    return _whole_power(x, exponent)


def _whole_power(x: Expr, exponent: int) -> Expr:
    """A power of integers, by squares."""
    if exponent < 2:
        return x if exponent else layer.filled(1, extents(x), x.tensor_type.dtype)
    half = _whole_power(x, exponent // 2)
    square = call("multiply", half, half)
    return call("multiply", square, x) if exponent % 2 else square


@register("pow.Tensor_Tensor", "pow.Scalar")
def _power(x: Any, exponent: Any) -> Expr:
    base, exponent = promoted(x, exponent)
    if _category(base.tensor_type.dtype) == 2:
        return call("power", base, exponent)
    return call("left_shift", number(1, base), exponent) if x == 2 else _power_of_integers(base, exponent)


def _power_of_integers(x: Expr, exponent: Expr) -> Expr:
    """Powers by squares, one for each bit of the exponents; of those below 0 the whole part."""
    kind, one, zero = x.tensor_type.dtype, number(1, x), number(0, x)
    found: Expr = one
    square = x
    for bit in range(np.iinfo(kind).max.bit_length()):
        is_set = call("not_equal", call("bitwise_and", exponent, number(1 << bit, x)), zero)
        found = call("multiply", found, call("where", is_set, square, one))
        square = call("multiply", square, square)
    if kind.startswith("u"):
        return found
    is_fraction = call("logical_and", call("less", exponent, zero), call("not_equal", call("abs", x), one))
    return call("where", is_fraction, zero, found)


@register("clamp.default")
def _clamp(x: Expr, low: Any = None, high: Any = None) -> Expr:
    if isinstance(low, Computed) or isinstance(high, Computed):
        found: Expr = _clamp_tensor(x, low, high)
        return found
    kind = x.tensor_type.dtype
    if "float" not in kind and any(isinstance(bound, float) for bound in (low, high)):
        return layer.clip(cast(x, "float32"), low, high)
    if kind == "uint8":  # whose bounds below 0 are read as bytes
        low, high = (bound % 256 if bound is not None and -256 < bound < 0 else bound for bound in (low, high))
    return layer.clip(x, low, high)


@register("clamp.Tensor")
def _clamp_tensor(x: Expr, low: Any = None, high: Any = None) -> Expr:
    x = x if low is None else _binary("maximum")(x, low)
    return x if high is None else _binary("minimum")(x, high)


def dtype_named(given: Any, default: str) -> str:
    """The name of a dtype of PyTorch's, or the default for None."""
    return default if given is None else str(given).removeprefix("torch.")


def summed(x: Expr) -> str:
    """The dtype of sums in PyTorch."""
    kind = x.tensor_type.dtype
    return kind if "float" in kind else "int64"


def truth(x: Expr) -> Expr:
    return x if x.tensor_type.dtype == "bool" else call("not_equal", x, number(0, x))


def _logical(name: str) -> Operator:
    return lambda *operands: call(name, *(truth(x) for x in operands))


def _bitwise(name: str) -> Operator:
    """An operator of the bits of integers, and of bools as truths."""

    def make(x: Any, y: Any) -> Expr:
        left, right = promoted(x, y)
        return call(f"{'logical' if left.tensor_type.dtype == 'bool' else 'bitwise'}_{name}", left, right)

    return make


@register("bitwise_not.default")
def _bitwise_not(x: Expr) -> Expr:
    kind = x.tensor_type.dtype
    if kind == "bool":
        return call("logical_not", x)
    return call("bitwise_xor", x, number(int(np.iinfo(kind).max) if kind.startswith("u") else -1, x))


for _name in ("and", "or", "xor"):
    OPERATORS[f"aten.logical_{_name}.default"] = _logical(f"logical_{_name}")
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        OPERATORS[f"aten.bitwise_{_name}.{_overload}"] = _bitwise(_name)
for _name, _own in (("left", "l"), ("right", "r")):
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        OPERATORS[f"aten.bitwise_{_name}_shift.{_overload}"] = _binary(f"{_name}_shift")
    for _overload in ("Tensor", "Scalar"):
        OPERATORS[f"aten.__{_own}shift__.{_overload}"] = _binary(f"{_name}_shift")
OPERATORS["aten.logical_not.default"] = _logical("logical_not")
