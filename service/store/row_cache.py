"""Row cache of a connection, for rows that never change: workloads, tasks, policies, runs' targets.

It is kept with the connection, so that no lock is needed, and cleared on a rollback, as ids of rolled
back rows are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

from service.store.sql import among

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
    """Return the values of keys; `find` is called for those not cached.

    Args:
        connection: the transaction of `find`.
        what: the kind of the keys.
        keys: the keys of the rows.
        find: reads rows by key; keys without a row are not cached.
    """
    known: dict[K, V] = connection.info.setdefault(_NAME, {}).setdefault(what, {})
    missing = [key for key in keys if key not in known]
    if missing:
        if len(known) + len(missing) > _MOST:
            known.clear()
            missing = list(keys)
        known.update(find(connection, missing))
    return known


def by_id(
    make: Callable[[Any], V], query: sa.Select[Any]
) -> Callable[[sa.Connection, Collection[int]], dict[int, V]]:
    """A `find` for `recall`, by ids, the first column of the query; `make` makes the value of a row."""
    query = query.where(among(query.selected_columns[0]))
    return lambda connection, ids: {row[0]: make(row) for row in connection.execute(query, {"ids": ids})}


def forget(connection: sa.Connection) -> None:
    """Clear the cache of a connection whose transaction is rolled back."""
    if not connection.closed and not connection.invalidated:
        connection.info.pop(_NAME, None)


def install(engine: sa.Engine) -> None:
    """Clear the caches of an engine's connections on rollback."""
    sa.event.listen(engine, "rollback", forget)
    sa.event.listen(engine, "rollback_savepoint", _forget_savepoint)


def _forget_savepoint(connection: sa.Connection, _name: str, _context: Any) -> None:
    forget(connection)
