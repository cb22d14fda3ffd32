"""Time for confirmation: of all graphs of a process together, in proportion to Inductor's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from threading import RLock

BASE_S = 60.0
PER_SECOND = 2.0  # of Inductor's


class Part(Enum):
    """The part of a process that its time is taken by."""

    CALLER = auto()
    INDUCTOR = auto()
    CONFIRMATION = auto()


class Budget:
    """Seconds that are left for confirmation, since the process began or PyTorch was reset.

    PyTorch compiles one graph at a time; other threads may read what is left.

    Args:
        base_s: seconds apart from those in proportion to Inductor's; infinite for no bound.
    """

    def __init__(self, base_s: float = BASE_S) -> None:
        self.base_s = base_s
        self._lock = RLock()
        self._counted: list[Part] = []  # the last is within the others
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._taken_s = dict.fromkeys(Part, 0.0)
            self._part, self._since = Part.CALLER, time.perf_counter()

    @property
    def left_s(self) -> float:
        return self.base_s + PER_SECOND * self.taken_s(Part.INDUCTOR) - self.taken_s(Part.CONFIRMATION)

    def taken_s(self, part: Part) -> float:
        with self._lock:
            return self._taken_s[part] + (time.perf_counter() - self._since if part is self._part else 0.0)

    @contextmanager
    def count(self, part: Part) -> Iterator[None]:
        """Count the time until then to a part, but for what is counted within to another."""
        before = self._switch(part)
        self._counted.append(part)
        try:
            yield
        finally:
            self._counted.pop()
            self._switch(before)

    def is_within(self, part: Part) -> bool:
        """Return whether a part is being counted, or what is counted within it to another."""
        return part in self._counted

    def _switch(self, part: Part) -> Part:
        """Begin a part; the one before it."""
        with self._lock:
            before = self._part
            self._taken_s[before] = self.taken_s(before)
            self._part, self._since = part, time.perf_counter()
            return before
