"""The job queue: enqueue, lease, renew, report, release.

Each claim of a job (`claim`) increments its fence; the value is the lease's fencing token, and every later
call must carry the token of a lease that is live by the database's clock. Concurrent requests share one
transaction, in the order of arrival. Functions run in the caller's transaction.

`retry` requeues the jobs of lost workers.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import sqlalchemy as sa

from service.errors import DeviceBusyError, InvalidError, LeaseLostError, ServiceError
from service.queue import claim, fleet, insertion, retry
from service.queue.claim import Ask
from service.records import best, log
from service.store import catalogue, event
from service.store.db import among, given_table, now, values_of
from service.store.tables import EntryState, JobState, job, job_entry, lease, task, workload
from strategy.record import (
    Lease,
    Phase,
    Renewed,
    Report,
    Result,
    Results,
    ResultsAccepted,
    TimingPolicy,
)
from strategy.space import Config

URGENT, NORMAL = 0, 10  # priorities: the lowest is leased first


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
    needs = {"op": op, "versions": {v.implementation: _code_version(v.version) for v in versions}}
    job_id = insertion.insert_job(
        connection,
        {
            "run_id": run_id, "workload_id": workload_id, "target_id": target_id,
            "policy_id": catalogue.put_policy(connection, policy), "phase": phase,
            "priority": priority, "turn": _turn(connection, run_id, target_id), "seed": seed,
            "needs": orjson.dumps(needs, option=orjson.OPT_SORT_KEYS).decode(),
        },
        "enqueued", phase=phase, entries=len(entries),
    )  # fmt: skip
    insertion.insert_entries(
        connection, job_id,
        (
            {
                "entry": i, "task_id": e.task_id, "config": e.config.to_json(),
                "config_digest": e.config.digest, "best_s": e.best_s,
            }
            for i, e in enumerate(entries)
        ),
    )  # fmt: skip
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


def _code_version(version: str) -> str:
    """The declared integer of a version such as `2.1a2b3c4d`, which the worker must have."""
    return version.partition(".")[0]


def lease_many(
    connection: sa.Connection, asks: Sequence[Ask], terms: retry.Terms
) -> list[list[Lease] | ServiceError]:
    """Lease the next jobs to each request, in order.

    Each device then builds at most the requested number of jobs, beside the one that it times. Under
    PostgreSQL, two concurrent calls for one device may lease more, which is harmless.

    Returns:
        for each request its leases, or its error: `NotFoundError` for an unregistered worker,
        `InvalidError` for a device that the worker did not register.
    """
    # Lock workers before leases, as `leave` does, against deadlocks.
    known = fleet.heartbeat(connection, {a.worker_id for a in asks}, terms.alive_s)
    retry.expire(connection, terms)
    answers: list[list[Lease] | ServiceError] = []
    places: list[claim.Place | None] = []
    for ask in asks:
        answers.append([])
        places.append(None)
        try:
            if ask.worker_id not in known:
                raise fleet.unknown_worker(ask.worker_id)
            places[-1] = claim.find_place(connection, ask)
        except ServiceError as error:
            answers[-1] = error
    needs = claim.Needs(connection)
    building = _building(connection, {p.device_id for p in places if p is not None})
    wanted: list[tuple[int, claim.Place, int]] = []
    for i, place in enumerate(places):
        room = 0 if place is None else asks[i].most - building[place.device_id]
        if place is not None and room > 0 and needs.next(place.target_id):
            building[place.device_id] += room
            wanted.append((i, place, room))
    served: dict[int, list[Any]] = {}
    if len(wanted) >= claim.TOGETHER:
        served = claim.take_together(connection, wanted, needs)
    taken: list[tuple[int, claim.Place, Any]] = []
    for i, place, room in wanted:
        if i not in served and any(earlier.worker_id == place.worker_id for _, earlier, _ in taken):
            # The number to lease depends on the leases that the device holds.
            _make_leases(connection, taken, answers, terms)
            taken = []
        rows = served[i] if i in served else claim.take(connection, place, room, needs, terms.alive_s)
        taken += [(i, place, row) for row in rows]
    _make_leases(connection, taken, answers, terms)
    return answers


_BUILDING = (
    sa.select(lease.c.device_id, sa.func.count().label("leases"))
    .where(among(lease.c.device_id), lease.c.ended_at.is_(None), lease.c.timing.is_(sa.false()))
    .group_by(lease.c.device_id)
)


def _building(connection: sa.Connection, devices: Collection[int]) -> Counter[int]:
    """Count the leased jobs of devices that are not being timed."""
    rows = connection.execute(_BUILDING, {"ids": devices})
    return Counter({row.device_id: row.leases for row in rows})


@cache
def _insertion(lease_s: float) -> Any:
    given = {"created_at": now(), "expires_at": now() + lease_s, "timing": False}
    return sa.insert(lease).values(**given).returning(lease.c.id, lease.c.job_id)


def _make_leases(
    connection: sa.Connection,
    taken: Sequence[tuple[int, claim.Place, Any]],
    answers: list[list[Lease] | ServiceError],
    terms: retry.Terms,
) -> None:
    """Insert leases of claimed jobs, and append them to the answers of their requests."""
    if not taken:
        return
    inserted = connection.execute(
        _insertion(terms.lease_s),
        [
            {"job_id": row.id, "worker_id": place.worker_id, "device_id": place.device_id,
             "token": row.fence}
            for _, place, row in taken
        ],
    )  # fmt: skip
    ids = {row.job_id: row.id for row in inserted}
    event.note_all(
        connection, "leased",
        [
            {"run_id": row.run_id, "job_id": row.id, "worker_id": place.worker_id,
             "detail": {"lease": ids[row.id], "device": place.identity}}
            for _, place, row in taken
        ],
    )  # fmt: skip
    jobs = claim.wire_jobs(connection, [row for _, _, row in taken])
    for i, _, row in taken:
        answer = answers[i]
        assert isinstance(answer, list)
        answer.append(
            Lease(id=ids[row.id], token=row.fence, expires_in_s=terms.lease_s, job=jobs[row.id])
        )


def may_lease(connection: sa.Connection, asks: Sequence[Ask]) -> list[bool]:
    """Return for each request whether a job may be available, without writing."""
    targets: list[int | None] = []
    for ask in asks:
        try:
            targets.append(claim.find_place(connection, ask).target_id)
        except ServiceError:
            targets.append(None)
    found = claim.with_jobs(connection, {t for t in targets if t is not None})
    return [t in found for t in targets]


def _is_live(lease_id: int, token: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        lease.c.id == lease_id,
        lease.c.token == token,
        lease.c.ended_at.is_(None),
        lease.c.expires_at > now(),
    )


def touch(connection: sa.Connection, lease_id: int, token: int, terms: retry.Terms) -> Any:
    """Extend a live lease, which also locks it; return its row.

    Raises:
        LeaseLostError: the lease has expired, ended, or has another token.
    """
    row = connection.execute(
        sa.update(lease)
        .where(_is_live(lease_id, token))
        .values(expires_at=now() + terms.lease_s)
        .returning(lease)
    ).one_or_none()
    if row is None:
        raise LeaseLostError(
            f"lease {lease_id} is lost: it expired, ended, or has another token: drop its job and "
            "request another"
        )
    return row


def renew(
    connection: sa.Connection, lease_id: int, token: int, timing: bool, terms: retry.Terms
) -> Renewed:
    """Renew a lease; `timing` makes it the timing lease of its device.

    Raises:
        LeaseLostError: as `touch`.
        DeviceBusyError: another timing lease of the device is live.
    """
    if timing and not connection.scalar(sa.select(lease.c.timing).where(lease.c.id == lease_id)):
        retry.expire(connection, terms)
    row = touch(connection, lease_id, token, terms)
    fleet.see(connection, [row.worker_id], terms.alive_s)
    if timing and not row.timing:
        same = fleet.lock_device(connection, row.device_id)
        busy = connection.scalar(
            sa.select(lease.c.id).where(
                lease.c.device_id.in_(same), lease.c.ended_at.is_(None), lease.c.timing
            )
        )
        if busy is not None:
            raise DeviceBusyError(f"the device is timing under lease {busy}: renew again when that has ended")
        connection.execute(sa.update(lease).where(lease.c.id == lease_id).values(timing=True))
        event.note(connection, "timing", job_id=row.job_id, worker_id=row.worker_id)
    return Renewed(expires_in_s=terms.lease_s, cancelled=retry.is_cancelled(connection, row.job_id))


def release(connection: sa.Connection, lease_id: int, token: int, terms: retry.Terms) -> None:
    """Release a job: its open entries are queued again, and it does not count as lost.

    Raises:
        LeaseLostError: as `touch`.
    """
    row = touch(connection, lease_id, token, terms)
    retry.end_lease(connection, lease_id, "released")
    retry.reopen(connection, row.job_id, terms, blame=None)


def leave(connection: sa.Connection, worker_id: int, terms: retry.Terms) -> None:
    """End a worker, and release its jobs; raise `NotFoundError` for one that has ended."""
    fleet.end(connection, worker_id)
    # Includes concurrent leases: the worker gets no more from here on.
    release_worker(connection, worker_id, terms)


def release_worker(connection: sa.Connection, worker_id: int, terms: retry.Terms) -> None:
    """Release all jobs of a worker."""
    held = connection.execute(
        sa.update(lease)
        .where(lease.c.worker_id == worker_id, lease.c.ended_at.is_(None))
        .values(ended_at=now(), end_reason="released")
        .returning(lease.c.job_id)
    ).all()
    for row in held:
        retry.reopen(connection, row.job_id, terms, blame=None)


def report(connection: sa.Connection, one: Report, terms: retry.Terms) -> ResultsAccepted:
    """Store results of a lease; idempotent.

    `done` ends the lease; entries without a result then count as lost once.

    Raises:
        LeaseLostError: as `touch`; nothing is stored. Repeating the report that ended the lease is
            no error.
        InvalidError: a result has an entry that the job lacks.
    """
    sent = one.results
    ended = connection.execute(
        sa.select(lease).where(
            lease.c.id == one.lease_id, lease.c.token == sent.token, lease.c.end_reason == "done"
        )
    ).one_or_none()
    held = ended or touch(connection, one.lease_id, sent.token, terms)
    fleet.see(connection, [held.worker_id], terms.alive_s)
    entries = _entries(connection, held.job_id, sent)
    fresh = [e for e in entries if e.state == EntryState.PENDING]
    refused: Counter[int] = Counter()
    if fresh:
        # An ended lease has no open entries, so this one is live.
        refused = log.append(connection, [one], {held.id: held}, fresh)
    if sent.done and ended is None:
        if sent.references:
            log.append_references(connection, held, sent)
        _finish(connection, held, terms)
    return ResultsAccepted(
        accepted=len(fresh), known=len(entries) - len(fresh),
        cancelled=retry.is_cancelled(connection, held.job_id), refused=refused[held.job_id],
    )  # fmt: skip


def report_many(
    connection: sa.Connection, reports: Sequence[Report], terms: retry.Terms
) -> list[ResultsAccepted | ServiceError]:
    """Store the results of several leases; an error of one is only that one's answer.

    Complete results of jobs are stored in one batch, the others one by one.
    """
    if len(reports) > 1 and connection.dialect.name != "sqlite":
        # Locked in one statement and a fixed order, against deadlocks between services.
        best.lock(connection, connection.scalars(_TASKS, {"ids": [r.lease_id for r in reports]}))
    answers = _finish_whole(connection, reports, terms)
    for i, one in enumerate(reports):
        if i not in answers:
            try:
                answers[i] = report(connection, one, terms)
            except InvalidError as error:
                answers[i] = error
            except LeaseLostError as error:
                _note_late(connection, one)
                answers[i] = error
    return [answers[i] for i in range(len(reports))]


def _note_late(connection: sa.Connection, late: Report) -> None:
    """Record an event for results that came after the end of their lease; they are not stored."""
    held = connection.execute(
        sa.select(lease.c.worker_id, lease.c.job_id, job.c.run_id)
        .join(job, job.c.id == lease.c.job_id)
        .where(lease.c.id == late.lease_id, lease.c.token == late.results.token)
    ).one_or_none()
    if held is not None and late.results.results:
        found = [
            {"entry": r.entry, "error": r.error, "median_s": _median(r)} for r in late.results.results
        ]
        event.note(
            connection, "late", run_id=held.run_id, job_id=held.job_id, worker_id=held.worker_id,
            lease=late.lease_id, results=found,
        )  # fmt: skip


def _median(result: Result) -> float | None:
    return statistics.median(result.samples_s) if result.samples_s else None


@cache
def _live(dialect: str) -> sa.Select[Any]:
    """Select and lock the live leases among those given by id and token."""
    given = given_table(dialect, [lease.c.id, lease.c.token])
    return (
        sa.select(*lease.c["id", "job_id", "worker_id", "device_id"])
        .join(given, sa.and_(given.c.id == lease.c.id, given.c.token == lease.c.token))
        .where(lease.c.ended_at.is_(None), lease.c.expires_at > now())
        .order_by(lease.c.id)
        .with_for_update(of=lease, key_share=True)
    )


_TASKS = (
    sa.select(job_entry.c.task_id)
    .distinct()
    .join(lease, lease.c.job_id == job_entry.c.job_id)
    .where(among(lease.c.id))
)
_ENTRIES = sa.select(job_entry).where(among(job_entry.c.job_id))
_END = sa.update(lease).where(among(lease.c.id)).values(ended_at=now(), end_reason="done")


def _finish_whole(
    connection: sa.Connection, reports: Sequence[Report], terms: retry.Terms
) -> dict[int, ResultsAccepted | ServiceError]:
    """End the live leases whose reports have results for all entries of a job without earlier ones.

    Answers are keyed by the position of the report. Both reports of a lease that occurs twice are left out.
    """
    times = Counter(one.lease_id for one in reports)
    places = {
        one.lease_id: i
        for i, one in enumerate(reports)
        if one.results.done and times[one.lease_id] == 1
    }
    if not places:
        return {}
    named = values_of((i, reports[place].results.token) for i, place in places.items())
    live = connection.execute(_live(connection.dialect.name), {"rows": named}).all()
    entries: dict[int, list[Any]] = {held.job_id: [] for held in live}
    for row in connection.execute(_ENTRIES, {"ids": entries}):
        entries[row.job_id].append(row)
    whole = {
        held.id: held
        for held in live
        if _is_whole(entries[held.job_id], reports[places[held.id]].results)
    }
    if not whole:
        return {}
    stored = [e for held in whole.values() for e in entries[held.job_id]]
    refused = log.append(connection, [reports[places[i]] for i in whole], whole, stored)
    for i, held in whole.items():
        if reports[places[i]].results.references:
            log.append_references(connection, held, reports[places[i]].results)
    connection.execute(_END, {"ids": list(whole)})
    cancelled = retry.close_done(connection, [held.job_id for held in whole.values()])
    fleet.see(connection, {held.worker_id for held in whole.values()}, terms.alive_s)
    return {
        places[i]: ResultsAccepted(
            accepted=len(entries[held.job_id]), known=0, cancelled=held.job_id in cancelled,
            refused=refused[held.job_id],
        )
        for i, held in whole.items()
    }


def _is_whole(entries: Sequence[Any], sent: Results) -> bool:
    """Return whether each entry of a job has exactly one result."""
    indices = sorted(e.entry for e in entries)
    return sorted(r.entry for r in sent.results) == indices and all(
        e.state == EntryState.PENDING for e in entries
    )


def _entries(connection: sa.Connection, job_id: int, sent: Results) -> list[Any]:
    known = {
        row.entry: row
        for row in connection.execute(sa.select(job_entry).where(job_entry.c.job_id == job_id))
    }
    for i, result in enumerate(sent.results):
        if result.entry not in known:
            raise InvalidError(
                f"results[{i}].entry = {result.entry}: job {job_id} has no such entry: send the "
                "entries of the lease"
            )
    return [known[entry] for entry in dict.fromkeys(r.entry for r in sent.results)]


def _finish(connection: sa.Connection, held: Any, terms: retry.Terms) -> None:
    is_open = sa.select(job_entry.c.id).where(
        job_entry.c.job_id == held.job_id, job_entry.c.state == EntryState.PENDING
    )
    unfinished = connection.scalar(is_open.limit(1)) is not None
    retry.end_lease(connection, held.id, "unfinished" if unfinished else "done")
    retry.reopen(connection, held.job_id, terms, blame="its worker ended the lease without their results")


def cancel(connection: sa.Connection, run_id: int) -> None:
    """Cancel a run's queued jobs; leased ones are cancelled when their leases end."""
    rows = connection.execute(
        sa.update(job)
        .where(job.c.run_id == run_id, job.c.state == JobState.QUEUED)
        .values(state=JobState.CANCELLED, reason="its run was cancelled", finished_at=now())
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
