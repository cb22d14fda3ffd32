"""Elementary functions of ONNX."""

from __future__ import annotations

from plevel.onnx.node import Node, register
from strategy.expr import Expr, call
from strategy.network.layer import number


@register("Shrink")
def _shrink(node: Node, x: Expr) -> Expr:
    """Elements nearer to 0, by `bias`, and 0 within `lambd` of it."""
    bound, bias = node.get("lambd", 0.5), number(node.get("bias", 0.0), x)
    below, above = call("less", x, number(-bound, x)), call("less", number(bound, x), x)
    nearer = call("where", above, call("subtract", x, bias), number(0, x))
    return call("where", below, call("add", x, bias), nearer)


@register("Sinh", "Cosh")
def _hyperbolic(node: Node, x: Expr) -> Expr:
    """From exp of half the element, whose square may overflow only where the result does; sinh by tanh near 0."""
    if node.type == "Sinh":
        half = call("tanh", call("multiply", x, number(0.5, x)))
        square = call("multiply", half, half)
        near = call("divide", call("add", half, half), call("subtract", number(1, x), square))
        return call("where", call("less", call("abs", x), number(1, x)), near, _exponentials(x, "subtract"))
    return _exponentials(x, "add")


def _exponentials(x: Expr, name: str) -> Expr:
    halves = (call("exp", call("multiply", x, number(f, x))) for f in (0.5, -0.5))
    each = [call("multiply", call("multiply", h, number(0.5, x)), h) for h in halves]
    return call(name, *each)
