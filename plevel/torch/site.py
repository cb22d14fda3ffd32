"""Places in a frozen graph that one kernel of plevel can compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from plevel.torch.anchor import Reader, find_anchor
from plevel.torch.epilogue import extend
from plevel.torch.node import Source
from strategy.compile.fusion import Group, describe
from strategy.workload import Workload


@dataclass(frozen=True, eq=False)
class Site:
    """A product in a graph, with the operators after it that its kernel computes too.

    Args:
        anchor: the node of the product itself.
        output: the last node that the kernel computes.
        shape: of the kernel's output; `output` may have its elements in another shape.
        sources: by the names of the workload's inputs.
    """

    workload: Workload
    anchor: Node
    output: Node
    shape: tuple[int, ...]
    sources: Mapping[str, Source]


def find_sites(module: GraphModule) -> list[Site]:
    """The sites of a graph whose nodes have their values' types (`meta["val"]`), in the graph's order."""
    found: list[Site] = []
    claimed: set[Node] = set()
    for node in module.graph.nodes:
        reader = Reader(module)
        anchor = find_anchor(reader, node)
        if anchor is None:
            continue
        calls, output = extend(reader, anchor, claimed)
        workload, operands = describe(Group(list(calls)))
        sources = {name: reader.sources[expr] for name, (expr, _) in operands.items()}
        shape = tuple(int(extent) for extent in calls[-1].tensor_type.shape)
        found.append(Site(workload, node, output, shape, sources))
    return found
