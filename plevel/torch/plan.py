"""Kernels for the sites of a frozen graph: selected by the database, built, and put in place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from plevel.torch.extraction import Extraction, extract_graph
from plevel.torch.kernel import Kernel, build
from plevel.torch.node import extents
from plevel.torch.replacement import replace
from plevel.torch.site import find_sites
from plevel.torch.store import digest_of
from strategy.host import cpu_model
from strategy.op_strategy import candidates
from strategy.select import Database, SelectionError, select
from strategy.target import Target, cpu_target
from strategy.workload import Workload


@dataclass(frozen=True)
class Plan:
    """Possible replacements in a graph, with their kernels.

    Args:
        kernels: by workload.
        errors: the reasons of workloads that have no kernel.
        key: digest of the graph, the kernels, the machine, its threads and PyTorch's version.
    """

    extraction: Extraction
    kernels: Mapping[Workload, Kernel]
    errors: Mapping[Workload, str]
    key: str

    def apply(self, module: GraphModule, kept: Collection[Workload]) -> None:
        """Puts the kernels of these workloads into a frozen form of the graph."""
        sites = [s for s in find_sites(module) if s.workload in kept]
        replace(module, {site: self.kernels[site.workload] for site in sites})

    def families(self) -> list[frozenset[Workload]]:
        """The workloads by operator, the largest share of the arithmetic first."""
        by_op: dict[str, list[Workload]] = {}
        shares: dict[str, float] = {}
        for found in self.extraction.workloads:
            if found.workload in self.kernels:
                op = found.workload.op
                by_op.setdefault(op, []).append(found.workload)
                shares[op] = shares.get(op, 0.0) + self.extraction.share(found)
        return [frozenset(by_op[op]) for op in sorted(by_op, key=lambda op: -shares[op])]


def model_target() -> Target:
    """This host with the threads that PyTorch uses."""
    return cpu_target().with_threads(torch.get_num_threads())


def make_plan(module: GraphModule, database: Database) -> Plan:
    """The kernels that the database selects for a frozen graph, built."""
    extraction = extract_graph(module)
    target = model_target()
    selections, errors = [], {}
    for found in extraction.workloads:
        # A library with threads of its own would take the cores from PyTorch's.
        offered = [c for c in candidates(found.workload, target) if c.library is None]
        try:
            selections.append(select(found.workload, target, database, offered=offered))
        except SelectionError as error:
            errors[found.workload] = str(error)
    kernels, failed = build(selections)
    key = digest_of(
        _text(module), sorted(k.digest for k in kernels.values()), cpu_model(), target.threads, str(torch.__version__)
    )  # fmt: skip
    return Plan(extraction, kernels, errors | failed, key)


def _text(module: GraphModule) -> list[str]:
    """The graph's calls with the shapes that they give, whatever the nodes are called."""
    place = {node: i for i, node in enumerate(module.graph.nodes)}

    def show(node: torch.fx.Node) -> str:
        args = torch.fx.map_arg((node.args, node.kwargs), lambda n: f"%{place[n]}")
        target = node.target if node.op == "call_function" else ""
        value = node.meta.get("val")
        shape = extents(node) if isinstance(value, torch.Tensor) else ""
        return f"{node.op} {target} {args} {shape}"

    return [show(node) for node in module.graph.nodes]
