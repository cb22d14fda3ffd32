# ruff: noqa: ASYNC110 - what is waited for is the lane's own state
"""Requests that come together are served together, in their order, and nobody pays for another's fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from service.lane import Lane

T = TypeVar("T")


class Server:
    """Answers numbers with their squares, once it may; those below zero are a fault."""

    def __init__(self) -> None:
        self.served: list[list[int]] = []
        self.may = threading.Event()

    def __call__(self, requests: Sequence[int]) -> list[int]:
        assert self.may.wait(60)
        self.served.append(list(requests))
        if any(r < 0 for r in requests):
            raise ValueError(f"{min(requests)} is below zero")
        return [r * r for r in requests]


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own, in another thread: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def ask_all(lane: Lane[int, int], server: Server, requests: Sequence[int]) -> list[object]:
    """The first alone, as nobody else is there; the others come while it is served."""
    first = asyncio.create_task(lane.ask(requests[0]))
    while lane.waiting or not lane.serving:
        await asyncio.sleep(0)
    rest = [asyncio.create_task(lane.ask(r)) for r in requests[1:]]
    while lane.waiting < len(rest):
        await asyncio.sleep(0)
    server.may.set()
    return list(await asyncio.gather(first, *rest, return_exceptions=True))


def test_who_comes_meanwhile_is_served_together_and_in_order() -> None:
    server = Server()
    answers = run(ask_all(Lane(server, 10), server, [1, 2, 3, 4]))
    assert answers == [1, 4, 9, 16]
    assert server.served == [[1], [2, 3, 4]]


def test_not_more_together_than_there_is_room_for_but_one_at_least() -> None:
    server = Server()
    lane = Lane(server, 5, size=lambda r: r)
    assert run(ask_all(lane, server, [1, 2, 3, 1, 9, 1])) == [1, 4, 9, 1, 81, 1]
    assert server.served == [[1], [2, 3], [1], [9], [1]]


def test_a_fault_is_its_own_only() -> None:
    server = Server()
    answers = run(ask_all(Lane(server, 10), server, [1, 2, -3, 4]))
    assert (answers[0], answers[1], answers[3]) == (1, 4, 16)
    assert isinstance(answers[2], ValueError)
    assert server.served == [[1], [2, -3, 4], [2], [-3], [4]]


def test_who_has_gone_is_not_served() -> None:
    server = Server()
    lane = Lane(server, 10)

    async def leave() -> int:
        first = asyncio.create_task(lane.ask(1))
        while lane.waiting or not lane.serving:
            await asyncio.sleep(0)
        gone = asyncio.create_task(lane.ask(2))
        while not lane.waiting:
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        server.may.set()
        await first
        return await lane.ask(3)

    assert run(leave()) == 9
    assert server.served == [[1], [3]]
