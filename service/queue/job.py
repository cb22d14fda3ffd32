"""The job queue: enqueue, cancel and count, in the caller's transaction.

Workers lease jobs (`lease`) and report their results (`report`); `retry` requeues the jobs of lost workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from service.errors import InvalidError
from service.queue import insertion
from service.store import catalogue, event
from service.store.sql import now
from service.store.tables import JobState, job, job_entry, lease, task, workload
from strategy.record import Phase, TimingPolicy
from strategy.space import Config

URGENT, NORMAL = 0, 10  # priorities: the lowest is leased first
RUN_PRIORITY = 100  # by which each step of a run's priority lowers those of its jobs


def raised(priority: int, run_priority: int) -> int:
    """The priority of a job that a run of `run_priority` needs, with which it is not behind that run's own."""
    behind = priority - lowest(run_priority)
    return priority - RUN_PRIORITY * max(0, -(-behind // RUN_PRIORITY))


def inherited(priority: int, run_priority: int) -> int:
    """The priority of a search's job of some run, had a run of `run_priority` enqueued it."""
    return priority % RUN_PRIORITY - RUN_PRIORITY * run_priority


def lowest(run_priority: int) -> int:
    """The last priority of jobs that a run of `run_priority` enqueues."""
    return NORMAL - RUN_PRIORITY * run_priority


@dataclass(frozen=True)
class NewEntry:
    """A configuration to enqueue; `best_s` is the best median of its task in its run so far."""

    task_id: int
    config: Config
    best_s: float | None = None


def enqueue(
    connection: sa.Connection,
    run_id: int,
    workload_id: int,
    target_id: int,
    phase: Phase,
    entries: Sequence[NewEntry],
    policy: TimingPolicy,
    seed: int,
    priority: int = NORMAL,
) -> int:
    """Enqueue a job; return its id. Entries are numbered in their order."""
    if not entries:
        raise InvalidError("entries: a job needs at least one: add a configuration")
    op = connection.execute(
        sa.select(workload.c.op).where(workload.c.id == workload_id)
    ).scalar_one()
    versions = connection.execute(
        sa.select(task.c.implementation, task.c.version).where(
            task.c.id.in_({e.task_id for e in entries})
        )
    ).all()
    needs = {"op": op, "versions": {v.implementation: catalogue.code_version(v.version) for v in versions}}
    job_id = insertion.insert_job(
        connection,
        {
            "run_id": run_id, "workload_id": workload_id, "target_id": target_id,
            "policy_id": catalogue.put_policy(connection, policy), "phase": phase,
            "priority": priority, "turn": _turn(connection, run_id, target_id), "seed": seed,
            "needs": orjson.dumps(needs, option=orjson.OPT_SORT_KEYS).decode(),
        },
        "enqueued", phase=phase, entries=len(entries),
    )
    insertion.insert_entries(
        connection, job_id,
        (
            {
                "entry": i, "task_id": e.task_id, "config": e.config.to_json(),
                "config_digest": e.config.digest, "best_s": e.best_s,
            }
            for i, e in enumerate(entries)
        ),
    )
    return job_id


def _turn(connection: sa.Connection, run_id: int, target_id: int) -> float:
    """The virtual start time of a run's next job: the end of its last one, but not before that of other runs.

    Start-time fair queueing (Goyal, Vin and Cheng, 1996), with configurations as the cost.
    """
    is_open = job.c.state.in_((JobState.QUEUED, JobState.LEASED))
    size = sa.select(sa.func.count()).where(job_entry.c.job_id == job.c.id).scalar_subquery()
    last = connection.scalar(
        sa.select(sa.func.max(job.c.turn + size)).where(job.c.run_id == run_id, is_open)
    )
    queued = sa.select(job.c.turn).where(job.c.state == JobState.QUEUED, job.c.target_id == target_id)
    leased = (
        sa.select(job.c.turn)
        .join(lease, lease.c.job_id == job.c.id)
        .where(lease.c.ended_at.is_(None), job.c.target_id == target_id)
    )
    reached = queued.union_all(leased).subquery()
    first = connection.scalar(sa.select(sa.func.min(reached.c.turn)))
    return max(last or 0.0, first or 0.0)


def cancel(connection: sa.Connection, run_id: int, reason: str = "its run was cancelled") -> None:
    """Cancel a run's queued jobs; leased ones are cancelled when their leases end."""
    rows = connection.execute(
        sa.update(job)
        .where(job.c.run_id == run_id, job.c.state == JobState.QUEUED)
        .values(state=JobState.CANCELLED, reason=reason, finished_at=now())
        .returning(job.c.id)
    ).all()
    for row in rows:
        event.note(connection, "cancelled", run_id=run_id, job_id=row.id)


def open_jobs(connection: sa.Connection, run_id: int) -> int:
    """Count the jobs of a run that are queued or leased."""
    query = sa.select(sa.func.count()).where(
        job.c.run_id == run_id, job.c.state.in_((JobState.QUEUED, JobState.LEASED))
    )
    return int(connection.execute(query).scalar_one())
