"""Operands of products behind what only moves their elements."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from strategy.expr import Call, Constant, Expr
from strategy.network.movement import axes_of
from strategy.network.rewriter import Rewriter, extents

VIEWS = frozenset({"reshape", "transpose"})


def source_of(node: Expr, moves: Container[str]) -> tuple[Expr, Sequence[Call]]:
    """The value that operators of these names move, and their calls, the first one first."""
    found: list[Call] = []
    while isinstance(node, Call) and node.op.name in moves:
        found.insert(0, node)
        node = node.args[0]
    return node, found


def moved(x: Expr, moves: Sequence[Call]) -> Expr:
    for move in moves:
        x = Call(move.op, [x], move.attrs)
    return x


def moved_array(array: Any, views: Sequence[Call]) -> Any:
    """An array in the shape that views give to its source."""
    for view in views:
        axes = axes_of(view)
        array = array.reshape(extents(view)) if axes is None else array.transpose(axes)
    return array


def fold_operand(rewriter: Rewriter, node: Call) -> Expr | None:
    """A constant for a view of one, or for its cast to other integers."""
    (source, *_) = node.args or (None,)
    if not isinstance(source, Constant):
        return None
    if node.op.name in VIEWS:
        return Constant(moved_array(source.value, (node,)))
    is_whole = node.op.name == "cast" and source.value.dtype.kind in "iu" and "int" in node.tensor_type.dtype
    return Constant(source.value.astype(node.tensor_type.dtype)) if is_whole else None
