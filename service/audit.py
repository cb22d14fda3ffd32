"""The audit log: who asked for what that changes something."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from service.auth import Actor
from service.db import now
from service.models import TokenScope, audit


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: float
    actor: str
    action: str
    detail: dict[str, Any]


def user() -> Actor:
    """Whoever uses the database itself: a user of this host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = "unknown"
    return Actor(f"user {name}", frozenset(TokenScope))


def note(connection: sa.Connection, actor: Actor, action: str, **detail: Any) -> None:
    """Appends to the log, in the transaction that does it."""
    connection.execute(
        sa.insert(audit).values(
            at=now(), actor=actor.name[:200], token_id=actor.token_id, action=action, detail=detail
        )
    )


def page(connection: sa.Connection, limit: int) -> Sequence[AuditEntry]:
    """The latest entries, the newest first."""
    rows = connection.execute(sa.select(audit).order_by(audit.c.id.desc()).limit(limit))
    return [
        AuditEntry(id=r.id, at=r.at, actor=r.actor, action=r.action, detail=r.detail) for r in rows
    ]
