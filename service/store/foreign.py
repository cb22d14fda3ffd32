"""SQLite files beside which this user can write none: another program may write them while they are read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from service.errors import DatabaseError


class ForeignFile:
    """A file that is opened anew for each transaction, as what lies beside it decides how it can be read.

    Args:
        path: the file.
        options: those of `sqlite3.connect`.
    """

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path = path
        self._options = options

    def connect(self) -> sqlite3.Connection:
        """Open the file as it is now.

        Raises:
            DatabaseError: its log has changes that cannot be read without writing the folder.
        """
        how = "mode=ro" if self._has_log() else "immutable=1"
        url = f"file:{quote(os.fsencode(real_path(self._path)))}?{how}"
        opened: sqlite3.Connection = sqlite3.connect(url, uri=True, **self._options)
        return opened

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Raise `DatabaseError` if the file was changed during a transaction that could not lock it."""
        before = None if self._has_log() else self._stat()  # with a log, a transaction sees one state of the file
        try:
            yield
        except Exception as error:
            if before not in (None, self._stat()):
                raise self._changed() from error
            if isinstance(error, sa.exc.DatabaseError) and type(error.orig) is sqlite3.DatabaseError:
                raise DatabaseError(
                    f"database {self._path} cannot be read ({error.orig}): ask again, as it may have changed while it "
                    "was read, or restore a backup"
                ) from error
            raise
        if before not in (None, self._stat()):
            raise self._changed()

    def _changed(self) -> DatabaseError:
        return DatabaseError(f"database {self._path} was changed while it was read: ask again")

    def _stat(self) -> tuple[int, ...]:
        """The marks of the file, which differ after a change of it."""
        try:
            found = real_path(self._path).stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _beside(self, suffix: str) -> Path:
        path = real_path(self._path)
        return path.with_name(path.name + suffix)

    def _has_log(self) -> bool:
        """Return whether a write-ahead log, with the index that readers of it share, is to be read, too."""
        log, shared = self._beside("-wal"), self._beside("-shm")
        try:
            size = log.stat().st_size  # once: its owner may delete it meanwhile
        except FileNotFoundError:
            return False
        if not size and not shared.exists():
            return False  # nobody has the file open: it needs none beside it, which this user cannot create
        if all(os.access(p, os.R_OK) for p in (log, shared)) or os.access(log.parent, os.W_OK):
            return True
        if not size:
            return False
        raise DatabaseError(
            f"database {self._path} has changes in its log {log.name}, which cannot be read in a folder that you "
            "cannot write: copy it with its log to a folder that you can write, or use `plevel db backup` where it is "
            "written"
        )


def real_path(path: Path) -> Path:
    """The file that links lead to, beside which SQLite has its others; the path itself if they lead in a circle."""
    return Path(os.path.realpath(path))


ROOM = 1 << 16  # bytes that the files take which SQLite makes beside one that it reads


def is_full(path: Path) -> bool:
    """Return whether the disk has no room for the files that SQLite makes beside one that it reads, and lacks them."""
    path = real_path(path)
    if path.with_name(f"{path.name}-shm").exists():
        return False
    found = os.statvfs(path.parent)
    free = found.f_bavail if os.geteuid() else found.f_bfree
    return found.f_blocks > 0 and free * found.f_frsize < ROOM  # some file systems do not tell their size


def may_write(path: Path) -> bool:
    """Return whether this user can write an SQLite file, which needs its folder, too, for its write-ahead log."""
    path = real_path(path)
    where = path if path.exists() else path.parent
    return os.access(where, os.W_OK) and os.access(path.parent, os.W_OK)
