"""Heartbeats of workers, in the caller's transaction.

One is written only once the last is older than a fraction of the time for which a worker counts as alive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.store.sql import Ask, among, join_each, now, one_trip
from service.store.tables import lease, worker

FRESH = 12  # the divisor of that time


_HERE = sa.and_(among(worker.c.id), worker.c.ended_at.is_(None))
# A shared lock: none of them can leave before this transaction ends.
_KNOWN = sa.select(worker.c.id, worker.c.ahead).where(_HERE).order_by(worker.c.id).with_for_update(read=True)
_IS_DUE = sa.or_(
    worker.c.seen_at < now() - sa.bindparam("alive_s", type_=sa.Double) / FRESH,
    worker.c.seen_at > now(),
)
# Skip workers whose heartbeat another transaction stores now, or has just stored.
_SEEN = sa.select(worker.c.id).where(_HERE, _IS_DUE).with_for_update(skip_locked=True, key_share=True)
_SEE = sa.update(worker).where(worker.c.id.in_(_SEEN)).values(seen_at=now())
_ASKING = (
    sa.select(worker.c.id)
    .where(worker.c.id == sa.bindparam("asking"))
    .with_for_update(skip_locked=True, key_share=True)
)
_LOOK_AHEAD = sa.update(worker).where(worker.c.id.in_(_ASKING)).values(ahead=sa.bindparam("most"))


def see(connection: sa.Connection, workers: Collection[int], alive_s: float) -> None:
    """Store heartbeats; a worker counts as alive for `alive_s` after one."""
    connection.execute(_SEE, {"ids": workers, "alive_s": alive_s})


def ask_due(connection: sa.Connection, ask: Ask, leases: Collection[int], alive_s: float) -> list[Any]:
    """The workers of leases whose heartbeat is to be written."""
    return ask(_due(connection.dialect.name), {"ids": sorted(leases), "alive_s": alive_s})


@cache
def _due(dialect: str) -> sa.Select[Any]:
    here = sa.and_(worker.c.id == lease.c.worker_id, worker.c.ended_at.is_(None), _IS_DUE)
    joined, due = join_each(dialect, lease, worker, here)
    return sa.select(due.id.label("worker_id")).distinct().select_from(joined).where(among(lease.c.id))


def store(
    connection: sa.Connection, workers: Collection[int], alive_s: float, ahead: Mapping[int, int] | None = None
) -> set[int]:
    """Store heartbeats, and return the registered workers, locked until the transaction ends.

    The others have left or never registered, and must register again.

    Args:
        ahead: the jobs that workers ask to have ahead of the one that they time.
    """
    with one_trip(connection) as ask:
        rows = ask_store(connection, ask, workers, alive_s)
    return look_ahead(connection, rows, ahead or {})


def ask_store(connection: sa.Connection, ask: Ask, workers: Collection[int], alive_s: float) -> list[Any]:
    """As `store`, in a round trip with others; the rows of the registered workers, for `look_ahead`."""
    rows = ask(_KNOWN, {"ids": sorted(workers)})
    # This and `_LOOK_AHEAD` wait for none: the locks of several are taken above, in order.
    see(connection, workers, alive_s)
    return rows


def look_ahead(connection: sa.Connection, rows: Collection[Any], ahead: Mapping[int, int]) -> set[int]:
    """Store the jobs that workers ask to have ahead; return the ids of all rows."""
    asked = [{"asking": row.id, "most": ahead.get(row.id, row.ahead)} for row in rows]
    if changed := [one for one, row in zip(asked, rows, strict=True) if one["most"] != row.ahead]:
        connection.execute(_LOOK_AHEAD, changed)
    return {row.id for row in rows}
