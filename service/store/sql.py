"""SQL that SQLite and PostgreSQL spell differently: the clock, sets of ids, tables of values, insertions."""
# Over 300 lines: each construct for two databases, which stand together.

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from service.store.listed import Integers

COPIED = 100  # rows from which COPY, which is three round trips, takes less time
_PIECE = 250  # rows written at a time, of which PostgreSQL stores some while the next are written
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


class random_step(FunctionElement[int]):  # noqa: N801 - reads as SQL
    """A random integer from 1 to 2**30, another for each row."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(random_step, "sqlite")
def _sqlite_random_step(element: random_step, compiler: Any, **kw: Any) -> str:
    return "(1 + (random() & 1073741823))"


@compiles(random_step, "postgresql")
def _postgresql_random_step(element: random_step, compiler: Any, **kw: Any) -> str:
    return "(1 + CAST(floor(random() * 1073741824) AS BIGINT))"


def is_due(at: sa.ColumnElement[float], longest_s: Any) -> sa.ColumnElement[bool]:
    """The condition that an instant is past, or more than `longest_s` ahead.

    `longest_s` is the longest term to which the instant is set. An instant further ahead was written before the
    clock was set back.
    """
    return sa.or_(at <= now(), at > now() + longest_s)


def is_given(column: sa.ColumnElement[Any], value: Any) -> sa.ColumnElement[bool]:
    """The condition that a column has a value; it holds for all rows if that is None."""
    return sa.true() if value is None else column == value


_IDS = sa.bindparam("ids", type_=Integers())


class among(FunctionElement[Any]):  # noqa: N801 - reads as SQL
    """The condition that a column is one of the integers given as the parameter `ids`, or of another's `Texts`.

    They are one parameter, so that the statement is compiled once, and prepared once by the database.
    """

    type = sa.types.NULLTYPE  # with Boolean, SQLite would compare with 1 and use no index
    inherit_cache = True

    def __init__(self, column: Any, given: sa.BindParameter[Any] = _IDS) -> None:
        super().__init__(column, given)


@compiles(among, "sqlite")
def _sqlite_among(element: among, compiler: Any, **kw: Any) -> str:
    column, given = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({given}))"  # noqa: S608


@compiles(among, "postgresql")
def _postgresql_among(element: among, compiler: Any, **kw: Any) -> str:
    column, given = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} = ANY({given})"


def read_clock(connection: sa.Connection) -> float:
    """The database's clock in Unix seconds."""
    return float(connection.execute(sa.select(now())).scalar_one())


def insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT with `on_conflict_do_…`, in the connection's dialect."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def values_table(
    connection: sa.Connection, columns: Sequence[sa.Column[Any]], rows: Iterable[Sequence[Any]]
) -> sa.Subquery:
    """As `given_table`, with its rows."""
    return given_table(connection.dialect.name, columns, sa.bindparam("rows", values_of(rows)))


def values_of(rows: Iterable[Sequence[Any]]) -> str:
    """The parameter `rows` of `given_table`."""
    return orjson.dumps(list(rows)).decode()


_GIVEN = sa.bindparam("rows", type_=sa.String())


def given_table(
    dialect: str, columns: Sequence[sa.Column[Any]], rows: sa.BindParameter[Any] = _GIVEN
) -> sa.Subquery:
    """Rows of texts and integers as a table named `given`, with the names and types of `columns`.

    They are one parameter of each execution (see `values_of`), which joins many queries into one.
    """
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


def join_each(
    dialect: str, outer: sa.Table, inner: sa.Table, condition: sa.ColumnElement[bool]
) -> tuple[sa.FromClause, sa.sql.base.ReadOnlyColumnCollection[str, Any]]:
    """Join with each row of `outer` those of `inner` that meet a condition, by an index; and the columns of the latter.

    Without statistics, PostgreSQL would read all rows of `inner`. OFFSET 0 keeps it from joining in another way.
    """
    if dialect == "sqlite":
        return outer.join(inner, condition), inner.c
    each = sa.select(inner).where(condition).correlate(outer).offset(0).lateral()
    return outer.join(each, sa.true()), each.c


def put_rows(
    connection: sa.Connection,
    columns: Sequence[sa.Column[Any]],
    rows: Sequence[Sequence[Any]],
    on_conflict: str | None,
    clock: sa.Column[Any] | None = None,
) -> None:
    """Insert many rows into a table with few statements.

    Args:
        connection: the transaction.
        columns: columns of one table, in the order of the values; JSON values are text.
        rows: the values.
        on_conflict: the text after ON CONFLICT; None makes a conflict an error.
        clock: one more column, set to the time of the database.
    """
    into, row, source = _insertion(connection.dialect, tuple(columns), clock)
    conflict = "" if on_conflict is None else f" ON CONFLICT {on_conflict}"
    if connection.dialect.name == "sqlite":
        for begin in range(0, len(rows), _ROWS):
            some = rows[begin : begin + _ROWS]
            values = ", ".join([row] * len(some))
            connection.exec_driver_sql(
                f"{into} VALUES {values}{conflict}",
                tuple(itertools.chain.from_iterable(some)),
            )
        return
    named = [f"c{i}" for i in range(len(columns))]
    data = [dict(zip(named, row, strict=True)) for row in rows]
    text = orjson.dumps(data, default=bytes.hex).decode()
    connection.exec_driver_sql(f"{into} {source}{conflict}", (text,))


def add_rows(
    connection: sa.Connection, columns: Sequence[sa.Column[Any]], rows: Sequence[Sequence[Any]], clock: sa.Column[Any]
) -> None:
    """As `put_rows`, of rows that are known to be new: on PostgreSQL by COPY, which costs the server least.

    Raises:
        IntegrityError: one of them is there already.
    """
    if connection.dialect.name == "sqlite" or len(rows) < COPIED:
        put_rows(connection, columns, rows, None, clock)
        return
    at = connection.scalar(sa.select(now().label("at")))
    names = ", ".join([*(c.name for c in columns), clock.name])
    statement = (
        f"COPY {columns[0].table.name} ({names}) FROM STDIN "
        r"(FORMAT csv, ESCAPE '\', NULL 'null', ENCODING 'UTF8')"
    )
    driver: Any = connection.connection.driver_connection
    with _errors_of(connection, statement), driver.cursor() as cursor, cursor.copy(statement) as copy:
        for begin in range(0, len(rows), _PIECE):
            lines = [orjson.dumps((*row, at), default=_bytea)[1:-1] + b"\n" for row in rows[begin : begin + _PIECE]]
            copy.write(_ESCAPE.sub(_unescaped, b"".join(lines)))


# JSON's escapes, of which CSV has none but those of a backslash and a quote: the latter is not found.
_ESCAPE = re.compile(rb"\\\\|\\[bfnrt]|\\u00..")


def _unescaped(found: re.Match[bytes]) -> bytes:
    escape = found[0]
    return escape if escape == rb"\\" else str(orjson.loads(b'"%s"' % escape)).encode()


def _bytea(value: bytes) -> str:
    return rf"\x{value.hex()}"


@contextlib.contextmanager
def _errors_of(connection: sa.Connection, statement: str) -> Iterator[None]:
    """Translate the driver's errors as SQLAlchemy does, for calls that it does not make."""
    driver: Any = connection.connection.driver_connection
    errors = connection.dialect.loaded_dbapi.Error
    try:
        yield
    except errors as error:
        raise sa.exc.DBAPIError.instance(
            statement, None, error, errors, connection_invalidated=driver.closed, dialect=connection.dialect
        ) from error


Query = sa.Select[Any] | sa.sql.dml.ReturningInsert[Any] | sa.sql.dml.ReturningUpdate[Any] | sa.TextClause
# Executes a query of texts and numbers; the list of its rows is complete at the end of the block.
Ask = Callable[[Query, Mapping[str, Any]], list[Any]]


@contextlib.contextmanager
def one_trip(connection: sa.Connection, *, joined: bool = True) -> Iterator[Ask]:
    """Send the statements of a block to PostgreSQL together, in one round trip; it executes them in their order.

    They are queries by the yielded function, and statements without results by `put_rows`, `add_rows` and the
    connection. The latter raise their errors at the end of the block at the latest.

    Args:
        connection: the transaction.
        joined: false executes each at once, as on SQLite: for `COPIED` rows or more.
    """
    driver: Any = connection.connection.driver_connection
    dialect = connection.dialect
    if dialect.name == "sqlite" or not joined or not _can_join(dialect):
        yield lambda statement, given: list(connection.execute(statement, given))
        return
    asked: list[tuple[Any, list[Any]]] = []

    def ask(statement: Query, given: Mapping[str, Any]) -> list[Any]:
        compiled = _compiled(dialect, statement)
        cursor = driver.cursor(row_factory=dialect.loaded_dbapi.rows.namedtuple_row)
        cursor.execute(compiled.string, compiled.construct_params(dict(given)))
        asked.append((cursor, []))
        return asked[-1][1]

    with _errors_of(connection, "several statements"):
        with driver.pipeline():
            yield ask
        for cursor, rows in asked:
            rows.extend(cursor.fetchall())
            cursor.close()


def set_durable(connection: sa.Connection, durable: bool) -> None:
    """Have a transaction wait at its end until PostgreSQL has written it to the disk, as by default, or not.

    A crash may lose those that do not wait, the last ones first: none from before one that has waited.
    """
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SET LOCAL synchronous_commit = {'DEFAULT' if durable else 'off'}")


@contextlib.contextmanager
def in_index_order(connection: sa.Connection) -> Iterator[None]:
    """Keep PostgreSQL from sorting in the statements of a block: an index must have the order of each.

    Its statistics are those of a queue's past. It may expect fewer rows than a limit allows, and would then read and
    sort a whole queue for the first of its rows. An error ends the setting with the transaction.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    connection.exec_driver_sql("SET LOCAL enable_sort = off")
    yield
    connection.exec_driver_sql("SET LOCAL enable_sort = DEFAULT")


@cache
def _can_join(dialect: sa.Dialect) -> bool:
    """Return whether the client library has pipelines: on some systems it is older than the driver."""
    return bool(dialect.loaded_dbapi.Pipeline.is_supported())


@cache
def _compiled(dialect: sa.Dialect, statement: Query) -> Any:
    return statement.compile(dialect=dialect)


@cache
def _insertion(
    dialect: sa.Dialect, columns: tuple[sa.Column[Any], ...], clock: sa.Column[Any] | None
) -> tuple[str, str, str]:
    """The parts of an insertion: its beginning, and a row of parameters or rows from one JSON parameter.

    The JSON takes PostgreSQL's driver a fifth of the time of arrays.
    """
    names = [c.name for c in columns] + ([] if clock is None else [clock.name])
    instant = [] if clock is None else [str(now().compile(dialect=dialect))]
    row = f"({', '.join(['?'] * len(columns) + instant)})"
    taken, given = [], []
    for i, c in enumerate(columns):
        kind = c.type.compile(dialect=dialect)
        as_text = {"JSONB": "CAST(c{} AS JSONB)", "BYTEA": "decode(c{}, 'hex')"}.get(kind)
        taken.append(f"c{i}" if as_text is None else as_text.format(i))
        given.append(f"c{i} {kind if as_text is None else 'TEXT'}")
    source = f"SELECT {', '.join(taken + instant)} FROM json_to_recordset(%s) AS given({', '.join(given)})"  # noqa: S608
    return f"INSERT INTO {columns[0].table.name} ({', '.join(names)})", row, source
