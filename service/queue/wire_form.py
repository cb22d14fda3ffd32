"""The wire form of claimed jobs, as the workers of their devices get it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from service.store.row_cache import recall
from service.store.sql import among
from service.store.tables import (
    EntryState,
    Scope,
    best,
    job_entry,
    run,
    task,
    timing_policy,
    workload,
)
from strategy.record import Job, JobEntry, Phase, TimingPolicy, convert
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

_ENTRIES = (
    sa.select(*job_entry.c["job_id", "entry", "task_id", "config", "best_s"])
    .where(among(job_entry.c.job_id), job_entry.c.state == EntryState.PENDING)
    .order_by(job_entry.c.job_id, job_entry.c.entry)
)


_BESTS = sa.select(*best.c["task_id", "scope_value", "median_s"]).where(
    among(best.c.task_id), best.c.scope == Scope.MODEL.value
)


def wire_jobs(connection: sa.Connection, claimed_for: Sequence[tuple[Any, str]]) -> dict[int, Job]:
    """The wire form of claimed jobs with their open entries, by id; each job is given with its device model."""
    claimed = [row for row, _ in claimed_for]
    models = {row.id: model for row, model in claimed_for}
    rows = connection.execute(_ENTRIES, {"ids": [c.id for c in claimed]}).all()
    bests_s = _find_bests(connection, {r.task_id for r in rows if r.best_s is not None})
    tasks = recall(connection, "implementation", {r.task_id for r in rows}, _find_implementations)
    workloads = recall(connection, "workload", {c.workload_id for c in claimed}, _find_workloads)
    targets = recall(connection, "run target", {c.run_id for c in claimed}, _find_targets)
    policies = recall(connection, "policy", {c.policy_id for c in claimed}, _find_policies)
    entries: dict[int, list[JobEntry]] = {}
    for r in rows:
        implementation, version = tasks[r.task_id]
        entries.setdefault(r.job_id, []).append(
            JobEntry(
                index=r.entry, task_id=r.task_id, implementation=implementation, version=version,
                config=Config(r.config), best_s=_to_beat(r.best_s, bests_s.get((r.task_id, models[r.job_id]))),
            )
        )  # fmt: skip
    return {
        c.id: Job(
            id=c.id, run_id=c.run_id, workload=workloads[c.workload_id], target=targets[c.run_id],
            phase=Phase(c.phase), policy=policies[c.policy_id], seed=c.seed, attempt=c.attempts + 1,
            entries=tuple(entries.get(c.id, ())),
        )
        for c in claimed
    }  # fmt: skip


def _find_bests(connection: sa.Connection, tasks: Collection[int]) -> dict[tuple[int, str], float]:
    """The best times of tasks on each device model."""
    rows = connection.execute(_BESTS, {"ids": tasks}) if tasks else ()
    return {(r.task_id, r.scope_value): r.median_s for r in rows}


def _to_beat(best_s: float | None, here_s: float | None) -> float | None:
    """The time that a trial is compared with, None for none: another device model's would not be comparable.

    Args:
        best_s: the run's, on any device model.
        here_s: the best on the device model that times.
    """
    # The slower, as the record of an earlier run may be of a time when the device was faster as a whole.
    return None if best_s is None or here_s is None else max(best_s, here_s)


def _find_implementations(
    connection: sa.Connection, ids: Collection[int]
) -> dict[int, tuple[str, str]]:
    query = sa.select(task.c.id, task.c.implementation, task.c.version).where(among(task.c.id))
    return {r.id: (r.implementation, r.version) for r in connection.execute(query, {"ids": ids})}


def _find_workloads(connection: sa.Connection, ids: Collection[int]) -> dict[int, Workload]:
    query = sa.select(workload.c.id, workload.c.body).where(among(workload.c.id))
    return {r.id: convert(r.body, Workload) for r in connection.execute(query, {"ids": ids})}


def _find_targets(connection: sa.Connection, ids: Collection[int]) -> dict[int, Target]:
    """The targets of runs as requested: libraries and cache sizes are not part of a target's key."""
    query = sa.select(run.c.id, run.c.request["target"].label("target")).where(among(run.c.id))
    return {r.id: Target.parse(r.target) for r in connection.execute(query, {"ids": ids})}


def _find_policies(connection: sa.Connection, ids: Collection[int]) -> dict[int, TimingPolicy]:
    query = sa.select(timing_policy.c.id, timing_policy.c.body).where(among(timing_policy.c.id))
    return {r.id: convert(r.body, TimingPolicy) for r in connection.execute(query, {"ids": ids})}
