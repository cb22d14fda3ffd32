"""A copy of a database while it is used."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from service.errors import DatabaseError, InvalidError
from service.store.db import Store

PAGES = 1000  # copied in one step; writers proceed in between


def _step(*_: int) -> None:
    """Run between two steps of a copy: Python handles signals then, and else only at its end."""


def backup(store: Store, path: Path) -> int:
    """Copy a snapshot of an SQLite database to a new file; return the file's size in bytes.

    Raises:
        InvalidError: the file exists, or the database is PostgreSQL, which has its own tools.
        DatabaseError: the copy cannot be written, or is damaged.
    """
    if not store.is_sqlite:
        raise InvalidError("PostgreSQL has its own backups: use pg_dump, or archive its write-ahead log")
    if path.exists():
        raise InvalidError(f"{path} exists: name a new file")
    # Its name has room for a part of the other: file systems take 255 bytes, SQLite's journal its own.
    part = path.with_name(f".{path.name[:50]}.{os.getpid()}.part")
    try:
        with store.read() as connection:
            # BEGIN alone takes no snapshot, without which each commit of others restarts the copy.
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()
            source = connection.connection.driver_connection
            assert isinstance(source, sqlite3.Connection)
            os.close(os.open(part, os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.closing(sqlite3.connect(part)) as target:
                source.backup(target, pages=PAGES, progress=_step)
                found = target.execute("PRAGMA quick_check").fetchone()[0]
                if found != "ok":
                    raise DatabaseError(
                        f"the copy of {store.url.database} is damaged ({found}): repeat it, and "
                        "check the disk"
                    )
                target.execute("PRAGMA journal_mode = DELETE")
        part.replace(path)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DatabaseError(
            f"{path} cannot be written ({why}): name a new file in an existing folder with room for it"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # of a file system that is read-only, which the error has said
            part.unlink(missing_ok=True)
    return path.stat().st_size
