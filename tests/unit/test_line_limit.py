"""A flood of one kind of line in the log is a few lines and a number."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.requests import ClientDisconnect, Request

from service.api import problem
from service.api.line_limit import TERM_S, LineLimit


def test_the_next_minute_tells_how_many_were_left_out() -> None:
    at = [100.0]
    limit = LineLimit(2, lambda: at[0])
    assert [limit.admit() for _ in range(1002)] == ["", "", *[None] * 1000]
    at[0] += TERM_S
    assert [limit.admit(), limit.admit(), limit.admit()] == [" (and 1,000 more since the last line)", "", None]
    at[0] += 10 * TERM_S
    assert limit.admit() == " (and 1 more since the last line)"


def test_bodies_that_are_cut_off_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    limit = LineLimit(problem.CUT_OFF)
    scope = {"type": "http", "method": "POST", "path": "/v1/records:import", "headers": [], "query_string": b""}
    caplog.set_level(logging.INFO)

    async def cut_off() -> None:
        for _ in range(1000):
            await problem._note_disconnect(limit, Request(scope), ClientDisconnect())

    asyncio.run(cut_off())
    assert len(caplog.records) == problem.CUT_OFF
