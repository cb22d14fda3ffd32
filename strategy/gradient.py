"""Gradients: reverse mode over the call graph, with one rule per operator.

    @register_gradient("multiply")
    def multiply_grad(orig, grad):
        x, y = orig.args
        return [collapse_sum_like(grad * y, x), collapse_sum_like(grad * x, y)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from strategy.condition import ExpressionError
from strategy.expr import (
    Call,
    Expr,
    ExprError,
    Tuple,
    TupleGetItem,
    call,
    free_vars,
    post_order,
)
from strategy.inference import infer_type
from strategy.op import register_op_attr
from strategy.types import TensorType, TupleType, Type, may_equal

F = TypeVar("F", bound=Callable[..., object])
GradientRule = Callable[[Call, Expr], Sequence[Expr | None]]


class GradientError(ValueError):
    """A graph cannot be differentiated; the message names the operator."""


def register_gradient(
    name: str, rule: GradientRule | None = None, level: int = 10
) -> Callable[[F], F]:
    """Register `rule(orig, grad) -> [expression per input]`: `rule`, or what it decorates.

    `orig` is the call, with the arguments `orig.args`; `grad` is the derivative with respect to its output, a tuple if
    the output is one. The results have the types of the inputs; None: no gradient (indices, conditions).
    """
    return register_op_attr(name, "FPrimalGradient", rule, level)


def gradient(
    expr: Expr, wrt: Sequence[Expr] | None = None, seed: Expr | None = None, *, partial: bool = False
) -> list[Expr]:
    """The derivatives of the sum of `expr`'s elements with respect to each of `wrt`.

    Args:
        expr: one tensor.
        wrt: the nodes to differentiate by; default: all variables of the graph.
        seed: the weights of the elements, of the type of `expr`; default: ones.
        partial: nodes of `wrt` are independent of each other, as a rule's derivatives by its call's arguments.

    Raises:
        GradientError: an operator has no gradient, its rule returns a wrong type, or needs extents that are symbolic.
        TypeRelationError: the graph has a conflict of types.
    """
    infer_type(expr)
    if isinstance(expr.checked_type, TupleType):
        raise GradientError(f"{expr!r} is {expr.checked_type}: take the gradient of one tensor")
    sources = list(free_vars(expr) if wrt is None else wrt)
    order = post_order(expr)
    reaches = set(sources)
    for node in order:
        if any(i in reaches for i in node.inputs):
            reaches.add(node)
    adjoints = _Adjoints()
    if expr in reaches:
        adjoints.add(expr, call("ones_like", expr) if seed is None else seed)
    for node in reversed(order):
        if node not in reaches or not adjoints.has(node) or (partial and node in sources):
            continue
        if _is_empty(node.checked_type):
            continue  # nothing depends on it
        if isinstance(node, TupleGetItem):
            adjoints.add_field(node.tuple_value, node.index, adjoints.of(node))
        elif isinstance(node, Tuple):
            whole = adjoints.of(node)
            for index, entry in enumerate(node.fields):
                adjoints.add(entry, _field(whole, index))
        elif isinstance(node, Call):
            _through(node, adjoints, reaches)
    return [adjoints.of(s) if adjoints.has(s) else call("zeros_like", s) for s in sources]


def _through(node: Call, adjoints: _Adjoints, reaches: set[Expr]) -> None:
    """Add a call's contribution to the adjoints of its arguments."""
    rule: GradientRule | None = node.op.get_attr("FPrimalGradient")
    if rule is None:
        raise GradientError(f"{node.op.name} has no gradient: register one with register_gradient")
    if all(_is_empty(arg.checked_type) for arg in node.args if arg in reaches):
        return
    try:
        found = list(rule(node, adjoints.of(node)))
    except (ExprError, ExpressionError) as error:  # as of a symbolic extent
        raise GradientError(f"the gradient of {node.op.name}: {error}") from error
    if len(found) != len(node.args):
        raise GradientError(
            f"the gradient of {node.op.name} gives {len(found)} expressions for {len(node.args)} inputs"
        )
    for index, (arg, derivative) in enumerate(zip(node.args, found, strict=True)):
        if derivative is None or arg not in reaches:
            continue
        if not may_equal(derivative.checked_type, arg.checked_type):
            raise GradientError(
                f"the gradient of {node.op.name} for {node.argument(index)} is "
                f"{derivative.checked_type}, but the input is {arg.checked_type}"
            )
        adjoints.add(arg, derivative)


def _is_empty(kind: Type) -> bool:
    """Return whether a tensor has an extent of 0, or all tensors of a tuple."""
    if isinstance(kind, TupleType):
        return all(map(_is_empty, kind.fields))
    return isinstance(kind, TensorType) and any(d.is_constant and int(d) == 0 for d in kind.shape)


class _Adjoints:
    """The accumulated derivative of each node; by entry for tuples."""

    def __init__(self) -> None:
        self._found: dict[tuple[Expr, int | None], Expr] = {}
        self._tuples: set[Expr] = set()

    def has(self, node: Expr) -> bool:
        return (node, None) in self._found or node in self._tuples

    def add(self, node: Expr, derivative: Expr) -> None:
        if isinstance(node.checked_type, TupleType):
            for index in range(len(node.checked_type.fields)):
                self.add_field(node, index, _field(derivative, index))
        else:
            self._accumulate((node, None), derivative)

    def add_field(self, node: Expr, index: int, derivative: Expr) -> None:
        self._tuples.add(node)
        self._accumulate((node, index), derivative)

    def _accumulate(self, key: tuple[Expr, int | None], derivative: Expr) -> None:
        known = self._found.get(key)
        self._found[key] = derivative if known is None else known + derivative

    def of(self, node: Expr) -> Expr:
        kind = node.checked_type
        if not isinstance(kind, TupleType):
            return self._found[node, None]
        fields = []
        for index in range(len(kind.fields)):
            known = self._found.get((node, index))
            fields.append(call("zeros_like", _field(node, index)) if known is None else known)
        return Tuple(fields)


def _field(node: Expr, index: int) -> Expr:
    return node.fields[index] if isinstance(node, Tuple) else TupleGetItem(node, index)
