"""Answers in parts: a failure of the database after the first one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.types import Message

from service.errors import DatabaseError
from service.stream import Stream


def failing(error: Exception) -> Iterator[bytes]:
    yield b"first"
    raise error


def messages(answer: Stream, version: str) -> list[Message]:
    """The messages that a server gets; its client waits for the answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(answer({"type": "http", "asgi": {"spec_version": version}}, receive, send))
    return sent


@pytest.mark.parametrize("version", ["2.3", "2.4"])  # up to 2.3 the framework listens beside it for the client's end
def test_it_is_one_line_of_log_and_no_end_of_the_answer(caplog: pytest.LogCaptureFixture, version: str) -> None:
    sent = messages(Stream(failing(DatabaseError("the database does not answer"))), version)
    assert [m.get("body") for m in sent] == [None, b"first"]
    assert sent[-1]["more_body"]
    assert [r.getMessage() for r in caplog.records] == ["an answer was cut off: the database does not answer"]
    assert not caplog.records[0].exc_info


def test_a_defect_is_still_raised() -> None:
    with pytest.raises(KeyError):
        messages(Stream(failing(KeyError("a defect"))), "2.4")
