"""Reports of confirmations to the service or database that the selections are from, and those of other machines.

Nothing of a model is sent but its workloads, digests, and times.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from plevel.cli.location import locate_database
from plevel.database import is_lock
from plevel.direct import connect
from plevel.kernel_selection import Choose, find_records
from plevel.torch.explanation import Report
from plevel.torch.kernel import kernel_digest
from plevel.torch.plan import Plan
from plevel.torch.verdict import Verdict
from strategy.confirmation import Confirmation
from strategy.record import convert
from strategy.select import Selection
from strategy.table import show_number
from strategy.target import Target

PAGE = 100  # verdicts on one graph that are looked through
REST_S = 30.0  # after a failure, before the same place is tried again

_away_until: dict[str, float] = {}


def report(made: Report, verdict: Verdict, target: Target, database: str | None) -> None:
    """Records a verdict at the place of selections; without one, or in a lock file, nothing.

    A failure costs no graph its kernels: the first at each place is warned of.
    """
    confirmation = _confirmation(made, verdict, target)
    failed = "the times of a graph are not recorded, and its kernels stay"
    _ask(database, lambda records: records.record_network(confirmation), failed)


def recorded(plan: Plan, choose: Choose, database: str | None) -> Verdict | None:
    """The verdict of another machine that is the same for the plan, with all the kernels that are chosen now."""
    wanted = {"graph": plan.graph, "device_model": plan.target.model, "limit": PAGE}
    failed = "verdicts of other machines are not read, and the graph is timed here"
    found = _ask(database, lambda records: records.networks(**wanted), failed)
    for one in found or ():
        with suppress(ValueError):  # of a later version, or of a workload that has no kernel now: timed here
            confirmation = convert(one["confirmation"], Confirmation)
            if confirmation.key == plan.key and confirmation.target.key == plan.target.key:
                return _verdict(plan, confirmation, choose)
    return None


def _verdict(plan: Plan, told: Confirmation, choose: Choose) -> Verdict | None:
    whole = False
    for step in told.steps:
        whole = step.whole if step.kept else whole
    kept = [part for part in told.parts if part.implementation]
    chosen = {part.workload: choose(part.workload) for part in kept}
    for part in kept:
        now = chosen[part.workload]
        if not isinstance(now, Selection) or (now.implementation, now.config) != (part.implementation, part.config):
            return None
    return Verdict(
        plan.key, plan.graph, plan.extraction.flops, () if whole else tuple(sorted(w.key for w in chosen)), told.steps,
        told.refused, f"openmp, {show_number(plan.target.threads, 'thread')}", told.before_s, told.after_s, whole,
        library={w.key: kernel_digest(now) for w, now in chosen.items()} if whole else {},
        told={part.workload.key: part.reason for part in told.parts if not part.implementation},
    )


def _ask(database: str | None, ask: Callable[[Any], Any], failed: str) -> Any:
    """The answer of the place of selections; None without one, in a lock file, and for a while after a failure."""
    place = find_records(database)
    if place is None or time.monotonic() < _away_until.get(place, 0.0):
        return None
    if "://" not in place and is_lock(Path(place)):
        return None
    is_service = place.startswith(("http://", "https://"))
    try:
        with connect(place, None) if is_service else connect(None, locate_database(place)) as records:
            return ask(records)
    except Exception as error:
        if place not in _away_until:
            warnings.warn(f"plevel: {failed}: {error}", stacklevel=3)
        _away_until[place] = time.monotonic() + REST_S
        return None


def _confirmation(made: Report, verdict: Verdict, target: Target) -> Confirmation:
    # The message of a failed build has paths of this machine.
    failed = "its kernel failed where the graph was timed"
    reasons = (failed if p.workload in made.failed else p.reason[:4000] for p in made.rows)
    return Confirmation(
        key=verdict.key, graph=verdict.graph, framework=f"torch {torch.__version__}",
        target=target, parts=tuple(replace(p, reason=r) for p, r in zip(made.rows, reasons, strict=True)),
        missed=dict(made.missed), steps=verdict.steps, refused=verdict.refused,
        before_s=verdict.before_s, after_s=verdict.after_s,
    )
