"""Opening the database: SQLite in WAL mode, or PostgreSQL through psycopg."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.address import url_of
from service.errors import DatabaseError
from service.store import row_cache, session
from service.store.failure import READ_ONLY, state_of, translated
from service.store.file import UsedFile, check_file
from service.store.foreign import ForeignFile, is_full, may_write
from service.store.text import json_text, read_json

Connection = sa.Connection


def normal_url(url: str) -> sa.URL:
    """The URL with its driver: `postgresql://…` uses psycopg, a bare path is an SQLite file.

    Raises:
        DatabaseError: neither SQLite nor PostgreSQL, or not readable as a URL.
    """
    if "://" not in url:
        url = url_of(url)
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:  # ValueError: the port is no number
        raise DatabaseError(
            "database: not a URL: write sqlite:///file or postgresql://user@host/name"
        ) from error
    if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise DatabaseError("database: SQLite needs a file: write sqlite:////path/plevel.db")
        if "?" in url:  # SQLAlchemy drops what it cannot read as parameters
            raise DatabaseError(
                f"database: an SQLite URL has no parameters, and this one has ?{url.partition('?')[2]:.80}: leave them "
                "out, or write the path without sqlite:///, or %3F for a ? in its name"
            )
        return parsed.set(drivername="sqlite")
    raise DatabaseError(
        f"database {parsed.drivername!r} is not supported: use sqlite:///file or postgresql://…"
    )


def show_url(url: sa.URL) -> str:
    """The URL without its passwords, which may also be parameters; of an SQLite file with its path as it is written."""
    if url.drivername == "sqlite" and url.database and not url.query:
        return url_of(url.database)
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


# An import changes pages all over the indexes of SQLite. A large page cache, and a write-ahead log of several
# transactions, let a page be written to the database once for several changes.
_WRITER = ("cache_size = -65536", "wal_autocheckpoint = 16000")  # KiB, and pages of 4 KiB


_LEAVE_S = 10.0  # far longer than connections take to close


class Store:
    """A database, with its transactions. Thread-safe.

    `write()` commits at the end and rolls back on an exception. On SQLite it takes the write lock at its start,
    so that no transaction fails half-way. Threads of one process wait for a lock in memory instead of
    polling the file's, and share one connection, as a commit invalidates the page caches of all others.

    Args:
        url: the database; a missing SQLite file is created.
        read_only: open it without changing it, as it may be another program's. It may then be an SQLite file that this
            user cannot write, or in such a folder.
        lock_s: the longest time for which a statement waits for a lock of PostgreSQL, in seconds; default: any time.
    """

    def __init__(self, url: str, *, read_only: bool = False, lock_s: float | None = None) -> None:
        self.url = normal_url(url)
        self.is_sqlite = self.url.drivername == "sqlite"
        # PostgreSQL needs no lock: a no-op context.
        self._writing: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        )
        self._read_only = read_only
        self._foreign: ForeignFile | None = None
        self._file: UsedFile | None = None
        source = self.url
        options: dict[str, Any] = {"json_serializer": json_text, "json_deserializer": read_json}
        if self.is_sqlite:
            path = Path(str(self.url.database))
            check_file(path, read_only=read_only)
            self._file = UsedFile(path)
            source = sa.URL.create("sqlite", database=str(path))
            # More prepared statements than Python's default of 128.
            connect = {"check_same_thread": False, "timeout": 60.0, "cached_statements": 512}
            if may_write(path) and not (read_only and is_full(path)):
                # As many as there are threads: slow readers that had taken all let no selection begin.
                options |= {"connect_args": connect, "pool_use_lifo": True, "max_overflow": -1}
            else:
                self._foreign = ForeignFile(path, connect)
                options |= {"creator": self._foreign.connect, "poolclass": sa.pool.NullPool}
        else:
            options |= {
                "pool_size": 16, "max_overflow": 32, "pool_timeout": 10.0, "connect_args": session.PATIENCE,
                "pool_use_lifo": True,
                # Whatever the server's default is: a conditional update waits for another's, and looks again.
                "isolation_level": "READ COMMITTED",
            }
        # Last in, first out: the most recent connection has most statements prepared and rows cached.
        try:
            self.engine = sa.create_engine(source, **options)
        except ModuleNotFoundError as error:
            raise DatabaseError(
                f"PostgreSQL needs {error.name}, which is not installed: pip install 'plevel[postgres]'"
            ) from error
        row_cache.install(self.engine)
        if self.is_sqlite:
            pragmas = _READER if read_only else _PRAGMAS
            sa.event.listen(self.engine, "connect", partial(_configure_sqlite, pragmas))
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        else:
            sa.event.listen(self.engine, "connect", partial(session.configure, lock_s))
            sa.event.listen(self.engine, "checkin", session.note_use)
            sa.event.listen(self.engine, "checkout", partial(session.try_idle, self.engine.dialect))
        self._writer = self.engine.execution_options(plevel_write=True)
        # As on SQLite, all statements of a transaction that reads see the rows of one moment.
        one_moment: dict[str, Any] = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = self.engine.execution_options(**one_moment)
        self._kept: sa.Connection | None = None  # the only connection that writes on SQLite
        self._process = os.getpid()
        self._forking = threading.Lock()
        self._is_lost = False  # another process's connections cannot be closed in this one
        self._is_entangled = False  # another process's connections to the SQLite file are open in this one

    def _leave_parent(self) -> None:
        """Give a forked process connections of its own; over one, it and its parent would get each other's rows.

        SQLite's are closed first. While they are open, a new one takes no locks that other processes see: the last of
        these to close its own would delete the write-ahead log, with all that this process writes to it later. Those
        that the parent's other threads were reading by cannot be closed, so nothing is written then. A lock of SQLite,
        or of the pool, that such a thread held for a moment is never released here: this would wait for it for ever.

        Raises:
            DatabaseError: another thread of the parent was writing to the SQLite file, whose transaction a close ends,
                or held such a lock.
        """
        with self._forking:
            if self._process == os.getpid():
                return
            if not self.is_sqlite:
                self.engine.dispose(close=False)
            elif self._kept is not None and self._kept.in_transaction():
                raise self._forked("a write to it, and cannot use it")
            else:
                if not self._is_lost:
                    leaving = threading.Thread(target=self._close_parents, name="forked", daemon=True)
                    leaving.start()
                    leaving.join(_LEAVE_S)
                    self._is_lost = leaving.is_alive()
                if self._is_lost:
                    raise self._forked("a use of it by another thread, and cannot use it")
                self._writing = threading.Lock()
            self._process = os.getpid()  # last, as another thread takes a connection at once

    def _close_parents(self) -> None:
        pool, kept = self.engine.pool, self._kept is not None
        is_read = isinstance(pool, sa.pool.QueuePool) and pool.checkedout() > kept
        self._is_entangled = True  # should one not close
        self._close()
        self._is_entangled = is_read

    def _forked(self, what: str) -> DatabaseError:
        return DatabaseError(
            f"database {show_url(self.url)}: this process was forked in the middle of {what}: fork before or after"
        )

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads, the rows of one moment. A forked process has connections of its own.

        Raises:
            DatabaseError: another program changed the file meanwhile, or it was moved.
        """
        if self._process != os.getpid():
            self._leave_parent()
        if self._file is not None:
            self._file.check()
        whole = contextlib.nullcontext() if self._foreign is None else self._foreign.reading()
        with translated(self.url), whole, self._reader.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that writes; raise `DatabaseError` if the store is read-only, or its file was moved.

        A forked process has connections of its own.
        """
        if self._process != os.getpid():
            self._leave_parent()
        if self._is_entangled:
            raise self._forked("a read of it, and cannot write to it")
        if self._read_only:
            path = Path(str(self.url.database))
            raise DatabaseError(
                f"database {show_url(self.url)} has no room on its disk, where it can only be read: free some space"
                if self.is_sqlite and may_write(path)
                else f"database {show_url(self.url)} is not writable for this user: change the permissions of it and "
                "its folder, or copy it elsewhere"
            )
        with translated(self.url), self._writing, self._begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        if self._file is None:
            with self._writer.begin() as connection:
                try:
                    yield connection
                except sa.exc.DBAPIError as error:
                    if state_of(error) == READ_ONLY:  # of a former primary: the next connections may be to the new one
                        connection.invalidate()
                        self.engine.dispose()  # the idle ones, which later requests would take one by one
                    raise
            return
        self._file.check()
        if self._kept is None:
            self._kept = self._writer.connect()
            _set_pragmas(self._kept.connection.driver_connection, _WRITER)
            self._file.note()
        kept = self._kept
        try:
            with kept.begin():
                yield kept
        except BaseException:
            row_cache.forget(kept)
            if not kept.closed and not kept.invalidated:
                kept.connection.rollback()  # SQLAlchemy does neither where COMMIT has failed
            raise

    def close(self) -> None:
        if self._process == os.getpid():  # else they are the parent's
            self._close()

    def _close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self.engine.dispose()


_PRAGMAS = (
    "busy_timeout = 60000",
    "journal_mode = WAL",  # stored in the file
    # A crash of the process loses nothing; one of the machine may lose the last transactions.
    "synchronous = NORMAL",
    "foreign_keys = ON",
)
_READER = ("busy_timeout = 60000", "query_only = ON")


def _configure_sqlite(pragmas: Iterable[str], connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite
    _set_pragmas(connection, pragmas)


def _set_pragmas(connection: Any, pragmas: Iterable[str]) -> None:
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writing = connection.get_execution_options().get("plevel_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
