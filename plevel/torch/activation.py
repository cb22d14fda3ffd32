"""Activations of a value in a frozen graph, as PyTorch decomposes them and as people write them.

What is computed from one value and numbers alone is read as a formula, `div(x,add(exp(neg(x)),1.0))`, and
compared with those of plevel's operators. PyTorch computes those of 16 bits in float32, between two conversions.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.fx import Node

from plevel.torch.node import CONVERT, dtype, extents, is_alike, is_call
from strategy.expr import Call, call

MOST = 16  # nodes of one formula

_NUMBER = r"-?[\d.]+(?:e[+-]\d+)?"
_CUBE = r"(?:mul\(mul\(x,x\),x\)|pow\(x,3\.0\))"
_INNER = rf"mul\(add\(mul\({_CUBE},0\.044715\),x\),0\.797884\d*\)"
_SOFTPLUS = r"where\(gt\(x,20\.0\),x,log1p\(exp\(x\)\)\)"
_CLIPPED = r"clamp_max\(clamp_min\(add\(x,3\.0\),0\.0\),6\.0\)"
_FORMULAS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (r"relu\(x\)", "relu", {}),
    (r"sigmoid\(x\)", "sigmoid", {}),
    (r"tanh\(x\)", "tanh", {}),
    (rf"clamp_max\(clamp_min\(x,(?P<a_min>{_NUMBER})\),(?P<a_max>{_NUMBER})\)", "clip", {}),
    (r"mul\(add\(erf\(mul\(x,0\.7071067\d*\)\),1\.0\),mul\(x,0\.5\)\)", "gelu", {}),
    (rf"mul\(add\(tanh\({_INNER}\),1\.0\),mul\(x,0\.5\)\)", "gelu", {"approximate": "tanh"}),
    (r"div\(x,add\(exp\(neg\(x\)\),1\.0\)\)|mul\(sigmoid\(x\),x\)", "silu", {}),
    (rf"div\(mul\({_CLIPPED},x\),6\.0\)", "hardswish", {}),
    (rf"div\({_CLIPPED},6\.0\)", "hardsigmoid", {"alpha": 1 / 6}),
    (rf"where\(gt\(x,0\.0\),x,mul\(x,(?P<alpha>{_NUMBER})\)\)", "leaky_relu", {}),
    (rf"mul\(tanh\({_SOFTPLUS}\),x\)", "mish", {}),
)


def find_activation(value: Call, node: Node) -> tuple[Call, Node] | None:
    """The longest activation of a node's value, and the node that it ends in."""
    cone = _cone(node)
    for last in reversed(cone):
        formula = _formula(last, node)
        if not is_alike(last, node):
            continue
        for pattern, name, attrs in _FORMULAS:
            found = re.fullmatch(pattern, formula)
            if found and _is_closed(last, node):
                read = {key: float(number) for key, number in found.groupdict().items()}
                if name == "clip":  # of bounds out of order the upper one counts
                    read["a_min"] = min(read["a_min"], read["a_max"])
                return call(name, value, **attrs, **read), last
    return None


def _cone(node: Node) -> list[Node]:
    """The nodes that are computed from this one and numbers alone, each after its inputs."""
    found = [node]
    for member in found:  # grows meanwhile
        found += [
            user
            for user in member.users
            if user not in found and user.op == "call_function" and not user.kwargs
            and isinstance(user.meta.get("val"), torch.Tensor) and extents(user) == extents(node)
            and set(user.all_input_nodes) <= set(found)
        ]
        if len(found) > MOST:
            break
    return found[1:]


def _formula(last: Node, x: Node) -> str:
    """The value of a node of the cone of `x` as text; the operands of sums and products in one order."""

    def show(given: Any) -> str:
        if given is x:
            return "x"
        if isinstance(given, Node):
            return _formula(given, x)
        return str(float(given)) if isinstance(given, int | float) else f"?{given}"

    if is_call(last, CONVERT) and last.args[1] in (torch.float32, dtype(x)):
        return show(last.args[0])
    args = [show(arg) for arg in last.args]
    name = getattr(last.target, "overloadpacket", last.target).__name__
    if name in ("add", "mul"):
        args.sort(key=lambda text: (not text[-1].isalpha() and text[-1] != ")", text))
    return f"{name}({','.join(args)})"


def _is_closed(last: Node, x: Node) -> bool:
    """Return whether no node between both is read elsewhere."""
    inside, waiting = {x}, [last]
    while waiting:
        node = waiting.pop()
        if node not in inside:
            inside.add(node)
            waiting += node.all_input_nodes
    return all(set(node.users) <= inside for node in inside - {last})
