"""The remainder of a division of floating-point numbers as arithmetic on vectors."""

from __future__ import annotations

from typing import Any

from strategy.cpu.binding import is_cpu, share
from strategy.processor import has_instructions


def remainder(x: Any, y: Any) -> Any:
    """The exact remainder of a division of expressions whose quotient is rounded towards zero, C's `fmod`.

    A rounded quotient q of |x| by |y| leaves |x| - q |y|, of 26 bits at most, which a multiply-add of float64 has
    exactly. It is 2⁵⁰ times smaller than |x|, or half of |y| and a little: six times for the largest number by the
    smallest.
    """
    from tvm import tirx

    dtype = str(x.ty.dtype)
    if dtype != "float32" or not _has_multiply_add():
        return tirx.call_pure_extern(dtype, "fmod" if dtype == "float64" else "fmodf", x, y)

    def wide(number: Any) -> Any:
        return tirx.Cast("float64", tirx.abs(number))

    def finite(size: Any) -> Any:
        """A number of which infinity is none, as 0 times that is NaN."""
        most = tirx.const(2.0**1000, "float64")
        return tirx.Select(size > most, most, size)

    def reduced(rest: Any, size: Any, inverse: Any, times: int) -> Any:
        if not times:
            zero = tirx.const(0, "float64")
            found = tirx.Cast("float32", tirx.Select(rest < zero, rest + size, rest))
            return tirx.reinterpret("float32", tirx.reinterpret("int32", found) | tirx.reinterpret("int32", x) & sign)
        quotient = tirx.nearbyint(rest * inverse)
        less = tirx.call_llvm_pure_intrin("float64", "llvm.fma", -quotient, size, rest)
        return share(less, lambda less: reduced(less, size, inverse, times - 1))

    def divided(size: Any) -> Any:
        return share(tirx.const(1, "float64") / size, lambda inverse: reduced(wide(x), size, inverse, 6))

    sign = tirx.min_value("int32")
    return share(finite(wide(y)), divided)


def _has_multiply_add() -> bool:
    """Return whether the target's processor is known to multiply and add float64 in one instruction."""
    import tvm

    target = tvm.target.Target.current(allow_none=True)
    return is_cpu() and has_instructions(str(target.attrs.get("mcpu", "")), "fma")
