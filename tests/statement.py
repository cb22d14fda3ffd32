"""Compiled statements, which all databases of one process of tests share.

Each test opens a database of its own, for which SQLAlchemy would compile all that it asks anew.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

compiled: LRUCache[Any, Any] = LRUCache(2000)
variant = ""  # of tests that have statements compiled in another way, which no others may get


def share() -> None:
    """Have each database of this process look for its statements among those of all."""
    for kind in (PGDialect_psycopg, SQLiteDialect_pysqlite):  # an instance for each database, and part of the key
        kind.__eq__ = lambda own, other: _traits(own) == _traits(other)
        kind.__hash__ = lambda own: hash(_traits(own))
    sa.event.listen(sa.Engine, "engine_connect", _look_there)


def _traits(dialect: Any) -> tuple[Any, ...]:
    return type(dialect), dialect._json_serializer, dialect._json_deserializer, variant


def _look_there(connection: sa.Connection) -> None:
    connection.engine._compiled_cache = compiled
