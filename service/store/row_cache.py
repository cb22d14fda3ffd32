"""Rows that never change, as a connection has seen them: workloads, tasks, policies, runs' targets.

They are kept with the connection itself, so that no lock is needed, and forgotten when a transaction
is rolled back: an id that was given in it may be given again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_NAME = "plevel"
_MOST = 10_000  # of one kind


def recall(
    connection: sa.Connection,
    what: str,
    keys: Collection[K],
    find: Callable[[sa.Connection, list[K]], Mapping[K, V]],
) -> Mapping[K, V]:
    """Return `find`'s values of these keys, called only for those that this connection has not seen.

    Args:
        connection: in whose transaction `find` is called.
        what: the kind; keys of different kinds are kept apart.
        keys: of the rows.
        find: reads those that are not known; what it leaves out is asked for again the next time.
    """
    known: dict[K, V] = connection.info.setdefault(_NAME, {}).setdefault(what, {})
    missing = [key for key in keys if key not in known]
    if missing:
        if len(known) + len(missing) > _MOST:
            known.clear()
            missing = list(keys)
        known.update(find(connection, missing))
    return known


def forget(connection: sa.Connection) -> None:
    """Forget all that a connection knows, when its transaction is rolled back."""
    if not connection.closed and not connection.invalidated:
        connection.info.pop(_NAME, None)


def install(engine: sa.Engine) -> None:
    """Make the connections of an engine forget in time."""
    sa.event.listen(engine, "rollback", forget)
    sa.event.listen(engine, "rollback_savepoint", _forget_savepoint)


def _forget_savepoint(connection: sa.Connection, _name: str, _context: Any) -> None:
    forget(connection)
