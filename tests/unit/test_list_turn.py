"""Turns of lists: those of one client leave the service to others, and equal ones are read once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from service.access.auth import LOCAL
from service.api.query import _parameters
from service.app import create_app
from service.client_slots import ClientSlots
from service.settings import Settings
from service.stream import Stream
from service.turn import ListRoute
from tests.limit import HANG_S, wait_until


class Place:
    """A place for four, of which `most` can be there at once."""

    def __init__(self, most: int) -> None:
        self.seen: list[int] = []
        self._here: list[int] = []
        self._all = threading.Barrier(4, timeout=HANG_S if most == 4 else 0.1)

    def visit(self) -> None:
        """Stay until all four are here, or for a while where they should not be."""
        self._here.append(0)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._all.wait()
        self.seen.append(len(self._here))
        self._here.pop()


@pytest.mark.parametrize(("path", "most"), [("/records", 2), ("/records/1", 4)])
def test_a_client_has_two_lists_at_a_time_and_any_number_of_single_records(path: str, most: int) -> None:
    here = Place(most)

    def answer(number: int) -> int:
        here.visit()
        return number

    assert [found.json() for found in _ask(answer, [f"{path}?number={i}" for i in range(4)])] == [0, 1, 2, 3]
    assert max(here.seen) == most


def test_parts_of_streams_of_one_client_are_read_two_at_a_time() -> None:
    """An export looks for its records again in each of its pages, after its first part. Equal ones are not shared."""
    here = Place(2)

    def answer() -> Response:
        def parts() -> Iterator[bytes]:
            yield b"head"
            here.visit()
            yield b", rest"

        return Stream(parts())

    assert [found.text for found in _ask(answer, ["/records"] * 4)] == ["head, rest"] * 4
    assert (len(here.seen), max(here.seen)) == (4, 2)


def test_equal_lists_that_wait_share_an_answer() -> None:
    """None gets one whose reading began before it came, as its client may have written since."""
    reads: list[int] = []
    may_end = [threading.Event() for _ in range(3)]
    context = SimpleNamespace(lists=ClientSlots(4, 2), asked={})

    def answer(number: int) -> int:
        reads.append(number)
        assert may_end[number].wait(HANG_S)
        return number

    async def ask_all(client: httpx.AsyncClient) -> list[httpx.Response]:
        def send(number: int) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.get(f"/records?number={number}"))

        sent = [send(0), send(1)]
        await asyncio.to_thread(wait_until, lambda: len(reads) == 2)
        sent += [send(2) for _ in range(18)]
        await asyncio.to_thread(wait_until, lambda: _waiting(context) == 18)
        may_end[0].set()
        await asyncio.to_thread(wait_until, lambda: len(reads) == 3)
        may_end[1].set()
        sent.append(send(2))
        await asyncio.to_thread(wait_until, lambda: len(reads) == 4)
        may_end[2].set()
        return await asyncio.gather(*sent)

    assert [found.json() for found in _ask_by(answer, ask_all, context)] == [0, 1, *[2] * 19]
    assert sorted(reads) == [0, 1, 2, 2]
    assert not context.asked


def _waiting(context: Any) -> int:
    return sum(len(requests) for requests, _ in list(context.asked.values()))


def test_an_error_of_a_shared_answer_is_told_to_all() -> None:
    def answer() -> int:
        raise ValueError("no such list")

    with pytest.raises(ValueError, match="no such list"):
        _ask(answer, ["/records"] * 4)


def test_lists_whose_clients_have_left_are_not_read_while_others_wait() -> None:
    read: list[str] = []
    context = SimpleNamespace(lists=ClientSlots(1, 1), asked={})
    app, router = FastAPI(), APIRouter(route_class=ListRoute)
    app.state.context = context

    @router.get("/records")
    def answer(words: str) -> str:
        read.append(words)
        return words

    app.include_router(router)

    async def ask(words: str, left: bool) -> None:
        async def receive() -> dict[str, Any]:
            if left:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None: ...

        scope = {
            "type": "http", "method": "GET", "path": "/records", "query_string": f"words={words}".encode(),
            "headers": [], "client": None, "state": {"actor": LOCAL},
        }
        await app(scope, receive, send)

    async def ask_all() -> list[Any]:
        async with context.lists.turn(None), context.lists.threads:
            asked = [("a", True), ("b", True), ("b", False), ("c", True)]
            tasks = [asyncio.create_task(ask(*one)) for one in asked]
            await asyncio.to_thread(wait_until, lambda: _waiting(context) == len(asked))
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(asyncio.wait_for(ask_all(), HANG_S))
    assert isinstance(found[0], ClientDisconnect)
    assert read == ["b", "c"]  # nobody waits behind the last, whose client may have closed its side only


def _ask(answer: Callable[..., Any], paths: list[str]) -> list[httpx.Response]:
    """The answers to requests of one client at once."""

    async def ask_all(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*map(client.get, paths))

    return _ask_by(answer, ask_all, SimpleNamespace(lists=ClientSlots(4, 2), asked={}))


def _ask_by(
    answer: Callable[..., Any], ask_all: Callable[[httpx.AsyncClient], Awaitable[list[httpx.Response]]], context: Any
) -> list[httpx.Response]:
    """The answers of a route of lists, and of one of single things, to a client."""
    app = FastAPI()
    app.state.context = context
    router = APIRouter(route_class=ListRoute)
    router.get("/records")(answer)
    router.get("/records/{record_id}")(answer)

    @app.middleware("http")
    async def admit(request: Request, call: Any) -> Any:
        request.state.actor = LOCAL
        return await call(request)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service.test") as client:
            return await ask_all(client)

    app.include_router(router)
    return asyncio.run(asyncio.wait_for(ask(), HANG_S))


def _routes(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _routes(getattr(getattr(route, "original_router", None), "routes", ()))


def test_each_filter_by_words_of_workloads_has_turns() -> None:
    found = [r for r in _routes(create_app(Settings(tune=False)).routes) if "workload_has" in _parameters(r).query]
    assert len(found) > 8
    assert all(isinstance(route, ListRoute) for route in found)
