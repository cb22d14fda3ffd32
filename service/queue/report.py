"""Reports: results of leases, each stored once, in the caller's transaction."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.errors import InvalidError, LeaseLostError, ServiceError
from service.queue import fleet, retry
from service.queue.lease import touch
from service.records import best, log
from service.store import event
from service.store.sql import among, given_table, now, values_of
from service.store.tables import EntryState, job, job_entry, lease
from strategy.record import Report, Result, Results, ResultsAccepted


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
            lease.c.id == one.lease_id, lease.c.token == sent.token,
            lease.c.end_reason.in_(("done", "unfinished") if sent.done else ("done",)),
        )
    ).one_or_none()  # fmt: skip
    if ended is not None and ended.end_reason == "unfinished":  # its open entries are another lease's now
        return ResultsAccepted(
            accepted=0, known=len({r.entry for r in sent.results}),
            cancelled=retry.is_cancelled(connection, ended.job_id),
        )  # fmt: skip
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
    repeated = [e.entry for e in entries if fresh and e.state != EntryState.PENDING]
    return ResultsAccepted(
        accepted=len(fresh), known=len(entries) - len(fresh), repeated=tuple(repeated),
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
        .where(lease.c.ended_at.is_(None))
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
