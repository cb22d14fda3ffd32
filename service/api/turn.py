"""Turns of selections: large requests of one client hold neither the service nor the selections of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.access.auth import Actor
from service.api.peer import client_of, may_have_left
from service.context import Context

T = TypeVar("T")
FEW = 16  # answers of one request that take no longer than as many selections


async def in_turn(context: Context, request: Request, who: Actor, large: bool, answer: Callable[[], T]) -> T:
    """Answer a request in a thread: a large one in its client's turn, so that selections go on beside it.

    Raises:
        ClientDisconnect: the client left before its turn, as one does that sends a request again after a time limit.
    """
    if not large:
        return await to_thread.run_sync(answer, limiter=context.selections)
    await _require_client(request)  # which also goes on reading: that stops behind a large body
    async with context.large_selections.turn(client_of(request, who)):
        await _require_client(request)
        return await to_thread.run_sync(answer, limiter=context.large_selections.threads)


async def _require_client(request: Request) -> None:
    if await may_have_left(request):
        raise ClientDisconnect
