"""Configurations of a run's tasks that other live runs have in the queue: each is measured once, for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import sqlalchemy as sa

from service.queue import job as jobs
from service.store.sql import among
from service.store.tables import (
    LIVE,
    EntryState,
    JobState,
    TaskState,
    job,
    job_entry,
    run,
    run_task,
)
from strategy.record import Phase, RunRequest, RunState, TimingPolicy, convert
from strategy.space import Config

Entry = tuple[int, int]  # a job, and its entry's number


def find_awaited(
    connection: sa.Connection, run_id: int, forced: bool, policy_id: int | None, tasks: Collection[int]
) -> dict[int, dict[Entry, Config]]:
    """The configurations of each task whose results are to count as trials of a run, and are not reported yet."""
    if forced or policy_id is None:
        return {}
    same = sa.select(run_task.c.run_id).where(among(run_task.c.task_id))
    others = sa.select(run.c.id).where(run.c.state.in_(LIVE), run.c.id != run_id, run.c.id.in_(same))
    rows = connection.execute(
        sa.select(*job_entry.c["job_id", "entry", "task_id", "config"])
        .join(job, job.c.id == job_entry.c.job_id)
        .where(
            job.c.run_id.in_(others), job.c.state.in_((JobState.QUEUED, JobState.LEASED)),
            job.c.phase == Phase.SEARCH.value, job.c.policy_id == policy_id,
            among(job_entry.c.task_id), job_entry.c.state == EntryState.PENDING,
        ),
        {"ids": sorted(tasks)},
    )
    found: dict[int, dict[Entry, Config]] = defaultdict(dict)
    for r in rows:
        found[r.task_id][r.job_id, r.entry] = Config(r.config)
    return found


def find_behind(connection: sa.Connection, awaited: Collection[int], priority: int) -> tuple[list[int], int]:
    """Those of the jobs that are queued behind all that a run of `priority` enqueues, and how many are open besides."""
    if not awaited:
        return [], 0
    is_behind = sa.and_(job.c.state == JobState.QUEUED, job.c.priority > jobs.lowest(priority))
    is_open = job.c.state.in_((JobState.QUEUED, JobState.LEASED))
    query = sa.select(job.c.id, is_behind.label("behind")).where(among(job.c.id), is_open)
    rows = connection.execute(query.order_by(job.c.priority, job.c.turn, job.c.id), {"ids": sorted(awaited)}).all()
    behind = [r.id for r in rows if r.behind]
    return behind, len(rows) - len(behind)


def find_ahead(connection: sa.Connection, run_id: int, request: RunRequest) -> dict[int, int]:
    """The queued jobs of a run that have inherited more than a run that still needs them gives; with what it gives."""
    own = sa.select(*job.c["id", "priority"]).where(
        job.c.run_id == run_id, job.c.state == JobState.QUEUED, job.c.phase == Phase.SEARCH.value,
        job.c.priority < jobs.URGENT - jobs.RUN_PRIORITY * request.priority,
    )
    raised = {r.id: r.priority for r in connection.execute(own)}
    if not raised:
        return {}
    needed = connection.execute(
        sa.select(job_entry.c.job_id, *(run.c.request[name].label(name) for name in ("priority", "search_policy")))
        .join(run_task, run_task.c.task_id == job_entry.c.task_id)
        .join(run, run.c.id == run_task.c.run_id)
        .where(
            among(job_entry.c.job_id), job_entry.c.state == EntryState.PENDING, run_task.c.state == TaskState.ACTIVE,
            run.c.id != run_id, run.c.state == RunState.RUNNING, ~run.c.forced,
        ),
        {"ids": sorted(raised)},
    )
    highest = dict.fromkeys(raised, request.priority)
    for r in needed:
        if convert(r.search_policy or {}, TimingPolicy) == request.search_policy:
            highest[r.job_id] = max(highest[r.job_id], r.priority or 0)
    due = {i: jobs.inherited(priority, highest[i]) for i, priority in raised.items()}
    return {i: priority for i, priority in due.items() if priority > raised[i]}


def fall_back(connection: sa.Connection, ahead: Mapping[int, int], priority: int) -> None:
    """Give jobs the priorities of `find_ahead`, or that of their run, which a request may have raised meanwhile."""
    _set_priorities(connection, ahead, lambda row: jobs.raised(ahead[row.id], priority))


def bring_forward(connection: sa.Connection, behind: Collection[int], priority: int) -> None:
    """Give jobs of other runs the priority of a run that waits for them (priority inheritance)."""
    _set_priorities(connection, behind, lambda row: jobs.raised(row.priority, priority))


def _set_priorities(connection: sa.Connection, ids: Collection[int], due: Callable[[Any], int]) -> None:
    """Give queued jobs other priorities.

    Those that another transaction holds are left to a later call, so that this one waits for none.
    """
    queued = sa.select(*job.c["id", "priority"]).where(among(job.c.id), job.c.state == JobState.QUEUED)
    free = queued.with_for_update(skip_locked=True, key_share=True)
    for row in connection.execute(free, {"ids": sorted(ids)}).all():
        connection.execute(sa.update(job).where(job.c.id == row.id).values(priority=due(row)))
