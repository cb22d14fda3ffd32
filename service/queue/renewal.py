"""Renewals of leases, by which one becomes the timing lease of its device, in the caller's transaction.

Those that come together share a transaction, which waits for nobody; the others have one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.errors import DeviceBusyError, LeaseLostError
from service.queue import fleet, heartbeat, retry
from service.store import event
from service.store.sql import among, given_table, join_each, now, one_trip, values_of
from service.store.tables import device, device_owner, job, lease, run
from strategy.record import Renewed


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


@cache
def _extension(dialect: str) -> sa.sql.dml.ReturningUpdate[Any]:
    """Extend the live leases among those given by id and token that no other transaction is changing.

    Those that are to be timing, and are not yet, are left out.
    """
    given = given_table(dialect, [lease.c.id, lease.c.token, sa.Column("timing", sa.Integer())])
    free = (
        sa.select(lease.c.id)
        .join(given, sa.and_(given.c.id == lease.c.id, given.c.token == lease.c.token))
        .where(lease.c.ended_at.is_(None), sa.or_(lease.c.timing, given.c.timing == 0))
        .with_for_update(of=lease, skip_locked=True, key_share=True)
    )
    return (
        sa.update(lease)
        .where(lease.c.id.in_(free), lease.c.ended_at.is_(None))
        .values(expires_at=now() + sa.bindparam("lease_s", type_=sa.Double))
        .returning(*lease.c["id", "token", "worker_id", "timing"])
    )


@cache
def _waiting(dialect: str) -> sa.Select[Any]:
    """Select and lock those of the given leases that are to begin timing, with their devices, that no other locks."""
    given = given_table(dialect, [lease.c.id, lease.c.token, sa.Column("timing", sa.Integer())])
    return (
        sa.select(*lease.c["id", "job_id"], device.c.identity)
        .join(given, sa.and_(given.c.id == lease.c.id, given.c.token == lease.c.token, given.c.timing == 1))
        .join(device, device.c.id == lease.c.device_id)
        .join(device_owner, device_owner.c.identity == device.c.identity)
        .where(lease.c.ended_at.is_(None), ~lease.c.timing)
        .with_for_update(of=[lease, device_owner], skip_locked=True, key_share=True)
    )


@cache
def _beginning(dialect: str) -> sa.sql.dml.ReturningUpdate[Any]:
    """Make leases of locked devices, given with their names, timing leases, unless one of the device's is."""
    given = given_table(dialect, [lease.c.id, device.c.identity])
    other, same = lease.alias(), device.alias()
    busy = (
        sa.select(other.c.id)
        .join(same, same.c.id == other.c.device_id)
        .where(same.c.identity == given.c.identity, other.c.ended_at.is_(None), other.c.timing)
        .correlate(given)
        .exists()
    )
    free = (
        sa.select(given.c.id)
        .join(lease, lease.c.id == given.c.id)
        # It may have been renamed before the lock, and others lock its new name.
        .join(device, sa.and_(device.c.id == lease.c.device_id, device.c.identity == given.c.identity))
        .where(~busy)
    )
    return (
        sa.update(lease)
        .where(lease.c.id.in_(free), lease.c.ended_at.is_(None))
        .values(timing=True, expires_at=now() + sa.bindparam("lease_s", type_=sa.Double))
        .returning(*lease.c["id", "token", "worker_id", "timing"])
    )


@cache
def _run_states(dialect: str) -> sa.Select[Any]:
    joined, of = join_each(dialect, lease, job, job.c.id == lease.c.job_id)
    query = sa.select(lease.c.id, run.c.state).select_from(joined).join(run, run.c.id == of.run_id)
    return query.where(among(lease.c.id))


class Kept(NamedTuple):
    """A renewed lease, which may have become the timing lease of its device by this."""

    answer: Renewed
    began: bool


def renew_many(
    connection: sa.Connection, asked: Sequence[tuple[int, int, bool]], terms: retry.Terms
) -> list[Kept | None]:
    """Renew several leases, each given by its id, its token, and whether it is to be timing.

    None stands for those that need `renew`: they are lost, they or their devices are locked, or they are to begin
    timing on a device with another timing lease. It waits for none of these, which would hold up the others.
    """
    dialect = connection.dialect.name
    given = {"rows": values_of((lease_id, token, int(timing)) for lease_id, token, timing in asked)}
    term = {"lease_s": terms.lease_s}
    waiting: list[Any] = []
    with one_trip(connection) as ask:
        rows = ask(_extension(dialect), given | term)
        if any(timing for _, _, timing in asked):
            waiting = ask(_waiting(dialect), given)
        states = ask(_run_states(dialect), {"ids": sorted({lease_id for lease_id, _, _ in asked})})
    begun: list[Any] = []
    if first := {row.identity: row.id for row in reversed(waiting)}:  # one of each device
        with one_trip(connection) as ask:
            begun = ask(_beginning(dialect), {"rows": values_of((i, name) for name, i in first.items())} | term)
    jobs = {row.id: row.job_id for row in waiting}
    with one_trip(connection):
        event.note_all(
            connection, "timing",
            [{"run_id": None, "job_id": jobs[r.id], "worker_id": r.worker_id, "detail": {}} for r in begun],
        )
        heartbeat.see(connection, {row.worker_id for row in (*rows, *begun)}, terms.alive_s)
    cancelled = {row.id for row in states if row.state in retry.ABANDONED}
    held = {(row.id, row.token, timing) for row in (*rows, *begun) for timing in {False, bool(row.timing)}}
    began = {(row.id, row.token, True) for row in begun}
    return [
        Kept(Renewed(expires_in_s=terms.lease_s, cancelled=one[0] in cancelled), one in began) if one in held else None
        for one in asked
    ]


def renew(
    connection: sa.Connection, lease_id: int, token: int, timing: bool, terms: retry.Terms
) -> Renewed:
    """Renew a lease; `timing` makes it the timing lease of its device.

    Raises:
        LeaseLostError: as `touch`.
        DeviceBusyError: another timing lease of the device is live.
    """
    row = touch(connection, lease_id, token, terms)
    begins = timing and not row.timing
    if begins:
        # Lock the device before its worker, as renaming does, and tasks of expired jobs after the lease, as reports do.
        same = fleet.lock_device(connection, row.device_id)
        retry.expire(connection, terms)
        busy = connection.scalar(
            sa.select(lease.c.id).where(
                lease.c.device_id.in_(same), lease.c.ended_at.is_(None), lease.c.timing
            )
        )
        if busy is not None:
            raise DeviceBusyError(f"the device is timing under lease {busy}: renew again when that has ended")
    with one_trip(connection) as ask:
        if begins:
            connection.execute(sa.update(lease).where(lease.c.id == lease_id).values(timing=True))
            event.note(connection, "timing", job_id=row.job_id, worker_id=row.worker_id)
        heartbeat.see(connection, [row.worker_id], terms.alive_s)
        states = ask(_run_states(connection.dialect.name), {"ids": [lease_id]})
    return Renewed(expires_in_s=terms.lease_s, cancelled=any(one.state in retry.ABANDONED for one in states))
