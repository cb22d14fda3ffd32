"""Reports that wait on disk for a service, in a folder that all processes of a user share.

A process appends to a file of its own, which it locks until it is closed or the process ends. Any process delivers the
files that nobody has locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

FILE_BYTES = 1 << 20
SPOOL_BYTES = 64 << 20  # of all files


class FullError(OSError):
    """The folder has `SPOOL_BYTES`."""


class Spool:
    """The reports for one service, whose `key` keeps them apart from those for others. Thread-safe."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._prefix = uuid.uuid5(uuid.NAMESPACE_URL, key).hex[:12]
        self._sent: set[str] = set()
        self._own: _File | None = None
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._bytes: int | None = None  # of all files; None if they are to be counted

    def reopen(self) -> None:
        """Leave the file to the parent process, in a forked one."""
        self._start()
        self.close()

    def close(self) -> None:
        """End this process's file, so that any process delivers it."""
        if self._own is not None:
            self._own.close()
        self._own = None

    def keep(self, data: bytes) -> None:
        """Append reports.

        Raises:
            FullError: the folder is full.
            OSError: it cannot be written.
        """
        with self._lock:
            if self._bytes is None:
                try:
                    self._bytes = sum(map(_size, _files(self._folder)))
                except OSError:  # of listing, which writing does not need; `deliver` tells of it
                    self._bytes = 0
            if self._bytes + len(data) > SPOOL_BYTES:
                raise FullError(f"{self._folder} has {SPOOL_BYTES} bytes")
            if self._own is not None and self._own.size + len(data) > FILE_BYTES:
                self.close()
            if self._own is None:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._own = _File(self._new_path())
            try:
                self._own.append(data)
            except OSError:
                if self._own.size == 0:
                    self._own.path.unlink(missing_ok=True)
                    self.close()
                raise
            self._bytes += len(data)

    def _new_path(self) -> Path:
        return self._folder / f"{self._prefix}-{time.time_ns()}-{uuid.uuid4().hex[:8]}.ndjson"

    def is_empty(self) -> bool:
        """Return whether no report waits for this service; False if the folder cannot be listed."""
        try:
            return not self._paths()
        except OSError:
            return False

    def deliver(self, send: Callable[[bytes], None]) -> None:
        """Call `send` with the reports of each file, the oldest first, and remove it; what `send` raises ends this.

        A file that is refused comes last from then on: its content may be the reason, as for a firewall.

        Raises:
            OSError: the folder cannot be listed.
        """
        self._bytes = None
        for path in self._paths():
            with contextlib.ExitStack() as stack:
                try:
                    data = self._take(path, stack)
                except OSError:  # its process appends to it, another was quicker, or it is another user's
                    continue
                if data:  # else it was begun just now
                    try:
                        send(data)
                    except OSError:  # nobody answers
                        raise
                    except Exception:
                        self._put_last(path)
                        raise
                    self._remove(path, len(data))

    def _paths(self) -> list[Path]:
        found = _files(self._folder)
        return [p for p in found if p.name.startswith(f"{self._prefix}-") and p.name not in self._sent]

    def _take(self, path: Path, stack: contextlib.ExitStack) -> bytes:
        """The whole lines of a file, which is locked until the stack ends."""
        file = stack.enter_context(path.open("r+b"))
        if self._own is None or path != self._own.path:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = file.read()
        return data[: data.rfind(b"\n") + 1]  # the last is cut off if its process was killed

    def _put_last(self, path: Path) -> None:
        with self._lock:
            if self._own is not None and path == self._own.path:
                self.close()
            with contextlib.suppress(OSError):
                path.rename(self._new_path())

    def _remove(self, path: Path, sent: int) -> None:
        with self._lock:
            if self._own is not None and path == self._own.path:
                if self._own.size > sent:
                    return  # more came meanwhile
                self.close()
            self._sent.add(path.name)  # also if it cannot be removed
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """The files of a folder's reports, the oldest of each service first; none if there is no folder.

    Raises:
        OSError: it cannot be listed; `Path.glob` may find nothing then.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".ndjson")
    except FileNotFoundError:
        return []


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # delivered meanwhile
        return path.stat().st_size
    return 0


class _File:
    """A new file that this process has locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError:  # as of Lustre without its option: another process would take the file while this one writes
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, data: bytes) -> None:
        """Write all or nothing."""
        try:
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)
