"""A limit on lines of the log that anybody who can reach the service may cause."""

from __future__ import annotations

import time
from collections.abc import Callable

TERM_S = 60.0


class LineLimit:
    """The first `most` lines of each minute. Bound to one thread.

    Args:
        most: the number of lines.
        clock: seconds, as of `time.monotonic`.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._until = clock()
        self._left = 0
        self._omitted = 0

    def admit(self) -> str | None:
        """The end of the next line, which tells of those left out before it; None leaves this one out, too."""
        now = self._clock()
        if now >= self._until:
            self._until, self._left = now + TERM_S, self._most
        if not self._left:
            self._omitted += 1
            return None
        self._left -= 1
        omitted, self._omitted = self._omitted, 0
        return f" (and {omitted:,} more since the last line)" if omitted else ""
