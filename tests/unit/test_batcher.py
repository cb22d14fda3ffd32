# ruff: noqa: ASYNC110 - what is waited for is the batcher's own state
"""Requests that come together are served together, in their order, and nobody pays for another's fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from service.errors import DatabaseError
from service.store.batcher import Batcher
from tests.limit import HANG_S

T = TypeVar("T")


class Server:
    """Answers numbers with their squares, once it may; those below zero are a fault."""

    def __init__(self) -> None:
        self.served: list[list[int]] = []
        self.may = threading.Event()

    def __call__(self, requests: Sequence[int]) -> list[int]:
        assert self.may.wait(HANG_S)
        self.served.append(list(requests))
        if any(r < 0 for r in requests):
            raise ValueError(f"{min(requests)} is below zero")
        return [r * r for r in requests]


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own, in another thread: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def ask_all(batcher: Batcher[int, int], server: Server, requests: Sequence[int]) -> list[object]:
    """The first alone, as nobody else is there; the others come while it is served."""
    first = asyncio.create_task(batcher.ask(requests[0]))
    while batcher.waiting or not batcher.serving:
        await asyncio.sleep(0)
    rest = [asyncio.create_task(batcher.ask(r)) for r in requests[1:]]
    while batcher.waiting < len(rest):
        await asyncio.sleep(0)
    server.may.set()
    return list(await asyncio.gather(first, *rest, return_exceptions=True))


def test_requests_are_refused_unless_their_batch_has_begun() -> None:
    server = Server()
    batcher = Batcher(server, 10)

    async def ask() -> list[object]:
        first = asyncio.create_task(batcher.ask(1))
        while batcher.waiting or not batcher.serving:
            await asyncio.sleep(0)
        rest = [asyncio.create_task(batcher.ask(n)) for n in (2, 3)]
        while batcher.waiting < 2:
            await asyncio.sleep(0)
        batcher.refuse(KeyError("stopped"))
        server.may.set()
        return [*await asyncio.gather(first, *rest, return_exceptions=True), await batcher.ask(4)]

    first, second, third, fourth = run(ask())
    assert (first, fourth) == (1, 16)
    assert isinstance(second, KeyError) and isinstance(third, KeyError)
    assert server.served == [[1], [4]]


def test_who_comes_meanwhile_is_served_together_and_in_order() -> None:
    server = Server()
    answers = run(ask_all(Batcher(server, 10), server, [1, 2, 3, 4]))
    assert answers == [1, 4, 9, 16]
    assert server.served == [[1], [2, 3, 4]]


def test_who_was_just_answered_may_join_those_who_wait() -> None:
    server = Server()

    async def ask() -> None:
        batcher = Batcher(server, 10, gather_s=0.2)
        first = asyncio.create_task(batcher.ask(1))
        while batcher.waiting or not batcher.serving:
            await asyncio.sleep(0)
        second = asyncio.create_task(batcher.ask(2))
        while not batcher.waiting:
            await asyncio.sleep(0)
        server.may.set()
        await first
        await asyncio.gather(second, batcher.ask(3))

    run(ask())
    assert server.served == [[1], [2, 3]]


def test_clients_that_are_answered_together_are_served_together_again() -> None:
    server = Server()

    async def ask() -> None:
        batcher = Batcher(server, 10, gather_s=HANG_S)
        server.may.set()
        await batcher.ask(1)
        await asyncio.gather(*map(batcher.ask, (2, 3)))
        early = asyncio.create_task(batcher.ask(4))
        while not batcher.serving:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(early, batcher.ask(5))

    run(ask())
    assert server.served == [[1], [2, 3], [4, 5]]


def test_a_client_that_does_not_come_again_is_not_waited_for_long() -> None:
    server = Server()

    async def ask() -> None:
        batcher = Batcher(server, 10, gather_s=0.001)
        server.may.set()
        await asyncio.gather(*map(batcher.ask, (1, 2)))
        await batcher.ask(3)
        await batcher.ask(4)

    run(ask())
    assert server.served == [[1, 2], [3], [4]]


def test_not_more_together_than_there_is_room_for_but_one_at_least() -> None:
    server = Server()
    batcher = Batcher(server, 5, size=lambda r: r)
    assert run(ask_all(batcher, server, [1, 2, 3, 1, 9, 1])) == [1, 4, 9, 1, 81, 1]
    assert server.served == [[1], [2, 3], [1], [9], [1]]


def test_a_fault_is_its_own_only() -> None:
    server = Server()
    answers = run(ask_all(Batcher(server, 10), server, [1, 2, -3, 4]))
    assert (answers[0], answers[1], answers[3]) == (1, 4, 16)
    assert isinstance(answers[2], ValueError)
    assert server.served == [[1], [2, -3, 4], [2], [-3], [4]]


@pytest.mark.parametrize(
    ("fails", "served"),
    [
        ([3], [[2], [3], [4], [5]]),  # its own fault
        ([2, 3, 4, 5], [[2], [3]]),  # the database is away
    ],
)
def test_a_database_that_is_away_is_not_asked_for_everybody(fails: Sequence[int], served: list[list[int]]) -> None:
    server = Server()

    def serve(requests: Sequence[int]) -> list[int]:
        found = server(requests)
        if not {*fails}.isdisjoint(requests):
            raise DatabaseError("the database does not answer: gone")
        return found

    answers = run(ask_all(Batcher(serve, 10), server, [1, 2, 3, 4, 5]))
    assert [isinstance(a, DatabaseError) for a in answers] == [r in fails for r in range(1, 6)]
    assert server.served == [[1], [2, 3, 4, 5], *served]


def test_who_has_gone_is_not_served() -> None:
    server = Server()
    batcher = Batcher(server, 10)

    async def leave() -> int:
        first = asyncio.create_task(batcher.ask(1))
        while batcher.waiting or not batcher.serving:
            await asyncio.sleep(0)
        gone = asyncio.create_task(batcher.ask(2))
        while not batcher.waiting:
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        server.may.set()
        await first
        return await batcher.ask(3)

    assert run(leave()) == 9
    assert server.served == [[1], [3]]


def test_the_lane_that_goes_first_is_served_between_two_rounds_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.store.batcher.GIVE_WAY_S", 60.0)
    served: list[str] = []
    may = threading.Event()

    def serve(kind: str) -> Callable[[Sequence[int]], Sequence[int]]:
        def note(requests: Sequence[int]) -> Sequence[int]:
            assert may.wait(HANG_S)
            served.extend(f"{kind}{r}" for r in requests)
            return requests

        return note

    async def both() -> None:
        urgent = Batcher(serve("urgent "), 1)
        patient = Batcher(serve("patient "), 1, first=urgent)
        asked = [asyncio.create_task(patient.ask(i)) for i in range(2)]
        while patient.waiting != 1:  # the first is being served
            await asyncio.sleep(0)
        asked += [asyncio.create_task(urgent.ask(i)) for i in range(2)]
        while urgent.waiting != 1:
            await asyncio.sleep(0)
        may.set()
        assert await asyncio.gather(*asked) == [0, 1, 0, 1]

    run(both())
    assert served[-1] == "patient 1"
    assert sorted(served) == ["patient 0", "patient 1", "urgent 0", "urgent 1"]


def test_who_goes_second_does_not_wait_for_ever() -> None:
    may = threading.Event()

    def hang(requests: Sequence[int]) -> Sequence[int]:
        assert may.wait(HANG_S)
        return requests

    async def both() -> None:
        urgent = Batcher(hang, 1)
        patient = Batcher(lambda requests: requests, 1, first=urgent)
        hanging = asyncio.create_task(urgent.ask(0))
        while not urgent.serving:
            await asyncio.sleep(0)
        assert await patient.ask(1) == 1
        may.set()
        await hanging

    run(both())


def test_where_no_thread_is_to_be_had_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def ask_twice() -> int:
        server = Server()
        server.may.set()
        batcher = Batcher(server, 10)
        with monkeypatch.context() as patched:
            patched.setattr("service.store.batcher.to_thread.run_sync", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                await batcher.ask(1)
        return await batcher.ask(2)

    assert run(ask_twice()) == 4
