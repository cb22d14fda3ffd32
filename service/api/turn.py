"""Turns of selections: large requests of one client hold neither the service nor the selections of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread
from fastapi import Request

from service.access.auth import Actor
from service.api.peer import client_of
from service.context import Context

T = TypeVar("T")
FEW = 16  # answers of one request that take no longer than as many selections


async def in_turn(context: Context, request: Request, who: Actor, large: bool, answer: Callable[[], T]) -> T:
    """Answer a request in a thread: a large one in its client's turn, so that selections go on beside it."""
    if not large:
        return await to_thread.run_sync(answer, limiter=context.selections)
    async with context.large_selections.turn(client_of(request, who)):
        return await to_thread.run_sync(answer, limiter=context.large_selections.threads)
