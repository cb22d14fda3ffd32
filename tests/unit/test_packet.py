"""Writes of one step of the event loop are one packet, in their order, and none is kept back for longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from service.api.packet import AT_ONCE, JoinedTransport


def run(scene: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
    """In a thread of its own, as a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(scene())).result()


class Wire:
    """The transport below, which notes what is done with it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def get_write_buffer_size(self) -> int:
        return 5

    def is_closing(self) -> bool:
        return "closed" in self.done


def test_writes_of_one_step_are_joined() -> None:
    async def scene() -> list[Any]:
        wire = Wire()
        joined = JoinedTransport(wire, asyncio.get_running_loop())
        for data in (b"head", b"", b"body"):
            joined.write(data)
        assert wire.done == []
        assert joined.get_write_buffer_size() == 5 + len(b"headbody")
        await asyncio.sleep(0)
        joined.write(b"next")
        joined.close()
        assert joined.is_closing()
        await asyncio.sleep(0)
        return wire.done

    assert run(scene) == [b"headbody", b"next", "closed"]


def test_much_is_written_at_once() -> None:
    """As back-pressure depends on it: a stream may write without a step in between."""

    async def scene() -> list[Any]:
        wire = Wire()
        joined = JoinedTransport(wire, asyncio.get_running_loop())
        joined.write(b"head")
        joined.write(bytes(AT_ONCE))
        assert len(wire.done) == 1
        assert joined.get_write_buffer_size() == 5
        joined.write(b"rest")
        await asyncio.sleep(0)
        return wire.done

    assert run(scene) == [b"head" + bytes(AT_ONCE), b"rest"]
