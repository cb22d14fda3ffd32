"""Slots: a client has its share, and keeps that of an upload only while data comes, or while nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from service.client_slots import ClientSlots
from service.errors import TooSlowError
from service.records import paced_upload
from service.records.paced_upload import LEAST_RATE, PacedUpload


def test_a_client_takes_its_share_and_is_forgotten_at_its_end() -> None:
    slots = ClientSlots(8, 4)
    under_way: list[str] = []
    may_end = asyncio.Event()

    async def one(client: str) -> None:
        async with slots.turn(client):
            under_way.append(client)
            await may_end.wait()

    async def all_of_them() -> None:
        turns = [asyncio.create_task(one(client)) for client in ["a"] * 20 + ["b"]]
        for _ in range(50):
            await asyncio.sleep(0)
        assert sorted(under_way) == ["a"] * 4 + ["b"]
        turns[-2].cancel()  # it waits
        may_end.set()
        await asyncio.gather(*turns, return_exceptions=True)

    asyncio.run(all_of_them())
    assert under_way.count("a") == 19
    assert not slots._clients and not slots._leaving


def test_as_many_make_way_as_wait() -> None:
    slots = ClientSlots(4, 2)
    ways: dict[str, list[Callable[[], bool]]] = {"a": [], "b": [], "c": [], "d": []}
    may_end = asyncio.Event()

    async def one(client: str) -> None:
        async with slots.turn(client) as makes_way, slots.threads:
            ways[client].append(makes_way)
            await may_end.wait()

    async def make_way(clients: str) -> list[str]:
        for _ in range(10):
            await asyncio.sleep(0)
        return [client for client in clients for makes_way in ways[client] if makes_way()]

    async def all_of_them() -> None:
        turns = [asyncio.create_task(one(client)) for client in "aabb"]
        assert await make_way("aabb") == []
        turns.append(asyncio.create_task(one("b")))  # more than its share
        assert await make_way("ab") == ["b"]
        assert await make_way("ab") == ["b"], "as before"
        turns += [asyncio.create_task(one(client)) for client in "cd"]
        assert await make_way("ab") == ["a", "b"], "two wait, and two make way"
        may_end.set()
        await asyncio.gather(*turns)

    asyncio.run(all_of_them())
    assert {client: len(had) for client, had in ways.items()} == {"a": 2, "b": 3, "c": 1, "d": 1}
    assert not slots._leaving


def test_an_upload_is_waited_for_as_long_as_its_bytes_allow() -> None:
    parts = [b"x" * LEAST_RATE, None]

    async def receive() -> bytes | None:
        if not parts:
            await asyncio.sleep(60.0)
        return parts.pop(0)

    async def read() -> None:
        assert await PacedUpload(receive, 0.2, lambda: True).read() == b"x" * LEAST_RATE
        limit = "was waited for more than 0.2 s, and a second for each 8,192 of its 0 bytes: send it again"
        with pytest.raises(TooSlowError, match=f"^other uploads wait, and this one {limit} later, faster, or in parts"):
            await PacedUpload(receive, 0.2, lambda: True).next()
        with pytest.raises(TooSlowError, match=f"^the upload {limit} faster$"):  # of one without a slot
            await PacedUpload(receive, 0.2, None).next()

    asyncio.run(read())


def test_only_waiting_for_the_client_counts() -> None:
    async def receive() -> bytes | None:
        return b"x"

    async def read() -> None:
        upload = PacedUpload(receive, 0.05, lambda: True)
        for _ in range(3):
            assert await upload.next() == b"x"
            await asyncio.sleep(0.06)  # the service is at work on it

    asyncio.run(read())


def test_a_slow_upload_ends_only_when_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_upload, "LOOK_S", 0.01)
    looks = []

    async def receive() -> bytes | None:
        await asyncio.sleep(0.1)
        return b"x"

    def makes_way() -> bool:
        looks.append(1)
        return len(looks) > 20

    async def read() -> None:
        upload = PacedUpload(receive, 0.0, makes_way)
        while True:
            assert await upload.next() == b"x"

    with pytest.raises(TooSlowError, match="other uploads wait"):
        asyncio.run(read())
    assert len(looks) == 21


def test_a_part_that_comes_after_its_time_is_not_lost() -> None:
    parts = [b"a", b"b", None]

    async def generate() -> AsyncIterator[bytes]:
        for part in (b"a", b"b"):
            await asyncio.sleep(0.02)
            yield part

    async def read() -> list[bytes | None]:
        stream = generate()

        async def receive() -> bytes | None:
            return await anext(stream, None)

        upload = PacedUpload(receive, 0.0, lambda: False)
        return [await upload.next() for _ in parts]

    assert asyncio.run(read()) == parts
