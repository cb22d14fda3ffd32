"""Slots of long work, each of which takes a thread, shared among clients."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable

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
        self._leaving: Counter[Hashable] = Counter()  # what makes way for other work, and has not ended yet

    @contextlib.asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[Callable[[], bool]]:
        """Wait until a client has less than its share; the block, in a thread of `threads`, is another part of it.

        Yields a function that returns whether the block has to make way: more work waits for its slot than makes way
        already.
        """
        own = self._clients.setdefault(client, CapacityLimiter(self._of_client))
        self._here[client] += 1
        leaves = False

        def makes_way() -> bool:
            nonlocal leaves
            if not leaves and (
                self.threads.statistics().tasks_waiting > self._leaving.total()
                or own.statistics().tasks_waiting > self._leaving[client]
            ):
                leaves = True
                self._leaving[client] += 1
            return leaves

        try:
            async with own:
                yield makes_way
        finally:
            self._here[client] -= 1
            self._leaving[client] -= leaves
            if not self._here[client]:
                del self._here[client], self._leaving[client], self._clients[client]
