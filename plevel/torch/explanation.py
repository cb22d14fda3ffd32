"""Reports of compiled graphs: which kernels are in place, and why."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from plevel.torch.extraction import Extracted
from plevel.torch.plan import Plan
from plevel.torch.verdict import Verdict
from plevel.torch.whole import Whole
from strategy.confirmation import Part
from strategy.select import Selection
from strategy.workload import Workload
from strategy.workload_text import parse_workload

# With the tensors of their graphs, which are not held: a report ends with the first of them.
_reports: list[tuple[Report, tuple[weakref.ref[torch.Tensor], ...]]] = []
MAX_REPORTS = 256


@dataclass(frozen=True)
class Report:
    """The answer for one graph: its workloads, what is not covered, and what was timed.

    `note` says why the graph was left to Inductor as a whole, and is empty where it was not. `failed` has the workloads
    without a kernel.
    """

    rows: tuple[Part, ...] = ()
    missed: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    note: str = ""
    parameters: frozenset[int] = frozenset()
    failed: frozenset[Workload] = frozenset()

    @property
    def replaced(self) -> int:
        """Number of kernels of plevel that one call of the graph runs."""
        return sum(row.occurrences for row in self.rows if row.implementation)

    def __str__(self) -> str:
        lines = [self.note] if self.note else []
        for row in self.rows:
            lines.append(f"{row.occurrences:3d} x {100 * row.share:5.1f} %  {row.workload}")
            lines.append(f"{'':13}  {row.implementation or 'Inductor'}: {row.reason}")
        lines += [
            f"{'':6}{100 * share:5.1f} %  {name}: not covered"
            for name, share in self.missed.items()
        ]
        for step in self.verdict.steps if self.verdict else ():
            form = "as one library of" if step.whole else "with" if step.added else "without"
            what = f"{form} {', '.join(step.workloads)}"
            interval = f"{step.ratio.low_s:.3f} to {step.ratio.high_s:.3f}"
            done = "kept" if step.kept else "not kept"
            pool = f" on {self.verdict.pool}" if self.verdict and self.verdict.pool else ""
            lines.append(
                f"timed{pool}: {step.ratio.median_s:.3f} of the time before ({interval}), {done}: {what}"
            )
        if self.verdict and self.verdict.apart:
            lines.append(f"no library of its own: {self.verdict.apart}")
        return "\n".join(lines)


def make_report(
    plan: Plan, kept: frozenset[Workload], verdict: Verdict | None, model: Any, inputs: Sequence[Any] = ()
) -> Report:
    """The report of a graph that Inductor compiled."""
    total = plan.extraction.flops or 1
    rows, failed = [], set()
    taken: Counter[Workload] = Counter()
    for found in plan.extraction.workloads:
        taken.update(found.parts if found.workload in kept else {})
    for found in plan.extraction.workloads:
        left = found.occurrences - taken[found.workload]
        config = None
        if not left:
            name, why = "", "each is merged with others of the same operand"
        elif error := plan.errors.get(found.workload) or (verdict.errors.get(found.workload.key) if verdict else None):
            name, why = "", error
            failed.add(found.workload)
        elif found.workload not in plan.selections:
            name, why = "", "Inductor keeps a reduction whose kernel has not been measured"
        elif found.workload in kept:
            kernel = plan.kernels[found.workload]
            name, why = kernel.implementation, kernel.explanation
            config = kernel.selection.config if isinstance(kernel.selection, Selection) else None
        else:
            name, why = "", _left(found, verdict)
        rows.append(
            Part(
                workload=found.workload, occurrences=left or found.occurrences, share=plan.extraction.share(found),
                implementation=name, reason=why, config=config,
            )
        )
    missed = {m.name: m.flops / total for m in plan.extraction.missed}
    return Report(tuple(rows), missed, verdict, parameters=owned(model, inputs), failed=frozenset(failed))


def _left(found: Extracted, verdict: Verdict | None) -> str:
    """The reason why Inductor keeps a workload that has a kernel."""
    if verdict is None:
        apart = "its products are not measured to be slower apart"
        return apart if found.parts else "Inductor fuses it with its neighbours, and it was not timed"
    if verdict.refused:
        return verdict.refused
    if found.workload.key in verdict.told:
        return verdict.told[found.workload.key]
    if found.workload.key in verdict.differing:
        return "the graph's outputs differ from Inductor's with it"
    if any(found.workload.key in step.workloads for step in verdict.steps):
        return "the whole graph is not faster with it"
    return f"it was not timed: {verdict.ended}" if verdict.ended else "it was not timed"


def report_whole(whole: Whole, verdict: Verdict, model: Any) -> Report:
    """The report of a graph that is one library: its workloads, the largest share of the arithmetic first."""
    steps = {s.workload: s for s in whole.manifest.steps if s.workload}
    count = Counter(s.workload for s in whole.manifest.steps if s.workload)
    rows = []
    for key, step in steps.items():
        workload = parse_workload(key)
        share = count[key] * (workload.flops or 0) / (verdict.flops or 1)
        rows.append(
            Part(
                workload=workload, occurrences=count[key], share=share, implementation=step.implementation or "",
                reason=step.because or step.reason or "", config=step.config,
            )
        )
    ordered = tuple(sorted(rows, key=lambda row: -row.share))
    return Report(ordered, {}, verdict, parameters=owned(model))


def owned(model: Any, inputs: Sequence[Any] = ()) -> frozenset[int]:
    """The identities of a module's parameters and buffers."""
    return frozenset(id(t) for t in _tensors(model, inputs))


def note(report: Report, model: Any, inputs: Sequence[Any] = ()) -> None:
    """Keeps a report for as long as the model's parameters live."""
    _reports.append((report, tuple(weakref.ref(t) for t in _tensors(model, inputs))))
    del _reports[:-MAX_REPORTS]


def _tensors(model: Any, inputs: Sequence[Any]) -> list[Any]:
    """A graph's parameters and buffers; where they are not frozen, they are inputs that Dynamo calls static."""
    static = (i for i in inputs if hasattr(i, "_dynamo_static_input_type"))
    return [*model.parameters(), *model.buffers(), *static]


def explain(model: Any = None) -> tuple[Report, ...]:
    """The reports of the graphs compiled for a model, or of all where none is named, in the order of compiling."""
    _reports[:] = [(r, tensors) for r, tensors in _reports if all(t() is not None for t in tensors)]
    wanted = owned(model) if isinstance(model, torch.nn.Module) else None
    return tuple(r for r, _ in _reports if wanted is None or r.parameters & wanted)
