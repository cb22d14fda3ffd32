"""Turns of filters by words: those of one client leave the service to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute

from service.access.auth import LOCAL
from service.api.query import _parameters
from service.app import create_app
from service.client_slots import ClientSlots
from service.settings import Settings
from service.turn import WordsRoute


@pytest.mark.parametrize(("query", "most"), [("workload_has=dense", 1), ("workload_has=", 4), ("", 4)])
def test_filters_by_words_of_one_client_are_answered_one_at_a_time(query: str, most: int) -> None:
    app, here, seen = FastAPI(), set[int](), set[int]()
    app.state.context = SimpleNamespace(scans=ClientSlots(4, 1))
    router = APIRouter(route_class=WordsRoute)

    @router.get("/records")
    def answer(number: int) -> int:
        here.add(number)
        time.sleep(0.1)
        seen.add(len(here))
        here.remove(number)
        return number

    @app.middleware("http")
    async def admit(request: Request, call: Any) -> Any:
        request.state.actor = LOCAL
        return await call(request)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service.test") as client:
            return await asyncio.gather(*(client.get(f"/records?number={i}&{query}") for i in range(4)))

    app.include_router(router)
    assert [found.json() for found in asyncio.run(ask())] == [0, 1, 2, 3]
    assert max(seen) == most


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
