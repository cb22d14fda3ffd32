"""Sessions of PostgreSQL: their settings, and time limits for a server or a service that is gone."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

# Time limits for a server that is gone: to connect and to answer in seconds, for unacknowledged data in milliseconds.
PATIENCE = {
    "connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
FRESH_S = 1.0  # time for which a connection is assumed to work after use
# Time limit of idle transactions, so that a hanging service releases its locks, in seconds.
HANGING_S = 60
# Interval at which a server looks for its client while it executes a statement, so that one that was killed releases
# its locks, in seconds.
GONE_S = 5


def configure(lock_s: float | None, connection: Any, _record: Any) -> None:
    """Set up a new session, whose statements wait for a lock for at most `lock_s` seconds; None: for any time."""
    # Without just-in-time compilation: that of a claim of jobs takes half a second, and its execution milliseconds.
    wait = "DEFAULT" if lock_s is None else f"{1000 * lock_s:.0f}"
    connection.execute(
        f"SET idle_in_transaction_session_timeout = '{HANGING_S}s'; SET jit = off; SET lock_timeout = {wait}"
    )
    (server_pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    if server_pid != connection.info.backend_pid:
        # A pooler, such as PgBouncer, is between: the next transaction may be of another server process, which has none
        # of the statements prepared here, or others of the same names.
        connection.prepare_threshold = None
    connection.commit()
    try:
        connection.execute(f"SET client_connection_check_interval = '{GONE_S}s'")
        connection.commit()
    except connection.Error:  # a server before PostgreSQL 14, or on a system where it cannot look
        connection.rollback()


def note_use(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def try_idle(dialect: Any, connection: Any, record: Any, _proxy: Any) -> None:
    """Check that the server of a connection answers, unless it just has.

    SQLAlchemy's `pool_pre_ping` checks each time, which is one round trip more for every transaction.
    """
    if time.monotonic() - record.info.get("used_at", 0.0) < FRESH_S:
        return
    try:
        dialect.do_ping(connection)
    except dialect.dbapi.Error as error:
        raise sa.exc.InvalidatePoolError from error
