"""Configurations of a run's tasks that other live runs have in the queue: each is measured once, for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import sqlalchemy as sa

from service.queue import job as jobs
from service.store.sql import among
from service.store.tables import LIVE, EntryState, JobState, job, job_entry, run, run_task
from strategy.record import Phase, RunRequest
from strategy.space import Config

Entry = tuple[int, int]  # a job, and its entry's number


def find_awaited(
    connection: sa.Connection, run_id: int, request: RunRequest, policy_id: int, tasks: Collection[int]
) -> dict[int, dict[Entry, Config]]:
    """The configurations of each task whose results are to count as trials of a run, and are not reported yet."""
    if request.force:
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
    )  # fmt: skip
    found: dict[int, dict[Entry, Config]] = defaultdict(dict)
    for r in rows:
        found[r.task_id][r.job_id, r.entry] = Config(r.config)
    return found


def find_behind(connection: sa.Connection, awaited: Collection[int], priority: int) -> list[int]:
    """Those of the jobs that are queued behind all that a run of `priority` enqueues."""
    if not awaited:
        return []
    behind = sa.select(job.c.id).where(
        among(job.c.id), job.c.state == JobState.QUEUED, job.c.priority > jobs.lowest(priority)
    )
    return list(connection.scalars(behind, {"ids": sorted(awaited)}))


def bring_forward(connection: sa.Connection, behind: Collection[int], priority: int) -> None:
    """Give jobs of other runs the priority of a run that waits for them (priority inheritance).

    Those that another transaction holds are left to a later call, so that this one waits for none.
    """
    queued = sa.select(*job.c["id", "priority"]).where(among(job.c.id), job.c.state == JobState.QUEUED)
    free = queued.with_for_update(skip_locked=True, key_share=True)
    for row in connection.execute(free, {"ids": sorted(behind)}).all():
        raised = sa.update(job).where(job.c.id == row.id).values(priority=jobs.raised(row.priority, priority))
        connection.execute(raised)
