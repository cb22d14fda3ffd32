"""The symbolic sizes of an exported program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import gcd
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from strategy.expr import Constant, Expr, Var, call, post_order
from strategy.network import layer
from strategy.network.extent import Extent, Symbol
from strategy.network.graph import NetworkError
from strategy.network.size import MOST, NAMES, PROBED
from strategy.reference import evaluate
from strategy.types import TensorType

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Binding = Mapping[Any, int]
"""The values of symbols."""
_OF_FLOATS = {
    "CeilToInt": "ceil", "FloatPow": "power", "FloatTrueDiv": "divide", "FloorToInt": "floor", "IntTrueDiv": "divide",
    "OpaqueUnaryFn_sqrt": "sqrt", "Pow": "power", "RoundToInt": "round", "ToFloat": "cast",
}
_FUNCTIONS = _OF_FLOATS | {
    "Add": "add", "CleanDiv": "floor_divide", "FloorDiv": "floor_divide", "Max": "maximum", "Min": "minimum",
    "Mod": "floor_mod", "Mul": "multiply", "PythonMod": "floor_mod",
}
"""Functions of SymPy and of PyTorch's shapes as plevel's; those of `_OF_FLOATS` are computed in float64."""
_DIVISIONS = ("CleanDiv", "FloatTrueDiv", "FloorDiv", "IntTrueDiv", "Mod", "PythonMod")


def find_symbols(program: ExportedProgram) -> tuple[Any, ...]:
    """The symbolic sizes of a program, in the order of its inputs' axes.

    Raises:
        NetworkError: there are too many, or an extent depends on values.
    """
    symbols: dict[Any, None] = {}
    for node, axis, expression in _sizes_in(program):
        free = sorted(expression.free_symbols, key=str)
        if any(map(is_of_values, free)):
            raise NetworkError(
                f"axis {axis} of {node.name} has the size {expression}, which depends on values: a library takes "
                "sizes of its inputs' axes alone"
            )
        symbols |= dict.fromkeys(free)
    if len(symbols) > len(NAMES):
        listed = ", ".join(map(str, symbols))
        raise NetworkError(f"{len(symbols)} symbolic sizes ({listed}): a library takes at most {len(NAMES)}, fix some")
    return tuple(symbols)


def find_extents(program: ExportedProgram, symbols: Sequence[Any]) -> list[Extent]:
    """The extents of a program's values that depend on its symbolic sizes.

    Raises:
        NetworkError: an extent is no sum of products of sizes, and of quotients of such sums by numbers.
    """
    known = {s: Extent.of(Symbol(place, name)) for place, (s, name) in enumerate(zip(symbols, NAMES, strict=False))}
    ranges = {symbol: ValueRanges(*range_of(program, symbol)) for symbol in symbols}
    found: dict[Any, Extent] = {}
    for node, axis, expression in _sizes_in(program):
        try:
            found[expression] = found.get(expression) or _extent(expression, known, ranges)
        except ValueError as error:
            raise NetworkError(
                f"axis {axis} of {node.name} has the symbolic size {expression}, and a library takes sums of products "
                "of sizes and of their quotients by numbers: export the model with this one fixed"
            ) from error
    return list(found.values())


def find_bounds(program: ExportedProgram, symbols: Sequence[Any]) -> list[tuple[Extent, int, int]]:
    """The sums of sizes that PyTorch has bounds for, beyond those of each size: the least and the greatest value."""
    known = {s: Extent.of(Symbol(place, name)) for place, (s, name) in enumerate(zip(symbols, NAMES, strict=False))}
    ranges = {symbol: program.range_constraints[symbol] for symbol in symbols}
    found = []
    for formula, own in program.range_constraints.items():
        if formula.is_Symbol or not formula.free_symbols <= ranges.keys():
            continue
        free, extent = bound_sympy(formula, ranges), _extent(formula, known, ranges)
        least, most = (extent.at([range_of(program, s)[end] for s in symbols]) for end in (0, 1))
        low = int(own.lower) if own.lower > free.lower else least
        high = int(own.upper) if own.upper < free.upper else most
        if (low, high) != (least, most):
            found.append((extent, low, high))
    return found


def _sizes_in(program: ExportedProgram) -> Iterator[tuple[Any, int, Any]]:
    """The symbolic extents of the values of a program: their nodes, axes and formulas."""
    for node in program.graph.nodes:
        for axis, extent in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if not isinstance(extent, int) and not extent.node.expr.is_number:
                yield node, axis, extent.node.expr


def _extent(expression: Any, known: Mapping[Any, Extent], ranges: Mapping[Any, Any]) -> Extent:
    extent, divisor = _formula(expression, known, ranges)
    if divisor != 1:
        raise ValueError(f"{extent} divided by {divisor} is no integer")
    return extent


def _formula(expression: Any, known: Mapping[Any, Extent], ranges: Mapping[Any, Any]) -> tuple[Extent, int]:
    """A formula of PyTorch's as an extent and what it is divided by.

    Floats are exact numbers: a quotient of an integer below 2⁵³ is rounded to no integer that it is not.

    Raises:
        ValueError: it has other functions, or divides by a size.
    """
    if expression.is_Symbol:
        return known[expression], 1
    if expression.is_number:
        value = Fraction(float(expression)) if expression.is_Float else Fraction(int(expression.p), int(expression.q))
        return Extent.number(value.numerator), value.denominator
    name, operands = type(expression).__name__, expression.args
    if name in ("Max", "Min"):
        sign = 1 if name == "Max" else -1
        for one in operands:
            if all(bound_sympy(sign * (one - other), ranges).lower >= 0 for other in operands):
                return _formula(one, known, ranges)
        raise ValueError(f"{name} depends on the call")
    (first, divisor), *others = [_formula(operand, known, ranges) for operand in operands]
    if name in ("ToFloat", "Identity"):
        return first, divisor
    if name in ("FloorToInt", "TruncToInt"):
        return first // divisor, 1
    if name == "CeilToInt":
        return (first + divisor - 1) // divisor, 1
    if name == "RoundToInt":
        return first.rounded(divisor), 1
    if name in ("Pow", "PowByNatural") and operands[1].is_Integer and operands[1] > 0:
        name, others = "Mul", [(first, divisor)] * (int(operands[1]) - 1)
    if name == "Add":
        for more, by in others:
            first, divisor = first * by + more * divisor, divisor * by
        return _reduced(first, divisor)
    if name == "Mul":
        for more, by in others:
            first, divisor = first * more, divisor * by
        return _reduced(first, divisor)
    if name in ("CleanDiv", "FloorDiv") and (times := first.multiple(others[0][0])) and divisor == others[0][1] == 1:
        return Extent.number(times), 1
    if name in _DIVISIONS and not others[0][0].variables and (by := others[0][0].at(())) > 0:
        dividend, divisor = first * others[0][1], divisor * by
        if name.endswith("TrueDiv"):
            return _reduced(dividend, divisor)
        return (dividend % divisor if name.endswith("Mod") else dividend // divisor), 1
    raise ValueError(f"{name} has no form as an extent")


def _reduced(extent: Extent, divisor: int) -> tuple[Extent, int]:
    common = gcd(divisor, *(factor for _, factor in extent.terms))
    return extent // common, divisor // common


def range_of(program: ExportedProgram, symbol: Any) -> tuple[int, int]:
    """The least and the greatest value; PyTorch says 2 where it means 1, and calls such programs with 1."""
    found = program.range_constraints[symbol]
    low = int(found.lower)
    return 1 if low <= 2 else low, min(int(found.upper), MOST) if found.upper.is_Integer else MOST


def is_of_values(symbol: Any) -> bool:
    """Return whether a symbol stands for a number that is not known until the values are computed."""
    return bool(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)))


def known(size: Any, at: Binding) -> Any:
    """A number of the program where its symbols have values."""
    if not isinstance(size, SYMBOLIC):
        return size
    found = size.node.expr.subs(at)
    if any(map(is_of_values, found.free_symbols)):
        raise NetworkError(f"the number {size}, such as of .item(), depends on values: keep it a tensor")
    kinds: dict[type, Any] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(size)](found)


class Computed:
    """A number that depends on symbolic sizes: a type of numbers as well, of its value where they are probes.

    Args:
        made: the number, as a library computes it at the call.
    """

    made: Expr


class _Integer(Computed, int):
    pass


class _Real(Computed, float):
    pass


def read_number(size: Any, at: Binding) -> Any:
    """As `known`; `Computed` where the number depends on sizes, and plevel has the functions that it is made of."""
    value = known(size, at)
    if type(value) is bool or not size.node.expr.free_symbols:
        return value
    found = _Integer(value) if isinstance(value, int) else _Real(value)
    try:
        found.made = _made(size.node.expr, at)
    except KeyError:
        return value
    return found


def _made(expression: Any, at: Binding) -> Expr:
    """A formula of sizes as a tensor without axes: int64, or float64 where it is no integer."""
    if expression.is_Symbol:
        return layer.count(at[expression], Constant(np.zeros((), "int64")))
    if expression.is_number:
        return Constant(np.asarray(int(expression) if expression.is_Integer else float(expression)))
    name, operands = type(expression).__name__, expression.args
    if name in ("Pow", "PowByNatural") and operands[1].is_Integer and operands[1] > 0:
        name, operands = "Mul", operands[:1] * int(operands[1])
    found = [_made(operand, at) for operand in operands]
    if name in _OF_FLOATS or any(v.tensor_type.dtype == "float64" for v in found):
        found = [call("cast", v, dtype="float64") for v in found]
    if name == "ToFloat":
        return found[0]
    first, *more = found
    return reduce(lambda x, y: call(_FUNCTIONS[name], x, y), more, first) if more else call(_FUNCTIONS[name], first)


def constant_of(value: Expr) -> np.ndarray | None:
    """A value, such as an index, that depends on no input; None for others."""
    for node in post_order(value):
        kind = node.checked_type
        if isinstance(node, Var) or (isinstance(kind, TensorType) and kind.size >= PROBED):
            return None
    return np.asarray(evaluate(value, {}))


def resized(x: torch.Tensor, like: torch.Tensor, at: Binding) -> torch.Tensor:
    """An example input with the extents of `like` at values of the symbols."""
    for axis, extent in enumerate(like.shape):
        x = x.index_select(axis, torch.arange(known(extent, at)) % x.shape[axis])
    return x
