"""Joining of what is written in one step of the event loop: the head and the body of an answer are one packet."""

from __future__ import annotations

import asyncio
from typing import Any

AT_ONCE = 1 << 16  # bytes that are not kept back, so that back-pressure works


class JoinedTransport:
    """A transport that writes at the end of the loop's step; all else is the given transport's.

    uvloop calls the system for each write, which takes a tenth of the time of a small answer, and wakes the client
    before its body is there.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            self._transport.write(b"".join(waiting))
