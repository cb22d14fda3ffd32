"""Folders that belong to a process for as long as it lives, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_LOCK = "lock"
_SCRATCH = "plevel-worker-"


def hold(folder: Path) -> IO[str]:
    """Makes a folder this process's own; it is until the file that this returns is closed."""
    draft = folder / f"{_LOCK}.draft"
    file = draft.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    draft.rename(folder / _LOCK)  # locked already where others see it
    return file


@contextlib.contextmanager
def taken_over(folder: Path) -> Iterator[bool]:
    """Whether a folder was left by a process that has ended; if so, nobody else takes it meanwhile."""
    try:
        file = (folder / _LOCK).open("r+")
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process lives, or somebody else takes it over
            yield False
        else:
            yield True


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what is built; those that workers of this user left when they were killed go first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            with taken_over(left) as ours:
                if ours:
                    shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    try:
        with hold(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_newest(folder: Path, most_bytes: int) -> None:
    """Deletes the oldest files of a folder, so that the others have at most so many bytes together."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > most_bytes:
            path.unlink(missing_ok=True)
