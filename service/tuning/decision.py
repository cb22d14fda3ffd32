"""Decisions on a live run: the trials to enqueue next, and the implementations that need no more of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.queue import job as jobs
from service.store.db import Store
from service.store.tables import TaskState
from service.tuning import budget, tuning_run
from service.tuning.tuning_run import TuningRun, TuningTask, arms_of
from strategy.space import Config
from strategy.table import show_number


@dataclass(frozen=True)
class Proposal:
    """A job to enqueue."""

    workload_id: int
    entries: tuple[jobs.NewEntry, ...]
    priority: int = jobs.NORMAL


def judge(tuning: TuningRun) -> None:
    """Drop the implementations that cannot win, and mark those with nothing left to try."""
    parts = tuning.parts()
    for workload_id, group in tuning.by_workload().items():
        arms, lead_s = arms_of(group)
        first = budget.share(arms, parts[workload_id])
        for t, arm in zip([t for t in group if t.search is not None], arms, strict=True):
            why = budget.hopeless(arm, lead_s, first)
            if why:
                _close(tuning, t, TaskState.DROPPED, why)
            elif arm.exhausted:
                _close(tuning, t, TaskState.EXHAUSTED, "all of its configurations have been tried")


def propose(store: Store, tuning: TuningRun, room: int, batch: int) -> list[Proposal]:
    """The untunable implementations that are not measured yet, and further jobs up to `room` in all.

    Args:
        store: read for sources of transfer learning.
        batch: the largest number of configurations of a job.
    """
    proposals: list[Proposal] = []
    # Untunable implementations are measured first, as the others may have to beat them.
    for workload_id, group in tuning.by_workload().items():
        fixed = [jobs.NewEntry(t.id, Config()) for t in group if t.is_unmeasured and not t.awaited]
        if fixed:
            proposals.append(Proposal(workload_id, tuple(fixed), jobs.URGENT))
    parts = tuning.parts()
    while len(proposals) < room and (made := _propose_one(store, tuning, parts, batch)) is not None:
        proposals.append(made)
    return proposals


def is_waiting(tuning: TuningRun) -> bool:
    """Return whether other runs have in the queue what is left for this one to measure."""
    arms = [t.arm(None) for t in tuning.tasks if t.search is not None] if _wants_more(tuning) else []
    return any(a.waiting and a.is_open for a in arms) or any(t.awaited and t.is_unmeasured for t in tuning.tasks)


def find_needed(tuning: TuningRun) -> set[int]:
    """The jobs of other runs that a run waits for, not those whose trials would be more than it was asked for."""
    more = _wants_more(tuning)
    searched = [t for t in tuning.tasks if more and t.search is not None and t.state is TaskState.ACTIVE]
    fixed = [t for t in tuning.tasks if t.is_unmeasured]
    return {job_id for t in (*searched, *fixed) for job_id, _ in t.awaited}


def explain_end(tuning: TuningRun, *, timed_out: bool) -> str:
    """The reason why a run's search ends, with the implementations that it has dropped: of one workload by name."""
    trials = tuning.spent
    dropped = [f"{t.implementation}: {t.message}" for t in tuning.tasks
               if t.state is TaskState.DROPPED]
    tunable = [t for t in tuning.tasks if t.search is not None]
    if timed_out:
        why = f"the time limit of {tuning.request.timeout_s:g} s was reached after {show_number(trials, 'trial')}"
    elif not tunable:
        why = "nothing to tune: only untunable implementations are valid"
    elif trials < tuning.request.trials:
        reasons = dict.fromkeys(t.message for t in tunable if t.state is TaskState.EXHAUSTED)
        why = f"stopped after {trials} of {show_number(tuning.request.trials, 'trial')}: "
        why += ", ".join(reasons) or "all configurations have been tried"
    else:
        why = show_number(trials, "trial")
    if dropped and len(tuning.by_workload()) > 1:
        return f"{why}; dropped {show_number(len(dropped), 'implementation')} that cannot win"
    return "; ".join([why, *(f"dropped {d}" for d in dropped)])


def _propose_one(store: Store, tuning: TuningRun, parts: Mapping[int, int], batch: int) -> Proposal | None:
    """The next trials of the first workload, in the order of the budget, that has any; None if none has."""
    groups = tuning.by_workload()
    stands = [budget.Stand(g[0].weight, parts[w], *arms_of(g)) for w, g in groups.items()]
    left = tuning.request.trials - tuning.spent
    for i in budget.order(stands) if left > 0 else ():
        workload_id, group = list(groups.items())[i]
        part = parts[workload_id]
        # Of few trials each workload has its part.
        entries = _begin(store, tuning, group, min(left, max(part, 1)))
        entries = entries or _continue(store, tuning, group, part, min(left, batch))
        if entries:
            return Proposal(workload_id, tuple(entries))
    return None


def _begin(store: Store, tuning: TuningRun, group: Sequence[TuningTask], most: int) -> list[jobs.NewEntry]:
    """The first trial of each implementation, in one job: a run that ends early has tried all of them."""
    arms = [(t, t.arm(None)) for t in group if t.search is not None]
    fresh = [t for t, arm in arms if arm.is_open and not arm.waiting and not arm.trials][:most]
    if len(fresh) < 2:
        return []
    return [entry for t in fresh for entry in _enter(t, _ask(store, tuning, t, 1))]


def _continue(
    store: Store, tuning: TuningRun, group: Sequence[TuningTask], part: int, most: int
) -> list[jobs.NewEntry]:
    """Up to `most` trials of one implementation of a workload, which has `part` of the run's; none if all are done."""
    tunable = [t for t in group if t.search is not None]
    while True:
        arms, lead_s = arms_of(group)
        chosen = budget.next_arm(arms, part)
        if chosen is None:
            return []
        t, trials = tunable[chosen], arms[chosen].trials
        first = budget.share(arms, part)
        configs = _ask(store, tuning, t, min(most, first - trials) if trials < first else most)
        arm = t.arm(lead_s)
        least = tuning.request.until_gain
        if least and budget.settled(arm, t.earlier_best_s, lead_s, least):
            # This proposal only shows the expected gain; it is not enqueued.
            _close(tuning, t, TaskState.EXHAUSTED, f"no trial is expected to gain {100 * least:g} %")
        elif configs:
            return _enter(t, configs)
        elif arm.is_open and not arm.waiting:
            # Too large to count, and no new configuration was found: practically exhausted.
            _close(tuning, t, TaskState.EXHAUSTED, "no further valid configuration was found")


def _ask(store: Store, tuning: TuningRun, t: TuningTask, most: int) -> list[Config]:
    assert t.search is not None
    tuning_run.teach(store, tuning, t)
    return t.search.ask(most)


def _enter(t: TuningTask, configs: Sequence[Config]) -> list[jobs.NewEntry]:
    """Entries of a job, which are pending from now on."""
    t.pending += len(configs)
    return [jobs.NewEntry(t.id, c, t.best_s) for c in configs]


def _close(tuning: TuningRun, t: TuningTask, state: TaskState, why: str) -> None:
    if t.state is TaskState.ACTIVE:
        t.state, t.message = state, why
        tuning.changed.append(t)


def _wants_more(tuning: TuningRun) -> bool:
    return tuning.spent < tuning.request.trials
