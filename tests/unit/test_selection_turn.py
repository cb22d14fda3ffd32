"""Turns of selections: large requests of one client hold neither the service nor its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from service.access.auth import Actor
from service.api import selection, wire
from service.api.selection import BatchRequest, DispatchRequest, EvidenceRequest, SelectRequest
from service.context import LARGE_SELECTIONS, SELECTIONS, Context
from service.settings import Settings
from service.turn import FEW, in_turn
from strategy.record import encode
from strategy.target import Target
from strategy.workload import Input, Workload
from tests.limit import HANG_S, wait_until

TARGET = Target.parse("llvm")
SHAPE = Workload("dense", (Input("data", "float32[8,8]"), Input("weight", "float32[8,8]")))
SHAPES = Workload("dense", (Input("data", "float32[m,8]"), Input("weight", "float32[8,8]")))
ONE = SelectRequest(workload=SHAPE, target=TARGET)
LARGE: dict[str, tuple[Any, Any]] = {
    "a batch": (selection.choose_many, BatchRequest(requests=(ONE,) * (FEW + 1))),
    "a batch as of an instant": (
        selection.choose_many, BatchRequest(requests=(SelectRequest(workload=SHAPE, target=TARGET, as_of=1.0),))
    ),
    "a selection as of an instant": (selection.choose, SelectRequest(workload=SHAPE, target=TARGET, as_of=1.0)),
    "a dispatch table": (selection.tabulate, DispatchRequest(workload=SHAPES, target=TARGET)),
    "evidence of shapes": (selection.show_evidence, EvidenceRequest(workload=SHAPES, target=TARGET)),
}
SMALL: dict[str, tuple[Any, Any]] = {
    "a selection": (selection.choose, ONE),
    "a small batch": (selection.choose_many, BatchRequest(requests=(ONE,) * FEW)),
    "evidence of a shape": (selection.show_evidence, EvidenceRequest(workload=SHAPE, target=TARGET)),
}
CLIENTS = [Actor(name, frozenset(), token_id) for token_id, name in enumerate("abc")]


class Work:
    """Selections that end when they may, in place of those of the service."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.under_way: Counter[str] = Counter()

    def __call__(self, _context: Context, within: str, _body: Any) -> Response:
        self.under_way[within] += 1
        assert self.may_end.wait(HANG_S)
        return Response()


@pytest.mark.parametrize("large", LARGE)
def test_a_large_request_waits_for_the_one_before_it_of_its_client(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    for name in ("_choose", "_choose_many", "_tabulate", "_show_evidence"):
        monkeypatch.setattr(selection, name, work)
    monkeypatch.setattr(selection, "reply_tagged", lambda *_: Response())
    context = Context(Settings(database="sqlite:////nowhere/plevel.db"))
    stays: Any = asyncio.Event().wait
    request = Request({"type": "http", "client": None, "headers": []}, stays)

    async def ask() -> None:
        endpoint, body = LARGE[large]
        sent = [(who, who.name, endpoint, body) for who in CLIENTS for _ in range(5)]
        sent += [(CLIENTS[0], "small", *one) for one in SMALL.values()] * SELECTIONS
        asked = [asyncio.create_task(call(context, who, name, request, body)) for who, name, call, body in sent]
        await asyncio.to_thread(wait_until, lambda: work.under_way.total() >= LARGE_SELECTIONS + SELECTIONS)
        await asyncio.sleep(0.05)  # for those that would be too many
        assert work.under_way == {"a": 1, "b": 1, "small": SELECTIONS}
        work.may_end.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(ask(), HANG_S))


def test_a_client_that_left_before_its_turn_gets_no_answer() -> None:
    """Else a client that sends a large request again after a time limit would wait for all that it has given up."""
    context = Context(Settings(database="sqlite:////nowhere/plevel.db"))
    answered: list[str] = []

    async def ask() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        request = Request({"type": "http", "client": None, "headers": []}, receive)

        async def put(name: str) -> None:
            await in_turn(context, request, CLIENTS[0], True, lambda: answered.append(name))

        await put("here")
        async with context.large_selections.turn(CLIENTS[0].token_id):
            waiting = asyncio.create_task(put("left while it waits"))
            await asyncio.sleep(0.05)
            left.set()
        for gone in (waiting, put("left before")):
            with pytest.raises(ClientDisconnect):
                await gone

    asyncio.run(asyncio.wait_for(ask(), HANG_S))
    assert answered == ["here"]


def test_a_large_body_is_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    decode = wire._decode

    def note(data: bytes, kind: Any) -> Any:
        threads.append(threading.current_thread())
        return decode(data, kind)

    monkeypatch.setattr(wire, "_decode", note)

    class App:
        class state:  # noqa: N801 - as an application's
            context = Context(Settings(database="sqlite:////nowhere/plevel.db"))

    async def read(body: bytes) -> Any:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        dependency = wire.body_of(BatchRequest).dependency
        return await dependency(Request({"type": "http", "headers": [], "app": App}, receive))

    few, many = (BatchRequest(requests=(ONE,) * n) for n in (1, 1000))
    assert len(encode(few)) < wire.LARGE < len(encode(many))
    assert asyncio.run(read(encode(few))) == few
    assert asyncio.run(read(encode(many))) == many
    own = threading.current_thread()
    assert [thread is own for thread in threads] == [True, False]
