"""The order of numbers including NaN, in TVM's expressions.

As in NumPy, the larger and the smaller of two numbers are NaN if either is, and NaN is last in ascending order.
TVM's own maximum, minimum and comparisons of keys lose it.

On x86 a comparison that is false for NaN costs nothing extra; checking both operands costs one instruction.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

# Widths of floating-point numbers, and the bits of infinity.
_INFINITIES = {
    "float16": (16, 0x7C00), "bfloat16": (16, 0x7F80), "float32": (32, 0x7F800000),
    "float64": (64, 0x7FF0000000000000),
}
FLOATS = frozenset(_INFINITIES)


def width(dtype: str) -> int:
    """The bits of a floating-point number."""
    return _INFINITIES[dtype][0]


def larger(kept: Any, value: Any) -> Any:
    """The larger of two expressions; NaN if either is."""
    from tvm import tirx

    if str(value.ty.dtype) not in FLOATS:
        return tirx.max(kept, value)
    return tirx.Select(is_number(value), tirx.Select(value > kept, value, kept), value)


def smaller(kept: Any, value: Any) -> Any:
    """The smaller of two expressions; NaN if either is."""
    from tvm import tirx

    if str(value.ty.dtype) not in FLOATS:
        return tirx.min(kept, value)
    return tirx.Select(is_number(value), tirx.Select(value < kept, value, kept), value)


@cache
def largest() -> Any:
    """TVM's reducer by `larger`."""
    return _reducer(larger, lowest)


@cache
def smallest() -> Any:
    """TVM's reducer by `smaller`."""
    return _reducer(smaller, highest)


def _reducer(combine: Callable[[Any, Any], Any], end: Callable[[str], Any]) -> Any:
    """A reducer by a binary combination, which also combines parts of GPU threads."""
    from tvm import get_global_func, te
    from tvm_ffi import convert

    # TVM recognises only registered reducers in scheduled blocks.
    combiner = convert(lambda kept, value: [combine(kept[0], value[0])])
    identity = convert(lambda values: [end(str(values[0].ty.dtype))])
    for kept in (combiner, identity):
        # Keep a reference: TVM would drop the last one after Python's end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    get_global_func("s_tir.schedule.RegisterReducer")(1, combiner, identity)
    return te.comm_reducer(combine, lambda dtype: end(str(dtype)), name=combine.__name__)


def join(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """The combination of several expressions, NaN if one is."""
    from tvm import tirx

    dtype, found = str(values[0].ty.dtype), fold(combine, values)
    if dtype not in FLOATS:
        return found
    return tirx.Select(fold(tirx.And, [is_number(v) for v in values]), found, tirx.const(math.nan, dtype))


def fold(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """The values, combined as a balanced tree."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [*(combine(a, b) for a, b in pairs), *(values[-1:] if len(values) % 2 else ())]
    return values[0]


def at_least(value: Any, bound: Any) -> Any:
    """The larger of an expression and a constant; NaN if the expression is."""
    from tvm import tirx

    if str(value.ty.dtype) not in FLOATS:  # TVM refuses some choices by whole numbers that are bound to a name
        return tirx.max(value, bound)
    return tirx.Select(value < bound, bound, value)


def at_most(value: Any, bound: Any) -> Any:
    """The smaller of an expression and a constant; NaN if the expression is."""
    from tvm import tirx

    if str(value.ty.dtype) not in FLOATS:  # TVM refuses some choices by whole numbers that are bound to a name
        return tirx.min(value, bound)
    return tirx.Select(value > bound, bound, value)


def scaled(value: Any, factor: float) -> Any:
    """An expression times a number; NaN if either is, or of infinity and 0, a product that TVM takes for 0."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    if factor:
        return value * tirx.const(factor, dtype)
    finite = tirx.abs(value) < tirx.const(math.inf, dtype)
    return tirx.Select(finite, tirx.const(0, dtype), tirx.const(math.nan, dtype))


def lowest(dtype: str) -> Any:
    """The smallest number: -infinity if the dtype has it."""
    from tvm import tirx

    return tirx.const(-math.inf, dtype) if dtype in FLOATS else tirx.min_value(dtype)


def highest(dtype: str) -> Any:
    """The largest number: infinity if the dtype has it."""
    from tvm import tirx

    return tirx.const(math.inf, dtype) if dtype in FLOATS else tirx.max_value(dtype)


def sort_key(value: Any, *, nan_first: bool = False) -> Any:
    """A signed integer with the order of the expression: NaN last, or first, and both zeros equal."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    if dtype == "uint64":
        return tirx.Cast("int64", value ^ tirx.const(1 << 63, dtype))
    if dtype not in FLOATS:
        wide = "int64" if dtype in ("int64", "uint32") else "int32"
        return value if dtype == wide else tirx.Cast(wide, value)
    bits, size, infinity = _bits(value)
    kind = str(bits.ty.dtype)
    end = tirx.min_value(kind) if nan_first else tirx.max_value(kind)
    return tirx.Select(size > infinity, end, tirx.Select(bits < tirx.const(0, kind), -size, size))


def is_nan(value: Any) -> Any:
    """Return whether an expression is NaN, by its bits, as TVM simplifies `x == x` to true."""
    from tvm import tirx

    if str(value.ty.dtype) not in FLOATS:
        return tirx.const(0, "bool")
    _, size, infinity = _bits(_exact(value))
    return size > infinity


def is_infinite(value: Any) -> Any:
    """Return whether an expression is an infinity."""
    _, size, infinity = _bits(_exact(value))
    return size == infinity


def _exact(value: Any) -> Any:
    """The expression, in float32 for bfloat16: TVM makes that of what computes it, but not of the use of its bits."""
    from tvm import tirx

    return tirx.Cast("float32", value) if str(value.ty.dtype) == "bfloat16" else value


def _bits(value: Any) -> tuple[Any, Any, Any]:
    """The bits of a floating-point expression as a signed integer, those without the sign, and those of infinity."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    width, infinity = _INFINITIES[dtype]
    kind = "int64" if width == 64 else "int32"
    bits = tirx.reinterpret(f"int{width}", value)
    bits = bits if width > 16 else tirx.Cast(kind, bits)
    return bits, bits & tirx.const((1 << (width - 1)) - 1, kind), tirx.const(infinity, kind)


def is_number(value: Any) -> Any:
    """Return whether an expression is not NaN, as a comparison that TVM cannot simplify away."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    if dtype not in FLOATS:
        return tirx.const(1, "bool")
    if dtype == "bfloat16":  # TVM's CUDA source would name its infinity by an undefined name
        value, dtype = tirx.Cast("float32", value), "float32"
    return value <= tirx.const(math.inf, dtype)
