"""The job queue: enqueue, lease, renew, give back, expire, quarantine.

A claim is one conditional UPDATE, correct by itself on SQLite and PostgreSQL: of two that claim
one job, the second finds it no longer queued. Each claim raises the job's fence; its value is the
lease's token, and every later call must match the token of a lease that is live by the
database's clock. Functions run in the caller's transaction.

A job whose worker is lost goes back to the queue. From then on it is suspect: it is leased only
to a worker that holds nothing else, so that the next loss tells who was guilty. Lost twice, its open
entries become jobs of their own; lost three times, on two devices or on the only one there is, it
is quarantined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from service import catalogue, fleet, records
from service.db import now
from service.errors import DeviceBusyError, InvalidError, LeaseLostError
from service.models import (
    EntryState,
    JobState,
    device,
    job,
    job_entry,
    lease,
    run,
    target,
    task,
    timing_policy,
    worker,
    worker_device,
    workload,
)
from strategy.record import (
    Job,
    JobEntry,
    Lease,
    Phase,
    Renewed,
    Results,
    ResultsAccepted,
    RunState,
    TimingPolicy,
    convert,
)
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

MAX_ATTEMPTS = 3
SPLIT_ATTEMPTS = 2
MAX_BACKOFF_S = 30.0
_LOST = ("expired", "unfinished")  # why leases ended that count against their job
URGENT, NORMAL = 0, 10  # priorities: the lower, the sooner


@dataclass(frozen=True)
class Terms:
    """How long a lease lasts without renewal, and a worker counts as alive, in seconds."""

    lease_s: float
    alive_s: float


@dataclass(frozen=True)
class NewEntry:
    """A configuration to enqueue; `best_s` is the best median of its task so far."""

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
    """A new job; returns its id. Entries are numbered as they stand."""
    if not entries:
        raise InvalidError("a job needs at least one entry")
    op = connection.execute(
        sa.select(workload.c.op).where(workload.c.id == workload_id)
    ).scalar_one()
    versions = connection.execute(
        sa.select(task.c.implementation, task.c.version).where(
            task.c.id.in_({e.task_id for e in entries})
        )
    ).all()
    needs = {"op": op, "versions": {v.implementation: _code_version(v.version) for v in versions}}
    job_id = connection.execute(
        sa.insert(job)
        .values(
            run_id=run_id, workload_id=workload_id, target_id=target_id,
            policy_id=catalogue.put_policy(connection, policy), phase=phase, state=JobState.QUEUED,
            priority=priority, attempts=0, fence=0, seed=seed,
            needs=orjson.dumps(needs, option=orjson.OPT_SORT_KEYS).decode(),
            available_at=now(), created_at=now(),
        )
        .returning(job.c.id)
    ).scalar_one()  # fmt: skip
    connection.execute(
        sa.insert(job_entry),
        [
            {
                "job_id": job_id, "entry": i, "task_id": e.task_id, "config": e.config.to_json(),
                "config_digest": e.config.digest, "best_s": e.best_s, "state": EntryState.PENDING,
            }
            for i, e in enumerate(entries)
        ],
    )  # fmt: skip
    catalogue.note(
        connection, "enqueued", run_id=run_id, job_id=job_id, phase=phase, entries=len(entries)
    )
    return int(job_id)


def _code_version(version: str) -> str:
    """The declared integer of `2.1a2b3c4d`, which is what a worker has or has not."""
    return version.partition(".")[0]


def _can_build(needs: str, operators: Mapping[str, Mapping[str, int]]) -> bool:
    wanted = orjson.loads(needs)
    known = operators.get(wanted["op"])
    return known is not None and all(
        str(known.get(name)) == version for name, version in wanted["versions"].items()
    )


def lease_job(
    connection: sa.Connection, worker_id: int, identity: str, terms: Terms
) -> Lease | None:
    """Leases the next job that this worker can build to one of its devices, or None.

    A device holds one lease that builds beside one that times. Under PostgreSQL two calls for one
    device at the same moment may both get this far: then the insertion fails with IntegrityError,
    and the caller treats that as None.

    Raises:
        NotFoundError: the worker is not registered.
        InvalidError: the device is not the worker's.
    """
    expire(connection, terms)
    fleet.heartbeat(connection, worker_id)
    found = connection.execute(
        sa.select(device.c.id, worker_device.c.target_id, worker.c.operators)
        .join(worker_device, worker_device.c.device_id == device.c.id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(worker.c.id == worker_id, device.c.identity == identity)
    ).one_or_none()
    if found is None:
        raise InvalidError(f"device {identity!r:.100} is not one that worker {worker_id} registered")
    needs = None
    if found.operators:
        queued = sa.select(job.c.needs).distinct().where(
            job.c.state == JobState.QUEUED, job.c.target_id == found.target_id
        )
        needs = [n for n in connection.scalars(queued) if _can_build(n, found.operators)]
        if not needs:
            return None
    claimed = connection.execute(_claim(worker_id, found, needs, terms)).one_or_none()
    if claimed is None:
        return None
    lease_id = connection.execute(
        sa.insert(lease)
        .values(
            job_id=claimed.id, worker_id=worker_id, device_id=found.id, token=claimed.fence,
            timing=False, created_at=now(), expires_at=now() + terms.lease_s,
        )
        .returning(lease.c.id)
    ).scalar_one()  # fmt: skip
    catalogue.note(
        connection, "leased", run_id=claimed.run_id, job_id=claimed.id, worker_id=worker_id,
        lease=lease_id, device=identity,
    )  # fmt: skip
    return Lease(
        id=lease_id, token=claimed.fence, expires_in_s=terms.lease_s,
        job=_wire_job(connection, claimed.id),
    )  # fmt: skip


def _claim(
    worker_id: int, place: Any, needs: Sequence[str] | None, terms: Terms
) -> sa.sql.dml.ReturningUpdate[Any]:
    """The one statement that takes a queued job: correct without any lock around it."""
    held = sa.select(lease.c.id).where(lease.c.ended_at.is_(None))
    other_job = job.alias("other_job")
    # A job that this device has lost twice waits for one that has not, where there is one.
    lost_here = _lost_on(place.id).correlate(job).exists()
    elsewhere = (
        sa.select(worker_device.c.device_id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(
            worker_device.c.target_id == place.target_id,
            fleet.is_alive(terms.alive_s),
            ~_lost_on(worker_device.c.device_id).correlate(job, worker_device).exists(),
        )
        .correlate(job)
        .exists()
    )
    wanted = (
        sa.select(job.c.id)
        .where(
            job.c.state == JobState.QUEUED,
            job.c.target_id == place.target_id,
            job.c.available_at <= now(),
            # This device builds under one lease at most.
            ~held.where(lease.c.device_id == place.id, lease.c.timing.is_(sa.false())).exists(),
            # A suspect runs alone on its worker.
            ~held.join(other_job, other_job.c.id == lease.c.job_id)
            .where(lease.c.worker_id == worker_id, other_job.c.attempts > 0)
            .exists(),
            sa.or_(job.c.attempts == 0, ~held.where(lease.c.worker_id == worker_id).exists()),
            sa.or_(job.c.attempts < SPLIT_ATTEMPTS, ~lost_here, ~elsewhere),
        )
        .order_by(job.c.priority, job.c.id)
        .limit(1)
        # Only so that claims do not queue up behind each other; SQLite has no such clause.
        .with_for_update(skip_locked=True, key_share=True)
    )
    if needs is not None:
        wanted = wanted.where(job.c.needs.in_(needs))
    return (
        sa.update(job)
        .where(job.c.id == wanted.scalar_subquery(), job.c.state == JobState.QUEUED)
        .values(state=JobState.LEASED, fence=job.c.fence + 1)
        .returning(job.c.id, job.c.fence, job.c.run_id)
    )


def _lost_on(device_id: Any) -> sa.Select[Any]:
    """Leases of a device that count against the job of the enclosing query, or its parent."""
    lost = lease.alias()
    return sa.select(lost.c.id).where(
        lost.c.device_id == device_id,
        lost.c.end_reason.in_(_LOST),
        sa.or_(lost.c.job_id == job.c.id, lost.c.job_id == job.c.parent_id),
    )


def _wire_job(connection: sa.Connection, job_id: int) -> Job:
    row = connection.execute(
        sa.select(job, workload.c.body.label("workload"), run.c.request, target.c.body.label("target"),
                  timing_policy.c.body.label("policy"))
        .join(workload, workload.c.id == job.c.workload_id)
        .join(run, run.c.id == job.c.run_id)
        .join(target, target.c.id == job.c.target_id)
        .join(timing_policy, timing_policy.c.id == job.c.policy_id)
        .where(job.c.id == job_id)
    ).one()  # fmt: skip
    entries = connection.execute(
        sa.select(job_entry, task.c.implementation, task.c.version)
        .join(task, task.c.id == job_entry.c.task_id)
        .where(job_entry.c.job_id == job_id, job_entry.c.state == EntryState.PENDING)
        .order_by(job_entry.c.entry)
    )
    return Job(
        id=row.id, run_id=row.run_id, workload=convert(row.workload, Workload),
        # The run's own target: libraries and cache sizes are not part of the key.
        target=Target.parse(row.request.get("target", row.target)),
        phase=Phase(row.phase), policy=convert(row.policy, TimingPolicy), seed=row.seed,
        attempt=row.attempts + 1,
        entries=tuple(
            JobEntry(
                index=e.entry, task_id=e.task_id, implementation=e.implementation,
                version=e.version, config=Config(e.config), best_s=e.best_s,
            )
            for e in entries
        ),
    )  # fmt: skip


def _is_live(lease_id: int, token: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        lease.c.id == lease_id,
        lease.c.token == token,
        lease.c.ended_at.is_(None),
        lease.c.expires_at > now(),
    )


def touch(connection: sa.Connection, lease_id: int, token: int, terms: Terms) -> Any:
    """Extends a live lease, and so locks it; returns its row.

    Raises:
        LeaseLostError: the token is not its, or it has expired or ended.
    """
    row = connection.execute(
        sa.update(lease)
        .where(_is_live(lease_id, token))
        .values(expires_at=now() + terms.lease_s)
        .returning(lease)
    ).one_or_none()
    if row is None:
        raise LeaseLostError(
            f"lease {lease_id} is not yours any more (it expired, ended, or has another token): "
            "drop its job and ask for another"
        )
    return row


def renew(
    connection: sa.Connection, lease_id: int, token: int, timing: bool, terms: Terms
) -> Renewed:
    """Keeps a lease; `timing` makes it the timing lease of its device.

    Raises:
        LeaseLostError: as `touch`.
        DeviceBusyError: another timing lease of the device is live.
    """
    row = touch(connection, lease_id, token, terms)
    fleet.see(connection, row.worker_id)
    if timing and not row.timing:
        expire(connection, terms)
        busy = connection.scalar(
            sa.select(lease.c.id).where(
                lease.c.device_id == row.device_id, lease.c.ended_at.is_(None), lease.c.timing
            )
        )
        if busy is not None:
            raise DeviceBusyError(f"lease {busy} of this device is timing: ask again when it is done")
        connection.execute(sa.update(lease).where(lease.c.id == lease_id).values(timing=True))
        catalogue.note(connection, "timing", job_id=row.job_id, worker_id=row.worker_id)
    return Renewed(expires_in_s=terms.lease_s, cancelled=is_cancelled(connection, row.job_id))


def is_cancelled(connection: sa.Connection, job_id: int) -> bool:
    """Whether the job's run is cancelled."""
    query = sa.select(run.c.state).join(job, job.c.run_id == run.c.id).where(job.c.id == job_id)
    return bool(connection.execute(query).scalar_one() == RunState.CANCELLED)


def release(connection: sa.Connection, lease_id: int, token: int, terms: Terms) -> None:
    """Gives a job back: its open entries are queued again, and nobody is to blame.

    Raises:
        LeaseLostError: as `touch`.
    """
    row = touch(connection, lease_id, token, terms)
    _end_lease(connection, lease_id, "released")
    _reopen(connection, row.job_id, terms, blame=None)


def release_worker(connection: sa.Connection, worker_id: int, terms: Terms) -> None:
    """Gives back all that a worker holds."""
    held = connection.execute(
        sa.update(lease)
        .where(lease.c.worker_id == worker_id, lease.c.ended_at.is_(None))
        .values(ended_at=now(), end_reason="released")
        .returning(lease.c.job_id)
    ).all()
    for row in held:
        _reopen(connection, row.job_id, terms, blame=None)


def report(
    connection: sa.Connection, lease_id: int, sent: Results, terms: Terms
) -> ResultsAccepted:
    """Stores results of a lease; those that are known already change nothing.

    `done` ends the lease. Entries left without a result then count as lost once.

    Raises:
        LeaseLostError: as `touch`; nothing is stored. Sending again what has ended the lease is
            no error.
        InvalidError: a result is of no entry of the job.
    """
    ended = connection.execute(
        sa.select(lease).where(
            lease.c.id == lease_id, lease.c.token == sent.token, lease.c.end_reason == "done"
        )
    ).one_or_none()
    held = ended or touch(connection, lease_id, sent.token, terms)
    fleet.see(connection, held.worker_id)
    entries = _entries(connection, held.job_id, sent)
    fresh = [e for e in entries if e.state == EntryState.PENDING]
    if fresh:
        # An ended lease left nothing open, so that this one is live.
        records.append(connection, held, entries, sent)
    if sent.done and ended is None:
        _finish(connection, held, terms)
    return ResultsAccepted(
        accepted=len(fresh), known=len(entries) - len(fresh),
        cancelled=is_cancelled(connection, held.job_id),
    )  # fmt: skip


def _entries(connection: sa.Connection, job_id: int, sent: Results) -> list[Any]:
    known = {
        row.entry: row
        for row in connection.execute(sa.select(job_entry).where(job_entry.c.job_id == job_id))
    }
    for i, result in enumerate(sent.results):
        if result.entry not in known:
            raise InvalidError(f"results[{i}].entry = {result.entry}: job {job_id} has no such entry")
    return [known[entry] for entry in dict.fromkeys(r.entry for r in sent.results)]


def _finish(connection: sa.Connection, held: Any, terms: Terms) -> None:
    is_open = sa.select(job_entry.c.id).where(
        job_entry.c.job_id == held.job_id, job_entry.c.state == EntryState.PENDING
    )
    unfinished = connection.scalar(is_open.limit(1)) is not None
    _end_lease(connection, held.id, "unfinished" if unfinished else "done")
    _reopen(connection, held.job_id, terms, blame="its worker ended it without their results")


def _end_lease(connection: sa.Connection, lease_id: int, reason: str) -> None:
    connection.execute(
        sa.update(lease).where(lease.c.id == lease_id).values(ended_at=now(), end_reason=reason)
    )


def expire(connection: sa.Connection, terms: Terms) -> int:
    """Takes expired leases from their workers; returns how many there were."""
    overdue = sa.and_(lease.c.ended_at.is_(None), lease.c.expires_at <= now())
    # What another is taking back right now is its business.
    free = sa.select(lease.c.id).where(overdue).with_for_update(skip_locked=True, key_share=True)
    dead = connection.execute(
        sa.update(lease)
        .where(lease.c.id.in_(free), overdue)
        .values(ended_at=now(), end_reason="expired")
        .returning(lease.c.job_id, lease.c.worker_id)
    ).all()
    for row in sorted(dead, key=lambda r: r.job_id):
        catalogue.note(connection, "expired", job_id=row.job_id, worker_id=row.worker_id)
        _reopen(connection, row.job_id, terms, blame=f"worker {row.worker_id} was lost with it")
    return len(dead)


def _reopen(connection: sa.Connection, job_id: int, terms: Terms, blame: str | None) -> None:
    """Decides what becomes of a job whose lease has ended."""
    row = connection.execute(sa.select(job).where(job.c.id == job_id)).one()
    pending = connection.execute(
        sa.select(job_entry)
        .where(job_entry.c.job_id == job_id, job_entry.c.state == EntryState.PENDING)
        .order_by(job_entry.c.entry)
    ).all()
    if not pending:
        _close(connection, row, JobState.DONE, "")
        return
    if is_cancelled(connection, job_id):
        _close(connection, row, JobState.CANCELLED, "its run was cancelled")
        return
    attempts = row.attempts + (blame is not None)
    if blame is not None and attempts >= MAX_ATTEMPTS and _is_guilty(connection, row, terms):
        reason = f"lost {attempts} times with {len(pending)} open entries; the last time {blame}"
        records.append_lost(connection, row, pending, reason)
        _close(connection, row, JobState.QUARANTINED, reason)
        return
    backoff = 0.0 if blame is None else min(MAX_BACKOFF_S, 0.25 * 2.0**attempts)
    values = {
        "state": JobState.QUEUED, "attempts": attempts, "available_at": now() + backoff,
        "reason": blame or row.reason,
    }  # fmt: skip
    if attempts >= SPLIT_ATTEMPTS and len(pending) > 1:
        for entry in pending:
            _split_off(connection, row, entry, values)
        _close(connection, row, JobState.DONE, "split into jobs of one entry each")
        return
    connection.execute(sa.update(job).where(job.c.id == job_id).values(**values))
    catalogue.note(
        connection, "requeued", run_id=row.run_id, job_id=job_id, attempts=attempts,
        entries=len(pending), reason=blame or "given back",
    )  # fmt: skip


def _split_off(connection: sa.Connection, row: Any, entry: Any, values: Mapping[str, Any]) -> None:
    copied = (
        "run_id", "workload_id", "target_id", "policy_id", "phase", "priority", "fence", "seed",
        "needs", "created_at",
    )  # fmt: skip
    fields = {name: getattr(row, name) for name in copied}
    job_id = connection.execute(
        sa.insert(job).values(**fields, parent_id=row.id, **values).returning(job.c.id)
    ).scalar_one()
    connection.execute(
        sa.update(job_entry).where(job_entry.c.id == entry.id).values(job_id=job_id)
    )
    catalogue.note(
        connection, "split", run_id=row.run_id, job_id=job_id, parent=row.id, entry=entry.entry
    )


def _is_guilty(connection: sa.Connection, row: Any, terms: Terms) -> bool:
    """Whether a job lost often enough was lost on two devices, or on the only one there is."""
    jobs = [row.id] if row.parent_id is None else [row.id, row.parent_id]
    lost_on = set(
        connection.scalars(
            sa.select(lease.c.device_id).where(
                lease.c.job_id.in_(jobs), lease.c.end_reason.in_(_LOST)
            )
        )
    )
    if len(lost_on) >= 2:
        return True
    others = connection.scalar(
        sa.select(sa.func.count())
        .select_from(worker_device)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(
            worker_device.c.target_id == row.target_id,
            worker_device.c.device_id.not_in(lost_on),
            fleet.is_alive(terms.alive_s),
        )
    )
    return not others


def _close(connection: sa.Connection, row: Any, state: JobState, reason: str) -> None:
    connection.execute(
        sa.update(job)
        .where(job.c.id == row.id)
        .values(state=state, reason=reason, finished_at=now())
    )
    catalogue.note(connection, state.value, run_id=row.run_id, job_id=row.id, reason=reason)


def cancel(connection: sa.Connection, run_id: int) -> None:
    """Takes a run's queued jobs out of the queue; leased ones hear of it from their run's state."""
    rows = connection.execute(
        sa.update(job)
        .where(job.c.run_id == run_id, job.c.state == JobState.QUEUED)
        .values(state=JobState.CANCELLED, reason="its run was cancelled", finished_at=now())
        .returning(job.c.id)
    ).all()
    for row in rows:
        catalogue.note(connection, "cancelled", run_id=run_id, job_id=row.id)


def open_jobs(connection: sa.Connection, run_id: int) -> int:
    """How many jobs of a run are queued or leased."""
    query = sa.select(sa.func.count()).where(
        job.c.run_id == run_id, job.c.state.in_((JobState.QUEUED, JobState.LEASED))
    )
    return int(connection.execute(query).scalar_one())
