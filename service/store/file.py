"""The file of an SQLite database: its check before it is opened, and while it is used."""

from __future__ import annotations

import os
from pathlib import Path

from service.address import make_folder
from service.errors import LOGGED, DatabaseError
from service.store.foreign import may_write, real_path


def check_file(path: Path, *, read_only: bool) -> None:
    """Check an SQLite file, and create it if it is missing and may be."""
    if path.is_dir():
        raise DatabaseError(f"database {path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise DatabaseError(f"database {path} is a pipe or a device: name a file")
    make_folder(path)
    if not may_write(path) and not (read_only and path.exists()):
        raise DatabaseError(
            f"database {path} is not writable: change the permissions of it and its folder, or copy it elsewhere"
        )
    # Other users of the host must not read tokens' digests and imported texts. SQLite's other files get the
    # same mode.
    try:
        os.close(os.open(real_path(path), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise DatabaseError(
            f"database {path} cannot be created ({error.strerror}): name another file"
        ) from error
    try:
        with path.open("rb") as file:
            if path.stat().st_size and file.read(16) != b"SQLite format 3\0":
                raise DatabaseError(f"database {path} is not an SQLite file: name another")
    except OSError as error:
        raise DatabaseError(f"database {path} cannot be read ({error.strerror}): change its permissions") from error


class UsedFile:
    """The file that a store writes, which others may move, delete or replace meanwhile.

    SQLite would go on writing to it without its name, and all that is stored from then on would be lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._mark: tuple[int, int] | None = None

    def note(self) -> None:
        """Remember the file, once a connection that writes has it open."""
        self._mark = self._look()

    def check(self) -> None:
        """Raise `DatabaseError` if the path no longer leads to the file."""
        if self._mark is not None and self._look() != self._mark:
            raise DatabaseError(
                f"the database {self._path} was moved, deleted or replaced while it was in use: move the file back, or "
                f"stop what uses it, delete {self._path}-wal, which belongs to that file, and start it again",
                f"the database's file was moved, deleted or replaced while it was in use: {LOGGED}",
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - in every transaction, at half the time of pathlib's
        except OSError:
            return None
        return found.st_dev, found.st_ino
