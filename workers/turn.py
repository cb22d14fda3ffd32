"""A lock on the cores of a device that keeps building and timing apart."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from workers.cpu import timing_lock


class Turn:
    """A readers-writer lock of a device's cores: several builds, or one timing session. Thread-safe.

    Within a worker the lock is handed over immediately; the host's timing lock, which builds share, excludes
    timing by other workers of the host.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._builds = 0
        self._timing = False

    @contextlib.contextmanager
    def build(self) -> Iterator[None]:
        """Wait until nothing is timed, and exclude timing until the block ends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._timing)
            self._builds += 1
        try:
            with timing_lock(shared=True):
                yield
        finally:
            with self._changed:
                self._builds -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def time(self, stop: Callable[[], bool]) -> Iterator[bool]:
        """Wait until nothing is built or timed, and hold the host's timing lock until the block ends.

        Args:
            stop: see `timing_lock`; yields False if it ended the wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._builds)
            self._timing = True
        try:
            with timing_lock(stop) as mine:
                yield mine
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()
