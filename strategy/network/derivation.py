"""Extents of a network's values: by the type relations of its operators, and by its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add, floordiv, mod, mul, sub
from typing import Any

from strategy.expr import Call, Constant, Expr, post_order
from strategy.network.extent import Extent
from strategy.network.graph import Network
from strategy.network.size import Sizes
from strategy.types import Dim, TensorType, TupleType, Type

_OPERATIONS: Mapping[str, Callable[[Any, Any], Extent]] = {"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod}


def derive_all(root: Expr, sizes: Sizes, but: Iterable[Expr] = (), *, twin: Expr | None = None) -> Sizes:
    """The sizes with the extents of all calls that a node depends on, except nodes of `but`, known; see `derive`."""
    nodes = post_order(root, but=but)
    twins: Sequence[Expr | None] = [None] * len(nodes)
    if twin is not None and _are_alike(nodes, others := post_order(twin)):
        twins = others
    for node, other in zip(nodes, twins, strict=True):
        sizes = sizes.knowing(derive(node, sizes, other)) if isinstance(node, Call) else sizes
    return sizes


def name_extents(network: Network, twin: Network) -> None:
    """Give the types of two networks of the same calls, at other probes, their extents for names (`Sizes.named`)."""
    sizes, other = network.sizes, twin.sizes
    nodes, twins = (post_order(*each.inputs, each.root) for each in (network, twin))
    if sizes is None or other is None or not _are_alike(nodes, twins):
        return  # what differs depends on the sizes, which `require_twin` refuses

    def named(kind: Type, theirs: Type, sizes: Sizes) -> Type:
        if isinstance(kind, TupleType) and isinstance(theirs, TupleType):
            pairs = zip(kind.fields, theirs.fields, strict=True)
            return TupleType([named(mine, their, sizes) for mine, their in pairs])
        assert isinstance(kind, TensorType)
        assert isinstance(theirs, TensorType)
        return sizes.named(kind, theirs)

    kinds = [(a.checked_type, b.checked_type) for a, b in zip(nodes, twins, strict=True)]
    for node, theirs, (kind, their) in zip(nodes, twins, kinds, strict=True):
        if not isinstance(node, Constant):
            node._type, theirs._type = named(kind, their, sizes), named(their, kind, other)


def _are_alike(nodes: Sequence[Expr], twins: Sequence[Expr]) -> bool:
    """Return whether two networks have calls of the same operators, with results of the same ranks."""
    return [_form(node.checked_type, node) for node in nodes] == [_form(node.checked_type, node) for node in twins]


def _form(kind: Type, node: Expr) -> Any:
    fields = kind.fields if isinstance(kind, TupleType) else (kind,)
    ranks = [t.ndim if isinstance(t, TensorType) else None for t in fields]
    return type(node), node.op.name if isinstance(node, Call) else None, ranks


def derive(call: Call, sizes: Sizes, twin: Expr | None = None) -> list[Extent]:
    """The extents of a call's result that depend on symbolic sizes, as far as its operator has formulas for them.

    Args:
        twin: the same call in the network's twin.
    """
    names: dict[str, Extent] = {}

    def symbolic(kind: Type, theirs: Type | None) -> Type:
        if isinstance(kind, TupleType):
            others = theirs.fields if isinstance(theirs, TupleType) else [None] * len(kind.fields)
            return TupleType([symbolic(field, other) for field, other in zip(kind.fields, others, strict=True)])
        assert isinstance(kind, TensorType)
        assert theirs is None or isinstance(theirs, TensorType)
        shape: list[int | str] = []
        for extent in sizes.encoded(kind, theirs):
            shape.append(extent if isinstance(extent, int) else f"m{len(names)}")
            names.update({} if isinstance(extent, int) else {str(shape[-1]): extent})
        return TensorType(shape, kind.dtype)

    others = [None] * len(call.args) if twin is None else [arg.checked_type for arg in twin.inputs]
    given = [symbolic(arg.checked_type, other) for arg, other in zip(call.args, others, strict=True)]
    if not names:
        return []
    try:
        made = call.op.infer_type(given, call.attrs)
    except ValueError:  # it has an attribute for a symbolic size
        return []
    found = [(i, _extent(formula, names)) for i, formula in enumerate(_dims(made)) if not formula.is_constant]
    known = [(_dims(call.checked_type), sizes.probes)]
    known += [] if twin is None else [(_dims(twin.checked_type), sizes.twin)]
    return [e for i, e in found if e is not None and all(e.at(probes) == int(dims[i]) for dims, probes in known)]


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
