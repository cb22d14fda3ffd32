"""Elementary functions of floats as calls of plevel's operators, precise near 0, as importers of models share them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps

from strategy.expr import Expr, call
from strategy.network.layer import number

Function = Callable[[Expr], Expr]


def _in_float32(function: Function) -> Function:
    """The function between two casts of narrower floats, which lose too much in its parts."""

    @wraps(function)
    def wide(x: Expr) -> Expr:
        dtype = x.tensor_type.dtype
        if dtype not in ("float16", "bfloat16"):
            return function(x)
        return call("cast", function(call("cast", x, dtype="float32")), dtype=dtype)

    return wide


def _odd(function: Function) -> Function:
    """The function of the size of each element, with its sign."""

    @wraps(function)
    def signed(x: Expr) -> Expr:
        found, zero = function(call("abs", x)), number(0, x)
        found = call("where", call("less", x, zero), call("negative", found), found)
        return call("where", call("equal", x, zero), x, found)  # -0

    return signed


def _times(x: Expr, factor: float) -> Expr:
    return call("multiply", x, number(factor, x))


def _root(x: Expr) -> Expr:
    return call("sqrt", x)


@_in_float32
def tan(x: Expr) -> Expr:
    return call("divide", call("sin", x), call("cos", x))


@_in_float32
def asin(x: Expr) -> Expr:
    """The inverse sine, by the tangent of half the angle."""
    one = number(1, x)
    cosine = _root(call("multiply", call("subtract", one, x), call("add", one, x)))
    return _times(call("atan", call("divide", x, call("add", one, cosine))), 2)


@_in_float32
def acos(x: Expr) -> Expr:
    """The inverse cosine, by the tangent of half the angle, which is infinite at -1."""
    one = number(1, x)
    return _times(call("atan", _root(call("divide", call("subtract", one, x), call("add", one, x)))), 2)


@_in_float32
def log1p(x: Expr) -> Expr:
    """The logarithm of 1 + x, times what the sum's rounding has changed in x."""
    one = number(1, x)
    total = call("add", x, one)
    found = call("multiply", call("log", total), call("divide", x, call("subtract", total, one)))
    found = call("where", call("equal", x, number(math.inf, x)), x, found)
    return call("where", call("equal", total, one), x, found)


def _without_overflow(x: Expr, near: Expr) -> Expr:
    """`near`, or the logarithm of 2 x where all else is rounded away."""
    far = call("add", call("log", x), number(math.log(2), x))
    return call("where", call("greater", x, number(2.0**28, x)), far, near)


@_in_float32
@_odd
def asinh(x: Expr) -> Expr:
    """The inverse hyperbolic sine, as log1p(x + x / (1 / x + √(1 + 1 / x²)))."""
    inverse = call("divide", number(1, x), x)
    root = _root(call("add", number(1, x), call("multiply", inverse, inverse)))
    return _without_overflow(x, log1p(call("add", x, call("divide", x, call("add", inverse, root)))))


@_in_float32
def acosh(x: Expr) -> Expr:
    """The inverse hyperbolic cosine, as log1p(x - 1 + √(x - 1) √(x + 1))."""
    one = number(1, x)
    less = call("subtract", x, one)
    root = call("multiply", _root(less), _root(call("add", x, one)))
    return _without_overflow(x, log1p(call("add", less, root)))


@_in_float32
@_odd
def atanh(x: Expr) -> Expr:
    """The inverse hyperbolic tangent, as log1p(2 x / (1 - x)) / 2."""
    return _times(log1p(call("divide", _times(x, 2), call("subtract", number(1, x), x))), 0.5)


# erfc(x) is t exp(-x² + P(t)) with t = 1 / (1 + x / 2) for x > 0, within 1.2e-7 of each value: Numerical Recipes.
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)


@_in_float32
def erfc(x: Expr) -> Expr:
    """1 - erf(x), precise where it is nearly 0; of float64, only as precise as erf near 1."""
    one = number(1, x)
    if x.tensor_type.dtype == "float64":
        return call("subtract", one, call("erf", x))
    size = call("abs", x)
    t = call("divide", one, call("add", one, _times(size, 0.5)))
    power = _polynomial(_ERFC[::-1], t)
    found = call("multiply", t, call("exp", call("subtract", power, call("multiply", size, size))))
    return call("where", call("less", x, number(0, x)), call("subtract", number(2, x), found), found)


# erfinv(x) / x as polynomials of w = -log(1 - x²): of w - 2.5 below 5, else of √w - 3: M. Giles, Approximating the
# erfinv function, for single precision.
_ERFINV = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
), (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)


@_in_float32
def erfinv(x: Expr) -> Expr:
    """The inverse of erf, infinite at -1 and 1; of float64, after two steps of Newton's method."""
    one = number(1, x)
    w = call("negative", call("log", call("multiply", call("subtract", one, x), call("add", one, x))))
    pieces = call("subtract", w, number(2.5, w)), call("subtract", _root(w), number(3, w))
    near, far = (_polynomial(factors, at) for factors, at in zip(_ERFINV, pieces, strict=True))
    found = call("multiply", x, call("where", call("less", w, number(5, w)), near, far))
    for _ in range(2 if x.tensor_type.dtype == "float64" else 0):
        slope = _times(call("exp", call("negative", call("multiply", found, found))), 2 / math.sqrt(math.pi))
        found = call("subtract", found, call("divide", call("subtract", call("erf", found), x), slope))
    ends = call("equal", call("abs", x), one)
    return call("where", ends, _times(x, math.inf), found)


def _polynomial(factors: Sequence[float], x: Expr) -> Expr:
    """The value at x of a polynomial, whose highest power stands first."""
    found: Expr = number(factors[0], x)
    for factor in factors[1:]:
        found = call("add", call("multiply", found, x), number(factor, x))
    return found


# Γ(x + 1) as √(2π) tˣ⁺¹ᐟ² exp(-t) Σ cᵢ / (x + i) with t = x + 7.5, c₀ alone: C. Lanczos, by P. Godfrey for g = 7.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)


@_in_float32
def lgamma(x: Expr) -> Expr:
    """The logarithm of the size of the gamma function; below ½ by its reflection, Γ(x) Γ(1 - x) = π / sin(πx)."""
    one, half = number(1, x), number(0.5, x)
    below = call("less", x, half)
    z = call("where", below, call("negative", x), call("subtract", x, one))
    total: Expr = number(_LANCZOS[0], x)
    for i, factor in enumerate(_LANCZOS[1:], 1):
        total = call("add", total, call("divide", number(factor, x), call("add", z, number(i, x))))
    exponent = call("subtract", call("log", call("add", z, number(7.5, x))), one)
    found = call("multiply", call("add", z, half), exponent)
    found = call("add", call("add", found, call("log", total)), number(0.5 * math.log(2 * math.pi) - 7, x))
    sine = call("abs", call("sin", _times(call("subtract", x, call("round", x)), math.pi)))
    mirrored = call("subtract", call("subtract", number(math.log(math.pi), x), call("log", sine)), found)
    found = call("where", below, mirrored, found)
    return call("where", call("isinf", x), number(math.inf, x), found)


@_in_float32
def sinh(x: Expr) -> Expr:
    """The hyperbolic sine; near 0 by its series, up to the power of 19: float64 has no bit of the next one."""
    square = call("multiply", x, x)
    near: Expr = number(1, x)
    for n in range(18, 0, -2):
        near = call("add", _times(call("multiply", near, square), 1 / (n * (n + 1))), number(1, x))
    near = call("multiply", x, near)
    return call("where", call("less", call("abs", x), number(1, x)), near, _exponentials(x, "subtract"))


@_in_float32
def cosh(x: Expr) -> Expr:
    return _exponentials(x, "add")


def _exponentials(x: Expr, name: str) -> Expr:
    """Half a sum or difference of exponentials, by squares of exp(x / 2), which overflow only where the result does."""
    halves = (call("exp", _times(x, f)) for f in (0.5, -0.5))
    return call(name, *(call("multiply", _times(h, 0.5), h) for h in halves))


# I₀(x) exp(-x) as Chebyshev series, of x / 2 - 2 up to 8, and, times √x, of 32 / x - 2 beyond: S. Moshier, Cephes.
_I0 = (
    -4.4153416464793395e-18, 3.3307945188222384e-17, -2.431279846547955e-16, 1.715391285555133e-15,
    -1.1685332877993451e-14, 7.676185498604936e-14, -4.856446783111929e-13, 2.95505266312964e-12,
    -1.726826291441556e-11, 9.675809035373237e-11, -5.189795601635263e-10, 2.6598237246823866e-09,
    -1.300025009986248e-08, 6.046995022541919e-08, -2.670793853940612e-07, 1.1173875391201037e-06,
    -4.4167383584587505e-06, 1.6448448070728896e-05, -5.754195010082104e-05, 0.00018850288509584165,
    -0.0005763755745385824, 0.0016394756169413357, -0.004324309995050576, 0.010546460394594998,
    -0.02373741480589947, 0.04930528423967071, -0.09490109704804764, 0.17162090152220877, -0.3046826723431984,
    0.6767952744094761,
), (
    -7.233180487874754e-18, -4.830504485944182e-18, 4.46562142029676e-17, 3.461222867697461e-17,
    -2.8276239805165836e-16, -3.425485619677219e-16, 1.7725601330565263e-15, 3.8116806693526224e-15,
    -9.554846698828307e-15, -4.150569347287222e-14, 1.54008621752141e-14, 3.8527783827421426e-13,
    7.180124451383666e-13, -1.7941785315068062e-12, -1.3215811840447713e-11, -3.1499165279632416e-11,
    1.1889147107846439e-11, 4.94060238822497e-10, 3.3962320257083865e-09, 2.266668990498178e-08,
    2.0489185894690638e-07, 2.8913705208347567e-06, 6.889758346916825e-05, 0.0033691164782556943,
    0.8044904110141088,
)


@_in_float32
def i0(x: Expr) -> Expr:
    """The modified Bessel function I₀."""
    return call("multiply", call("exp", call("abs", x)), i0e(x))


@_in_float32
def i0e(x: Expr) -> Expr:
    """I₀(x) exp(-|x|)."""
    size = call("abs", x)
    near, far = (call("subtract", v, number(2, x)) for v in (_times(size, 0.5), call("divide", number(32, x), size)))
    small, large = (_chebyshev(factors, at) for factors, at in zip(_I0, (near, far), strict=True))
    return call("where", call("less_equal", size, number(8, x)), small, call("divide", large, _root(size)))


def _chebyshev(factors: Sequence[float], x: Expr) -> Expr:
    """The value at x / 2 of a series of Chebyshev polynomials, whose highest one stands first, by Clenshaw's sums."""
    found: Expr = number(factors[0], x)
    before: Expr = number(0, x)
    for factor in factors[1:-1]:
        found, before = call("add", call("subtract", call("multiply", x, found), before), number(factor, x)), found
    last = call("add", call("multiply", x, found), number(factors[-1], x))
    return _times(call("subtract", last, _times(before, 2)), 0.5)
