"""Turns of filters by words: those of one client leave the service to others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute

from service.access.auth import LOCAL
from service.api.query import _parameters
from service.app import create_app
from service.client_slots import ClientSlots
from service.settings import Settings
from service.stream import Stream
from service.turn import WordsRoute
from tests.limit import HANG_S


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


@pytest.mark.parametrize(("query", "most"), [("workload_has=dense", 1), ("workload_has=", 4), ("", 4)])
def test_filters_by_words_of_one_client_are_answered_one_at_a_time(query: str, most: int) -> None:
    here = Place(most)

    def answer(number: int) -> int:
        here.visit()
        return number

    assert [found.json() for found in _ask_four(answer, query)] == [0, 1, 2, 3]
    assert max(here.seen) == most


@pytest.mark.parametrize(("query", "most"), [("workload_has=dense", 1), ("", 4)])
def test_parts_of_streams_by_words_of_one_client_are_read_one_at_a_time(query: str, most: int) -> None:
    """An export looks for the words again in each of its pages, after its first part."""
    here = Place(most)

    def answer(number: int) -> Response:
        def parts() -> Iterator[bytes]:
            yield b"head"
            here.visit()
            yield b", rest"

        return Stream(parts())

    assert [found.text for found in _ask_four(answer, query)] == ["head, rest"] * 4
    assert max(here.seen) == most


def _ask_four(answer: Callable[[int], Any], query: str) -> list[httpx.Response]:
    """The answers of a route by words to four requests of one client at once."""
    app = FastAPI()
    app.state.context = SimpleNamespace(scans=ClientSlots(4, 1))
    router = APIRouter(route_class=WordsRoute)
    router.get("/records")(answer)

    @app.middleware("http")
    async def admit(request: Request, call: Any) -> Any:
        request.state.actor = LOCAL
        return await call(request)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service.test") as client:
            return await asyncio.gather(*(client.get(f"/records?number={i}&{query}") for i in range(4)))

    app.include_router(router)
    return asyncio.run(ask())


def _routes(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _routes(getattr(getattr(route, "original_router", None), "routes", ()))


def test_each_filter_by_words_of_workloads_has_turns() -> None:
    found = [r for r in _routes(create_app(Settings(tune=False)).routes) if "workload_has" in _parameters(r).query]
    assert len(found) > 8
    assert all(isinstance(route, WordsRoute) for route in found)
