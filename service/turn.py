"""Turns of large selections, and of filters by words: those of one client hold neither the service nor others."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Hashable
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from service.access.auth import Actor
from service.context import Context, context_of
from service.peer import client_of, may_have_left

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


class WordsRoute(APIRoute):
    """A route that answers a filter by words of workloads in its client's turn, as all workloads are read for it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_in_turn(request: Request) -> Response:
            if not request.query_params.get("workload_has"):
                return await answer(request)
            context = await context_of(request)
            client = client_of(request, request.state.actor)
            async with context.scans.turn(client), context.scans.threads:
                await _require_client(request)
                found = await answer(request)
            if isinstance(found, StreamingResponse):  # of which each page of records is a look of its own
                found.body_iterator = _in_turns(context, client, found.body_iterator)
            return found

        return answer_in_turn


async def _in_turns(
    context: Context, client: Hashable, parts: AsyncIterable[Any]
) -> AsyncIterator[Any]:
    """Read each part of a streamed answer in its client's turn, and none while the client reads the one before."""
    read = aiter(parts)
    while True:
        async with context.scans.turn(client), context.scans.threads:
            part = await anext(read, None)
        if part is None:
            return
        yield part


async def _require_client(request: Request) -> None:
    if await may_have_left(request):
        raise ClientDisconnect
