"""Leases: take and release, in the caller's transaction; `renewal` has their renewals.

Each claim of a job (`claim`) raises its fence; the value is the lease's fencing token, and every later
call must carry the token of a lease that has not ended (`retry.expire` ends those whose time is over by the
database's clock). Concurrent requests share one transaction, in the order of arrival.

On PostgreSQL a lease does not wait for the disk. If the server crashes, the last leases may be lost, with nothing that
builds on them, as each later step waits for the disk and for what was written before it: the jobs are queued, and
whoever has a lost lease is refused, by its token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.errors import ServiceError
from service.queue import claim, fleet, heartbeat, retry, wire_form
from service.queue.place import LeaseAsk, Place, find_places
from service.queue.renewal import touch
from service.store import event
from service.store.sql import Ask, among, given_table, now, one_trip, set_durable, values_of
from service.store.tables import LIVE, lease, run, worker_device
from strategy.record import Lease

_LIMITS = 0x6C696D69 << 32  # with the number of a target an advisory lock of PostgreSQL
# The targets of workers that have a run with a maximum of leased jobs, in order.
_LIMITED = (
    sa.select(run.c.target_id)
    .distinct()
    .join(worker_device, worker_device.c.target_id == run.c.target_id)
    .where(
        among(worker_device.c.worker_id), sa.or_(*(run.c.state == state for state in LIVE)), run.c.max_jobs.is_not(None)
    )
    .order_by(run.c.target_id)
    .subquery()
)
_LOCK_LIMITED = sa.select(sa.func.pg_advisory_xact_lock(_LIMITS + _LIMITED.c.target_id))


def lease_many(
    connection: sa.Connection, asks: Sequence[LeaseAsk], terms: retry.Terms
) -> list[list[Lease] | ServiceError]:
    """Lease the next jobs to each request, in order.

    Each device then builds at most the requested number of jobs, beside the one that it times. Under
    PostgreSQL, two concurrent calls for one device may lease more, which is harmless.

    Returns:
        for each request its leases, or its error: `NotFoundError` for an unregistered worker,
        `InvalidError` for a device that the worker did not register.
    """
    ahead = {a.worker_id: a.most for a in asks}
    found = find_places(connection, asks)
    registered = [p for p in found if isinstance(p, Place)]

    def look(ask: Ask) -> tuple[claim.Needs, list[Any], list[Any]]:
        """The needs of the queued jobs, the number of jobs that devices have, and the devices that no rule refuses."""
        workers = {p.worker_id for p in registered}
        return (
            claim.Needs(connection, ask, {p.target_id for p in registered}),
            ask(_BUILDING, {"ids": sorted({p.device_id for p in registered})}),
            claim.ask_free(connection, ask, workers) if len(registered) >= claim.TOGETHER else [],
        )

    with one_trip(connection) as ask:
        set_durable(connection, False)
        if connection.dialect.name != "sqlite":
            # A claim counts its run's leased jobs, and cannot see those of another service's claim that is under way.
            ask(_LOCK_LIMITED, {"ids": sorted(ahead)})
        # Lock workers before leases, as `leave` does, against deadlocks.
        rows = heartbeat.ask_store(connection, ask, ahead.keys(), terms.alive_s)
        due = retry.ask_due(ask, terms)
        needs, held, free = look(ask)
    known = heartbeat.look_ahead(connection, rows, ahead)
    if retry.end_due(connection, due, terms):  # their jobs are in the queue again, or on record as lost
        with one_trip(connection) as ask:
            set_durable(connection, True)
            needs, held, free = look(ask)
    places = [
        place if asked.worker_id in known else fleet.unknown_worker(asked.worker_id)
        for asked, place in zip(asks, found, strict=True)
    ]
    answers: list[list[Lease] | ServiceError] = [[] if isinstance(p, Place) else p for p in places]
    wanted = _find_room(asks, places, needs, Counter({row.device_id: row.leases for row in held}))
    served: dict[int, list[Any]] = {}
    if len(wanted) >= claim.TOGETHER:
        served = claim.take_together(connection, wanted, needs, free)
    taken: list[tuple[int, Place, Any]] = []
    for i, place, room in wanted:
        if i not in served and any(earlier.worker_id == place.worker_id for _, earlier, _ in taken):
            # The number to lease depends on the leases that the device holds.
            _make_leases(connection, taken, answers, terms)
            taken = []
        rows = served[i] if i in served else claim.take(connection, place, room, needs, terms.alive_s)
        taken += [(i, place, row) for row in rows]
    _make_leases(connection, taken, answers, terms)
    return answers


def _find_room(
    asks: Sequence[LeaseAsk], places: Sequence[Place | ServiceError], needs: claim.Needs, building: Counter[int]
) -> list[tuple[int, Place, int]]:
    """The requests that jobs wait for, each by its number, with the jobs that its device has room for.

    Args:
        building: the jobs that each device builds, to which this room is added.
    """
    wanted = []
    for i, (asked, place) in enumerate(zip(asks, places, strict=True)):
        if not isinstance(place, Place):
            continue
        room = asked.most - building[place.device_id]
        if room > 0 and needs.next(place.target_id):
            building[place.device_id] += room
            wanted.append((i, place, room))
    return wanted


# The leased jobs of devices that are not being timed.
_BUILDING = (
    sa.select(lease.c.device_id, sa.func.count().label("leases"))
    .where(among(lease.c.device_id), lease.c.ended_at.is_(None), lease.c.timing.is_(sa.false()))
    .group_by(lease.c.device_id)
)


@cache
def _insertion(dialect: str, lease_s: float) -> sa.sql.dml.ReturningInsert[Any]:
    given = given_table(dialect, list(lease.c["job_id", "worker_id", "device_id", "token"]))
    rows = sa.select(*given.c, now(), now() + lease_s, sa.false())
    names = (*given.c.keys(), "created_at", "expires_at", "timing")
    return sa.insert(lease).from_select(names, rows).returning(lease.c.id, lease.c.job_id)


def _make_leases(
    connection: sa.Connection,
    taken: Sequence[tuple[int, Place, Any]],
    answers: list[list[Lease] | ServiceError],
    terms: retry.Terms,
) -> None:
    """Insert leases of claimed jobs, and append them to the answers of their requests."""
    if not taken:
        return
    given = values_of((row.id, place.worker_id, place.device_id, row.fence) for _, place, row in taken)
    with one_trip(connection) as ask:
        inserted = ask(_insertion(connection.dialect.name, terms.lease_s), {"rows": given})
        entries = wire_form.ask_entries(connection, ask, [row.id for _, _, row in taken])
    ids = {row.job_id: row.id for row in inserted}
    event.note_all(
        connection, "leased",
        [
            {"run_id": row.run_id, "job_id": row.id, "worker_id": place.worker_id,
             "detail": {"lease": ids[row.id], "device": place.identity}}
            for _, place, row in taken
        ],
    )
    jobs = wire_form.wire_jobs(connection, [(row, place.model) for _, place, row in taken], entries)
    for i, _, row in taken:
        answer = answers[i]
        assert isinstance(answer, list)
        answer.append(
            Lease(id=ids[row.id], token=row.fence, expires_in_s=terms.lease_s, job=jobs[row.id])
        )


def may_lease(connection: sa.Connection, asks: Sequence[LeaseAsk]) -> list[bool]:
    """Return for each request whether a job may be available, without writing."""
    places = find_places(connection, asks)
    found = claim.with_jobs(connection, {p.target_id for p in places if isinstance(p, Place)})
    return [isinstance(p, Place) and p.target_id in found for p in places]


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
