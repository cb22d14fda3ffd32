"""Nodes of ONNX, and the table of the functions that make them calls of plevel's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx.helper

from strategy.expr import Constant, Expr
from strategy.network.extent import Extent
from strategy.network.graph import NetworkError
from strategy.network.size import Sizes

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


class Node:
    """A node's attributes, the version of its operator set, and the model's symbolic sizes if it has any.

    `count` is the number of its outputs, unnamed ones included. To `limits` a node adds pairs of extents, of which the
    first must be at most the second, whatever the sizes; to `known` extents that no operator's type tells. `parts` has
    for each input the arrays of its parts of sizes, or None.
    """

    def __init__(
        self, node: Any, opsets: Mapping[str, int], sizes: Sizes | None, limits: list[tuple[int, int]],
        parts: Sequence[Any] = (),
    ) -> None:
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self.type = node.op_type
        self.version = opsets.get(node.domain or "ai.onnx", 1)
        self.count = len(node.output)
        self.sizes, self.limits, self.parts = sizes, limits, parts
        self.known: list[Extent] = []

    def get(self, name: str, default: Any = None) -> Any:
        found = self._attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def require(self, name: str) -> Any:
        if name not in self._attributes:
            raise NetworkError(f"its attribute {name} is missing: export the model with it")
        return self._attributes[name]


def register(*names: str) -> Callable[[Operator], Operator]:
    def decorate(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return decorate


def constant(value: Expr | None, what: str) -> Any:
    """The value of an input that must be constant."""
    if not isinstance(value, Constant):
        raise NetworkError(f"{what} is not constant")
    return value.value


def integers(node: Node, name: str, value: Expr | None) -> list[int] | None:
    """Integers that newer versions take as an input, and older ones as an attribute."""
    given = node.get(name) if value is None else constant(value, name).reshape(-1).tolist()
    return None if given is None else [int(i) for i in given]
