"""Elementary functions of float32 as arithmetic on vectors.

LLVM has no vector form of functions such as `exp` and calls the C library once per element, eight times as slowly;
other dtypes are left to it, except for `atan`. All functions propagate NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.cpu.binding import is_cpu, share

# exp(r) for |r| ≤ ln(2) / 2 is 1 + r + r² P(r); from Cephes (S. L. Moshier), expf.
_EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)
_LOG2E = 1.44269504088896341
# ln(2) in two parts, the first exact in float32 even times an exponent.
_LN2 = (0.693359375, -2.12194440e-4)
# tanh(x) is x P(x²) / Q(x²) for |x| ≤ 9, and 1 beyond; erf(x) likewise up to 4: the minimax fits of TVM's
# `fast_tanh` and `fast_erf`, and of Eigen.
_TANH = (
    (
        -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
        1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
_ERF = (
    (
        -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
        -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
    ),
    (
        -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
        -1.42647390514189e-02,
    ),
)
# log(1 + p) for 0 ≤ p ≤ 1 is p + p² P(p), a fit of the least relative error.
_LOG1P = (
    -3.318411337e-03, 2.020431188e-02, -5.766393705e-02, 1.068050477e-01, -1.535536679e-01, 1.969539050e-01,
    -2.495858552e-01, 3.333051115e-01, -4.999993276e-01,
)
# log(1 + f) for √½ ≤ 1 + f < √2 is f - f² / 2 + f³ P(f); from Cephes (S. L. Moshier), logf.
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)
# atan(z) for |z| ≤ tan(π / 8) is z + z³ P(z²); from Cephes (S. L. Moshier), atanf.
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
# The same in float64, z + z³ P(z²) / Q(z²) for |z| ≤ 0.66; from Cephes, atan.
_ATAN64 = (
    (
        -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
        -1.228866684490136173410e2, -6.485021904942025371773e1,
    ),
    (
        1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
        4.853903996359136964868e2, 1.945506571482613964425e2,
    ),
)
_REST_OF_QUARTER = 6.123233995736765886130e-17  # what float64 lacks of π / 2
_ROOT_OF_HALF = 0x3F3504F3  # the bits of √½
# sin(r) is r + r³ P(r²), and cos(r) is 1 - r² / 2 + r⁴ Q(r²), for |r| ≤ π / 4; from Cephes (S. L. Moshier), sinf, cosf.
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
# The bits of 1 / (2 π) from that of 2⁻¹ on, behind 24 zeros.
_TURN = (0x28BE60DB93, 0x91054A7F09D5F47D, 0x4D377036D8A5664F)


def exp(x: Any) -> Any:
    """The exponential of an expression, within one unit in the last place, including subnormal results."""
    from tvm import tirx

    if str(x.ty.dtype) != "float32":
        return tirx.exp(x)
    power, exponent = _power(_clamp(x, -104.0, 89.0))  # beyond, the result is 0 or infinity
    half = exponent >> 1  # in two steps, as 2ⁿ may be out of range although the product is not
    return power * _power_of_two(half) * _power_of_two(exponent - half)


def exp_of_difference(x: Any) -> Any:
    """The exponential of a number that is not positive, as a term of a sum with a 1: e⁻⁸⁷ at least."""
    from tvm import tirx

    if str(x.ty.dtype) != "float32":
        return tirx.exp(x)
    power, exponent = _power(tirx.Select(x < _number(-87.0), _number(-87.0), x))
    return power * _power_of_two(exponent)


def log_of_sum(x: Any) -> Any:
    """The natural logarithm of a number that is at least 1, or NaN."""
    from tvm import tirx

    if str(x.ty.dtype) != "float32":
        return tirx.log(x)
    bits = tirx.reinterpret("int32", x)
    exponent = (bits - _ROOT_OF_HALF) >> 23
    f = tirx.reinterpret("float32", bits - (exponent << 23)) - _number(1.0)
    e = tirx.Cast("float32", exponent)
    rest = _polynomial(_LOG, f) * f * f * f + e * _number(_LN2[1]) - f * f * _number(0.5)
    return tirx.Select(x < _number(float("inf")), rest + f + e * _number(_LN2[0]), x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of an expression, within four units in the last place, and so up to 2 ε beyond 1."""
    from tvm import tirx

    if str(x.ty.dtype) != "float32":
        return tirx.call_pure_extern(str(x.ty.dtype), "tanh", x)  # TVM's own is 0 near 0
    return _odd_ratio(_clamp(x, -9.0, 9.0), _TANH)


def erf(x: Any) -> Any:
    """The error function of an expression, within five units in the last place, and so up to 4 ε beyond 1."""
    from tvm import tirx

    if str(x.ty.dtype) != "float32":
        return tirx.erf(x)
    return _odd_ratio(_clamp(x, -4.0, 4.0), _ERF)


def atan(x: Any) -> Any:
    """The inverse tangent of an expression, of float64 too, within three units in the last place."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    size, zero, one = tirx.abs(x), tirx.const(0, dtype), tirx.const(1, dtype)
    far, middle = size > tirx.const(1 + math.sqrt(2), dtype), size > tirx.const(math.sqrt(2) - 1, dtype)
    # Of a quarter or an eighth of a turn less the angle, or of the angle itself.
    above = tirx.Select(far, -one, tirx.Select(middle, size - one, size))
    below = tirx.Select(far, size, tirx.Select(middle, size + one, one))
    turn, rest = (
        tirx.Select(far, tirx.const(t, dtype), tirx.Select(middle, tirx.const(t / 2, dtype), zero))
        for t in (math.pi / 2, _REST_OF_QUARTER if dtype == "float64" else 0.0)
    )

    def found(z: Any) -> Any:
        square = z * z
        if dtype == "float64":
            return turn + (square * _polynomial(_ATAN64[0], square) / _polynomial(_ATAN64[1], square) * z + z + rest)
        return turn + (_polynomial(_ATAN, square) * square * z + z)

    return _sign(x) * share(above / below, found)


def sin(x: Any) -> Any:
    """The sine of an expression, of any size, within three units in the last place of a number above 10⁻⁴."""
    from tvm import tirx

    return _turned(x, 0) if str(x.ty.dtype) == "float32" and is_cpu() else tirx.sin(x)


def cos(x: Any) -> Any:
    """The cosine of an expression, as `sin`."""
    from tvm import tirx

    return _turned(x, 1) if str(x.ty.dtype) == "float32" and is_cpu() else tirx.cos(x)


def _turned(x: Any, quarters: int) -> Any:
    """The sine of an expression, of so many quarters of a turn more where that is 1: the cosine.

    The number of turns, m 2ᵏ / (2 π) of a number of the whole m, is needed without its whole part: the product of m
    and as many bits of 1 / (2 π) from that of 2⁻ᵏ⁻¹ on as 64 bits hold, whose overflow is the whole part.
    """
    from tvm import tirx

    size, bits = tirx.abs(x), tirx.reinterpret("int32", x)
    near = size < _number(math.pi / 4)
    eighth = tirx.const(1 << 61, "uint64")

    def found(phase: Any) -> Any:
        quarter = tirx.Cast("int32", phase >> tirx.const(62, "uint64")) + quarters
        rest = tirx.Cast("int64", phase & tirx.const((1 << 62) - 1, "uint64")) - tirx.const(1 << 61, "int64")
        angle = tirx.Cast("float32", rest) * _number(2 * math.pi / 2**64)
        turned = tirx.Select(near, tirx.const(quarters, "int32"), quarter)
        return share(tirx.Select(near, size, angle), lambda r: signed(r, turned))

    def signed(r: Any, turned: Any) -> Any:
        square = r * r
        sine = r + r * square * _polynomial(_SIN, square)
        cosine = square * square * _polynomial(_COS, square) - square * _number(0.5) + _number(1.0)
        value = tirx.reinterpret("int32", tirx.Select((turned & 1) == 0, sine, cosine)) ^ ((turned & 2) << 30)
        value = value if quarters else value ^ (bits & tirx.min_value("int32"))
        number = tirx.reinterpret("float32", value)
        return tirx.Select(size < _number(math.inf), number, _number(math.nan))

    whole = tirx.Cast("uint64", (bits & 0x7FFFFF) | 0x800000)
    return share(whole * _bits_of_turn(tirx.max(((bits >> 23) & 255) - 126, 0)) + eighth, found)


def _bits_of_turn(first: Any) -> Any:
    """64 of `_TURN`'s bits from one on, the 128th at most."""
    from tvm import tirx

    high, middle, low = (tirx.const(word, "uint64") for word in _TURN)
    is_behind = first >= 64
    left = tirx.Cast("uint64", tirx.Select(is_behind, first - 64, first))
    right = tirx.const(64, "uint64") - left
    one = tirx.const(1, "uint64")

    def halves(count: Any) -> tuple[Any, Any]:
        """Two shifts for one of 64 bits, which processors do not make."""
        return count >> one, count - (count >> one)

    ahead, behind = tirx.Select(is_behind, middle, high), tirx.Select(is_behind, low, middle)
    for part in halves(left):
        ahead = ahead << part
    for part in halves(right):
        behind = behind >> part
    return ahead | behind


def _sign(x: Any) -> Any:
    """1 with the sign of a number, which a zero has, too."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    kind, ones = ("int64", 0x3FF0 << 48) if dtype == "float64" else ("int32", 0x3F80 << 16)
    bits = tirx.reinterpret(kind, x) & tirx.min_value(kind)
    return tirx.reinterpret(dtype, bits | tirx.const(ones, kind))


def log1p_of_power(x: Any) -> Any:
    """log(1 + exp(x)) of an expression, without overflow, and exact where it is nearly 0."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    zero = tirx.const(0, dtype)
    power = exp(-tirx.abs(x))
    rest = share(power, lambda p: p * _polynomial((*_LOG1P, 1.0), p)) if dtype == "float32" else tirx.log1p(power)
    return tirx.Select(x > zero, x, zero) + rest


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) of an expression."""
    from tvm import tirx

    one = tirx.const(1, str(x.ty.dtype))
    return one / (one + exp(-x))


def _number(value: float) -> Any:
    from tvm import tirx

    return tirx.const(value, "float32")


def _power(x: Any) -> tuple[Any, Any]:
    """The exponential as a number around 1 times a power of two, of which the exponent."""
    from tvm import tirx

    n = tirx.floor(x * _number(_LOG2E) + _number(0.5))
    r = x - n * _number(_LN2[0]) - n * _number(_LN2[1])
    return _polynomial(_EXP, r) * r * r + r + _number(1.0), tirx.Cast("int32", n)


def _clamp(x: Any, low: float, high: float) -> Any:
    """`x` clamped to two bounds, by comparisons, as minimum and maximum lose NaN."""
    from tvm import tirx

    upper = tirx.Select(x > _number(high), _number(high), x)
    return tirx.Select(x < _number(low), _number(low), upper)


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """The polynomial of these coefficients, the highest first, by Horner's rule."""
    from tvm import tirx

    dtype = str(x.ty.dtype)
    value = tirx.const(coefficients[0], dtype)
    for coefficient in coefficients[1:]:
        value = value * x + tirx.const(coefficient, dtype)
    return value


def _odd_ratio(x: Any, ratio: tuple[Sequence[float], Sequence[float]]) -> Any:
    square = x * x
    # The factors of x are from 1 to 2 near 0: as small as they are given, products with subnormal numbers lose bits.
    scale = 2.0 ** (1 - math.frexp(ratio[1][-1])[1])
    over, under = (_polynomial([c * scale for c in part], square) for part in ratio)
    return x * over / under


def _power_of_two(exponent: Any) -> Any:
    """2 to the power of an int32 in -126 … 127, made from its bits."""
    from tvm import tirx

    return tirx.reinterpret("float32", (exponent + 127) << 23)
