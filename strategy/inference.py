"""Type inference over a call graph: type relations solved to a fixed point."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.expr import Call, Constant, Expr, Tuple, TupleGetItem, Var, post_order
from strategy.op import Op, TypeRelationError, TypeReporter
from strategy.types import Dim, IncompleteType, TensorType, TupleType, Type, may_equal


def infer_type(expr: Expr) -> Type:
    """Solve the type relations of the graph to a fixed point, and return the type of `expr`.

    Types also flow from uses to variables without a type. Afterwards all nodes have a type (`checked_type`).

    Raises:
        TypeRelationError: a conflict (with operator, argument and both types), or a type that
            is not determined.
    """
    nodes = post_order(expr, untyped=True)
    types = _Types(nodes)
    pending = [n for n in nodes if isinstance(n, Call) and n._type is None]
    while pending:
        undecided = [c for c in pending if not types.relate(c)]
        if len(undecided) == len(pending) and not types.changed:
            break
        # Alternate the direction, as types flow both ways.
        pending, types.changed = undecided[::-1], False
    for node in nodes:
        if not is_complete(types[node]):
            raise TypeRelationError(_undetermined(node, nodes))
    for node in nodes:
        node._type = types[node]
    return types[expr]


def is_complete(type: Type) -> bool:
    """Return whether the type is complete."""
    if isinstance(type, TupleType):
        return all(is_complete(f) for f in type.fields)
    return not isinstance(type, IncompleteType)


class _Types:
    """The inferred types; tuples and their entries are views of other nodes' types."""

    def __init__(self, nodes: Sequence[Expr]) -> None:
        self.changed = False
        self._known: dict[Expr, Type] = {}
        for node in nodes:
            if node._type is not None:
                self._known[node] = node._type
            elif isinstance(node, Var | Constant):
                self._known[node] = node.type
            elif isinstance(node, Call):
                self._known[node] = IncompleteType(f"the output of {node.op.name}")

    def __getitem__(self, node: Expr) -> Type:
        if node._type is not None:
            return node._type
        if isinstance(node, Tuple):
            return TupleType([self[f] for f in node.fields])
        if isinstance(node, TupleGetItem):
            whole = self[node.tuple_value]
            if isinstance(whole, IncompleteType):
                return whole
            if not isinstance(whole, TupleType) or node.index >= len(whole.fields):
                raise TypeRelationError(f"{node.tuple_value!r} is {whole}: it has no entry {node.index}")
            return whole.fields[node.index]
        return self._known[node]

    def relate(self, node: Call) -> bool:
        """Run the relation of one call; return True once it is solved."""
        before = [*(self[a] for a in node.args), self[node]]
        reporter = TypeReporter(node.op, before)
        decided = node.op.solve(reporter, node.attrs)
        for target, old, new in zip((*node.args, node), before, reporter.types, strict=True):
            if old is not new:
                self._learn(node.op, target, new)
        return decided and all(is_complete(self[n]) for n in (*node.args, node))

    def _learn(self, op: Op, node: Expr, found: Type) -> None:
        if isinstance(node, Tuple) and isinstance(found, TupleType):
            for entry, type in zip(node.fields, found.fields, strict=True):
                self._learn(op, entry, type)
        elif not isinstance(node, TupleGetItem):
            known = self._known[node]
            if not is_complete(known):
                self._known[node] = _computed(found)
                self.changed = True
            elif not may_equal(known, found):  # a variable as two arguments of a call
                raise TypeRelationError(f"{op.name}: {node!r} is {known}, but must be {found}")


def _computed(type: Type) -> Type:
    """The type with its constant extents as numbers: the terms that they come from grow with a graph's depth."""
    if isinstance(type, TupleType):
        return TupleType([_computed(f) for f in type.fields])
    if not isinstance(type, TensorType) or all(d.op in ("const", "var") or not d.is_constant for d in type.shape):
        return type
    return TensorType([Dim(int(d)) if d.is_constant else d for d in type.shape], type.dtype)


def _undetermined(node: Expr, nodes: Sequence[Expr]) -> str:
    user = next((n for n in nodes if isinstance(n, Call) and node in n.args), None)
    where = ""
    if user is not None:
        where = f", {user.argument(user.args.index(node))} of {user.op.name},"
    remedy = "give it a type" if isinstance(node, Var) else "give its variables types"
    return f"nothing determines the type of {node!r}{where}: {remedy}"
