"""The spool of results on disk.

A result is written to disk before it is sent, and deleted when the service has accepted it or reported that
the lease is lost.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Collection
from pathlib import Path

from strategy.folder import hold, keep_newest, taken_over
from strategy.record import Report, Results, WireError, decode, encode

log = logging.getLogger(__name__)
# Errors of this host or of its file server, after which the file can be read.
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT})
# The spool needs no limit, as a worker that cannot report gets no jobs.
REFUSED_BYTES = 64 * 2**20


class Spool:
    """Results on disk that the service has not accepted yet. Thread-safe.

    Each process has a folder under the service's; a new process adopts the folders of dead ones.

    Args:
        root: the folder of the spools of all services.
        url: the service; results are never sent to another.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, root: Path, url: str) -> None:
        self._base = root / hashlib.sha256(url.encode()).hexdigest()[:16]
        self._own = self._base / uuid.uuid4().hex
        self._own.mkdir(parents=True, mode=0o700)
        self._holding = hold(self._own)
        self._lock = threading.Lock()
        self._count = 0
        for left in sorted(self._base.iterdir()):
            if left != self._own:
                self._adopt(left)

    def _adopt(self, left: Path) -> None:
        with contextlib.suppress(OSError), taken_over(left) as ours:
            if ours:
                for path in _files(left):
                    path.rename(self._next_path())
                shutil.rmtree(left, ignore_errors=True)

    def _next_path(self) -> Path:
        self._count += 1
        return self._own / f"{self._count:012d}.json"

    def put(self, report: Report) -> None:
        """Write results to disk, synchronously; raise `OSError` if that fails."""
        data = encode(report)
        with self._lock:
            path = self._next_path()
            draft = path.with_suffix(".draft")
            try:
                with draft.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                draft.unlink(missing_ok=True)  # remove the partial file
                raise
            draft.rename(path)
            directory = os.open(self._own, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def first(self, besides: Collection[Path] = ()) -> tuple[Report, list[Path]] | None:
        """The oldest results, merged with all others of their lease and session, and their files.

        Args:
            besides: files that are left out.

        Raises:
            OSError: they cannot be read now, as while this process has too many files open.
        """
        found: Report | None = None
        paths: list[Path] = []
        for path in _files(self._own):
            if path in besides:
                continue
            try:
                report = self.read(path)
            except (OSError, WireError) as error:
                if isinstance(error, OSError) and error.errno in _PASSING:
                    raise
                log.warning("%s cannot be read, its results are kept aside for inspection: %s", path, error)
                self.refuse([path])
                continue
            if found is None:
                found = report
            elif _session(report) == _session(found):
                found = _join(found, report)
            else:
                continue
            paths.append(path)
        return None if found is None else (found, paths)

    def read(self, path: Path) -> Report:
        """The results of one file."""
        return decode(path.read_bytes(), Report)

    def remove(self, paths: list[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def refuse(self, paths: list[Path]) -> None:
        """Move results that the service will never accept aside, for inspection; raise `OSError` if that fails."""
        self.aside.mkdir(exist_ok=True)
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.rename(self.aside / f"{self._own.name}-{path.name}")
        keep_newest(self.aside, REFUSED_BYTES)

    @property
    def aside(self) -> Path:
        """The folder of what was refused."""
        return self._base.parent / "refused"

    @property
    def folder(self) -> Path:
        """The folder of this process."""
        return self._own

    @property
    def empty(self) -> bool:
        return not _files(self._own)

    def close(self) -> None:
        """Leave unacknowledged results for the next process to adopt."""
        with contextlib.suppress(OSError):  # results that cannot be listed now are not deleted
            if self.empty:
                shutil.rmtree(self._own, ignore_errors=True)
        self._holding.close()


def _files(folder: Path) -> list[Path]:
    """The files of a folder's results, the oldest first; none if it was deleted.

    Raises:
        OSError: it cannot be listed. Since Python 3.12 `Path.glob` finds nothing then, and an empty folder is deleted.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return []


def _session(report: Report) -> tuple[int, str]:
    return report.lease_id, report.results.session


def _join(one: Report, other: Report) -> Report:
    first, second = one.results, other.results
    joined = Results(
        token=second.token, session=first.session, results=first.results + second.results,
        environment={**first.environment, **second.environment},
        references=first.references + second.references, done=first.done or second.done,
    )
    return Report(lease_id=one.lease_id, results=joined)
