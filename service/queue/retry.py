"""Retries of jobs whose lease ended before all results had come.

Such a job is queued again. After the loss of its worker it is suspect: it is leased only to a worker
without other jobs, so that another loss identifies the cause. After two losses each open entry becomes a
job of its own; after three, on two devices or on the only one of the target, it is quarantined. Where its
devices also lose workers that are not its doing, it takes six losses. Functions run in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from service.queue import fleet, insertion
from service.queue import job as jobs
from service.queue.overdue import Overdue
from service.records import best, log
from service.store import event
from service.store.sql import Ask, among, is_due, now, one_trip
from service.store.tables import (
    LIVE,
    EntryState,
    JobState,
    job,
    job_entry,
    lease,
    run,
    worker_device,
)
from strategy.record import RunState
from strategy.table import show_number

MAX_ATTEMPTS = 3
MOST_ATTEMPTS = 6  # where its devices lose workers anyway
SPLIT_ATTEMPTS = 2
MAX_BACKOFF_S = 30.0
LOST = ("expired", "unfinished")  # end reasons that count against the job


# The states of runs whose jobs are not queued again, with the reason for the jobs.
ABANDONED: dict[str, str] = {
    RunState.CANCELLED: "its run was cancelled",
    RunState.FAILED: "its run failed",
}


@dataclass(frozen=True)
class Terms:
    """The term of a lease without renewal, and the time for which a worker counts as alive, in seconds.

    `overdue` decides when a lease whose term is over ends; without a grace of its own, at once.
    """

    lease_s: float
    alive_s: float
    overdue: Overdue = field(default_factory=Overdue)


def is_cancelled(connection: sa.Connection, job_id: int) -> bool:
    """Return whether the job's run was cancelled, or failed."""
    query = sa.select(run.c.state).join(job, job.c.run_id == run.c.id).where(job.c.id == job_id)
    return connection.execute(query).scalar_one() in ABANDONED


def end_lease(connection: sa.Connection, lease_id: int, reason: str) -> None:
    connection.execute(
        sa.update(lease).where(lease.c.id == lease_id).values(ended_at=now(), end_reason=reason)
    )


_TERM = sa.bindparam("lease_s", type_=sa.Double)
_OVERDUE = sa.and_(lease.c.ended_at.is_(None), is_due(lease.c.expires_at, _TERM))
_IS_AHEAD = lease.c.expires_at > now() + _TERM
_DUE = sa.select(lease.c.id, lease.c.expires_at, _IS_AHEAD.label("ahead")).where(_OVERDUE)
# Skip leases that another transaction is ending.
_FREE = (
    sa.select(lease.c.id)
    .where(among(lease.c.id), _OVERDUE)
    .with_for_update(skip_locked=True, key_share=True)
)
# A lease expires far ahead if the clock was set back: a live worker renews it within a term.
_EXPIRE = (
    sa.update(lease)
    .where(lease.c.id.in_(_FREE), _OVERDUE)
    .values(
        expires_at=sa.case((_IS_AHEAD, now() + _TERM), else_=lease.c.expires_at),
        ended_at=sa.case((_IS_AHEAD, None), else_=now()),
        end_reason=sa.case((_IS_AHEAD, None), else_="expired"),
    )
    .returning(lease.c.job_id, lease.c.worker_id, lease.c.ended_at)
)
_DOOMED = (
    sa.select(job_entry.c.task_id)
    .distinct()
    .join(job, job.c.id == job_entry.c.job_id)
    .join(lease, lease.c.job_id == job.c.id)
    .where(among(lease.c.id), job.c.attempts >= MAX_ATTEMPTS - 1)
)


def expire(connection: sa.Connection, terms: Terms) -> int:
    """End expired leases, after their grace; return their number."""
    with one_trip(connection, joined=False) as ask:
        due = ask_due(ask, terms)
    return end_due(connection, due, terms)


def ask_due(ask: Ask, terms: Terms) -> list[Any]:
    """The leases whose time is over, for `end_due`."""
    return ask(_DUE, {"lease_s": terms.lease_s})


def end_due(connection: sa.Connection, due: Sequence[Any], terms: Terms) -> int:
    """End those of `ask_due` whose grace is over; return their number."""
    late = terms.overdue.look([(row.id, row.expires_at) for row in due if not row.ahead])
    ids = [row.id for row in due if row.ahead] + late
    if not ids:
        return 0
    if connection.dialect.name != "sqlite":
        # Those of jobs whose entries may be recorded as lost, in a fixed order. Reports hold leases while they wait for
        # tasks: such leases are skipped below.
        best.lock(connection, connection.scalars(_DOOMED, {"ids": late}))
    ended = connection.execute(_EXPIRE, {"lease_s": terms.lease_s, "ids": ids})
    dead = [row for row in ended if row.ended_at is not None]
    for row in sorted(dead, key=lambda r: r.job_id):
        event.note(connection, "expired", job_id=row.job_id, worker_id=row.worker_id)
        reopen(connection, row.job_id, terms, blame=f"worker {row.worker_id} was lost")
    return len(dead)


def reopen(connection: sa.Connection, job_id: int, terms: Terms, blame: str | None) -> None:
    """Requeue, split, quarantine or close a job whose lease has ended."""
    row = connection.execute(sa.select(job).where(job.c.id == job_id)).one()
    pending = connection.execute(
        sa.select(job_entry)
        .where(job_entry.c.job_id == job_id, job_entry.c.state == EntryState.PENDING)
        .order_by(job_entry.c.entry)
    ).all()
    if not pending:
        _close(connection, row, JobState.DONE, "")
        return
    # Lock the run: a concurrent cancellation either finds the job in the queue or is seen here.
    state, run_priority = connection.execute(
        sa.select(run.c.state, run.c.request["priority"].as_integer())
        .where(run.c.id == row.run_id)
        .with_for_update(read=True)
    ).one()
    if state in ABANDONED:
        _close(connection, row, JobState.CANCELLED, ABANDONED[state])
        return
    attempts = row.attempts + (blame is not None)
    if blame is not None and attempts >= MAX_ATTEMPTS and _is_guilty(connection, row, attempts, terms):
        lost = show_number(attempts, "time")
        reason = f"lost {lost} with {len(pending)} of its entries open; last cause: {blame}"
        log.append_lost(connection, row, pending, reason)
        _close(connection, row, JobState.QUARANTINED, reason)
        return
    backoff = 0.0 if blame is None else min(MAX_BACKOFF_S, 0.25 * 2.0 ** min(attempts, 10))
    values = {
        "state": JobState.QUEUED, "attempts": attempts, "available_at": now() + backoff,
        "reason": blame or row.reason,
        # An equal request may have raised it meanwhile (`tuning.join`). Repeated finals stay behind all.
        "priority": jobs.raised(row.priority, run_priority or 0) if state in LIVE else row.priority,
    }
    if attempts >= SPLIT_ATTEMPTS and len(pending) > 1:
        for entry in pending:
            _split_off(connection, row, entry, values)
        _close(connection, row, JobState.DONE, "split into one job for each open entry")
        return
    connection.execute(sa.update(job).where(job.c.id == job_id).values(**values))
    event.note(
        connection, "requeued", run_id=row.run_id, job_id=job_id, attempts=attempts,
        entries=len(pending), reason=blame or "released",
    )


def _split_off(connection: sa.Connection, row: Any, entry: Any, values: Mapping[str, Any]) -> None:
    copied = insertion.copy_columns(row, "turn", "fence", "seed", "created_at")
    job_id = insertion.insert_job(
        connection, {**copied, "parent_id": row.id, **values}, "split",
        parent=row.id, entry=entry.entry,
    )
    connection.execute(sa.update(job_entry).where(job_entry.c.id == entry.id).values(job_id=job_id))


def _is_guilty(connection: sa.Connection, row: Any, attempts: int, terms: Terms) -> bool:
    """Return whether a job is the cause of its losses.

    It was lost on two devices, or on the only live one of its target. Losses do not show this while the devices lose
    workers for other reasons, such as kills or restarts, up to `MOST_ATTEMPTS`.
    """
    jobs = [row.id] if row.parent_id is None else [row.id, row.parent_id]
    losses = connection.execute(
        sa.select(lease.c.id, lease.c.device_id, lease.c.worker_id).where(
            lease.c.job_id.in_(jobs), lease.c.end_reason.in_(LOST)
        )
    ).all()
    lost_on = {loss.device_id for loss in losses}
    if len(lost_on) < 2:
        others = fleet.of_live(terms.alive_s, sa.func.count()).where(
            worker_device.c.target_id == row.target_id, worker_device.c.device_id.not_in(lost_on)
        )
        if connection.scalar(others):
            return False
    return attempts >= MOST_ATTEMPTS or not _lose_others(connection, losses)


def _lose_others(connection: sa.Connection, losses: Sequence[Any]) -> bool:
    """Return whether devices lost workers without a job since its first loss, with jobs that were then finished.

    Such a job is not the cause either. A job that was lost together with the one in question does not count.
    """
    finished = lease.alias()
    innocent = sa.select(lease.c.id).where(
        lease.c.id > min(loss.id for loss in losses),
        lease.c.device_id.in_({loss.device_id for loss in losses}),
        lease.c.worker_id.not_in({loss.worker_id for loss in losses}),
        lease.c.end_reason == "expired",
        sa.exists().where(finished.c.job_id == lease.c.job_id, finished.c.end_reason == "done"),
    )
    return connection.scalar(innocent.limit(1)) is not None


_CLOSE = (
    sa.update(job)
    .where(among(job.c.id))
    .values(state=JobState.DONE, reason="", finished_at=now())
)


def close_done(connection: sa.Connection, jobs: Sequence[Any]) -> None:
    """Close jobs, rows with `id` and `run_id`, whose entries are all done."""
    connection.execute(_CLOSE, {"ids": [row.id for row in jobs]})
    event.note_all(
        connection, JobState.DONE.value,
        [{"run_id": row.run_id, "job_id": row.id, "worker_id": None, "detail": {}} for row in jobs],
    )


def _close(connection: sa.Connection, row: Any, state: JobState, reason: str) -> None:
    connection.execute(
        sa.update(job)
        .where(job.c.id == row.id)
        .values(state=state, reason=reason, finished_at=now())
    )
    event.note(connection, state.value, run_id=row.run_id, job_id=row.id, reason=reason)
