"""Slots: a client has its share, and keeps that of an upload only while data comes, or while nobody waits for it."""

from __future__ import annotations

import asyncio

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
        assert slots.is_awaited("a") and not slots.is_awaited("b")
        turns[-2].cancel()  # it waits
        may_end.set()
        await asyncio.gather(*turns, return_exceptions=True)

    asyncio.run(all_of_them())
    assert under_way.count("a") == 19
    assert not slots._clients


def test_an_upload_is_waited_for_as_long_as_its_bytes_allow() -> None:
    parts = [b"x" * LEAST_RATE, None]

    async def receive() -> bytes | None:
        if not parts:
            await asyncio.sleep(60.0)
        return parts.pop(0)

    async def read() -> None:
        assert await PacedUpload(receive, 0.2, lambda: True).read() == b"x" * LEAST_RATE
        with pytest.raises(TooSlowError, match="more than 0.2 s, and a second for each 8,192 of its 0 bytes"):
            await PacedUpload(receive, 0.2, lambda: True).next()

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

    def is_awaited() -> bool:
        looks.append(1)
        return len(looks) > 20

    async def read() -> None:
        upload = PacedUpload(receive, 0.0, is_awaited)
        while True:
            assert await upload.next() == b"x"

    with pytest.raises(TooSlowError, match="other uploads wait"):
        asyncio.run(read())
    assert len(looks) == 21


def test_a_part_that_comes_after_its_time_is_not_lost() -> None:
    parts = [b"a", b"b", None]

    async def generate():
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
