"""Turns of large imports: a client has its share, and keeps it only while data comes."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import TooSlowError
from service.records.import_slots import LEAST_RATE, OF_CLIENT, ImportSlots, PacedUpload


def test_a_client_takes_its_share_and_is_forgotten_at_its_end() -> None:
    slots = ImportSlots()
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
        assert sorted(under_way) == ["a"] * OF_CLIENT + ["b"]
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
        assert await PacedUpload(receive, 0.2).read() == b"x" * LEAST_RATE
        with pytest.raises(TooSlowError, match="more than 0.2 s, and a second for each 8,192 of its 0 bytes"):
            await PacedUpload(receive, 0.2).next()

    asyncio.run(read())


def test_only_waiting_for_the_client_counts() -> None:
    async def receive() -> bytes | None:
        return b"x"

    async def read() -> None:
        upload = PacedUpload(receive, 0.05)
        for _ in range(3):
            assert await upload.next() == b"x"
            await asyncio.sleep(0.06)  # the service is at work on it

    asyncio.run(read())
