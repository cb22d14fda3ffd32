"""The thread that sends a spool's results."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from strategy.record import Report, ResultsAccepted
from workers.client import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Client,
    FailedRequestError,
    FaultError,
    LeaseLostError,
    ServiceError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from workers.spool import Spool

log = logging.getLogger(__name__)
# A service that comes back leaves a third of a term, of 12 s, to leases that are over by then.
_LONGEST_AWAY_S = 2.0
# Refusals of one file, with other results accepted before each but the first, after which it is set aside. Where not
# the service refuses, but a proxy, which may have met a broken one of several services, an hour must have passed, too.
_MOST_REFUSALS = 5
_PATIENCE_S = 3600.0


class _Doubt(NamedTuple):
    """The failures of one file: their number, when they began, and the answers by the first and the last of them."""

    session: str
    times: int
    since: float
    first: int
    last: int


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
        self._accepted = 0  # requests that the service has answered
        self._doubtful: dict[Path, _Doubt] = {}  # files that a request has failed with, the last one last
        self._puts = 0
        self._is_stuck = False  # only such are left, and others have passed them
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
            self._puts += 1
            self._is_stuck = False
            self._due = due if self._due is None else min(due, self._due)
            self._change.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Send all results; return True if the service accepted all in time, False at once where others passed them."""
        with self._change:
            if self._due is not None:
                self._due = 0.0
                self._change.notify_all()
            self._change.wait_for(lambda: self._due is None or self._is_stuck, timeout_s)
            return self._due is None

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
        said: set[str] = set()  # since all was sent
        while True:
            with self._change:
                while not self._closing and (self._due is None or self._due > time.monotonic()):
                    self._change.wait(None if self._due is None else self._due - time.monotonic())
                if self._closing:
                    return
                puts = self._puts
            try:
                if not self._send_first():
                    with self._change:
                        # Results may have been added since the folder was read.
                        if self.spool.empty:
                            self._due = None
                            said.clear()
                        self._change.notify_all()
            except (UnreachableError, UnauthorizedError, OSError) as error:  # OSError: of the spool's disk
                if pause == FIRST_PAUSE_S and str(error) not in said:
                    log.warning("%s; results stay in the spool, and are sent again", error)
                    said.add(str(error))
                with self._change:
                    self._due = time.monotonic() + pause * self._rng.uniform(0.5, 1.0)
                    failed = isinstance(error, FailedRequestError)
                    self._is_stuck = failed and puts == self._puts and self._have_others_passed()
                    self._change.notify_all()
                longest_s = _LONGEST_AWAY_S if isinstance(error, UnreachableError) else LONGEST_PAUSE_S
                pause = min(2 * pause, longest_s)
                continue
            pause = FIRST_PAUSE_S

    def _send_first(self) -> bool:
        """Send the next results; False if there are none.

        If they fail on the way, as by their size or by a word in a message that a firewall looks for, send one of their
        files alone: one body must not hold up all others.
        """
        first = self._next()
        if first is None:
            return False
        report, paths = first
        try:
            self._send(report, paths)
        except FailedRequestError as error:
            tried = list(self._doubtful)
            one = min(paths, key=lambda path: tried.index(path) if path in tried else -1)
            if len(paths) > 1 and self._passes(self.spool.read(one), [one]):
                return True
            if not self._is_hopeless(one, report, error):
                raise
            log.warning(
                "results were refused %d times while others were accepted, and are kept aside in %s: %s",
                self._doubtful[one].times, self.spool.aside, error,
            )
            self.spool.refuse([one])
            del self._doubtful[one]
        return True

    def _next(self) -> tuple[Report, list[Path]] | None:
        """The oldest results that no request has failed with, or else those of the session that failed the longest ago.

        Those that end their lease go with the earlier ones that have failed, which the service refuses after the end.
        """
        self._doubtful = {path: doubt for path, doubt in self._doubtful.items() if path.exists()}
        sessions = [doubt.session for doubt in self._doubtful.values()]
        fresh = self.spool.first(besides=self._doubtful)
        session = next(iter(sessions), "") if fresh is None else fresh[0].results.session
        if session not in sessions or (fresh is not None and not fresh[0].results.done):
            return fresh
        return self.spool.first(besides=[p for p, doubt in self._doubtful.items() if doubt.session != session])

    def _is_hopeless(self, path: Path, report: Report, error: FailedRequestError) -> bool:
        """Count one more failure of a file, if other results were accepted since the last; return True at the most.

        The service's own word that it cannot store them now does not count, as while a row of their task is locked.
        """
        now = time.monotonic()
        new = _Doubt(report.results.session, 0, now, self._accepted, -1)
        doubt = self._doubtful.pop(path, new)
        times = doubt.times + (doubt.last != self._accepted and not isinstance(error, UnavailableError))
        self._doubtful[path] = doubt._replace(times=times, last=self._accepted)
        return times >= _MOST_REFUSALS and (isinstance(error, FaultError) or now - doubt.since >= _PATIENCE_S)

    def _have_others_passed(self) -> bool:
        """Return whether other results were accepted since each file failed that one has failed with."""
        return all(doubt.first < self._accepted for doubt in self._doubtful.values())

    def _passes(self, report: Report, paths: list[Path]) -> bool:
        """Send results; return whether the service answers."""
        try:
            self._send(report, paths)
        except UnreachableError:
            return False
        return True

    def _send(self, report: Report, paths: list[Path]) -> None:
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
            log.warning("results were refused, and are kept aside in %s: %s", self.spool.aside, error)
            self.spool.refuse(paths)
            self.lost(session)
        else:
            self.spool.remove(paths)
            self.accepted(session, answer)
        self._accepted += 1
        for path in paths:
            self._doubtful.pop(path, None)
