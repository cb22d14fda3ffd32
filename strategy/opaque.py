"""Expressions that TVM's simplifier does not see through.

It takes floating-point numbers for real ones: `x - x` is 0, `x == x` is true, `0 * x` and `0 / x` are 0, and one of two
opposite comparisons holds. A divisor that it knows to be 0 ends the process. LLVM knows NaN and sees through what is
here: the machine code stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strategy.cpu.binding import CHOICE, LOAD, is_inlined
from strategy.order import FLOATS, width

_NOT, _NUMBER, _ZERO = range(3)  # constant


def opaque(value: Any) -> Any:
    """An expression of floating-point numbers by its bits."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    return tirx.reinterpret(dtype, tirx.reinterpret(f"int{width(dtype)}", value))


def opaque_truth(condition: Any) -> Any:
    """A comparison of numbers of which one may be NaN: then neither it nor its opposite holds."""
    from tvm import tirx

    return tirx.Select(condition, tirx.const(1, "bool"), tirx.const(0, "bool"))


def factor(tensor: Any) -> Any:
    """A TE tensor that is multiplied or divided, opaque where TVM may find that an element is 0."""
    return _hidden(tensor) if _may_be_zero(tensor) else tensor


def divisor(tensor: Any) -> Any:
    """A TE tensor that divides, opaque unless its elements are read from memory."""
    return _hidden(tensor) if is_inlined(tensor) else tensor


def _hidden(tensor: Any) -> Any:
    from tvm import te, topi

    if str(tensor.dtype) not in FLOATS:
        return tensor
    return te.compute(tensor.shape, lambda *i: opaque(tensor(*i)), name="opaque", tag=topi.tag.ELEMWISE)


def _may_be_zero(tensor: Any) -> bool:
    return is_inlined(tensor) and _constant(tensor(*(axis.var for axis in tensor.op.axis)), {}) == _ZERO


def _constant(value: Any, met: dict[Any, int]) -> int:
    """The kind of constant that an expression may become once a condition in it is decided.

    Args:
        met: the kinds of the TE tensors and of the bound names that were met.
    """
    from tvm import tirx

    def most(parts: Iterable[Any]) -> int:
        return max(_constant(part, met) for part in parts)

    if isinstance(value, tirx.FloatImm | tirx.IntImm):
        return _NUMBER if value.value else _ZERO
    if isinstance(value, tirx.Select):
        return most([value.true_value, value.false_value])
    if isinstance(value, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div):
        kinds = _constant(value.a, met), _constant(value.b, met)
        if isinstance(value, tirx.Add | tirx.Sub):
            return _NOT if _NOT in kinds else _ZERO  # a sum of two numbers may be 0
        return _ZERO if _ZERO in kinds else min(kinds)
    if isinstance(value, tirx.Cast):
        # Comparisons and whole numbers may be decided, too.
        return _constant(value.value, met) if str(value.value.ty.dtype) in FLOATS else _ZERO
    if isinstance(value, tirx.Let):
        met[value.var] = _constant(value.value, met)
        return _constant(value.body, met)
    if isinstance(value, tirx.Var):
        return met.get(value, _NOT)
    name = getattr(getattr(value, "op", None), "name", "")
    if name == LOAD:
        if not is_inlined(value.args[0]):
            return _NOT
        made = value.args[0].op
        if made not in met:
            met[made] = most(made.body)
        return met[made]
    if name.endswith(CHOICE):
        return most(value.args[1:])
    # TVM computes some functions of a number that it knows, as its `ceil`.
    return _ZERO if name and all(_constant(arg, met) != _NOT for arg in value.args) else _NOT
