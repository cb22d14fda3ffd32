"""Reports: results of leases, each stored once, in the caller's transaction."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.errors import InvalidError, LeaseLostError, ServiceError
from service.queue import heartbeat, retry
from service.queue.renewal import touch
from service.records import best, log
from service.store import event
from service.store.sql import among, given_table, join_each, now, one_trip, values_of
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
    ).one_or_none()
    if ended is not None and ended.end_reason == "unfinished":  # its open entries are another lease's now
        return ResultsAccepted(
            accepted=0, known=len({r.entry for r in sent.results}),
            cancelled=retry.is_cancelled(connection, ended.job_id),
        )
    held = ended or touch(connection, one.lease_id, sent.token, terms)
    entries = _entries(connection, held.job_id, sent)
    refused: Counter[int] = Counter()
    if ended is None:  # an ended lease has no open entries
        with one_trip(connection, joined=False) as ask:
            about = log.ask_about(connection, ask, [held.id])
        refused = log.append(connection, [one], {held.id: held}, entries, about)
        if sent.done:
            _finish(connection, held, terms)
    heartbeat.see(connection, [held.worker_id], terms.alive_s)
    return _accept(entries, retry.is_cancelled(connection, held.job_id), refused[held.job_id])


def _accept(entries: Sequence[Any], cancelled: bool, refused: int) -> ResultsAccepted:
    """The answer to results of these entries, as they were before."""
    fresh = sum(e.state == EntryState.PENDING for e in entries)
    repeated = tuple(e.entry for e in entries if fresh and e.state != EntryState.PENDING)
    return ResultsAccepted(
        accepted=fresh, known=len(entries) - fresh, repeated=repeated, cancelled=cancelled, refused=refused
    )


def report_many(
    connection: sa.Connection, reports: Sequence[Report], terms: retry.Terms
) -> list[ResultsAccepted | ServiceError]:
    """Store the results of several leases; an error of one is only that one's answer.

    They are stored in one batch, but for those that end a job with open entries, or cannot be stored.
    """
    answers = _store_together(connection, reports, terms) if reports else {}
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
        )


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


@cache
def _entries_of(dialect: str) -> sa.Select[Any]:
    """The entries of leases' jobs; those of a job occur again for another lease."""
    joined, entry = join_each(dialect, lease, job_entry, job_entry.c.job_id == lease.c.job_id)
    return sa.select(*entry).select_from(joined).where(among(lease.c.id))


_EXTEND = sa.update(lease).where(among(lease.c.id)).values(expires_at=now() + sa.bindparam("lease_s", type_=sa.Double))
_END = sa.update(lease).where(among(lease.c.id)).values(ended_at=now(), end_reason="done")


def _store_together(
    connection: sa.Connection, reports: Sequence[Report], terms: retry.Terms
) -> dict[int, ResultsAccepted | ServiceError]:
    """Store the reports of live leases, but for those that end a job with open entries, or name one that it lacks.

    Answers are keyed by the position of the report. Both reports of a lease that occurs twice are left out.
    """
    times = Counter(one.lease_id for one in reports)
    places = {one.lease_id: i for i, one in enumerate(reports) if times[one.lease_id] == 1}
    sent = {lease_id: reports[i].results for lease_id, i in places.items()}
    dialect = connection.dialect.name
    with one_trip(connection) as ask:
        # All leases, in one statement and a fixed order, and later their tasks: against deadlocks between services.
        locked = ask(_live(dialect), {"rows": values_of({(one.lease_id, one.results.token) for one in reports})})
        rows = ask(_entries_of(dialect), {"ids": list(times)})
        about = log.ask_about(connection, ask, sent)
        due = heartbeat.ask_due(connection, ask, sent, terms.alive_s)
    live = [held for held in locked if held.id in sent]
    jobs = {row.id: row for row in about}
    entries: dict[int, dict[int, Any]] = {held.job_id: {} for held in locked}
    for row in rows:
        if row.job_id in entries:
            entries[row.job_id][row.entry] = row
    taken = {held.id: held for held in live if _is_complete(entries[held.job_id], sent[held.id])}
    # The others may be stored one by one, and wait for no task then.
    left = {e.task_id for held in locked if held.id not in taken for e in entries[held.job_id].values()}
    if not taken:
        if left:
            best.lock(connection, left)
        return {}
    done = {i: held.job_id for i, held in taken.items() if sent[i].done}

    def end() -> None:
        connection.execute(_EXTEND, {"ids": taken.keys() - done.keys(), "lease_s": terms.lease_s})
        connection.execute(_END, {"ids": done})
        retry.close_done(connection, [jobs[job_id] for job_id in done.values()])

    def see() -> None:  # not before: leases and heartbeats of all workers would wait for the tasks
        workers = {held.worker_id for held in taken.values()} & {row.worker_id for row in due}
        if workers:  # else a round trip, for which other reports wait
            heartbeat.see(connection, workers, terms.alive_s)

    opened = [e for held in taken.values() for e in entries[held.job_id].values()]
    sending = [reports[places[i]] for i in taken]
    refused = log.append(connection, sending, taken, opened, about, end, see, left)
    return {
        places[i]: _accept(
            [entries[held.job_id][entry] for entry in dict.fromkeys(r.entry for r in sent[i].results)],
            jobs[held.job_id].run_state in retry.ABANDONED, refused[held.job_id],
        )
        for i, held in taken.items()
    }


def _is_complete(entries: Mapping[int, Any], sent: Results) -> bool:
    """Return whether a job has the entries of results, and none is left open by the last of them."""
    given = {r.entry for r in sent.results}
    left = {i for i, e in entries.items() if e.state == EntryState.PENDING} - given
    return given <= entries.keys() and not (sent.done and left)


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
