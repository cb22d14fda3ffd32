"""Activations: elementwise functions between the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu import elementary
from strategy.cpu.binding import share
from strategy.expr import Call, Expr
from strategy.ops.broadcast import (
    greater,
    less,
    register_binary,
    where,
)
from strategy.ops.elemwise import (
    erf,
    exp,
    like,
    ones_like,
    reference_erf,
    reference_sigmoid,
    register_unary,
    sigmoid,
    tanh,
    zeros_like,
)
from strategy.order import at_least, at_most, scaled
from strategy.type_relation import require_float

# gelu by tanh is x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))).
_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715


class GeluAttrs(Attrs):
    """Attributes of gelu."""

    approximate: str = field("none", "The form: by erf, or by tanh", choices=("none", "tanh"))


class HardSigmoidAttrs(Attrs):
    """Attributes of hardsigmoid."""

    alpha: float = field(0.2, "The slope; 1/6 in PyTorch's")
    beta: float = field(0.5, "The value at 0")


class LeakyReluAttrs(Attrs):
    """Attributes of leaky_relu."""

    alpha: float = field(0.01, "The slope of negative elements")


def _constants(x: Any, *values: float) -> list[Any]:
    """Constants of the dtype of an expression."""
    from tvm import tirx

    return [tirx.const(v, str(x.ty.dtype)) for v in values]


def _reference_gelu(x: Any, attrs: GeluAttrs) -> Any:
    import numpy as np

    inner = reference_erf(x / math.sqrt(2)) if attrs.approximate == "none" else np.tanh(_ROOT * (x + _CUBE * x**3))
    return x / 2 * (1 + inner)


def _gelu(x: Any, attrs: GeluAttrs) -> Any:
    half, one, inverse, root, cube = _constants(x, 0.5, 1, math.sqrt(0.5), _ROOT, _ROOT * _CUBE)
    if attrs.approximate == "none":
        return x * half * (one + elementary.erf(x * inverse))
    return x * half * (one + elementary.tanh(x * (root + cube * x * x)))


def _gelu_grad(orig: Call, grad: Expr) -> Expr:
    """Return grad (Φ(x) + x Φ'(x)), with the distribution or its approximation by tanh."""
    x = orig.args[0]
    if orig.attrs.approximate == "none":
        inner = erf(x * like(x, math.sqrt(0.5)))
        density = exp(x * x * like(x, -0.5)) * like(x, 1 / math.sqrt(2 * math.pi))
    else:
        inner = tanh(x * (like(x, _ROOT) + like(x, _ROOT * _CUBE) * x * x))
        slope = like(x, _ROOT / 2) + like(x, 1.5 * _ROOT * _CUBE) * x * x
        density = (ones_like(x) - inner * inner) * slope
    return grad * ((inner + like(x, 1)) * like(x, 0.5) + x * density)


def _silu(x: Any) -> Any:
    return x * elementary.sigmoid(x)


def _silu_grad(orig: Call, grad: Expr) -> Expr:
    x = orig.args[0]
    part = sigmoid(x)
    return grad * part * (ones_like(x) + x * (ones_like(x) - part))


def _gate_grad(chosen: Callable[[Expr], Expr]) -> Callable[[Call, Expr], list[Expr]]:
    """The gradient of an activation of the left operand times the right one."""

    def rule(orig: Call, grad: Expr) -> list[Expr]:
        gate = chosen(orig.args[0])
        assert isinstance(gate, Call)
        (slope,) = gate.op.get_attr("FPrimalGradient")(gate, grad * orig.args[1])
        return [slope, grad * gate]

    return rule


def _hardswish(x: Any) -> Any:
    zero, half, one, sixth = _constants(x, 0, 0.5, 1, 1 / 6)
    return x * at_most(at_least(x * sixth + half, zero), one)


def _hardswish_grad(orig: Call, grad: Expr) -> Expr:
    x = orig.args[0]
    between = where(less(x, like(x, 3)), x * like(x, 1 / 3) + like(x, 0.5), ones_like(x))
    return grad * where(greater(x, like(x, -3)), between, zeros_like(x))


def _hardsigmoid(x: Any, attrs: HardSigmoidAttrs) -> Any:
    beta, zero, one = _constants(x, attrs.beta, 0, 1)
    return at_most(at_least(scaled(x, attrs.alpha) + beta, zero), one)


def _hardsigmoid_grad(orig: Call, grad: Expr) -> Expr:
    x, zeros = orig.args[0], zeros_like(orig)
    below = where(less(orig, ones_like(orig)), grad * like(x, orig.attrs.alpha), zeros)
    return where(greater(orig, zeros), below, zeros)


def _reference_leaky_relu(x: Any, attrs: LeakyReluAttrs) -> Any:
    import numpy as np

    return np.where(x > 0, x, x * attrs.alpha)


def _leaky_relu(x: Any, attrs: LeakyReluAttrs) -> Any:
    from tvm import tirx

    (zero,) = _constants(x, 0)
    return tirx.Select(x > zero, x, scaled(x, attrs.alpha))


def _leaky_relu_grad(orig: Call, grad: Expr) -> Expr:
    x = orig.args[0]
    return where(greater(x, zeros_like(x)), grad, grad * like(x, orig.attrs.alpha))


def _reference_softplus(x: Any) -> Any:
    import numpy as np

    return np.logaddexp(x, 0)


def _reference_mish(x: Any) -> Any:
    import numpy as np

    return x * np.tanh(_reference_softplus(x))


def _mish(x: Any) -> Any:
    """X n / (n + 2) with n = p (p + 2) and p = exp(x), which is x from 20 on."""
    (two, most) = _constants(x, 2, 20)
    power = share(at_most(x, most), elementary.exp)
    return share(power, lambda p: share(p * (p + two), lambda part: x * (part / (part + two))))


def _mish_grad(orig: Call, grad: Expr) -> Expr:
    x = orig.args[0]
    part = tanh(softplus(x))
    return grad * (part + x * sigmoid(x) * (ones_like(x) - part * part))


gelu = register_unary(
    "gelu", "x Φ(x) of each element, with the normal distribution Φ: the exact form, by erf, or by tanh.",
    _reference_gelu, _gelu_grad, vector=_gelu, attrs=GeluAttrs, examples=({}, {"approximate": "tanh"}),
)
silu = register_unary(
    "silu", "x / (1 + exp(-x)) of each element x: swish.", lambda x: x * reference_sigmoid(x), _silu_grad,
    vector=_silu,
)
hardswish = register_unary(
    "hardswish", "x clip(x / 6 + 1/2, 0, 1) of each element x, as ONNX's HardSwish.",
    lambda x: x * (x / 6 + 0.5).clip(0, 1), _hardswish_grad, vector=_hardswish,
)
hardsigmoid = register_unary(
    "hardsigmoid", "clip(alpha x + beta, 0, 1) of each element x, as ONNX's HardSigmoid.",
    lambda x, attrs: (attrs.alpha * x + attrs.beta).clip(0, 1), _hardsigmoid_grad, vector=_hardsigmoid,
    attrs=HardSigmoidAttrs,
)
leaky_relu = register_unary(
    "leaky_relu", "Each element x where it is positive, and elsewhere alpha x.", _reference_leaky_relu,
    _leaky_relu_grad, vector=_leaky_relu, attrs=LeakyReluAttrs,
)
softplus = register_unary(
    "softplus", "log(1 + exp(x)) of each element x.", _reference_softplus,
    lambda orig, grad: grad * sigmoid(orig.args[0]), vector=elementary.log1p_of_power,
)
mish = register_unary(
    "mish", "x tanh(log(1 + exp(x))) of each element x.", _reference_mish, _mish_grad, vector=_mish
)
swiglu = register_binary(
    "swiglu", "silu(lhs) rhs, element by element: a gated product.", lambda x, y: x * reference_sigmoid(x) * y,
    _gate_grad(silu), require=require_float, element=lambda x, y: _silu(x) * y,
)
geglu = register_binary(
    "geglu", "gelu(lhs) rhs, element by element, with the exact gelu: a gated product.",
    lambda x, y: _reference_gelu(x, GeluAttrs(approximate="none")) * y, _gate_grad(gelu), require=require_float,
    element=lambda x, y: _gelu(x, GeluAttrs(approximate="none")) * y,
)
