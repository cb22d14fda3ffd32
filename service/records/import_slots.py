"""Turns of large imports: each takes a thread and a process while its client sends it, however slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from anyio import CapacityLimiter

from service.errors import TooSlowError

IMPORTS = 8  # read at a time; others wait
OF_CLIENT = IMPORTS // 2
LEAST_RATE = 8192  # bytes a second of an upload, once `body_s` is over


class ImportSlots:
    """The slots of a service's large imports, of which one client has at most half. Bound to one event loop."""

    def __init__(self) -> None:
        self.threads = CapacityLimiter(IMPORTS)
        self._clients: dict[Hashable, CapacityLimiter] = {}
        self._here: Counter[Hashable] = Counter()  # imports of each, with those that wait

    @contextlib.asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        """Wait until fewer than `OF_CLIENT` imports of a client are under way; the block is another one."""
        own = self._clients.setdefault(client, CapacityLimiter(OF_CLIENT))
        self._here[client] += 1
        try:
            async with own:
                yield
        finally:
            self._here[client] -= 1
            if not self._here[client]:
                del self._here[client], self._clients[client]


class PacedUpload:
    """The parts of a body, of a client that keeps up a rate: else it would hold its slot for any time.

    Only the time that the service waits for the client counts.

    Args:
        receive: gives the next part, None at the end.
        spare_s: the time that it may wait in all, besides a second for each `LEAST_RATE` bytes that have come.
    """

    def __init__(self, receive: Callable[[], Awaitable[bytes | None]], spare_s: float) -> None:
        self._receive = receive
        self._spare_s = spare_s
        self._come = 0
        self._waited_s = 0.0

    async def next(self) -> bytes | None:
        """The next part, None at the end; raise `TooSlowError` if it does not come in time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._spare_s + self._come / LEAST_RATE - self._waited_s):
                part = await self._receive()
        except TimeoutError as error:
            raise TooSlowError(
                f"the import was waited for more than {self._spare_s:g} s, and a second for each {LEAST_RATE:,} of its "
                f"{self._come:,} bytes: send it again faster, or in parts: what is stored already is not stored twice"
            ) from error
        self._waited_s += loop.time() - began
        self._come += len(part or b"")
        return part

    async def read(self) -> bytes:
        """All of it, for a small one."""
        parts = []
        while (part := await self.next()) is not None:
            parts.append(part)
        return b"".join(parts)
