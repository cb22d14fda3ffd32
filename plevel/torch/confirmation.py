"""Confirmation in context: the whole graph timed with kernels and without, and the verdict kept on disk.

A kernel that is faster alone may lose in a graph, by conversions of layouts, caches and threads. So ours
stay only where the graph is faster beyond the interval of its measurement: family by family, then as one
library, else workload by workload.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from plevel.kernel_selection import Choose
from plevel.torch.node import hint
from plevel.torch.plan import Plan
from plevel.torch.store import folder, touch
from plevel.torch.whole import Whole, is_current
from strategy.confirmation import Comparison
from strategy.fault import CompileError
from strategy.network.graph import NetworkError
from strategy.record import Estimate, estimate
from strategy.table import show_number
from strategy.workload import Workload

ROUNDS = 15
LEAST_ROUNDS = 7
BURST_S = 0.02
LIMIT_S = 10.0  # of one comparison, once it has the least rounds
SHARE = 0.05  # of the arithmetic that a workload needs to be tried by itself
WORKLOADS = 4  # tried by themselves
TOLERANCE = 1e-3  # relative error of an output, between two ways of summing

Compiled = Callable[..., Any]
Kept = frozenset[Workload]


class Timed(NamedTuple):
    """The ratio of the times of a call, new to old, and both medians."""

    ratio: Estimate
    old_s: float
    new_s: float


class Verdict(msgspec.Struct, frozen=True):
    """The workloads whose kernels stay in a graph, by key, and the comparisons that said so.

    `before_s` and `after_s` are the times of a call by Inductor alone and with all that stay, in turns; `pool`
    names the threads that ran all of them. `whole`: the graph is one library of plevel's, `apart` says why it is not.
    `library` has the digests of the kernels of the library that was timed, by workload.
    """

    kept: tuple[str, ...]
    steps: tuple[Comparison, ...] = ()
    refused: str = ""
    pool: str = ""
    before_s: float | None = None
    after_s: float | None = None
    whole: bool = False
    apart: str = ""
    library: dict[str, str] = {}


def read_verdict(plan: Plan, choose: Choose) -> Verdict | None:
    """The verdict on the same graph, kernels, machine, threads and versions; None where there is none.

    Args:
        choose: selects a workload's kernel; where another is selected now than was timed in the graph's library,
            the verdict is void.
    """
    with suppress(OSError, msgspec.MsgspecError, ValueError):
        touch(_path(plan))
        verdict = msgspec.json.decode(_path(plan).read_bytes(), type=Verdict)
        if is_current(verdict.library, choose):
            return verdict
    return None


def write_verdict(plan: Plan, verdict: Verdict) -> None:
    partial = _path(plan).with_suffix(".part")
    partial.write_bytes(msgspec.json.encode(verdict))
    partial.replace(_path(plan))


def _path(plan: Plan) -> Path:
    return folder() / f"verdict-{plan.key}.json"


def confirm(
    plan: Plan,
    make: Callable[[Kept], Compiled],
    make_whole: Callable[[], Whole],
    inputs: Sequence[Any],
    buffers: Sequence[Any],
) -> tuple[Compiled, Whole | None, Verdict]:
    """The fastest form of the graph that was found, its library if it is one, and why.

    Args:
        make: compiles the graph with the kernels of these workloads in place.
        make_whole: compiles the graph as one library; whatever it raises is why there is none.
        inputs: what the graph is called with; it is called with copies, and one that changes them replaces nothing.
        buffers: the model's state, which a call may change: it is put back then, and nothing is replaced.
    """
    alone = make(frozenset())
    given = [_copy(i) if isinstance(i, torch.Tensor) else hint(i) for i in inputs]
    expected, changed = _call(alone, given, buffers)
    if changed:
        return alone, None, Verdict((), refused="the graph changes the model's buffers, so it is not timed")
    if any(isinstance(i, torch.Tensor) and not torch.equal(g, i) for g, i in zip(given, inputs, strict=True)):
        return alone, None, Verdict((), refused="the graph changes its inputs, so it is not timed")
    best, kept = alone, frozenset[Workload]()
    steps: list[Comparison] = []
    won: list[Timed] = []

    def exchange_each(sets: Iterable[Kept]) -> bool:
        """Exchange what is faster for it; return whether all outputs agree."""
        nonlocal best, kept
        for exchanged in sets:
            wanted = kept ^ exchanged
            candidate = make(wanted)
            found, _ = _call(candidate, given, buffers)
            if not _agree(found, expected):
                return False
            timed = compare(best, candidate, given)
            steps.append(_step(timed, (w.key for w in exchanged), added=exchanged <= wanted))
            if steps[-1].kept:
                best, kept = candidate, wanted
                won.append(timed)
        return True

    families = plan.families()
    if not exchange_each(families):
        return alone, None, Verdict((), tuple(steps), refused="its outputs differ from Inductor's")
    whole: Whole | None = None
    library: dict[str, str] = {}
    apart = _misfit(alone, given)
    made: Whole | None = None
    if not apart:
        try:
            made = make_whole()
            library = made.kernels(plan.target)
            found, _ = _call(made.call, given, buffers)
            if _agree(found, expected):
                timed = compare(best, made.call, given)
                steps.append(_step(timed, (s.workload for s in made.manifest.steps if s.workload), whole=True))
                if steps[-1].kept:
                    made.keep()
                    best, whole = made.call, made
                    won.append(timed)
                else:
                    apart = "it is not faster as one library"
            else:
                apart = "the outputs of its library differ from Inductor's"
        except Exception as error:  # kernels stay without it
            known = isinstance(error, NetworkError | CompileError)
            apart = str(error) if known else f"{type(error).__name__}: {error}"
        finally:
            if made:
                made.sweep()
    # Each costs a compilation, of a form that a library replaces.
    if whole is None and not exchange_each(_singles(plan, families)):
        return alone, None, Verdict((), tuple(steps), refused="its outputs differ from Inductor's")
    # What was exchanged first was compared with Inductor alone; a sum of exchanges was not.
    total = compare(alone, best, given) if len(won) > 1 else won[0] if won else None
    before_s = total.old_s if total else steps[0].before_s if steps else None
    pool = f"openmp, {show_number(torch.get_num_threads(), 'thread')}"
    return best, whole, Verdict(
        tuple(sorted(w.key for w in kept)), tuple(steps), pool=pool, before_s=before_s,
        after_s=total.new_s if total else before_s, whole=whole is not None, apart=apart, library=library,
    )  # fmt: skip


def _step(timed: Timed, workloads: Iterable[str], *, added: bool = True, whole: bool = False) -> Comparison:
    return Comparison(
        workloads=tuple(sorted(set(workloads))), added=added, ratio=timed.ratio, before_s=timed.old_s,
        after_s=timed.new_s, kept=timed.ratio.high_s < 1, whole=whole,
    )  # fmt: skip


def _misfit(alone: Compiled, inputs: Sequence[Any]) -> str:
    """The reason why a library, which writes new contiguous tensors, cannot give the graph's outputs; else empty."""
    memory = {i.untyped_storage().data_ptr() for i in inputs if isinstance(i, torch.Tensor)}
    # The second call gives a constant of the graph again.
    for output in (*alone(*inputs), *alone(*inputs)):
        if not isinstance(output, torch.Tensor):
            return "it gives values that are no tensors"
        if not output.is_contiguous():
            return "an output is not contiguous"
        if output.numel() and output.untyped_storage().data_ptr() in memory:
            return "an output shares memory with an input, another output or a weight"
        memory.add(output.untyped_storage().data_ptr())
    return ""


def _singles(plan: Plan, families: Sequence[Kept]) -> list[Kept]:
    """Workloads to try by themselves: the largest of families that have more than one."""
    several = frozenset[Workload]().union(*(f for f in families if len(f) > 1))
    large = [
        frozenset([found.workload])
        for found in sorted(plan.extraction.workloads, key=plan.extraction.share, reverse=True)
        if found.workload in several and plan.extraction.share(found) >= SHARE
    ]
    return large[:WORKLOADS]


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of `x`, which compiled graphs check; an expanded axis stays one element."""
    made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
    once = tuple(slice(1) if step == 0 else slice(None) for step in x.stride())
    made[once].copy_(x[once])
    return made


def _call(
    function: Compiled, inputs: Sequence[Any], buffers: Sequence[Any]
) -> tuple[list[Any], bool]:
    """The outputs as they are at once, and whether buffers were changed, which are put back then."""
    before = [b.clone() for b in buffers]
    found = [o.clone() if isinstance(o, torch.Tensor) else o for o in function(*inputs)]
    changed = False
    for buffer, old in zip(buffers, before, strict=True):
        if not torch.equal(buffer, old):
            buffer.copy_(old)
            changed = True
    return found, changed


def _agree(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Compare real outputs by their norm, counts and truths by the share that differs: rounding may turn a maximum."""
    return all(
        (a - b).norm().item() <= TOLERANCE * (b.norm().item() or 1.0)
        if b.is_floating_point()
        else (a != b).sum().item() <= TOLERANCE * b.numel()
        for a, b in zip(found, expected, strict=True)
        if isinstance(b, torch.Tensor) and not b.is_complex()
    )


def compare(old: Compiled, new: Compiled, inputs: Sequence[Any]) -> Timed:
    """The times of `new` and `old`, of bursts in turns, whose order alternates; a sure loss ends it."""
    calls = math.ceil(BURST_S / max(_burst(old, inputs, 2), _burst(new, inputs, 2), 1e-7))
    found: list[tuple[float, float]] = []
    end = time.perf_counter() + LIMIT_S

    def ratio() -> Estimate:
        return estimate([second / first for first, second in found])

    # Only a loss ends it: to stop at the first interval that wins would find wins by chance.
    while len(found) < LEAST_ROUNDS or (
        len(found) < ROUNDS and time.perf_counter() < end and ratio().low_s <= 1
    ):
        if len(found) % 2:
            second = _burst(new, inputs, calls)
            first = _burst(old, inputs, calls)
        else:
            first = _burst(old, inputs, calls)
            second = _burst(new, inputs, calls)
        found.append((first, second))
    olds, news = zip(*found, strict=True)
    return Timed(ratio(), statistics.median(olds), statistics.median(news))


def _burst(function: Compiled, inputs: Sequence[Any], calls: int) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    for _ in range(calls):
        function(*inputs)
    return (time.perf_counter() - begin) / calls
