"""Pauses of devices and targets, now or during a window; running jobs finish."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import InvalidError, NotFoundError
from service.store import event
from service.store.sql import now
from service.store.tables import device, pause, target
from strategy.record import Instant


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to pause a device, by its identity, or a target, by its key.

    It lasts from `starts_at` (default: now) to `ends_at` (default: no end).
    """

    reason: str
    device: str | None = None
    target: str | None = None
    starts_at: Instant | None = None
    ends_at: Instant | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A current or future pause."""

    id: int
    device: str | None
    target: str | None
    reason: str
    starts_at: float
    ends_at: float | None


def create(connection: sa.Connection, asked: PauseRequest) -> Pause:
    """Create a pause; running jobs finish.

    Raises:
        InvalidError: not exactly one of device and target is named, or the window is empty or over.
        NotFoundError: the device or target is not known.
    """
    if (asked.device is None) == (asked.target is None):
        raise InvalidError("device, target: name exactly one")
    table, column, name = (
        (device, device.c.identity, asked.device)
        if asked.device is not None
        else (target, target.c.key, asked.target)
    )
    place = connection.scalar(sa.select(table.c.id).where(column == name).limit(1))
    if place is None:
        raise NotFoundError(
            f"{table.name} {name!r:.200} is not known: `plevel workers --json` lists devices and targets"
        )
    if asked.ends_at is not None:
        if asked.starts_at is not None and asked.ends_at <= asked.starts_at:
            raise InvalidError("ends_at: before starts_at: give a later time, or none")
        past_s = connection.execute(sa.select(now())).scalar_one() - asked.ends_at
        if past_s >= 0:
            raise InvalidError(
                f"ends_at: has passed, {past_s:.0f} s ago by the database's clock: give a later time, in UTC"
            )
    pause_id = connection.execute(
        sa.insert(pause)
        .values(
            **{f"{table.name}_id": place}, reason=asked.reason, ends_at=asked.ends_at,
            starts_at=now() if asked.starts_at is None else asked.starts_at,
        )
        .returning(pause.c.id)
    ).scalar_one()
    event.note(connection, "paused", pause=pause_id, place=name, reason=asked.reason)
    return next(p for p in _read(connection, pause.c.id == pause_id))


def current(connection: sa.Connection) -> list[Pause]:
    """Current and future pauses."""
    return _read(connection, _not_over())


def end(connection: sa.Connection, pause_id: int) -> None:
    """End a pause now; raise `NotFoundError` for one that has ended."""
    ended = connection.execute(
        sa.update(pause).where(pause.c.id == pause_id, _not_over()).values(ends_at=now())
    )
    if not ended.rowcount:
        raise NotFoundError(f"pause {pause_id} has ended or does not exist: `plevel fleet pauses` lists current ones")
    event.note(connection, "resumed", pause=pause_id)


def is_paused(device_id: Any, target_id: Any) -> sa.ColumnElement[bool]:
    """The condition that a device (any of its rows) or a target is paused now."""
    named, same = device.alias(), device.alias()
    of_device = (
        sa.select(named.c.id)
        .join(same, same.c.identity == named.c.identity)
        .where(same.c.id == device_id, named.c.id == pause.c.device_id)
        .correlate_except(named, same)
    )
    return (
        sa.select(pause.c.id)
        .where(
            sa.or_(of_device.exists(), pause.c.target_id == target_id),
            pause.c.starts_at <= now(),
            _not_over(),
        )
        .exists()
    )


def _not_over() -> sa.ColumnElement[bool]:
    return sa.or_(pause.c.ends_at.is_(None), pause.c.ends_at > now())


def _read(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Pause]:
    own = pause.c["id", "reason", "starts_at", "ends_at"]
    rows = connection.execute(
        sa.select(*own, device.c.identity.label("device"), target.c.key.label("target"))
        .outerjoin(device, device.c.id == pause.c.device_id)
        .outerjoin(target, target.c.id == pause.c.target_id)
        .where(condition)
        .order_by(pause.c.id)
    )
    return [Pause(**r._mapping) for r in rows]
