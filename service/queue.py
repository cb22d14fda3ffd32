"""The job queue: enqueue, lease, renew, report, give back.

A claim is one conditional UPDATE, correct by itself on SQLite and PostgreSQL: of two that claim
one job, the second finds it no longer queued. Each claim raises the job's fence; its value is the
lease's token, and every later call must match the token of a lease that is live by the
database's clock. Functions run in the caller's transaction.

What becomes of a job whose worker is lost is in `retry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import sqlalchemy as sa

from service import catalogue, fleet, pause, records, retry
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
    Report,
    Reported,
    Results,
    ResultsAccepted,
    TimingPolicy,
    convert,
)
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

URGENT, NORMAL = 0, 10  # priorities: the lower, the sooner


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
            priority=priority, turn=_turn(connection, run_id, target_id), attempts=0,
            fence=0, seed=seed,
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


def _turn(connection: sa.Connection, run_id: int, target_id: int) -> float:
    """Where a run's next job begins: at the end of its own last, and not before where others are.

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


def _code_version(version: str) -> str:
    """The declared integer of `2.1a2b3c4d`, which is what a worker has or has not."""
    return version.partition(".")[0]


def can_build(needs: str, operators: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a worker with these operators and versions can build what a job needs."""
    wanted = orjson.loads(needs)
    known = operators.get(wanted["op"])
    return known is not None and all(
        str(known.get(name)) == version for name, version in wanted["versions"].items()
    )


def lease_jobs(
    connection: sa.Connection, worker_id: int, identity: str, terms: retry.Terms, most: int = 1
) -> list[Lease]:
    """Leases the next jobs that this worker can build to one of its devices.

    Afterwards it builds at most so many, beside the one that it times; two calls for one device at
    the same moment may lease more under PostgreSQL, which only means that it has more to do.

    Raises:
        NotFoundError: the worker is not registered.
        InvalidError: the device is not the worker's.
    """
    retry.expire(connection, terms)
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
        needs = [n for n in connection.scalars(queued) if can_build(n, found.operators)]
        if not needs:
            return []
    building = sa.select(sa.func.count()).where(
        lease.c.device_id == found.id, lease.c.ended_at.is_(None), lease.c.timing.is_(sa.false())
    )
    room = most - connection.execute(building).scalar_one()
    if room <= 0:
        return []
    given = {
        "asking": worker_id, "device": found.id, "target": found.target_id,
        "alive_s": terms.alive_s, "known_needs": needs, "most": 1,
    }  # fmt: skip
    named = needs is not None
    claimed = list(connection.execute(_claim(named=named, several=False), given).all())
    if room > 1 and claimed and not claimed[0].attempts:
        claim = _claim(named=named, several=True)
        rest = connection.execute(claim, given | {"most": room - 1}).all()
        claimed += sorted(rest, key=lambda row: (row.priority, row.turn, row.id))
    return _lease(connection, claimed, worker_id, found.id, identity, terms) if claimed else []


def has_jobs(connection: sa.Connection, worker_id: int, identity: str) -> bool:
    """Whether a look for jobs of a worker's device may find any."""
    driven = (
        sa.select(worker_device.c.target_id)
        .join(device, device.c.id == worker_device.c.device_id)
        .where(worker_device.c.worker_id == worker_id, device.c.identity == identity)
    )
    waiting = sa.select(job.c.id).where(
        job.c.state == JobState.QUEUED, job.c.available_at <= now(), job.c.target_id.in_(driven)
    )
    return connection.scalar(waiting.limit(1)) is not None


def _lease(
    connection: sa.Connection, claimed: Sequence[Any], worker_id: int, device_id: int, identity: str,
    terms: retry.Terms,
) -> list[Lease]:  # fmt: skip
    statement = sa.insert(lease).values(created_at=now(), expires_at=now() + terms.lease_s)
    inserted = connection.execute(
        statement.returning(lease.c.id, lease.c.job_id),
        [
            {"job_id": c.id, "worker_id": worker_id, "device_id": device_id, "token": c.fence,
             "timing": False}
            for c in claimed
        ],
    )  # fmt: skip
    ids = {row.job_id: row.id for row in inserted}
    catalogue.note_all(
        connection, "leased",
        [
            {"run_id": c.run_id, "job_id": c.id, "worker_id": worker_id,
             "detail": {"lease": ids[c.id], "device": identity}}
            for c in claimed
        ],
    )  # fmt: skip
    jobs = _wire_jobs(connection, list(ids))
    return [
        Lease(id=ids[c.id], token=c.fence, expires_in_s=terms.lease_s, job=jobs[c.id])
        for c in claimed
    ]


@cache
def _claim(*, named: bool, several: bool) -> sa.sql.dml.ReturningUpdate[Any]:
    """The one statement that takes queued jobs, `most` of them: correct without any lock around it.

    It is made once, as that takes longer than running it.

    Args:
        named: only those that need one of `needs`.
        several: only those that were never lost and whose runs have no limit: of the others each
            claim must see the one before.
    """
    worker_id, device_id, target_id = (
        sa.bindparam(name, type_=sa.BigInteger) for name in ("asking", "device", "target")
    )
    held = sa.select(lease.c.id).where(lease.c.ended_at.is_(None))
    of_run = job.alias("of_run")
    running = (
        sa.select(sa.func.count())
        .where(of_run.c.run_id == job.c.run_id, of_run.c.state == JobState.LEASED)
        .scalar_subquery()
    )
    limit = sa.select(run.c.max_jobs).where(run.c.id == job.c.run_id).scalar_subquery()
    other_job = job.alias("other_job")
    # A job that this device has lost twice waits for one that has not, where there is one.
    lost_here = _lost_on(device_id).correlate(job).exists()
    elsewhere = (
        sa.select(worker_device.c.device_id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(
            worker_device.c.target_id == target_id,
            fleet.is_alive(sa.bindparam("alive_s", type_=sa.Double)),
            ~_lost_on(worker_device.c.device_id).correlate(job, worker_device).exists(),
        )
        .correlate(job)
        .exists()
    )
    wanted = (
        sa.select(job.c.id)
        .where(
            job.c.state == JobState.QUEUED,
            job.c.target_id == target_id,
            job.c.available_at <= now(),
            sa.or_(limit.is_(None), running < limit),
            ~pause.is_paused(device_id, target_id),
            # A suspect runs alone on its worker.
            ~held.join(other_job, other_job.c.id == lease.c.job_id)
            .where(lease.c.worker_id == worker_id, other_job.c.attempts > 0)
            .exists(),
            sa.or_(job.c.attempts == 0, ~held.where(lease.c.worker_id == worker_id).exists()),
            sa.or_(job.c.attempts < retry.SPLIT_ATTEMPTS, ~lost_here, ~elsewhere),
        )
        .order_by(job.c.priority, job.c.turn, job.c.id)
        .limit(sa.bindparam("most", type_=sa.Integer))
        # Only so that claims do not queue up behind each other; SQLite has no such clause.
        .with_for_update(skip_locked=True, key_share=True)
    )
    if named:
        wanted = wanted.where(job.c.needs.in_(sa.bindparam("known_needs", expanding=True)))
    if several:
        wanted = wanted.where(job.c.attempts == 0, limit.is_(None))
    # Found once and then taken: PostgreSQL could look again for each row otherwise.
    found = wanted.cte("wanted")
    return (
        sa.update(job)
        .where(job.c.id.in_(sa.select(found.c.id)), job.c.state == JobState.QUEUED)
        .values(state=JobState.LEASED, fence=job.c.fence + 1)
        .returning(*job.c["id", "fence", "run_id", "attempts", "priority", "turn"])
    )


def _lost_on(device_id: Any) -> sa.Select[Any]:
    """Leases of a device that count against the job of the enclosing query, or its parent."""
    lost = lease.alias()
    return sa.select(lost.c.id).where(
        lost.c.device_id == device_id,
        lost.c.end_reason.in_(retry.LOST),
        sa.or_(lost.c.job_id == job.c.id, lost.c.job_id == job.c.parent_id),
    )


def _wire_jobs(connection: sa.Connection, jobs: Sequence[int]) -> dict[int, Job]:
    rows = connection.execute(
        sa.select(job, workload.c.body.label("workload"), run.c.request, target.c.body.label("target"),
                  timing_policy.c.body.label("policy"))
        .join(workload, workload.c.id == job.c.workload_id)
        .join(run, run.c.id == job.c.run_id)
        .join(target, target.c.id == job.c.target_id)
        .join(timing_policy, timing_policy.c.id == job.c.policy_id)
        .where(job.c.id.in_(jobs))
    ).all()  # fmt: skip
    entries: dict[int, list[JobEntry]] = {}
    for e in connection.execute(
        sa.select(job_entry, task.c.implementation, task.c.version)
        .join(task, task.c.id == job_entry.c.task_id)
        .where(job_entry.c.job_id.in_(jobs), job_entry.c.state == EntryState.PENDING)
        .order_by(job_entry.c.job_id, job_entry.c.entry)
    ):
        entries.setdefault(e.job_id, []).append(
            JobEntry(
                index=e.entry, task_id=e.task_id, implementation=e.implementation,
                version=e.version, config=Config(e.config), best_s=e.best_s,
            )
        )  # fmt: skip
    # Jobs of one run have most of this in common.
    workloads = {row.workload_id: row.workload for row in rows}
    read = {i: convert(body, Workload) for i, body in workloads.items()}
    # The run's own target: libraries and cache sizes are not part of the key.
    requests = {row.run_id: row.request.get("target", row.target) for row in rows}
    targets = {i: Target.parse(body) for i, body in requests.items()}
    return {
        row.id: Job(
            id=row.id, run_id=row.run_id, workload=read[row.workload_id],
            target=targets[row.run_id], phase=Phase(row.phase),
            policy=convert(row.policy, TimingPolicy), seed=row.seed, attempt=row.attempts + 1,
            entries=tuple(entries.get(row.id, ())),
        )
        for row in rows
    }  # fmt: skip


def _is_live(lease_id: int, token: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        lease.c.id == lease_id,
        lease.c.token == token,
        lease.c.ended_at.is_(None),
        lease.c.expires_at > now(),
    )


def touch(connection: sa.Connection, lease_id: int, token: int, terms: retry.Terms) -> Any:
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
    connection: sa.Connection, lease_id: int, token: int, timing: bool, terms: retry.Terms
) -> Renewed:
    """Keeps a lease; `timing` makes it the timing lease of its device.

    Raises:
        LeaseLostError: as `touch`.
        DeviceBusyError: another timing lease of the device is live.
    """
    row = touch(connection, lease_id, token, terms)
    fleet.see(connection, row.worker_id)
    if timing and not row.timing:
        retry.expire(connection, terms)
        busy = connection.scalar(
            sa.select(lease.c.id).where(
                lease.c.device_id == row.device_id, lease.c.ended_at.is_(None), lease.c.timing
            )
        )
        if busy is not None:
            raise DeviceBusyError(f"lease {busy} of this device is timing: ask again when it is done")
        connection.execute(sa.update(lease).where(lease.c.id == lease_id).values(timing=True))
        catalogue.note(connection, "timing", job_id=row.job_id, worker_id=row.worker_id)
    return Renewed(expires_in_s=terms.lease_s, cancelled=retry.is_cancelled(connection, row.job_id))


def release(connection: sa.Connection, lease_id: int, token: int, terms: retry.Terms) -> None:
    """Gives a job back: its open entries are queued again, and nobody is to blame.

    Raises:
        LeaseLostError: as `touch`.
    """
    row = touch(connection, lease_id, token, terms)
    retry.end_lease(connection, lease_id, "released")
    retry.reopen(connection, row.job_id, terms, blame=None)


def release_worker(connection: sa.Connection, worker_id: int, terms: retry.Terms) -> None:
    """Gives back all that a worker holds."""
    held = connection.execute(
        sa.update(lease)
        .where(lease.c.worker_id == worker_id, lease.c.ended_at.is_(None))
        .values(ended_at=now(), end_reason="released")
        .returning(lease.c.job_id)
    ).all()
    for row in held:
        retry.reopen(connection, row.job_id, terms, blame=None)


def report(
    connection: sa.Connection, lease_id: int, sent: Results, terms: retry.Terms
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
        records.append(connection, [records.Parcel(held, entries, sent)])
    if sent.done and ended is None:
        if sent.references:
            records.append_references(connection, held, sent)
        _finish(connection, held, terms)
    return ResultsAccepted(
        accepted=len(fresh), known=len(entries) - len(fresh),
        cancelled=retry.is_cancelled(connection, held.job_id),
    )  # fmt: skip


def report_many(
    connection: sa.Connection, reports: Sequence[Report], terms: retry.Terms
) -> list[Reported]:
    """Stores the results of several leases; what is wrong with one is said of that one alone.

    Those that end a job as they should are stored together, the others one by one.
    """
    answers = _finish_whole(connection, reports, terms)
    for one in reports:
        if one.lease_id in answers:
            continue
        try:
            accepted = report(connection, one.lease_id, one.results, terms)
        except (InvalidError, LeaseLostError) as error:
            answers[one.lease_id] = Reported(lease_id=one.lease_id, problem=str(error))
        else:
            answers[one.lease_id] = Reported(lease_id=one.lease_id, accepted=accepted)
    return [answers[one.lease_id] for one in reports]


def _finish_whole(
    connection: sa.Connection, reports: Sequence[Report], terms: retry.Terms
) -> dict[int, Reported]:
    """Ends the live leases whose reports have a result for every entry of a job that had none."""
    sent = {r.lease_id: r.results for r in reports if r.results.done and not r.results.references}
    if len({r.lease_id for r in reports}) < len(reports):
        return {}  # one of them twice: each in its turn
    named = sa.tuple_(lease.c.id, lease.c.token).in_([(i, r.token) for i, r in sent.items()])
    live = connection.execute(
        sa.update(lease)
        .where(named, lease.c.ended_at.is_(None), lease.c.expires_at > now())
        .values(expires_at=now() + terms.lease_s)
        .returning(lease)
    ).all()
    entries: dict[int, list[Any]] = {held.job_id: [] for held in live}
    for row in connection.execute(sa.select(job_entry).where(job_entry.c.job_id.in_(entries))):
        entries[row.job_id].append(row)
    parcels = [
        parcel
        for held in live
        if _is_whole(parcel := records.Parcel(held, entries[held.job_id], sent[held.id]))
    ]
    if not parcels:
        return {}
    for worker_id in {p.held.worker_id for p in parcels}:
        fleet.see(connection, worker_id)
    records.append(connection, parcels)
    connection.execute(
        sa.update(lease)
        .where(lease.c.id.in_([p.held.id for p in parcels]))
        .values(ended_at=now(), end_reason="done")
    )
    cancelled = retry.close_done(connection, [p.held.job_id for p in parcels])
    return {
        p.held.id: Reported(
            lease_id=p.held.id,
            accepted=ResultsAccepted(
                accepted=len(p.entries), known=0, cancelled=p.held.job_id in cancelled
            ),
        )
        for p in parcels
    }


def _is_whole(parcel: records.Parcel) -> bool:
    """Whether each entry of a job has a result, the first and only one."""
    indices = sorted(e.entry for e in parcel.entries)
    return sorted(r.entry for r in parcel.sent.results) == indices and all(
        e.state == EntryState.PENDING for e in parcel.entries
    )


def _entries(connection: sa.Connection, job_id: int, sent: Results) -> list[Any]:
    known = {
        row.entry: row
        for row in connection.execute(sa.select(job_entry).where(job_entry.c.job_id == job_id))
    }
    for i, result in enumerate(sent.results):
        if result.entry not in known:
            raise InvalidError(f"results[{i}].entry = {result.entry}: job {job_id} has no such entry")
    return [known[entry] for entry in dict.fromkeys(r.entry for r in sent.results)]


def _finish(connection: sa.Connection, held: Any, terms: retry.Terms) -> None:
    is_open = sa.select(job_entry.c.id).where(
        job_entry.c.job_id == held.job_id, job_entry.c.state == EntryState.PENDING
    )
    unfinished = connection.scalar(is_open.limit(1)) is not None
    retry.end_lease(connection, held.id, "unfinished" if unfinished else "done")
    retry.reopen(connection, held.job_id, terms, blame="its worker ended it without their results")


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
