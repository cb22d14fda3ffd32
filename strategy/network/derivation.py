"""Extents of a network's values by the type relations of its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import add, floordiv, mod, mul, sub
from typing import Any

from strategy.expr import Call, Expr, post_order
from strategy.network.extent import Extent
from strategy.network.size import Sizes
from strategy.types import Dim, TensorType, TupleType, Type

_OPERATIONS: Mapping[str, Callable[[Any, Any], Extent]] = {"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod}


def derive_all(root: Expr, sizes: Sizes, but: Iterable[Expr] = ()) -> Sizes:
    """The sizes with the extents of all calls that a node depends on, except nodes of `but`, known; see `derive`."""
    for node in post_order(root, but=but):
        sizes = sizes.knowing(derive(node, sizes)) if isinstance(node, Call) else sizes
    return sizes


def derive(call: Call, sizes: Sizes) -> list[Extent]:
    """The extents of a call's result that depend on symbolic sizes, as far as its operator has formulas for them."""
    names: dict[str, Extent] = {}

    def symbolic(kind: Type) -> Type:
        if isinstance(kind, TupleType):
            return TupleType([symbolic(field) for field in kind.fields])
        assert isinstance(kind, TensorType)
        shape: list[int | str] = []
        for extent in sizes.encoded(kind):
            shape.append(extent if isinstance(extent, int) else f"m{len(names)}")
            names.update({} if isinstance(extent, int) else {str(shape[-1]): extent})
        return TensorType(shape, kind.dtype)

    given = [symbolic(arg.checked_type) for arg in call.args]
    if not names:
        return []
    try:
        made = call.op.infer_type(given, call.attrs)
    except ValueError:  # it has an attribute for a symbolic size
        return []
    pairs = zip(_dims(made), _dims(call.checked_type), strict=True)
    found = [(_extent(formula, names), int(actual)) for formula, actual in pairs if not formula.is_constant]
    return [extent for extent, actual in found if extent is not None and extent.at(sizes.probes) == actual]


def _dims(kind: Type) -> list[Dim]:
    if isinstance(kind, TupleType):
        return [dim for field in kind.fields for dim in _dims(field)]
    return list(kind.shape) if isinstance(kind, TensorType) else []


def _extent(formula: Any, names: Mapping[str, Extent]) -> Extent | None:
    if formula.value is not None:
        return Extent.number(int(formula.value))
    if formula.op == "var":
        return names.get(formula.args[0])
    operands = [found for operand in formula.args if (found := _extent(operand, names)) is not None]
    if formula.op not in _OPERATIONS or len(operands) < 2:
        return None
    first, second = operands
    if formula.op not in ("//", "%"):
        return _OPERATIONS[formula.op](first, second)
    return None if second.variables else _OPERATIONS[formula.op](first, second.at(()))
