"""Group commit: requests that arrive during a batch form the next batch, in order.

They share the fixed cost of a transaction. One batcher may have priority over another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from service.errors import DatabaseError

A = TypeVar("A")
R = TypeVar("R")
GIVE_WAY_S = 0.1  # the longest time for which a batch waits for the batcher with priority
AWAY = 2  # failures of the database in succession; one alone may be its request's fault


class Batcher(Generic[A, R]):
    """One queue of requests, served by one thread at a time; bound to one event loop.

    If a batch fails, its requests are served one by one (`answer_each`).

    Args:
        serve: answers requests in one transaction, in their order; an exception as an answer is the request's error.
        most: the largest sum of sizes in a batch, which has at least one request.
        size: the size of a request.
        first: a batcher with priority over this one. Its requests wait for at most one batch of this one;
            this one's batches wait for at most `GIVE_WAY_S`.
        gather_s: the longest time after a batch for which the next one waits for as many requests as that one answered
            and left waiting. Its clients may send their next ones: else two halves of them would take turns.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[A]], Sequence[R | Exception]],
        most: int,
        size: Callable[[A], int] = lambda _: 1,
        first: Batcher[Any, Any] | None = None,
        gather_s: float = 0.0,
    ) -> None:
        self._serve = serve
        self._most = most
        self._size = size
        self._first = first
        self._gather_s = gather_s
        self._gathered: tuple[int, float] = 0, 0.0  # requests to wait for, and until when
        self._enough: asyncio.Event | None = None  # set once they have come
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._limiter: CapacityLimiter | None = None

    @property
    def waiting(self) -> int:
        """The number of requests in no batch yet."""
        return len(self._waiting)

    @property
    def serving(self) -> bool:
        """True while a batch is served."""
        return self._serving is not None

    async def ask(self, request: A) -> R:
        """Wait for the request's batch, and return its answer or raise its error."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._enough is not None and len(self._waiting) >= self._gathered[0]:
            self._enough.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._run())
        return await future

    def refuse(self, error: Exception) -> None:
        """Raise an error for all requests that are in no batch yet."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    async def rest(self, timeout_s: float) -> None:
        """Wait until all requests are answered, at most for the time limit."""
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=timeout_s)

    async def _run(self) -> None:
        # Its own thread, as the threads shared by requests may be blocked by slower work.
        self._limiter = self._limiter or CapacityLimiter(1)
        try:
            while taken := await self._next():
                requests = [request for request, _ in taken]
                answers: Sequence[R | Exception]
                try:
                    answers = await to_thread.run_sync(
                        answer_each, self._serve, requests, limiter=self._limiter
                    )
                except Exception as error:  # no thread can be started
                    answers = [error] * len(taken)
                for (_, future), answer in zip(taken, answers, strict=True):
                    if future.done():  # the request was cancelled
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
                until = asyncio.get_running_loop().time() + self._gather_s
                self._gathered = len(taken) + len(self._waiting), until
        finally:
            self._serving = None

    async def _gather(self) -> None:
        count, until = self._gathered
        left_s = until - asyncio.get_running_loop().time()
        if left_s <= 0 or not 0 < len(self._waiting) < count:
            return
        self._enough = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._enough.wait(), left_s)
        self._enough = None

    async def _next(self) -> list[tuple[A, asyncio.Future[R]]]:
        await self._gather()
        if self._waiting and self._first is not None:
            await self._first.rest(GIVE_WAY_S)
        return self._take()

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


def answer_each(serve: Callable[[Sequence[A]], Sequence[R | Exception]], requests: Sequence[A]) -> list[R | Exception]:
    """Serve requests together; if that fails one by one, so that only those at fault fail.

    Once the database has failed two in succession, it is away, and those behind them fail with the same error.

    Args:
        serve: as that of `Batcher`.
        requests: at least one.
    """
    try:
        return list(serve(requests))
    except Exception as error:
        if len(requests) == 1:
            return [error]
    found: list[R | Exception] = []
    failures = 0  # of the database, in succession
    for request in requests:
        (last,) = answer_each(serve, [request])
        found.append(last)
        failures = failures + 1 if isinstance(last, DatabaseError) else 0
        if failures == AWAY:
            return found + [last] * (len(requests) - len(found))
    return found
