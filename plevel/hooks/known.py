"""Answers about a kernel that a process has in memory."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

FRESH_S = 60.0  # then it is read again in the background
USABLE_S = 600.0  # until when it answers meanwhile


class Kernel(NamedTuple):
    """A tool's kernel that is read ahead, under the terms of the questions about it."""

    tool: str
    name: str
    terms: tuple[tuple[str, Any], ...]


class Known:
    """The problems of a kernel that the service knew at an instant; `complete` if they are all of them."""

    def __init__(self, at: float) -> None:
        self.problems: dict[str, dict[str, Any]] = {}
        self.complete = False
        self._at = at
        self._renewed = False

    def has(self, problem: str) -> bool:
        """Return whether the answer of a problem is known, which may be that there is none."""
        return self.complete or problem in self.problems

    def is_usable(self) -> bool:
        """Return whether it may still answer."""
        return time.monotonic() - self._at < USABLE_S

    def falls_due(self) -> bool:
        """Return, once, that it is to be read again."""
        due = not self._renewed and time.monotonic() - self._at >= FRESH_S
        self._renewed |= due
        return due
