"""The audit log: requests that changed something, and who made them."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson
import sqlalchemy as sa

from service.access.auth import Actor
from service.store.sql import put_rows
from service.store.tables import TokenScope, audit


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: float
    actor: str
    action: str
    detail: dict[str, Any]


def user() -> Actor:
    """The actor of direct access to the database: a user of this host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = "unknown"
    return Actor(f"user {name}", frozenset(TokenScope))


_COLUMNS = tuple(audit.c["actor", "token_id", "action", "detail"])


def note(connection: sa.Connection, actor: Actor, action: str, **detail: Any) -> None:
    """Append an entry to the log, in the transaction of the change."""
    note_all(connection, action, [(actor, detail)])


def note_all(
    connection: sa.Connection, action: str, notes: Sequence[tuple[Actor, Mapping[str, Any]]]
) -> None:
    """Append several entries of one action, each an actor and a detail."""
    rows = [(a.name[:200], a.token_id, action, orjson.dumps(detail).decode()) for a, detail in notes]
    put_rows(connection, _COLUMNS, rows, None, clock=audit.c.at)


def page(connection: sa.Connection, limit: int) -> Sequence[AuditEntry]:
    """The latest entries, the newest first."""
    query = sa.select(*audit.c[AuditEntry.__struct_fields__]).order_by(audit.c.id.desc())
    return [AuditEntry(**r._mapping) for r in connection.execute(query.limit(limit))]
