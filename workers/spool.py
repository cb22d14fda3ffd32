"""The spool of results on disk, and the thread that sends them.

A result is written to disk before it is sent, and deleted when the service has accepted it or reported that
the lease is lost.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strategy.folder import hold, keep_newest, taken_over
from strategy.record import Report, Results, ResultsAccepted, WireError, decode, encode
from workers.client import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Client,
    LeaseLostError,
    ServiceError,
    UnauthorizedError,
    UnreachableError,
)

log = logging.getLogger(__name__)
# A service that comes back leaves a third of a term, of 12 s, to leases that are over by then.
_LONGEST_AWAY_S = 2.0
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

    def first(self) -> tuple[Report, list[Path]] | None:
        """The oldest results, merged with all others of their lease and session, and their files.

        Raises:
            OSError: they cannot be read now, as while this process has too many files open.
        """
        found: Report | None = None
        paths: list[Path] = []
        for path in _files(self._own):
            try:
                report = decode(path.read_bytes(), Report)
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

    def remove(self, paths: list[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def refuse(self, paths: list[Path]) -> None:
        """Move results that the service will never accept aside, for inspection; raise `OSError` if that fails."""
        refused = self._base.parent / "refused"
        refused.mkdir(exist_ok=True)
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.rename(refused / f"{self._own.name}-{path.name}")
        keep_newest(refused, REFUSED_BYTES)

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


@dataclass(eq=False)
class Sender:
    """Sender of a spool's results, in order, in a thread of its own, until they are accepted.

    Args:
        accepted: called with the session of results, and the service's answer.
        lost: called with the session of a lost lease, whose results are dropped.
        failed: called with an unexpected error, which ends the thread; results stay on disk. None: it is raised.
        linger_s: the time for which results wait for more of their job, as sending disturbs timing.
    """

    client: Client
    spool: Spool
    accepted: Callable[[str, ResultsAccepted], None]
    lost: Callable[[str], None]
    linger_s: float = 1.0
    failed: Callable[[Exception], None] | None = None

    def __post_init__(self) -> None:
        self._change = threading.Condition()
        self._due: float | None = None if self.spool.empty else 0.0
        self._closing = False
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        """Write results to disk, and send them soon, immediately if `done`.

        If the disk is full, wait until there is room while sending continues.
        """
        pause = FIRST_PAUSE_S
        while True:
            try:
                self.spool.put(report)
                break
            except OSError as error:
                if pause == FIRST_PAUSE_S:
                    log.warning(
                        "results cannot be written to %s (%s), trying again until they can: free some space",
                        self.spool.folder, error.strerror,
                    )
            with self._change:
                if self._change.wait_for(lambda: self._closing, pause):
                    return  # its lease is released, and it is measured again
            pause = min(2 * pause, LONGEST_PAUSE_S)
        due = time.monotonic() + (0.0 if report.results.done else self.linger_s)
        with self._change:
            self._due = due if self._due is None else min(due, self._due)
            self._change.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Send all results; return True if the service accepted all in time."""
        with self._change:
            if self._due is not None:
                self._due = 0.0
                self._change.notify_all()
            return self._change.wait_for(lambda: self._due is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the thread; unsent results stay on disk."""
        self.flush(timeout_s)
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:
            if self.failed is None:
                raise
            self.failed(error)

    def _send_all(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            with self._change:
                while not self._closing and (self._due is None or self._due > time.monotonic()):
                    self._change.wait(None if self._due is None else self._due - time.monotonic())
                if self._closing:
                    return
            try:
                if not self._send_first():
                    with self._change:
                        # Results may have been added since the folder was read.
                        if self.spool.empty:
                            self._due = None
                        self._change.notify_all()
            except (UnreachableError, UnauthorizedError, OSError) as error:  # OSError: of the spool's disk
                if pause == FIRST_PAUSE_S:
                    log.warning("%s; results stay in the spool, and are sent again", error)
                with self._change:
                    self._due = time.monotonic() + pause * self._rng.uniform(0.5, 1.0)
                longest_s = _LONGEST_AWAY_S if isinstance(error, UnreachableError) else LONGEST_PAUSE_S
                pause = min(2 * pause, longest_s)
                continue
            pause = FIRST_PAUSE_S

    def _send_first(self) -> bool:
        """Send the oldest results; return True if there were any."""
        first = self.spool.first()
        if first is None:
            return False
        report, paths = first
        session = report.results.session
        try:
            answer = self.client.report(report)
        except (UnreachableError, UnauthorizedError):  # its token may be replaced
            raise
        except LeaseLostError as error:
            count = len(report.results.results)
            log.warning("%d results were dropped, their lease is lost: %s", count, error)
            self.spool.remove(paths)
            self.lost(session)
        except ServiceError as error:
            log.warning("results were refused, and are kept aside in the spool: %s", error)
            self.spool.refuse(paths)
            self.lost(session)
        else:
            self.spool.remove(paths)
            self.accepted(session, answer)
        return True
