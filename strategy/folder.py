"""Folders locked by a process for its lifetime, released even if it is killed."""

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


def hold(folder: Path) -> IO[str]:
    """Lock a folder for this process until the returned file is closed."""
    draft = folder / f"{_LOCK}.draft"
    file = draft.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    draft.rename(folder / _LOCK)  # locked before it becomes visible
    return file


@contextlib.contextmanager
def taken_over(folder: Path) -> Iterator[bool]:
    """Take over a folder whose process has ended; yield False if it is alive or another took it.

    The folder is locked until the block ends.
    """
    try:
        file = (folder / _LOCK).open("r+")
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process is alive, or another takes it over
            yield False
        else:
            yield True


@contextlib.contextmanager
def scratch(owner: str = "worker", root: Path | None = None) -> Iterator[Path]:
    """A temporary folder; deletes those left by this user's killed processes of the same owner first.

    Args:
        owner: a part of its name.
        root: the folder that it is made in; None for the system's.
    """
    root = Path(tempfile.gettempdir()) if root is None else root
    sweep(owner, root)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(owner), dir=root))
    try:
        with hold(folder):
            yield folder
    finally:
        _delete(folder)


def sweep(owner: str, root: Path) -> None:
    """Delete the temporary folders of an owner whose process has ended."""
    for left in root.glob(f"{_prefix(owner)}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            with taken_over(left) as ours:
                if ours:
                    _delete(left)


def _delete(folder: Path) -> None:
    """Delete a folder, its lock last: what an interrupt leaves, the next sweep deletes."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _prefix(owner: str) -> str:
    return f"plevel-{owner}-"


def keep_newest(folder: Path, most_bytes: int) -> None:
    """Delete the oldest files of a folder, as far as this user may, until the rest fits in `most_bytes`."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > most_bytes:
            with contextlib.suppress(OSError):  # of a folder, or a file that another user owns
                path.unlink()
