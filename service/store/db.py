"""Opening the database: SQLite in WAL mode, or PostgreSQL through psycopg; and its clock."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from service.errors import DatabaseError, InvalidError
from service.store import row_cache

Connection = sa.Connection
_ROWS = 100  # per statement on SQLite: a tenth faster than single rows; more gain nothing


class now(FunctionElement[float]):  # noqa: N801 - SQL's name
    """The database's clock in Unix seconds, which advances within a transaction."""

    type = sa.Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _sqlite_now(element: now, compiler: Any, **kw: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42; this has the same resolution, a millisecond.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _postgresql_now(element: now, compiler: Any, **kw: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


def is_due(at: sa.ColumnElement[float], longest_s: Any) -> sa.ColumnElement[bool]:
    """The condition that an instant is past, or more than `longest_s` ahead.

    `longest_s` is the longest term to which the instant is set. An instant further ahead was written before the
    clock was set back.
    """
    return sa.or_(at <= now(), at > now() + longest_s)


class _Integers(sa.TypeDecorator[Sequence[int]]):
    """Integers as one parameter."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        kind = sa.String() if dialect.name == "sqlite" else postgresql.ARRAY(sa.BigInteger())
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: Iterable[int] | None, dialect: sa.Dialect) -> Any:
        listed = [i for i in value or () if -(2**63) <= i < 2**63]  # the range of ids
        return orjson.dumps(listed).decode() if dialect.name == "sqlite" else listed


class among(FunctionElement[Any]):  # noqa: N801 - reads as SQL
    """The condition that a column is one of the integers given as the parameter `name`.

    They are one parameter, so that the statement is compiled once, and prepared once by the database.
    """

    type = sa.types.NULLTYPE  # with Boolean, SQLite would compare with 1 and use no index
    inherit_cache = True

    def __init__(self, column: Any, name: str = "ids") -> None:
        super().__init__(column, sa.bindparam(name, type_=_Integers()))


@compiles(among, "sqlite")
def _sqlite_among(element: among, compiler: Any, **kw: Any) -> str:
    column, given = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({given}))"  # noqa: S608


@compiles(among, "postgresql")
def _postgresql_among(element: among, compiler: Any, **kw: Any) -> str:
    column, given = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} = ANY({given})"


def insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT with `on_conflict_do_…`, in the connection's dialect."""
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """As `insert`, by the dialect's name, for statements that are built once."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def values_table(
    connection: sa.Connection, columns: Sequence[sa.Column[Any]], rows: Iterable[Sequence[Any]]
) -> sa.Subquery:
    """Rows of texts and integers as a table named `given`, with the names and types of `columns`.

    They are one parameter, which joins many queries into one.
    """
    return _given(connection.dialect.name, columns, sa.bindparam("rows", values_of(rows)))


def given_table(dialect: str, columns: Sequence[sa.Column[Any]]) -> sa.Subquery:
    """As `values_table`, with the rows as the parameter `rows` of each execution (see `values_of`)."""
    return _given(dialect, columns, sa.bindparam("rows", type_=sa.String()))


def values_of(rows: Iterable[Sequence[Any]]) -> str:
    """The parameter `rows` of `given_table`."""
    return orjson.dumps(list(rows)).decode()


def _given(
    dialect: str, columns: Sequence[sa.Column[Any]], rows: sa.BindParameter[Any]
) -> sa.Subquery:
    parts = []
    for i, c in enumerate(columns):
        if dialect == "sqlite":
            part = f"json_extract(value, '$[{i}]')"
        elif isinstance(c.type, sa.Integer):
            part = f"CAST(value->>{i} AS BIGINT)"
        else:
            part = f"value->>{i}"
        parts.append(f"{part} AS {c.name}")
    each = "json_each(:rows)" if dialect == "sqlite" else "jsonb_array_elements(CAST(:rows AS JSONB))"
    text = sa.text(f"SELECT {', '.join(parts)} FROM {each}").bindparams(rows)  # noqa: S608
    return text.columns(*(sa.column(c.name, c.type) for c in columns)).subquery("given")


def put_rows(
    connection: sa.Connection,
    columns: Sequence[sa.Column[Any]],
    rows: Sequence[Sequence[Any]],
    on_conflict: str,
    clock: sa.Column[Any] | None = None,
) -> None:
    """Insert many rows into a table with few statements.

    Args:
        connection: the transaction.
        columns: columns of one table, in the order of the values; JSON values are text.
        rows: the values.
        on_conflict: the text after ON CONFLICT.
        clock: one more column, set to the time of the database.
    """
    names = [c.name for c in columns] + ([] if clock is None else [clock.name])
    into = f"INSERT INTO {columns[0].table.name} ({', '.join(names)})"
    instant = [] if clock is None else [str(now().compile(dialect=connection.dialect))]
    if connection.dialect.name == "sqlite":
        row = f"({', '.join(['?'] * len(columns) + instant)})"
        for begin in range(0, len(rows), _ROWS):
            some = rows[begin : begin + _ROWS]
            values = ", ".join([row] * len(some))
            connection.exec_driver_sql(
                f"{into} VALUES {values} ON CONFLICT {on_conflict}",
                tuple(itertools.chain.from_iterable(some)),
            )
        return
    # One JSON parameter takes the driver a fifth of the time of arrays.
    taken, given = [], []
    for i, c in enumerate(columns):
        kind = c.type.compile(dialect=connection.dialect)
        as_text = {"JSONB": "CAST(c{} AS JSONB)", "BYTEA": "decode(c{}, 'hex')"}.get(kind)
        taken.append(f"c{i}" if as_text is None else as_text.format(i))
        given.append(f"c{i} {kind if as_text is None else 'TEXT'}")
    statement = (
        f"{into} SELECT {', '.join(taken + instant)} "  # noqa: S608
        f"FROM json_to_recordset(%s) AS given({', '.join(given)}) ON CONFLICT {on_conflict}"
    )
    named = [f"c{i}" for i in range(len(columns))]
    data = [dict(zip(named, row, strict=True)) for row in rows]
    text = orjson.dumps(data, default=bytes.hex).decode()
    connection.exec_driver_sql(statement, (text,))


def normal_url(url: str) -> sa.URL:
    """The URL with its driver: `postgresql://…` uses psycopg, a bare path is an SQLite file.

    Raises:
        DatabaseError: neither SQLite nor PostgreSQL, or not readable as a URL.
    """
    if "://" not in url:
        url = f"sqlite:///{Path(url).expanduser().absolute()}"
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
        return parsed.set(drivername="sqlite")
    raise DatabaseError(
        f"database {parsed.drivername!r} is not supported: use sqlite:///file or postgresql://…"
    )


def show_url(url: sa.URL) -> str:
    """The URL without its passwords, which may also be parameters."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


# Time limits for a server that is gone: to connect and to answer, in seconds; for unacknowledged data, in
# milliseconds.
_PATIENCE = {
    "connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}  # fmt: skip
FRESH_S = 1.0  # time for which a connection is assumed to work after use
# Time limit of idle transactions, so that a hanging service releases its locks, in seconds.
HANGING_S = 60
# An import changes pages all over the indexes of SQLite. A large page cache, and a write-ahead log of several
# transactions, let a page be written to the database once for several changes.
_WRITER = ("cache_size = -65536", "wal_autocheckpoint = 16000")  # KiB, and pages of 4 KiB


class Store:
    """A database, with its transactions. Thread-safe.

    `write()` commits at the end and rolls back on an exception. On SQLite it takes the write lock at its start,
    so that no transaction fails half-way. Threads of one process wait for a lock in memory instead of
    polling the file's, and share one connection, as a commit invalidates the page caches of all others.

    Args:
        url: the database; a missing SQLite file is created.
        read_only: open it without changing it, as it may be another program's.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.url = normal_url(url)
        self.is_sqlite = self.url.drivername == "sqlite"
        # PostgreSQL needs no lock: a no-op context.
        self._writing: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        )
        options: dict[str, Any] = {
            "json_serializer": lambda value: orjson.dumps(value).decode(),
            "json_deserializer": orjson.loads,
        }
        if self.is_sqlite:
            _check_file(Path(str(self.url.database)))
            # More prepared statements than Python's default of 128.
            connect = {"check_same_thread": False, "timeout": 60.0, "cached_statements": 512}
            options |= {"connect_args": connect}
        else:
            options |= {
                "pool_size": 16, "max_overflow": 32, "pool_timeout": 10.0, "connect_args": _PATIENCE,
            }  # fmt: skip
        # Last in, first out: the most recent connection has most statements prepared and rows cached.
        try:
            self.engine = sa.create_engine(self.url, pool_use_lifo=True, **options)
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
            sa.event.listen(self.engine, "connect", _configure_postgresql)
            sa.event.listen(self.engine, "checkin", _note_use)
            sa.event.listen(self.engine, "checkout", partial(_try_idle, self.engine.dialect))
        self._writer = self.engine.execution_options(plevel_write=True)
        self._kept: sa.Connection | None = None  # the only connection that writes on SQLite

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads."""
        with _translated(), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that writes."""
        with _translated(), self._writing, self._begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        if not self.is_sqlite:
            with self._writer.begin() as connection:
                yield connection
            return
        if self._kept is None:
            self._kept = self._writer.connect()
            _set_pragmas(self._kept.connection.driver_connection, _WRITER)
        with self._kept.begin():
            yield self._kept

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self.engine.dispose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn failures of the database, and values that it cannot store, into errors of one line."""
    try:
        yield
    except (sa.exc.DataError, OverflowError) as error:
        first = str(getattr(error, "orig", error)).strip().partition("\n")[0]
        raise InvalidError(f"a value cannot be stored: {first}") from error
    except sa.exc.DBAPIError as error:
        if not (isinstance(error, sa.exc.OperationalError) or error.connection_invalidated):
            raise
        first = (str(error.orig).strip().splitlines() or ["no reason given"])[0]
        raise DatabaseError(f"the database does not answer: {first}") from error
    except sa.exc.TimeoutError as error:  # of the pool: all connections are in use
        raise DatabaseError("the database does not answer: all connections are waiting for it") from error


def _check_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(
            f"database {path} is not writable: its folder cannot be created ({error.strerror}): "
            "name another with --database"
        ) from error
    if path.is_dir():
        raise DatabaseError(f"database {path} is a folder: name a file in it")
    where = path if path.exists() else path.parent
    # WAL mode creates files beside the database, so the folder must be writable too.
    if not os.access(where, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise DatabaseError(
            f"database {path} is not writable: change its permissions, or name another with --database"
        )
    # Other users of the host must not read tokens' digests and imported texts. SQLite's other files get the
    # same mode.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    if path.stat().st_size:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise DatabaseError(f"database {path} is not an SQLite file: name another")


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


def _configure_postgresql(connection: Any, _record: Any) -> None:
    connection.execute(f"SET idle_in_transaction_session_timeout = '{HANGING_S}s'")
    connection.commit()


def _note_use(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _try_idle(dialect: Any, connection: Any, record: Any, _proxy: Any) -> None:
    """Check that the server of a connection answers, unless it just has.

    SQLAlchemy's `pool_pre_ping` checks each time, which is one round trip more for every transaction.
    """
    if time.monotonic() - record.info.get("used_at", 0.0) < FRESH_S:
        return
    try:
        dialect.do_ping(connection)
    except dialect.dbapi.Error as error:
        raise sa.exc.InvalidatePoolError from error


def _begin_sqlite(connection: sa.Connection) -> None:
    writing = connection.get_execution_options().get("plevel_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
