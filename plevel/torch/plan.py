"""Kernels for the sites of a frozen graph: selected by the database, built, and put in place."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

import torch
from torch.fx import GraphModule

from plevel.client import ServiceError, UnreachableError
from plevel.kernel_selection import Choose, Chosen, measured_s
from plevel.torch.extraction import Extracted, Extraction, extract_graph
from plevel.torch.kernel import Kernel, build, kernel_digest
from plevel.torch.merging import find_merged
from plevel.torch.node import extent_of, extents
from plevel.torch.reduction import REDUCTIONS
from plevel.torch.replacement import replace
from plevel.torch.site import find_sites
from plevel.torch.store import compiler_code, digest_of
from service.errors import DatabaseError
from strategy.host import cpu_model
from strategy.target import Target, cpu_target
from strategy.workload import Workload
from workers.pool import Ask

SMALL = 0.05  # of the arithmetic
SINGLES = 4  # workloads that are tried by themselves


@dataclass(frozen=True)
class Plan:
    """Possible replacements in a graph, with the selections of their kernels.

    Args:
        refused: the reasons of workloads that nothing can be selected for.
        graph: digest of the graph.
        key: digest of the graph, the kernels, the machine, its threads, and the versions of PyTorch and plevel.
        ask: has children build kernels.
        kernels: those that were built so far.
    """

    extraction: Extraction
    selections: Mapping[Workload, Chosen]
    refused: Mapping[Workload, str]
    target: Target
    graph: str
    key: str
    ask: Ask
    kernels: dict[Workload, Kernel] = field(default_factory=dict, init=False)
    _failed: dict[Workload, str] = field(default_factory=dict, init=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @property
    def has_products(self) -> bool:
        """True if there is something to time: kernels, or products that only a library has kernels for."""
        return bool(self.selections or self.extraction.missed)

    @property
    def errors(self) -> Mapping[Workload, str]:
        """The reasons of workloads without a selection, and of those whose kernel could not be built so far."""
        return {**self.refused, **self._failed}

    def build(self, wanted: Iterable[Workload]) -> frozenset[Workload]:
        """Those of the workloads, which have selections, that there is a kernel of; it is built by the first who asks.

        Raises:
            ScratchError, TimeoutError: the disk is full, or no time is left.
        """
        asked = frozenset(wanted)
        with self._lock:  # one thread builds ahead of the other
            if missing := asked.difference(self.kernels, self._failed):
                kernels, failed = build((s for w, s in self.selections.items() if w in missing), self.ask)
                self.kernels.update(kernels)
                self._failed.update(failed)
        return asked.intersection(self.kernels)

    def apply(self, module: GraphModule, kept: Collection[Workload]) -> None:
        """Puts the kernels of these workloads into a frozen form of the graph; a merged product before its parts."""
        if not kept:
            return
        wanted = self.extraction.merged.intersection(kept)
        merged = [s for s in find_merged(module) if s.workload in wanted]
        taken = {node for site in merged for node in site.anchors}
        single = [
            s for s in find_sites(module) if s.workload in kept and taken.isdisjoint(s.anchors)
        ]
        replace(module, {site: self.kernels[site.workload] for site in (*merged, *single)})

    def families(self) -> list[frozenset[Workload]]:
        """The workloads by operator, the largest share first; those that merge products; those without arithmetic.

        An operator with a small share goes with the first. Their kernels are built.
        """
        built, merged = self.build(self.selections), self.extraction.merged
        by_op: dict[str, list[Workload]] = {}
        shares: dict[str, float] = {}
        for found in self.extraction.workloads:
            if found.workload in built and found.workload not in merged:
                op = found.workload.op
                by_op.setdefault(op, []).append(found.workload)
                shares[op] = shares.get(op, 0.0) + self.extraction.share(found)
        ops = sorted(by_op, key=lambda op: -shares[op])
        # Each family costs a compilation: softmax, norms and reductions, without a share of the arithmetic, are one.
        families: dict[str, list[Workload]] = {}
        for op in ops:
            name = op if shares[op] >= SMALL else ops[0] if shares[op] else ""
            families.setdefault(name, []).extend(by_op[op])
        others = families.pop("", [])
        made = [*map(frozenset, families.values()), merged & built, frozenset(others)]
        return [family for family in made if family]

    def singles(self, families: Collection[frozenset[Workload]]) -> list[frozenset[Workload]]:
        """The workloads to try by themselves: the largest of families that have more than one."""
        several = frozenset[Workload]().union(*(f for f in families if len(f) > 1))
        large = [
            frozenset([found.workload])
            for found in sorted(self.extraction.workloads, key=self.extraction.share, reverse=True)
            if found.workload in several and self.extraction.share(found) >= SMALL
        ]
        return large[:SINGLES]

    def preferred(self) -> frozenset[Workload]:
        """The workloads to replace where nothing is timed.

        Products are merged where that was measured to be faster; softmax, norms and reductions, which Inductor fuses
        with their neighbours, are left to it.
        """
        times = {w: measured_s(selection) for w, selection in self.selections.items()}

        def is_slower(found: Extracted) -> bool:
            apart = sum(n * times.get(part, math.nan) for part, n in found.parts.items())
            return not found.occurrences * times.get(found.workload, math.nan) < apart

        slower = {f.workload for f in self.extraction.workloads if f.parts and is_slower(f)}
        fused = {f.workload for f in self.extraction.workloads if not f.flops}
        return frozenset(self.selections) - slower - fused


def model_target() -> Target:
    """This host with the threads that PyTorch uses, of OpenMP."""
    return cpu_target().with_threads(torch.get_num_threads()).in_network()


def make_plan(module: GraphModule, choose: Choose, ask: Ask) -> Plan:
    """The chosen kernels of a frozen graph; reductions have one where it has been measured.

    Raises:
        UnreachableError, ServiceError, DatabaseError: none could be chosen, as the records cannot be read.
    """
    extraction = extract_graph(module)
    target = model_target()
    selections: dict[Workload, Chosen] = {}
    refused = {}
    away: Exception | None = None
    for found in extraction.workloads:
        try:
            chosen = choose(found.workload)
        except Exception as error:  # a strategy's, for this workload alone, or of the records
            refused[found.workload] = str(error)
            if isinstance(error, UnreachableError | ServiceError | DatabaseError):
                away = away or error
        else:
            if found.workload.op not in REDUCTIONS or not math.isnan(measured_s(chosen)):
                selections[found.workload] = chosen
    if away is not None and not selections:
        raise away
    graph = graph_digest(module)
    key = digest_of(
        graph, sorted(map(kernel_digest, selections.values())), cpu_model(), target.threads, str(torch.__version__),
        compiler_code(),
    )
    return Plan(extraction, selections, refused, target, graph, key, ask)


def graph_digest(module: GraphModule) -> str:
    """Digest of a graph's calls with the shapes and dtypes that they give, whatever the nodes are called."""
    place: dict[torch.fx.Node, int] = {}

    def show(node: torch.fx.Node) -> str:
        # Constants by their first use, wherever they stand.
        args = torch.fx.map_arg((node.args, node.kwargs), lambda n: f"%{place.setdefault(n, len(place))}{_kind(n)}")
        place.setdefault(node, len(place))
        return f"{node.op} {node.target if node.op == 'call_function' else ''} {args} {_kind(node)}{_strides(node)}"

    return digest_of([show(node) for node in module.graph.nodes if node.op != "get_attr"])


def _strides(node: torch.fx.Node) -> str:
    """Those of an input: a library copies it where it is not contiguous."""
    value = node.meta.get("val")
    if node.op != "placeholder" or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return ""
    return f" {tuple(map(extent_of, value.stride()))}"


def _kind(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{extents(node)}"
    branch = getattr(node.graph.owning_module, node.target, None) if node.op == "get_attr" else None
    return graph_digest(branch) if isinstance(branch, GraphModule) else ""
