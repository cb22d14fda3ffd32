"""Uploads whose client keeps up a rate, or else makes way for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.errors import TooSlowError

LEAST_RATE = 8192  # bytes a second, once `body_s` is over
LOOK_S = 1.0  # between two looks for those that wait


class PacedUpload:
    """The parts of a body. A client that sends them slowly holds its slot only until another upload waits for one.

    Only the time that the service waits for the client counts.

    Args:
        receive: gives the next part, None at the end.
        spare_s: the time that it may wait in all, besides a second for each `LEAST_RATE` bytes that have come.
        is_awaited: return whether another upload waits for this one's slot.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[bytes | None]], spare_s: float, is_awaited: Callable[[], bool]
    ) -> None:
        self._receive = receive
        self._spare_s = spare_s
        self._is_awaited = is_awaited
        self._come = 0
        self._waited_s = 0.0

    async def next(self) -> bytes | None:
        """The next part, None at the end; raise `TooSlowError` if it comes too late for those that wait."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        coming = asyncio.ensure_future(self._receive())  # it cannot be called again after a part that it was kept from
        try:
            left_s = max(0.0, self._spare_s + self._come / LEAST_RATE - self._waited_s)
            while not (await asyncio.wait({coming}, timeout=left_s))[0]:
                if self._is_awaited():
                    raise TooSlowError(
                        f"other uploads wait, and this one was waited for more than {self._spare_s:g} s, and a second "
                        f"for each {LEAST_RATE:,} of its {self._come:,} bytes: send it again later, faster, or in "
                        "parts: what is stored already is not stored twice"
                    )
                left_s = LOOK_S
        finally:
            coming.cancel()
        part = coming.result()
        self._waited_s += loop.time() - began
        self._come += len(part or b"")
        return part

    async def read(self) -> bytes:
        """All of it, for a small one."""
        parts = []
        while (part := await self.next()) is not None:
            parts.append(part)
        return b"".join(parts)
