"""The list of runs is sent a run at a time: no request has the tasks of all of them in memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.api.run import Runs, list_runs
from service.context import Context
from service.errors import DatabaseError
from service.store.db import Store
from service.tuning import run_status
from strategy.record import decode, encode
from tests.integration.scene import Scene, drawn

pytestmark = pytest.mark.in_turn("url")


async def body_of(store: Store, limit: int = 1000) -> tuple[list[bytes], bytes]:
    """The parts of the answer, and all of it."""
    context = cast("Context", SimpleNamespace(store=store, settings=SimpleNamespace(alive_s=60.0)))
    answer: Any = list_runs(context, "default", None, limit=limit)
    parts = [part async for part in answer.body_iterator]
    return parts, b"".join(parts)


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_part_for_each_run(store: Store, count: int) -> None:
    for seed in range(count):
        Scene.make(store, drawn(seed=seed))
    parts, body = asyncio.run(body_of(store))
    assert len(parts) == count + 1
    with store.read() as c:
        assert body == encode(Runs(runs=tuple(run_status.recent(c, 1000, 60.0))))
    assert len(decode(asyncio.run(body_of(store, 2))[1], Runs).runs) == min(2, count)


def test_a_failure_before_the_first_run_is_a_problem(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Scene.make(store)

    def fail(*_: Any) -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(run_status, "status", fail)
    context = cast("Context", SimpleNamespace(store=store, settings=SimpleNamespace(alive_s=60.0)))
    with pytest.raises(DatabaseError):
        list_runs(context, "default", None)
