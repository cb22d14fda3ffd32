"""Requests of one kind that come while others are served are then served together, in their order.

What a transaction costs by itself is so shared by all that wait, and nobody who came later is served
first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

A = TypeVar("A")
R = TypeVar("R")


class Lane(Generic[A, R]):
    """One queue of requests, with one thread at a time that serves them; of one event loop.

    What fails together is tried again one by one, so that nobody pays for another's fault.

    Args:
        serve: answers requests in one transaction, each at its place.
        most: how much is served together: the sum of the sizes, but at least one request.
        size: of a request.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[A]], Sequence[R]],
        most: int,
        size: Callable[[A], int] = lambda _: 1,
    ) -> None:
        self._serve = serve
        self._most = most
        self._size = size
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._limiter: CapacityLimiter | None = None

    @property
    def waiting(self) -> int:
        """How many requests nobody has begun to serve."""
        return len(self._waiting)

    @property
    def serving(self) -> bool:
        """Whether some are being served."""
        return self._serving is not None

    async def ask(self, request: A) -> R:
        """The answer to a request, once its turn has come; raises what serving it raised."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._serving is None:
            self._serving = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        # Not one of the threads that all requests share: they may be waiting for something slower.
        self._limiter = self._limiter or CapacityLimiter(1)
        try:
            while taken := self._take():
                requests = [request for request, _ in taken]
                answers = await to_thread.run_sync(self._answer, requests, limiter=self._limiter)
                for (_, future), answer in zip(taken, answers, strict=True):
                    if future.done():  # whoever asked has gone
                        continue
                    if isinstance(answer, _Failed):
                        future.set_exception(answer.error)
                    else:
                        future.set_result(answer)
        finally:
            self._serving = None

    def _take(self) -> list[tuple[A, asyncio.Future[R]]]:
        taken: list[tuple[A, asyncio.Future[R]]] = []
        total = 0
        while self._waiting:
            request, future = self._waiting[0]
            if not future.done():
                total += self._size(request)
                if taken and total > self._most:
                    break
                taken.append((request, future))
            self._waiting.popleft()
        return taken

    def _answer(self, requests: Sequence[A]) -> list[R | _Failed]:
        try:
            return list(self._serve(requests))
        except Exception as error:
            if len(requests) == 1:
                return [_Failed(error)]
        return [answer for request in requests for answer in self._answer([request])]


class _Failed:
    """What serving one request raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error
