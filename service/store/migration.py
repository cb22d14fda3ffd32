"""Schema version of a database, and its upgrade to that of this installation."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.errors import SchemaError
from service.store.db import Store


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    # Shipped as a package, so that an installed wheel finds its migrations.
    config.set_main_option("script_location", str(resources.files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision of this installation."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def revisions() -> list[str]:
    """All revisions that this installation knows, the oldest first."""
    script = ScriptDirectory.from_config(_config())
    return [r.revision for r in script.walk_revisions()][::-1]


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _own_revision(store: Store, connection: sa.Connection) -> str | None:
    """The database's revision, None where it is empty.

    Raises:
        SchemaError: the schema is newer, or another program's.
    """
    # Before the revision: who makes both at this moment commits them together.
    tables = set(sa.inspect(connection).get_table_names()) - {"alembic_version"}
    revision = _revision(connection)
    if tables if revision is None else not re.fullmatch(r"\d{4}", revision):
        raise SchemaError(
            f"database {shown(store)} is another program's: name an empty one, or one of plevel's"
        )
    if revision is not None and revision not in revisions():
        raise SchemaError(
            f"database {shown(store)} has schema {revision}, which is newer than {head()}, the newest "
            f"that this plevel knows: install a newer plevel, or name another database"
        )
    return revision


def shown(store: Store) -> str:
    """The database's URL without its password."""
    return store.url.render_as_string(hide_password=True)


def current(url: str) -> str | None:
    """The database's revision, None where it is empty.

    Raises:
        DatabaseError: it cannot be opened.
    """
    with _looked_at(url) as (_, connection):
        return _revision(connection)


def check(url: str) -> None:
    """Raises `SchemaError` where the schema is not the one of this installation."""
    with _looked_at(url) as (store, connection):
        revision = _own_revision(store, connection)
        if revision != head():
            raise SchemaError(
                f"database {shown(store)} has {'schema ' + revision if revision else 'no schema yet'}, "
                f"this plevel needs {head()}: run `plevel db upgrade`"
            )


@contextlib.contextmanager
def _looked_at(url: str) -> Iterator[tuple[Store, sa.Connection]]:
    """A transaction that reads what may be another program's: nothing of it is changed."""
    store = Store(url, read_only=True)
    try:
        with store.read() as connection:
            yield store, connection
    finally:
        store.close()


def upgrade(url: str) -> str:
    """Brings the database to this installation's schema, and returns its revision.

    Everything happens in one transaction, and one process at a time does it.

    Raises:
        SchemaError: the database is of a newer schema, or another program's.
        DatabaseError: it cannot be opened or written.
    """
    with _looked_at(url) as (store, connection):
        _own_revision(store, connection)
    with _moving(url) as (store, connection):
        revision = _own_revision(store, connection)
        if revision != head():
            command.upgrade(_config(connection), "head")
    return head()


def downgrade(url: str, revision: str) -> None:
    """Brings the database back to an older schema, `base` for none at all.

    Raises:
        RuntimeError: it holds what the older schema cannot.
        DatabaseError: it cannot be opened or written.
    """
    with _moving(url) as (_, connection):
        command.downgrade(_config(connection), revision)


@contextlib.contextmanager
def _moving(url: str) -> Iterator[tuple[Store, sa.Connection]]:
    """One transaction that changes the schema; one process at a time has it."""
    store = Store(url)
    if store.is_sqlite:
        # It alters a table by copying it: rows that refer to it would hold on to the old one.
        sa.event.listen(store.engine, "connect", _suspend_foreign_keys)
    try:
        with store.write() as connection:
            if not store.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x6D696772)))
            yield store, connection
            if store.is_sqlite:
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                if broken is not None:
                    raise SchemaError(
                        f"database {shown(store)}: a row of {broken[0]} refers to nothing in "
                        f"{broken[2]}: restore it from a backup"
                    )
    finally:
        store.close()


def _suspend_foreign_keys(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = OFF").close()
