"""Failures of the database, turned into errors of one line with their remedy."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator

import sqlalchemy as sa

from service.errors import LOGGED, DatabaseError, InvalidError, OverloadedError, UnansweredError

# A refused connection has no SQLSTATE in psycopg. The connections of a service that was killed are open until
# the server has ended what they ask.
_SOON = re.compile(
    "too many (clients|connections)|remaining connection slots|system is (starting up|shutting down|in recovery)"
    "|not yet accepting connections"
)

# States of PostgreSQL: of a write by a standby, and of a wait for a lock beyond its time limit.
READ_ONLY = "25006"
_LOCKED = "55P03"


def state_of(error: sa.exc.StatementError) -> str | None:
    """The SQLSTATE of PostgreSQL's error."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


@contextlib.contextmanager
def translated(url: sa.URL) -> Iterator[None]:
    """Turn failures of the database, and values that it cannot store, into errors of one line."""
    try:
        yield
    except (sa.exc.DataError, OverflowError) as error:
        first = str(getattr(error, "orig", error)).strip().partition("\n")[0]
        raise InvalidError(f"a value cannot be stored: {first}") from error
    except sa.exc.StatementError as error:
        if isinstance(error.orig, InvalidError):  # of `json_text`, which SQLAlchemy calls
            raise error.orig from error
        first = (str(error.orig).strip().splitlines() or ["no reason given"])[0]
        if state_of(error) == READ_ONLY:
            raise DatabaseError(
                f"the database refuses: {first}: it is a standby, or set to read only: name the primary, or all "
                "servers and target_session_attrs=read-write, in the database's URL"
            ) from error
        if state_of(error) == "42501":  # insufficient_privilege
            raise DatabaseError(f"the database refuses: {first}: make its user the owner of the database") from error
        if state_of(error) == _LOCKED:
            raise UnansweredError(
                f"the database does not answer: {first}: another transaction holds what is asked for: ask again, or "
                "find it in pg_stat_activity"
            ) from error
        if first.startswith("invalid connection option"):  # libpq's, of a parameter in the URL
            raise DatabaseError(f"database: {first}: correct its URL") from error
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DatabaseError(
                f"database {url.database} is damaged ({first}): put a backup in its place",
                f"the database is damaged ({first}): put a backup in its place",
            ) from error
        if not (isinstance(error, sa.exc.OperationalError) or getattr(error, "connection_invalidated", False)):
            raise
        kind = OverloadedError if _SOON.search(str(error.orig)) else UnansweredError
        raise kind(*_absence(url, error, first)) from error
    except sa.exc.TimeoutError as error:  # of the pool: all connections are in use
        raise UnansweredError("the database does not answer: all connections are waiting for it") from error


# By SQLite's code of an error.
_REMEDIES = {
    sqlite3.SQLITE_FULL: "free space on the disk of",
    sqlite3.SQLITE_IOERR: "free space on, or check, the disk of",
    sqlite3.SQLITE_BUSY: "see which program holds",
    sqlite3.SQLITE_READONLY: "change the permissions of",
}


def _absence(url: sa.URL, error: sa.exc.StatementError, first: str) -> tuple[str, str]:
    """The message of a database that does not answer, of which `first` is the reason, and that for clients."""
    away = "the database does not answer"
    if url.drivername == "sqlite":
        remedy = _REMEDIES.get(getattr(error.orig, "sqlite_errorcode", 0) & 0xFF, "check")
        return f"{away}: {first}: {remedy} {url.database}", f"{away}: {first}: {remedy} its file"
    # Of a connection that it could not make libpq tells the server's address, and names of users.
    return f"{away}: {first}", f"{away}: {LOGGED}" if error.statement is None else f"{away}: {first}"
