"""Groups of calls that become one function: an anchor, and the elementwise operators after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from strategy.expr import Call, Constant, Expr, Tuple, TupleGetItem, post_order
from strategy.op import TOpPattern
from strategy.types import TensorType, TupleType, Type
from strategy.workload import EpilogueStep, Input, Workload

# Patterns that can take an epilogue, and patterns that can be one.
_HEADS = frozenset(
    {TOpPattern.kElemWise, TOpPattern.kBroadcast, TOpPattern.kInjective, TOpPattern.kOutEWiseFusable}
)
_EPILOGUES = frozenset({TOpPattern.kElemWise, TOpPattern.kBroadcast})
_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum"})
# Of one function: the time to build it grows with the square of its calls. No call has more than two operands beside
# the value so far, so this bounds the function's inputs, too.
MOST_CALLS = 64


@dataclass
class Group:
    """Calls that are compiled as one function: the anchor, then its epilogue in order."""

    calls: list[Call] = field(default_factory=list)

    @property
    def anchor(self) -> Call:
        return self.calls[0]

    @property
    def output(self) -> Call:
        """The call whose value the function returns."""
        return self.calls[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """The operators that the function computes."""
        return tuple(c.op.name for c in self.calls)

    def moved(self, twin: Mapping[Expr, Expr]) -> Group:
        """The same calls in another graph."""
        calls = [twin[c] for c in self.calls]
        return Group([c for c in calls if isinstance(c, Call)])


def fuse(
    expr: Expr, may_join: Callable[[Group, Call], bool] = lambda group, call: True
) -> list[Group]:
    """The functions of a typed graph, in an order in which they can run.

    An anchor (`kOutEWiseFusable`), or a chain of elementwise and broadcast operators, takes the elementwise and
    broadcast operators that follow it, as long as intermediate values have no other use and the shape stays the
    same, and `may_join` allows it: at most `MOST_CALLS` with itself.
    """
    nodes = post_order(expr)
    uses: dict[Expr, set[Expr | None]] = {n: set() for n in nodes}
    uses[expr].add(None)
    for node in nodes:
        for i in node.inputs:
            uses[i].add(node)
    groups: list[Group] = []
    ends: dict[Expr, Group] = {}
    for node in nodes:
        if not isinstance(node, Call):
            continue
        group = _extendable(node, ends, uses, may_join)
        if group is None:
            group = Group()
            groups.append(group)
        else:
            del ends[group.output]
        group.calls.append(node)
        ends[node] = group
    # A group runs at the position of its last call, when its other inputs are computed.
    place = {node: i for i, node in enumerate(nodes)}
    return sorted(groups, key=lambda g: place[g.output])


def _extendable(
    node: Call,
    ends: dict[Expr, Group],
    uses: dict[Expr, set[Expr | None]],
    may_join: Callable[[Group, Call], bool],
) -> Group | None:
    """The group that `node` joins: preferably one with an anchor, else the first that ends in an input."""
    if node.op.get_attr("TOpPattern") not in _EPILOGUES or not isinstance(node.checked_type, TensorType):
        return None
    found = [
        ends[arg]
        for arg in node.args
        if arg in ends
        and uses[arg] == {node}
        and ends[arg].anchor.op.get_attr("TOpPattern") in _HEADS
        and isinstance(arg.checked_type, TensorType)
        and _same_shape(arg.checked_type, node.checked_type)
        and len(ends[arg].calls) < MOST_CALLS
        and may_join(ends[arg], node)
    ]
    anchored = [g for g in found if g.anchor.op.get_attr("TOpPattern") == TOpPattern.kOutEWiseFusable]
    return next(iter(anchored or found), None)


def _same_shape(a: TensorType, b: TensorType) -> bool:
    return a.ndim == b.ndim and all(d.same(e) or (d == e).decide() for d, e in zip(a.shape, b.shape, strict=True))


Operand = tuple[Expr, int | None]
"""A node, with an index if it is a tuple."""


def type_of(operand: Operand) -> Type:
    node, index = operand
    kind = node.checked_type
    if index is None:
        return kind
    assert isinstance(kind, TupleType)
    return kind.fields[index]


def tensor_type_of(operand: Operand) -> TensorType:
    kind = type_of(operand)
    assert isinstance(kind, TensorType)
    return kind


def describe(
    group: Group, show: Callable[[Type], str] = str
) -> tuple[Workload, dict[str, Operand]]:
    """The workload of a group, its inputs' types as `show` has them, and where each comes from.

    Equal calculations have equal workloads: the value so far is the first operand of an operator whose
    operands may be exchanged.
    """
    sources: dict[str, Operand] = {}

    def take(name: str, operand: Operand) -> Input:
        sources[name] = operand
        return Input(name, show(type_of(operand)), isinstance(operand[0], Constant))

    anchor = group.anchor
    inputs: list[Input] = []
    for place, arg in enumerate(anchor.args):
        name = anchor.argument(place)
        if isinstance(arg.checked_type, TupleType):
            inputs += [take(f"{name}.{i}", entry) for i, entry in enumerate(_entries(arg))]
        else:
            inputs.append(take(name, resolve(arg)))
    steps = []
    for place, call in enumerate(group.calls[1:]):
        before = group.calls[place]
        args = list(call.args)
        if call.op.name in _COMMUTATIVE:
            args.sort(key=lambda arg: arg is not before)
        operands = [
            None if arg is before else take(f"{call.op.name}{place}.{call.argument(i)}", resolve(arg))
            for i, arg in enumerate(args)
        ]
        steps.append(EpilogueStep(call.op.name, tuple(operands), call.attrs.to_json()))
    return Workload.make(anchor.op.name, inputs, anchor.attrs, epilogue=steps), sources


def resolve(node: Expr) -> Operand:
    """The node whose value contains that of `node`: for a tuple's entry, the tuple."""
    node = peel(node)
    return (peel(node.tuple_value), node.index) if isinstance(node, TupleGetItem) else (node, None)


def peel(node: Expr) -> Expr:
    """The node itself; for an entry of a `Tuple`, that entry."""
    while isinstance(node, TupleGetItem) and isinstance(whole := peel(node.tuple_value), Tuple):
        node = whole.fields[node.index]
    return node


def _entries(node: Expr) -> Sequence[Operand]:
    node = peel(node)
    if isinstance(node, Tuple):
        return [resolve(f) for f in node.fields]
    kind = node.checked_type
    assert isinstance(kind, TupleType)
    return [(node, i) for i in range(len(kind.fields))]
