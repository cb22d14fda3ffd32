"""A lock on the cores of a device that keeps building and timing apart."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from workers.cpu import building_lock, timing_lock


class Turn:
    """A readers-writer lock of a device's timing cores: several builds, or one timing session. Thread-safe.

    Within a worker the lock is handed over immediately. The host's locks keep other workers from timing at the same
    time, and from building on cores that are timed on.

    Args:
        cores: the timing cores of the device.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = tuple(cores)
        self._changed = threading.Condition()
        self._builds = 0  # on timing cores
        self._timing = False

    @contextlib.contextmanager
    def build(self, cores: Sequence[int], stop: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Wait until nothing is timed on these cores, and exclude timing on them until the block ends.

        Args:
            stop: see `timing_lock`; yields False if it ended the wait for another worker.
        """
        shares = not set(cores).isdisjoint(self._cores)
        with self._changed:
            self._changed.wait_for(lambda: not (shares and self._timing))
            self._builds += shares
        try:
            with building_lock(cores, stop) as mine:
                yield mine
        finally:
            with self._changed:
                self._builds -= shares
                self._changed.notify_all()

    @contextlib.contextmanager
    def time(self, stop: Callable[[], bool]) -> Iterator[bool]:
        """Wait until nothing is built on the timing cores, nor timed, and exclude both until the block ends.

        Args:
            stop: see `timing_lock`; yields False if it ended the wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._builds)
            self._timing = True
        try:
            with timing_lock(stop, self._cores) as mine:
                yield mine
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()
