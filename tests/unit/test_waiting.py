"""Requests that wait for a change look at once after a quiet time, and together at a bounded rate."""

from __future__ import annotations

import asyncio

from service.context import LOOKS, Context
from service.settings import Settings
from tests.limit import HANG_S


def looks(waiting: int, changes: int) -> tuple[int, float]:
    """The looks of one of so many waiting requests, while changes follow each other, and the seconds they take."""
    context = Context(Settings(poll_s=1000.0))
    context.waiting = waiting - 1

    async def follow() -> tuple[int, float]:
        loop, found = asyncio.get_running_loop(), 0
        again = asyncio.Event()

        async def change() -> None:
            for _ in range(changes):
                context.queued.notify()
                await asyncio.sleep(0)
            await again.wait()
            context.stop()

        began = loop.time()
        changing: asyncio.Task[None] | None = None
        async for _ in context.moments(context.queued, 60.0):
            found += 1
            changing = changing or asyncio.create_task(change())
            if found > 1:
                again.set()
        return found, loop.time() - began

    return asyncio.run(follow())


def test_a_crowd_does_not_look_at_each_change() -> None:
    found, took_s = looks(waiting=LOOKS // 10, changes=1000)
    assert 2 <= found <= 2 + took_s / 0.1


def test_a_change_is_seen_at_once_after_a_quiet_time() -> None:
    found, took_s = looks(waiting=1, changes=1)
    assert found >= 2
    assert took_s < 50.0  # not by polling, nor once the wait is over


def test_a_stop_ends_the_waits_of_a_crowd_without_another_look() -> None:
    """Also of those that have seen a change, and wait until it is their turn to look."""
    context = Context(Settings(poll_s=1000.0))
    context.waiting = LOOKS * 1000

    async def follow() -> int:
        found = 0
        async for _ in context.moments(context.queued, 1000.0):
            found += 1
            context.queued.notify()
            asyncio.get_running_loop().call_later(0.01, context.stop)
        return found

    assert asyncio.run(asyncio.wait_for(follow(), HANG_S)) == 1
