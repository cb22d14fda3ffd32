"""Uploads whose client keeps up a rate, or else makes way for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.errors import TooSlowError

LEAST_RATE = 8192  # bytes a second, once `body_s` is over
LOOK_S = 1.0  # between two looks for those that wait


class PacedUpload:
    """The parts of a body. A client that sends them slowly holds its slot only until another upload needs it.

    Only the time that the service waits for the client counts.

    Args:
        receive: gives the next part, None at the end.
        spare_s: the time that it may wait in all, besides a second for each `LEAST_RATE` bytes that have come.
        makes_way: return whether another upload needs this one's slot; None of one that has no slot, whose time is
            limited in any case.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[bytes | None]], spare_s: float, makes_way: Callable[[], bool] | None
    ) -> None:
        self._receive = receive
        self._spare_s = spare_s
        self._makes_way = makes_way
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
                if self._makes_way is None or self._makes_way():
                    raise self._too_slow()
                left_s = LOOK_S
        finally:
            coming.cancel()
        part = coming.result()
        self._waited_s += loop.time() - began
        self._come += len(part or b"")
        return part

    def _too_slow(self) -> TooSlowError:
        told = (
            f"was waited for more than {self._spare_s:g} s, and a second for each {LEAST_RATE:,} of its "
            f"{self._come:,} bytes: send it again"
        )
        if self._makes_way is None:
            return TooSlowError(f"the upload {told} faster")
        return TooSlowError(
            f"other uploads wait, and this one {told} later, faster, or in parts: what is stored already is not "
            "stored twice"
        )

    async def read(self) -> bytes:
        """All of it, for a small one."""
        parts = []
        while (part := await self.next()) is not None:
            parts.append(part)
        return b"".join(parts)
