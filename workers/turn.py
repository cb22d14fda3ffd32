"""Turns on the cores that time kernels: what is built there, and what is timed there, never meet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from workers.cpu import timing_lock


class Turn:
    """Lets builds use the cores of a device, several at once, while nothing is timed on them. Thread-safe.

    The threads of one worker hand over at once; the lock on timing, which builds share, keeps them
    from what another worker of this host is timing. Each asks for its turn only when it has
    something to do: nobody waits for long.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._builds = 0
        self._timing = False

    @contextlib.contextmanager
    def build(self) -> Iterator[None]:
        """Waits until nothing is timed; nothing is until the block ends."""
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
        """Waits until nothing is built or timed; the host's timing is the block's until it ends.

        Args:
            stop: see `timing_lock`; False is given where it said yes.
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
