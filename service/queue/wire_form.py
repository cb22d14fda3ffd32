"""The wire form of claimed jobs, as the workers of their devices get it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.store.row_cache import by_id, recall
from service.store.sql import Ask, among, join_each
from service.store.tables import (
    EntryState,
    Scope,
    best,
    device,
    job,
    job_entry,
    record,
    run,
    task,
    timing_policy,
    workload,
)
from strategy.record import Job, JobEntry, Phase, TimingPolicy, convert
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload


@cache
def _entries(dialect: str) -> sa.Select[Any]:
    joined, entry = join_each(dialect, job, job_entry, job_entry.c.job_id == job.c.id)
    return (
        sa.select(*entry["job_id", "entry", "task_id", "config", "best_s"])
        .select_from(joined)
        .where(among(job.c.id), entry.state == EntryState.PENDING)
        .order_by(entry.job_id, entry.entry)
    )


_BESTS = sa.select(*best.c["task_id", "scope_value", "median_s"]).where(
    among(best.c.task_id), best.c.scope == Scope.MODEL.value
)
_TIMED = (
    sa.select(*record.c["task_id", "median_s"], device.c.model)
    .join(device, device.c.id == record.c.device_id)
    .where(
        among(record.c.task_id), record.c.phase == Phase.SEARCH.value,
        record.c.median_s.in_(sa.bindparam("times_s", expanding=True)),
    )
)


def ask_entries(connection: sa.Connection, ask: Ask, jobs: Sequence[int]) -> list[Any]:
    """The open entries of jobs, for `wire_jobs`."""
    return ask(_entries(connection.dialect.name), {"ids": jobs})


def wire_jobs(
    connection: sa.Connection, claimed_for: Sequence[tuple[Any, str]], rows: Sequence[Any]
) -> dict[int, Job]:
    """The wire form of claimed jobs with their open entries, by id.

    Each job is given with its device model; `rows` are those of `ask_entries`.
    """
    claimed = [row for row, _ in claimed_for]
    models = {row.id: model for row, model in claimed_for}
    asked = {(r.task_id, models[r.job_id], r.best_s) for r in rows if r.best_s is not None}
    to_beat_s = _find_to_beat(connection, asked)
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
                config=Config(r.config), best_s=to_beat_s.get((r.task_id, models[r.job_id], r.best_s)),
            )
        )
    return {
        c.id: Job(
            id=c.id, run_id=c.run_id, workload=workloads[c.workload_id], target=targets[c.run_id],
            phase=Phase(c.phase), policy=policies[c.policy_id], seed=c.seed, attempt=c.attempts + 1,
            entries=tuple(entries.get(c.id, ())),
        )
        for c in claimed
    }


_Asked = tuple[int, str, float]  # a task, the device model that is to time it, and the best time of the task's run


def _find_to_beat(connection: sa.Connection, asked: Collection[_Asked]) -> dict[_Asked, float]:
    """The times that trials are compared with, none where the device model has no time of the task.

    On the device model that the run's best was timed on, it is that, as the record of an earlier run may be of a time
    when the device was faster as a whole. On another, it is the best time of that model.
    """
    if not asked:
        return {}
    bests_s: dict[int, dict[str, float]] = {}
    for row in connection.execute(_BESTS, {"ids": {task_id for task_id, _, _ in asked}}):
        bests_s.setdefault(row.task_id, {})[row.scope_value] = row.median_s
    own = _find_own(connection, [a for a in asked if len(bests_s.get(a[0], ())) > 1])
    return {
        (task_id, model, best_s): best_s if len(found) == 1 or (task_id, model, best_s) in own else found[model]
        for task_id, model, best_s in asked
        if model in (found := bests_s.get(task_id, {}))
    }


def _find_own(connection: sa.Connection, asked: Collection[_Asked]) -> set[_Asked]:
    """Those whose run's best was timed on their device model."""
    if not asked:
        return set()
    ids, times_s = {task_id for task_id, _, _ in asked}, {best_s for _, _, best_s in asked}
    rows = connection.execute(_TIMED, {"ids": ids, "times_s": list(times_s)})
    return {(row.task_id, row.model, row.median_s) for row in rows}.intersection(asked)


_find_implementations = by_id(
    lambda row: (row.implementation, row.version), sa.select(*task.c["id", "implementation", "version"])
)
_find_workloads = by_id(lambda row: convert(row.body, Workload), sa.select(*workload.c["id", "body"]))
# Those of runs as requested: libraries and cache sizes are not part of a target's key.
_find_targets = by_id(
    lambda row: Target.parse(row.target), sa.select(run.c.id, run.c.request["target"].label("target"))
)
_find_policies = by_id(lambda row: convert(row.body, TimingPolicy), sa.select(*timing_policy.c["id", "body"]))
