"""Places in a frozen graph that one kernel of plevel can compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from plevel.torch.anchor import Reader, find_calls, shape_of
from plevel.torch.epilogue import extend
from plevel.torch.node import Extent, Origin, extents
from plevel.torch.reduction import read_reduction
from strategy.compile.fusion import Group, describe
from strategy.expr import Call
from strategy.workload import Workload


@dataclass(frozen=True, eq=False)
class Site:
    """Products in a graph, with the operators after them that one kernel computes too; or a norm, or a reduction.

    Args:
        anchors: the nodes of the products themselves, one, or several merged into one; of others the last node.
        outputs: the last nodes that the kernel computes, side by side in its output if they are several.
        shape: of the kernel's output; the only one of `outputs` may have its elements in another shape.
        sources: by the names of the workload's inputs.
        extents: by the names of the workload's symbolic dimensions.
    """

    workload: Workload
    anchors: tuple[Node, ...]
    outputs: tuple[Node, ...]
    shape: tuple[Extent, ...]
    sources: Mapping[str, Origin]
    extents: Mapping[str, Extent]


def find_sites(module: GraphModule) -> list[Site]:
    """The sites of one anchor each, of a graph whose nodes have their values' types (`meta["val"]`), in order."""
    found: dict[Node, Site] = {}
    claimed: set[Node] = set()
    for node in module.graph.nodes:
        reader = Reader(module)
        product = find_calls(reader, node)
        if product is not None and node not in claimed:
            calls, output = extend(reader, product, node, claimed)
            found[node] = make_site(reader, calls, (node,), (output,))
    stored = {site.outputs[0] for site in found.values()}
    for node in module.graph.nodes:
        reader = Reader(module)
        reduction = read_reduction(reader, node, stored)
        if reduction is not None:
            found[node] = make_site(reader, reduction, (node,), (node,))
    return [found[node] for node in module.graph.nodes if node in found]


def make_site(
    reader: Reader, calls: Sequence[Call], anchors: tuple[Node, ...], outputs: tuple[Node, ...]
) -> Site:
    workload, operands = describe(Group(list(calls)))
    sources = {name: reader.sources[expr] for name, (expr, _) in operands.items()}
    shape = shape_of(anchors[0])
    if len(anchors) > 1:
        shape = *shape[:-1], sum(int(extents(node)[-1]) for node in anchors)
    symbols = {name: extent for extent, name in reader.names.items()}
    return Site(workload, anchors, outputs, shape, sources, symbols)
