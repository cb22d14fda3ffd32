"""Turns of large selections, and of lists: those of one client hold neither the service nor others."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Sequence,
)
from inspect import iscoroutinefunction
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


_SINGLE = ("/{task_id}", "/{record_id}", "/{device_id}")  # a run has as many rows as a list


class ListRoute(APIRoute):
    """A route whose answer is of many rows, which it reads in its client's turn; one of a `_SINGLE` has no turns.

    Equal requests that wait for their turn share an answer. Those that come while it is read get the next one: their
    clients may know of a change that it has not seen.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        if self.methods != {"GET"} or self.path.endswith(_SINGLE) or iscoroutinefunction(self.endpoint):
            return answer

        async def answer_in_turn(request: Request) -> Response:
            context = await context_of(request)
            client = client_of(request, request.state.actor)
            key = _equal(request)
            while True:
                asked = context.asked.get(key)
                if asked is None:
                    requests: list[Request] = []
                    told = asyncio.create_task(_answer_one(context, client, key, requests, answer))
                    asked = context.asked[key] = requests, told
                asked[0].append(request)
                by, found = await asyncio.shield(asked[1])
                if not isinstance(found, StreamingResponse):
                    return found
                if by is request:  # nobody else can read it
                    found.body_iterator = _in_turns(context, client, found.body_iterator)  # each page is read anew
                    return found

        return answer_in_turn


def _equal(request: Request) -> Hashable:
    """All of a request that its answer depends on."""
    scope = request.scope
    return request.state.actor, scope["path"], scope["query_string"], "hx-request" in request.headers


async def _answer_one(
    context: Context, client: Hashable, key: Hashable, requests: Sequence[Request],
    answer: Callable[[Request], Awaitable[Response]],
) -> tuple[Request, Response]:
    """Answer the first of equal requests whose client is still there, in the turn of the one that came first.

    Clients that have closed their side of the connection can be answered, and are unless others wait.

    Raises:
        ClientDisconnect: all have left, and others wait.
    """
    async with context.lists.turn(client) as makes_way, context.lists.threads:
        del context.asked[key]
        for request in requests:
            if not await may_have_left(request):
                return request, await answer(request)
        if makes_way():
            raise ClientDisconnect
        return requests[0], await answer(requests[0])


async def _in_turns(
    context: Context, client: Hashable, parts: AsyncIterable[Any]
) -> AsyncIterator[Any]:
    """Read each part of a streamed answer in its client's turn, and none while the client reads the one before."""
    read = aiter(parts)
    while True:
        async with context.lists.turn(client), context.lists.threads:
            part = await anext(read, None)
        if part is None:
            return
        yield part


async def _require_client(request: Request) -> None:
    if await may_have_left(request):
        raise ClientDisconnect
