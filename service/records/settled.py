"""The settled part of the log: the ids among which no record can appear any more.

Transactions of PostgreSQL take the ids of their records from one sequence, and commit in any order. A reader that
resumes after the last id that it has seen would miss those that are committed later. So a transaction announces the
newest id that is taken before it takes its own: by an advisory lock of that number, which ends with the transaction.
Neither the transactions' own numbers nor the times of their beginnings say which ids they hold.

SQLite has one writer, and its log is always settled.
"""

from __future__ import annotations

import sqlalchemy as sa

from service.store.db import Store
from service.store.sql import Ask
from service.store.tables import record

# The upper 23 bits of the locks' 63, among other programs' and other kinds of advisory locks; the rest is an id.
_KIND = 0x6C6F67
_ID_BITS = 40
# Before its first use a sequence has the value that comes next.
_NEWEST = "last_value - CAST(NOT is_called AS INTEGER)"
# Shared, so that writers do not wait for each other.
_ANNOUNCE = sa.text(
    f"SELECT pg_advisory_xact_lock_shared({_KIND << _ID_BITS} + {_NEWEST}) FROM record_id_seq"  # noqa: S608
)
_TAKEN = sa.text(f"SELECT {_NEWEST} AS id FROM record_id_seq")  # noqa: S608
# PostgreSQL shows the halves of a lock's number.
_ANNOUNCED = sa.text(
    "SELECT min((CAST(classid AS BIGINT) & 255) << 32 | CAST(objid AS BIGINT)) AS id FROM pg_locks "  # noqa: S608
    f"WHERE locktype = 'advisory' AND objsubid = 1 AND CAST(classid AS BIGINT) >> 8 = {_KIND} "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def announce(connection: sa.Connection, ask: Ask) -> None:
    """Announce records, in a round trip with others and before their insertion; no-op on SQLite."""
    if connection.dialect.name != "sqlite":
        ask(_ANNOUNCE, {})


def find(store: Store) -> int:
    """The id up to which a transaction that begins later sees the whole log.

    The newest taken id is read before the locks: whoever has taken one has its lock by then, or has ended, and what it
    committed is seen.
    """
    with store.read() as connection:
        if store.is_sqlite:
            return connection.scalar(sa.select(sa.func.max(record.c.id))) or 0
        taken: int = connection.execute(_TAKEN).scalar_one()
        announced: int | None = connection.execute(_ANNOUNCED).scalar_one()
    return taken if announced is None else min(taken, announced)
