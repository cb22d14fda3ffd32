"""Notification of waiting threads and coroutines about changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time


class Wakeup:
    """A counter of changes that can be waited on.

    A waiter reads `count`, then the database, then waits for a change after that count, so that none is
    missed. `notify` may be called from any thread.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def count(self) -> int:
        return self._count

    def notify(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()
            waiting = list(self._waiting)
        for loop, event in waiting:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Block the thread until the count is past `seen`, at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            while self._count <= seen:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._condition.wait(left)

    async def changed(self, seen: int, timeout_s: float) -> None:
        """As `wait`, for a coroutine, without holding a thread."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._condition:
            if self._count > seen:
                return
            self._waiting.add(entry)
        try:
            # `wait_for` makes a task of each wait.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(timeout_s, 0)):
                    await event.wait()
        finally:
            with self._condition:
                self._waiting.discard(entry)
