"""Slots of long work, each of which takes a thread, shared among clients."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Hashable

from anyio import CapacityLimiter


class ClientSlots:
    """The slots of one kind of work, of which one client has its share. Bound to one event loop.

    Args:
        most: the slots; work that finds none waits.
        of_client: the slots of one client.
    """

    def __init__(self, most: int, of_client: int) -> None:
        self.threads = CapacityLimiter(most)
        self._of_client = of_client
        self._clients: dict[Hashable, CapacityLimiter] = {}
        self._here: Counter[Hashable] = Counter()  # the work of each, with what waits

    @contextlib.asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        """Wait until a client has less than its share; the block, in a thread of `threads`, is another part of it."""
        own = self._clients.setdefault(client, CapacityLimiter(self._of_client))
        self._here[client] += 1
        try:
            async with own:
                yield
        finally:
            self._here[client] -= 1
            if not self._here[client]:
                del self._here[client], self._clients[client]

    def is_awaited(self, client: Hashable) -> bool:
        """Return whether other work waits for a slot of this client."""
        own = self._clients.get(client)
        return any(one is not None and one.statistics().tasks_waiting for one in (self.threads, own))
