"""The time for which leases have been overdue, by this process's own clock.

The database's clock may be set ahead, and a service or a database may stand still or be away: then all leases are
overdue at once, although their workers live and had no chance to renew them. So a lease ends only if it is still
overdue some time after a look that found it so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

Term = tuple[int, float]  # a lease's id, and the instant at which it expires


class Overdue:
    """Leases that were overdue at the last look, and since when. Thread-safe.

    Args:
        grace_s: seconds from the first look that finds a lease overdue to its end, unless it is renewed.
        clock: seconds, as of `time.monotonic`.
    """

    def __init__(self, grace_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._since: dict[Term, float] = {}
        self._lock = threading.Lock()

    def look(self, found: Collection[Term]) -> list[int]:
        """Note the leases that are overdue now; return the ids of those whose grace is over."""
        with self._lock:
            at = self._clock()
            self._since = {term: self._since.get(term, at) for term in found}
            return [lease_id for (lease_id, _), since in self._since.items() if at - since >= self._grace_s]
