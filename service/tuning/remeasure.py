"""Repetition of finals on a later day, when their target is idle.

Load, temperature and placement in memory vary between days, which repeats within one session do not show.
Of a run whose finals went to one device only, the first final of each workload is repeated with the same
interleaving and the lowest priority; its samples are added to those of the run (`best`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.queue import fleet, insertion
from service.queue.place import can_build
from service.store.sql import now
from service.store.tables import LIVE, JobState, job, job_entry, lease, run, worker, worker_device
from strategy.record import Phase, RunState

AFTER_ALL = 10_000  # a priority: below all other jobs
OTHER_INPUTS = 100  # added to a final's seed: more than a run has finals, each with inputs of its own
QUIET_S = 60.0  # without a run on the target before finals are repeated
MOST_SEEN = 100  # runs that one look tries, of which no live worker may be able to build any
WINDOWS = 30  # runs that ended more than this many waits ago are skipped


def is_due(connection: sa.Connection, after_s: float, alive_s: float) -> bool:
    """Return whether `enqueue_due` would find a run, without writing, as writers exclude each other."""
    return connection.execute(_due(after_s, alive_s)).first() is not None


def enqueue_due(connection: sa.Connection, after_s: float, alive_s: float) -> list[int]:
    """Enqueue the due finals of one run; return the new jobs.

    Args:
        after_s: the wait after the end of a run, in seconds.
        alive_s: seconds for which a worker counts as alive after a heartbeat.
    """
    wanted = _due(after_s, alive_s)
    seen: list[int] = []
    while len(seen) < MOST_SEEN:
        left = wanted.where(run.c.id.not_in(seen))
        due = connection.execute(left.with_for_update(of=run, skip_locked=True, key_share=True)).first()
        if due is None:
            break
        seen.append(due.id)
        # A concurrent service skips the locked run; finals that it has enqueued in between are found by the second
        # query, under the lock.
        if connection.execute(wanted.where(run.c.id == due.id)).first() is None:
            continue
        # No worker that is alive may be able to build this one.
        if made := _enqueue(connection, due, alive_s):
            return made
    return []


def _enqueue(connection: sa.Connection, due: Any, alive_s: float) -> list[int]:
    """Enqueue a run's finals that a live worker can build; return the new jobs."""
    of_target = worker_device.c.target_id == due.target_id
    able = connection.scalars(fleet.of_live(alive_s, worker.c.operators).where(of_target)).all()
    child = job.alias()
    finals = connection.execute(
        sa.select(job)
        .where(
            job.c.run_id == due.id, _IS_FINAL, job.c.state == JobState.DONE, job.c.parent_id.is_(None),
            # The entries of a split one are with its children.
            ~sa.exists().where(child.c.run_id == job.c.run_id, child.c.parent_id == job.c.id),
        )
        .order_by(job.c.id)
    )
    # The first final has all finalists; later ones may have only the uncertain ones.
    first: dict[int, Any] = {}
    for final in finals:
        first.setdefault(final.workload_id, final)
    return [
        _repeat(connection, final)
        for final in first.values()
        if any(can_build(final.needs, known) for known in able)
    ]


_IS_FINAL = job.c.phase == Phase.CONFIRM.value


def _due(after_s: float, alive_s: float) -> sa.Select[Any]:
    """Select the due run that ended last: after an upgrade, that of the versions that workers have."""
    of_run = sa.select(job.c.id).where(job.c.run_id == run.c.id, _IS_FINAL)
    devices = (
        sa.select(sa.func.count(lease.c.device_id.distinct()))
        .join(job, job.c.id == lease.c.job_id)
        .where(job.c.run_id == run.c.id, _IS_FINAL, lease.c.end_reason == "done")
        .scalar_subquery()
    )
    return (
        sa.select(run.c.id, run.c.target_id)
        .where(
            run.c.state == RunState.DONE.value,
            run.c.finished_at <= now() - after_s,
            run.c.finished_at > now() - WINDOWS * after_s,
            run.c.target_id.in_(fleet.of_live(alive_s, worker_device.c.target_id)),
            run.c.target_id.not_in(_busy_targets()),
            ~of_run.where(job.c.created_at > run.c.finished_at).exists(),
            devices == 1,
        )
        .order_by(run.c.finished_at.desc())
        .limit(1)
    )


def _busy_targets() -> sa.CompoundSelect[Any]:
    """Select targets with work or a recent run: once for all runs, by indexes."""
    other = run.alias()
    just_ended = sa.and_(other.c.finished_at > now() - QUIET_S, other.c.finished_at <= now())
    recent = sa.or_(other.c.state.in_(LIVE), just_ended)
    return sa.union(
        sa.select(other.c.target_id).where(recent),
        # A literal, to match the partial index of queued jobs.
        sa.select(job.c.target_id).where(job.c.state == sa.literal_column(f"'{JobState.QUEUED}'")),
        sa.select(job.c.target_id).join(lease, lease.c.job_id == job.c.id).where(lease.c.ended_at.is_(None)),
    )


def _repeat(connection: sa.Connection, final: Any) -> int:
    copied = insertion.copy_columns(final)
    job_id = insertion.insert_job(
        connection, {**copied, "priority": AFTER_ALL, "seed": (final.seed + OTHER_INPUTS) % 2**31},
        "remeasured", like=final.id,
    )
    kept = job_entry.c["entry", "task_id", "config", "config_digest", "best_s"]
    entries = connection.execute(sa.select(*kept).where(job_entry.c.job_id == final.id))
    insertion.insert_entries(connection, job_id, (row._asdict() for row in entries))
    return job_id
