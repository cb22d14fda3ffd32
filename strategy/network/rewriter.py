"""A network's calls in a normal form: from its inputs on, each call by the first rule that changes it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.expr import Call, Constant, Expr, Tuple, TupleGetItem, call, post_order
from strategy.network.graph import Network
from strategy.op import Op, TOpPattern

PRODUCTS = frozenset({"dense", "conv2d"})  # whose second input has the outputs' channels first


def extents(node: Expr) -> tuple[int, ...]:
    return node.tensor_type.concrete_shape


class Rewriter:
    """The normal forms of a network's nodes; `uses` counts their readers, which `readers` has as they were before."""

    def __init__(self, network: Network, rules: Sequence[Rule]) -> None:
        self.names: dict[Expr, str] = {}
        self.uses: Counter[Expr] = Counter()
        self.readers: defaultdict[Expr, list[Expr]] = defaultdict(list)
        self._rules = rules
        self._made: dict[Expr, Expr] = {}
        nodes = post_order(network.root)
        before: defaultdict[Expr, list[Expr]] = defaultdict(list)
        for node in nodes:
            for i in node.inputs:
                before[i].append(node)
        for node in nodes[:-1]:
            found = self._rebuilt(node)
            self._made[node] = found
            self.uses[found] += len(before[node])
            self.readers[found] += before[node]
            if node in network.names:
                self._name(found, network.names[node])

    def of(self, node: Expr) -> Expr:
        return self._made[node]

    def _name(self, node: Expr, name: str) -> None:
        """Name a node, and what it only shows in another shape."""
        self.names.setdefault(node, name)
        if isinstance(node, Call) and node.op.name == "reshape":
            self._name(node.args[0], name)

    def _rebuilt(self, node: Expr) -> Expr:
        inputs = [self._made[i] for i in node.inputs]
        if isinstance(node, Call):
            for i in inputs:
                self.uses[i] -= 1  # of the node that is now rebuilt
            found = self.call(node.op, inputs, node.attrs)
            for i in inputs:
                self.uses[i] += 1
            return found
        if isinstance(node, TupleGetItem):
            return inputs[0].fields[node.index] if isinstance(inputs[0], Tuple) else TupleGetItem(inputs[0], node.index)
        return Tuple(inputs) if isinstance(node, Tuple) else node

    def call(self, op: Op, args: list[Expr], attrs: Attrs, without: Rule | None = None) -> Expr:
        """The normal form of a call whose arguments have theirs."""
        plain = Call(op, args, attrs)
        for rule in self._rules:
            found = None if rule is without else rule(self, plain)
            if found is not None:
                return found
        return plain

    def make(self, name: str, *args: Expr, **attrs: Any) -> Expr:
        made = call(name, *args, **attrs)
        return self.call(made.op, list(made.args), made.attrs)

    def reshaped(self, node: Expr, shape: tuple[int, ...]) -> Expr:
        while isinstance(node, Call) and node.op.name == "reshape":
            node = node.args[0]
        if extents(node) == shape:
            return node
        if isinstance(node, Constant):
            return Constant(node.value.reshape(shape))
        return call("reshape", node, newshape=shape)

    def is_only(self, node: Expr) -> bool:
        """Return whether nobody else reads the node."""
        return self.uses[node] <= 0


Rule = Callable[[Rewriter, Call], Expr | None]


def behind(node: Expr) -> Expr | None:
    """The node that a reshape shows in another shape."""
    return node.args[0] if isinstance(node, Call) and node.op.name == "reshape" else None


def is_product(node: Expr | None) -> bool:
    """Return whether the node is a product with what may be its epilogue."""
    patterns = (TOpPattern.kElemWise, TOpPattern.kBroadcast)
    while isinstance(node, Call) and node.op.get_attr("TOpPattern") in patterns:
        node = node.args[0]
    return isinstance(node, Call) and node.op.name in (*PRODUCTS, "batch_matmul", "qconv2d", "qdense")
