"""Products of one left operand as one product, their constant weights one after the other.

The queries, keys and values of attention, and both halves of a gated layer: the operand is read once, and
threads start once. Which form is faster is decided by confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule, Node

from plevel.torch.anchor import Reader, find_calls
from plevel.torch.node import Origin
from plevel.torch.site import Site, make_site
from strategy.expr import Call, Constant, call


def find_merged(module: GraphModule) -> list[Site]:
    """The sites of a graph that compute several products, in the graph's order."""
    alike: dict[tuple[Origin, tuple[str, ...]], list[Node]] = {}
    for node in module.graph.nodes:
        reader = Reader(module)
        calls = find_calls(reader, node)
        if calls is not None and calls[0].op.name == "dense" and _is_linear(calls):
            names = tuple(c.op.name for c in calls)
            alike.setdefault((reader.sources[calls[0].args[0]], names), []).append(node)
    return [_merge(Reader(module), nodes) for nodes in alike.values() if len(nodes) > 1]


def _is_linear(calls: Sequence[Call]) -> bool:
    """Return whether the product is of a constant weight, with a constant bias or none."""
    return all(c.op.name in ("dense", "bias_add") and isinstance(c.args[1], Constant) for c in calls)


def _merge(reader: Reader, nodes: Sequence[Node]) -> Site:
    first, *biases = zip(*(find_calls(reader, node) or () for node in nodes), strict=True)
    calls = [call("dense", first[0].args[0], reader.join([c.args[1] for c in first]))]
    for bias in biases:
        calls.append(call("bias_add", calls[0], reader.join([c.args[1] for c in bias]), axis=1))
    return make_site(reader, calls, tuple(nodes), tuple(nodes))
