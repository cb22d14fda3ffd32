"""Leases: take, renew and release, in the caller's transaction.

Each claim of a job (`claim`) increments its fence; the value is the lease's fencing token, and every later
call must carry the token of a lease that has not ended (`retry.expire` ends those whose time is over by the
database's clock). Concurrent requests share one transaction, in the order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.errors import DeviceBusyError, LeaseLostError, ServiceError
from service.queue import claim, fleet, retry, wire_form
from service.queue.place import Ask, Place, find_place
from service.store import event
from service.store.sql import among, now
from service.store.tables import LIVE, lease, run
from strategy.record import Lease, Renewed

_ANY_LIMITED = sa.select(run.c.id).where(run.c.state.in_(LIVE), run.c.max_jobs.is_not(None)).limit(1)
_LIMITS = 0x6C696D69  # an advisory lock of PostgreSQL


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
    # A claim counts its run's leased jobs, and cannot see those of another service's claim that is under way.
    if connection.dialect.name != "sqlite" and connection.scalar(_ANY_LIMITED) is not None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LIMITS)))
    # Lock workers before leases, as `leave` does, against deadlocks.
    ahead = {a.worker_id: a.most for a in asks}
    known = fleet.heartbeat(connection, ahead.keys(), terms.alive_s, ahead)
    retry.expire(connection, terms)
    answers: list[list[Lease] | ServiceError] = []
    places: list[Place | None] = []
    for ask in asks:
        answers.append([])
        places.append(None)
        try:
            if ask.worker_id not in known:
                raise fleet.unknown_worker(ask.worker_id)
            places[-1] = find_place(connection, ask)
        except ServiceError as error:
            answers[-1] = error
    needs = claim.Needs(connection)
    building = _building(connection, {p.device_id for p in places if p is not None})
    wanted: list[tuple[int, Place, int]] = []
    for i, place in enumerate(places):
        room = 0 if place is None else asks[i].most - building[place.device_id]
        if place is not None and room > 0 and needs.next(place.target_id):
            building[place.device_id] += room
            wanted.append((i, place, room))
    served: dict[int, list[Any]] = {}
    if len(wanted) >= claim.TOGETHER:
        served = claim.take_together(connection, wanted, needs)
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
    taken: Sequence[tuple[int, Place, Any]],
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
    jobs = wire_form.wire_jobs(connection, [(row, place.model) for _, place, row in taken])
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
            targets.append(find_place(connection, ask).target_id)
        except ServiceError:
            targets.append(None)
    found = claim.with_jobs(connection, {t for t in targets if t is not None})
    return [t in found for t in targets]


def _is_live(lease_id: int, token: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        lease.c.id == lease_id,
        lease.c.token == token,
        lease.c.ended_at.is_(None),
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
    if timing and not row.timing:
        # Lock the device before its worker, as renaming does.
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
    fleet.see(connection, [row.worker_id], terms.alive_s)
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
