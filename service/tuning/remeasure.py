"""Repetition of finals that one device has measured, on a later day and when their target is idle.

A day has its own load, temperature and placement in memory, which no number of repeats in one session
shows. The finals of a run that went to two devices need none. Of any other the first final of each workload
is repeated, interleaved as it was, after all other work; its samples join those of the run (`best`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.queue import claim, fleet, insertion
from service.store.db import now
from service.store.tables import (
    LIVE,
    JobState,
    job,
    job_entry,
    lease,
    run,
    worker,
    worker_device,
)
from strategy.record import Phase, RunState

AFTER_ALL = 10_000  # a priority: any other job is sooner
QUIET_S = 60.0  # without a run on the target, before one that has ended is looked at again
WINDOWS = 30  # a run that ended longer ago than so many times the wait is left alone


def is_due(connection: sa.Connection, after_s: float, alive_s: float) -> bool:
    """Return whether `enqueue_due` would find a run, without writing: writers exclude each other."""
    return connection.execute(_due(after_s, alive_s)).first() is not None


def enqueue_due(connection: sa.Connection, after_s: float, alive_s: float) -> list[int]:
    """Enqueue the finals of one run that are due; returns the new jobs.

    Args:
        connection: whose transaction they join.
        after_s: the wait after the end of a run, in seconds.
        alive_s: for which a worker counts as alive after its last heartbeat, in seconds.
    """
    # A service that looks at the same moment skips this run. One that has enqueued its finals in between is seen
    # by the second query, under the lock.
    wanted = _due(after_s, alive_s)
    due = connection.execute(wanted.with_for_update(of=run, skip_locked=True, key_share=True)).first()
    if due is None or connection.execute(wanted.where(run.c.id == due.id)).first() is None:
        return []
    able = connection.scalars(
        sa.select(worker.c.operators)
        .join(worker_device, worker_device.c.worker_id == worker.c.id)
        .where(worker_device.c.target_id == due.target_id, fleet.is_alive(alive_s))
    ).all()
    finals = connection.execute(
        sa.select(job)
        .where(job.c.run_id == due.id, _IS_FINAL, job.c.state == JobState.DONE, job.c.parent_id.is_(None))
        .order_by(job.c.id)
    )
    # The first has all finalists; a later one may hold only what was too uncertain.
    first: dict[int, Any] = {}
    for final in finals:
        first.setdefault(final.workload_id, final)
    return [
        _repeat(connection, final)
        for final in first.values()
        if any(not known or claim.can_build(final.needs, known) for known in able)
    ]


_IS_FINAL = job.c.phase == Phase.CONFIRM.value


def _due(after_s: float, alive_s: float) -> sa.Select[Any]:
    """Select the run that ended first of those that are due."""
    of_run = sa.select(job.c.id).where(job.c.run_id == run.c.id, _IS_FINAL)
    devices = (
        sa.select(sa.func.count(lease.c.device_id.distinct()))
        .join(job, job.c.id == lease.c.job_id)
        .where(job.c.run_id == run.c.id, _IS_FINAL, lease.c.end_reason == "done")
        .scalar_subquery()
    )
    alive = (
        sa.select(worker_device.c.target_id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(fleet.is_alive(alive_s))
    )
    return (
        sa.select(run.c.id, run.c.target_id)
        .where(
            run.c.state == RunState.DONE.value,
            run.c.finished_at <= now() - after_s,
            run.c.finished_at > now() - WINDOWS * after_s,
            run.c.target_id.in_(alive), run.c.target_id.not_in(_busy_targets()),
            ~of_run.where(job.c.created_at > run.c.finished_at).exists(),
            devices == 1,
        )
        .order_by(run.c.finished_at)
        .limit(1)
    )  # fmt: skip


def _busy_targets() -> sa.CompoundSelect[Any]:
    """Select targets with work, or with a run a moment ago: once, not for each run, and by indexes."""
    other = run.alias()
    just_ended = sa.and_(other.c.finished_at > now() - QUIET_S, other.c.finished_at <= now())
    recent = sa.or_(other.c.state.in_(LIVE), just_ended)
    return sa.union(
        sa.select(other.c.target_id).where(recent),
        # As it stands in the index of queued jobs.
        sa.select(job.c.target_id).where(job.c.state == sa.literal_column(f"'{JobState.QUEUED}'")),
        sa.select(job.c.target_id).join(lease, lease.c.job_id == job.c.id).where(lease.c.ended_at.is_(None)),
    )


def _repeat(connection: sa.Connection, final: Any) -> int:
    copied = insertion.copy_columns(final)
    job_id = insertion.insert_job(
        connection, {**copied, "priority": AFTER_ALL, "seed": (final.seed + 1) % 2**31},
        "second look", like=final.id,
    )  # fmt: skip
    kept = job_entry.c["entry", "task_id", "config", "config_digest", "best_s"]
    entries = connection.execute(sa.select(*kept).where(job_entry.c.job_id == final.id))
    insertion.insert_entries(connection, job_id, (row._asdict() for row in entries))
    return job_id
