"""Schema version of a database, and its upgrade to that of this installation."""
# Over 300 lines: the ways between schemas, which share how tables are locked and what is refused.

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from service.errors import DatabaseError, OverloadedError, SchemaError, UnansweredError
from service.store.db import Store, show_url
from service.store.tables import metadata
from strategy.suggestion import suggest

if TYPE_CHECKING:
    # Loaded only to move between schemas: it takes a tenth of a command's start.
    from alembic.config import Config


PATIENCE_S = 120.0  # for tables that others use
_LOCK_MS = 500  # less than PostgreSQL's deadlock_timeout, after which another's transaction could be ended
_PAUSE_S = 0.1
_CANCELED = "57014"


def _config(connection: sa.Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    # Shipped as a package, so that an installed wheel finds its migrations.
    config.set_main_option("script_location", str(resources.files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision of this installation."""
    return revisions()[-1]


def revisions() -> list[str]:
    """All revisions that this installation knows, the oldest first."""
    names = (file.name for file in resources.files("migrations").joinpath("versions").iterdir())
    return sorted(name[:4] for name in names if re.fullmatch(r"\d{4}_\w+\.py", name))


def _own_revision(store: Store, connection: sa.Connection) -> str | None:
    """The database's revision, None if it is empty.

    Raises:
        SchemaError: the schema is newer, or another program's.
    """
    # Before the revision: both are committed in one transaction.
    tables = set(sa.inspect(connection).get_table_names())
    has_revision = "alembic_version" in tables
    revision = connection.scalar(sa.text("SELECT version_num FROM alembic_version")) if has_revision else None
    tables.discard("alembic_version")
    if tables if revision is None else not re.fullmatch(r"\d{4}", revision):
        raise SchemaError(
            f"database {shown(store)} belongs to another program: name an empty database, or one of plevel"
        )
    if revision is not None and revision not in revisions():
        raise SchemaError(
            f"database {shown(store)} has schema {revision}, newer than this plevel's {head()}: install a newer "
            f"plevel, which can also bring it back, by `plevel db downgrade {head()}`, or name another database"
        )
    return revision


def shown(store: Store) -> str:
    """The database's URL without its password."""
    return show_url(store.url)


def _upgrade_command(store: Store) -> str:
    """The command that upgrades a database, without its password."""
    if not store.is_sqlite and shown(store) != store.url.render_as_string(hide_password=False):
        return "`plevel db upgrade`, with this URL and its password in PLEVEL_DATABASE or --database"
    return f"`plevel db upgrade --database {shlex.quote(shown(store))}`"


def current(url: str) -> str | None:
    """The database's revision, None if it is empty.

    Raises:
        SchemaError: the schema is newer, or another program's.
        DatabaseError: it cannot be opened.
    """
    with _looked_at(url) as (store, connection):
        return _own_revision(store, connection)


def check(url: str) -> None:
    """Raise `SchemaError` if the schema is not the one of this installation."""
    with _looked_at(url) as (store, connection):
        revision = _own_revision(store, connection)
        if revision != head():
            raise SchemaError(
                f"database {shown(store)} has {'schema ' + revision if revision else 'no schema yet'}, "
                f"this plevel needs {head()}: run {_upgrade_command(store)}"
            )


@contextlib.contextmanager
def _looked_at(url: str) -> Iterator[tuple[Store, sa.Connection]]:
    """A read-only transaction on a database that may be another program's."""
    with _opened(url, read_only=True) as store, store.read() as connection:
        yield store, connection


@contextlib.contextmanager
def _opened(url: str, *, read_only: bool = False) -> Iterator[Store]:
    """The store of a database, of which an error that it does not answer has a remedy."""
    with contextlib.closing(Store(url, read_only=read_only)) as store:
        try:
            yield store
        except UnansweredError as error:
            raise _with_remedy(error, store) from error


def upgrade(url: str) -> str:
    """Upgrade the database to this installation's schema, and return its revision.

    In one transaction, and by one process at a time.

    Raises:
        SchemaError: the database is of a newer schema, or another program's.
        DatabaseError: it cannot be opened or written.
    """
    with _looked_at(url) as (store, connection):
        _own_revision(store, connection)
    with _moving(url) as (store, connection):
        revision = _own_revision(store, connection)
        if revision != head():
            from alembic import command

            _hold_tables(store, connection)
            command.upgrade(_config(connection), "head")
    return head()


@dataclass(frozen=True)
class Losses:
    """Counts of rows by kind: those that the older schema cannot hold, and those that it lacks."""

    cannot: Mapping[str, int]
    lost: Mapping[str, int]

    def show(self) -> str:
        """Describe rows that it cannot hold, or else those to delete: `3 tokens, 1 webhooks`."""
        return ", ".join(f"{n} {what}" for what, n in (self.cannot or self.lost).items()) or "nothing"


def find_losses(url: str, revision: str) -> Losses:
    """Count the rows that a downgrade would lose; nothing is changed.

    Raises:
        SchemaError: the revision is not known, or not older.
        DatabaseError: it cannot be opened.
    """
    with _looked_at(url) as (store, connection):
        return _losses(store, connection, revision)


def _losses(store: Store, connection: sa.Connection, revision: str) -> Losses:
    known = ["base", *revisions()]
    now = _own_revision(store, connection) or "base"
    older = known[: known.index(now) + 1]
    if revision not in older:
        raise SchemaError(
            f"database {shown(store)} is at schema {now} and cannot be downgraded to {revision!r:.40}"
            f"{suggest(revision, older)}: name one of {', '.join(older)}"
        )
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config())
    undone = [script.get_revision(r).module for r in older[older.index(revision) + 1 :]]

    def count(attribute: str) -> dict[str, int]:
        rows = {w: f for module in undone for w, f in getattr(module, attribute, {}).items()}
        counts = {w: connection.scalar(sa.text(f"SELECT count(*) FROM {f}")) for w, f in rows.items()}  # noqa: S608
        return {w: n for w, n in counts.items() if n}

    return Losses({} if revision == "base" else count("CANNOT"), count("LOST"))


def downgrade(url: str, revision: str, *, lose: bool = False) -> None:
    """Downgrade the database to an older schema, `base` for none at all.

    Args:
        url: the database.
        revision: the older schema.
        lose: delete rows that it lacks.

    Raises:
        SchemaError: the older schema cannot hold its rows, or lacks some and `lose` is not set, or the
            revision is not older; nothing is changed.
        DatabaseError: it cannot be opened or written.
    """
    from alembic import command

    with _moving(url) as (store, connection):
        losses = _losses(store, connection, revision)
        if losses.cannot:
            raise SchemaError(
                f"schema {revision} cannot hold rows of database {shown(store)} ({losses.show()}): restore "
                "a backup of that schema instead"
            )
        if losses.lost and not lose:
            raise SchemaError(
                f"downgrading database {shown(store)} to schema {revision} deletes {losses.show()}: make a "
                "backup, then use --yes"
            )
        _hold_tables(store, connection)
        if revision == "base":  # no older schema between has to hold the rows
            metadata.drop_all(connection)
            if not store.is_sqlite:  # those of triggers, which outlive their tables
                connection.exec_driver_sql("DROP FUNCTION IF EXISTS plevel_find_parents, plevel_keep_parent")
            command.stamp(_config(connection), revision)
        else:
            command.downgrade(_config(connection), revision)


@contextlib.contextmanager
def _moving(url: str) -> Iterator[tuple[Store, sa.Connection]]:
    """A transaction that changes the schema, exclusive among processes."""
    with _opened(url) as store:
        if store.is_sqlite:
            # SQLite alters tables by copying them, which would break references.
            sa.event.listen(store.engine, "connect", _suspend_foreign_keys)
        with store.write() as connection:
            if not store.is_sqlite:
                connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # a pooler's session may be a service's
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x6D696772)))
            yield store, connection
            if store.is_sqlite:
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                if broken is not None:
                    raise SchemaError(
                        f"database {shown(store)} is damaged: a row of {broken[0]} has no row in {broken[2]}: "
                        "restore it from a backup"
                    )


def _hold_tables(store: Store, connection: sa.Connection) -> None:
    """Lock plevel's tables on PostgreSQL until the transaction ends: all of them or, while others use some, none.

    A migration locks one after the other, and services use them in any order: they would end in a deadlock. All
    requests wait behind one that waits for a lock: none is asked for while a transaction that has gone on for longer
    than the time limit of one uses a table.

    Raises:
        DatabaseError: others use them without end.
    """
    # A schema may have tables of others, which plevel may not lock.
    if store.is_sqlite or not (names := metadata.tables.keys() & sa.inspect(connection).get_table_names()):
        return
    quote = connection.dialect.identifier_preparer.quote
    lock = f"LOCK TABLE {', '.join(map(quote, sorted(names)))} IN ACCESS EXCLUSIVE MODE"
    give_up = time.monotonic() + PATIENCE_S
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{_LOCK_MS}ms'")
    while _is_long_used(connection, names) or not _try_lock(connection, lock):
        if time.monotonic() > give_up:
            raise DatabaseError(
                f"database {shown(store)} is in use: its tables could not be locked for {PATIENCE_S:g} s: repeat "
                "it without long imports and exports beside it"
            )
        time.sleep(_PAUSE_S)  # others go on meanwhile
    connection.exec_driver_sql("SET LOCAL statement_timeout = DEFAULT")


def _try_lock(connection: sa.Connection, lock: str) -> bool:
    """Return whether the statement got its locks within its time limit."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(lock)
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _CANCELED:
            raise
        return False
    return True


# Transactions of other users are seen only with the right to all statistics: for theirs, locks are tried.
_LONG_USE = sa.text(
    "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_class ON pg_class.oid = relation "
    "WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relnamespace = CAST(current_schema() AS regnamespace) AND relname = ANY(:names) "
    "AND pid <> pg_backend_pid() AND clock_timestamp() - xact_start > :ms * INTERVAL '1 ms')"
)


def _is_long_used(connection: sa.Connection, names: Iterable[str]) -> bool:
    """Return whether another transaction that uses one of the tables is longer than the time limit of a lock."""
    connection.execute(sa.select(sa.func.pg_stat_clear_snapshot()))  # a transaction sees others as at its first look
    return bool(connection.scalar(_LONG_USE, {"names": sorted(names), "ms": _LOCK_MS}))


def _with_remedy(error: UnansweredError, store: Store) -> UnansweredError:
    if store.is_sqlite:
        return type(error)(f"{error}, or name another database")
    if isinstance(error, OverloadedError):
        remedy = f"ask {shown(store)} again soon"
    elif "FATAL:" in str(error):  # by the server itself
        remedy = f"check the user, the password and the database in {shown(store)}"
    else:
        remedy = f"start the server of {shown(store)}"
    return type(error)(f"{error}: {remedy}, or name another database")


def _suspend_foreign_keys(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = OFF").close()
