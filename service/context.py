"""State shared by all routes: the store, the settings, and the wake-ups of long polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, NamedTuple

from anyio import CapacityLimiter
from fastapi import Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from service.client_slots import ClientSlots
from service.errors import TooLargeError, TooSlowError
from service.metric import Metrics
from service.predict.trainer import Trainer
from service.queue.overdue import Overdue
from service.queue.retry import Terms
from service.queue.worker_batches import WorkerBatches
from service.records.reading import Readers
from service.records.small_import import SmallImports
from service.settings import Settings
from service.store.db import Store
from service.store.wakeup import Wakeup
from service.tuning.tuner import Tuner

# Selections at a time; others wait, for less time than it takes to open one more connection. They compute for most of
# their time, in an interpreter that runs one thread at a time.
SELECTIONS = 4
LARGE_SELECTIONS = 2  # of many workloads or unknown shapes, one of each client: they compute for seconds
LISTS = 4  # at a time, two of each client: they compute, and hold a connection to the database
DECODED = 2  # large bodies at a time
IMPORTS = 8  # large ones at a time, each of which has a thread and a process while its client sends it, however slowly
OF_CLIENT = IMPORTS // 2
CROWD = 50
LOOKS = 2000  # per second, by all that wait for a change together
_DAY_S = 86_400.0


class Seen(NamedTuple):
    """The state of a run that is followed: a mark that differs after a change, and what is told of it."""

    mark: object
    data: bytes
    ended: bool


@dataclass
class Context:
    """The state of one application, made by `create_app` and opened on its start."""

    settings: Settings
    changed: Wakeup = field(default_factory=Wakeup)  # runs, or results of their jobs
    queued: Wakeup = field(default_factory=Wakeup)  # jobs to lease
    ending: Wakeup = field(default_factory=Wakeup)  # the end of all long polls
    opened: Store | None = None
    tuner: Tuner | None = None
    trainer: Trainer | None = None
    metrics: Metrics = field(default_factory=Metrics)
    readers: Readers = field(default_factory=Readers)
    stopping: bool = False
    waiting: int = 0  # requests that wait for a change
    # Equal requests for a list that wait for their turn, and the answer to one of them (`service.turn.ListRoute`).
    asked: dict[Hashable, tuple[list[Request], asyncio.Task[tuple[Request, Response]]]] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        assert self.opened is not None, "the application has not started"
        return self.opened

    @cached_property
    def small_imports(self) -> SmallImports:
        return SmallImports(self.store, self.readers)

    @cached_property
    def selections(self) -> CapacityLimiter:
        return CapacityLimiter(SELECTIONS)

    @cached_property
    def imports(self) -> ClientSlots:
        return ClientSlots(IMPORTS, OF_CLIENT)

    @cached_property
    def large_selections(self) -> ClientSlots:
        return ClientSlots(LARGE_SELECTIONS, 1)

    @cached_property
    def lists(self) -> ClientSlots:
        return ClientSlots(LISTS, LISTS // 2)

    @cached_property
    def decoding(self) -> CapacityLimiter:
        return CapacityLimiter(DECODED)

    @cached_property
    def worker_batches(self) -> WorkerBatches:
        return WorkerBatches(self.store, self.terms)

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.settings.lease_s, self.settings.alive_s, Overdue(self.settings.grace_s))

    def stop(self) -> None:
        """End all long polls, so that the server can shut down."""
        self.stopping = True
        for bell in (self.changed, self.queued, self.ending):
            bell.notify()

    async def follow(
        self, look: Callable[[], Seen], kind: bytes, pause_s: float, request: Request
    ) -> AsyncIterator[bytes]:
        """Server-sent events of a run: of this kind at each change, `end` with the last.

        Args:
            look: runs in a thread with a short transaction of its own; neither is held in between.
            kind: the name of the events.
            pause_s: the least time between two of them.
            request: the client's, which may have left once it has closed its side: writing to it shows that.
        """
        last: object = None
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        async for _ in self.moments(self.changed, _DAY_S):
            seen = await run_in_threadpool(look)
            if seen.mark != last or seen.ended:
                yield b"event: %s\ndata: %s\n\n" % (b"end" if seen.ended else kind, seen.data)
                last, told_at = seen.mark, loop.time()
            # Fewer looks if many wait.
            elif has_ended(request) or loop.time() - told_at >= 10 * self.settings.poll_s:
                yield b": still there\n\n"  # a comment that keeps proxies from closing the connection
                told_at = loop.time()
            if seen.ended:
                return
            await asyncio.sleep(pause_s)

    async def moments(self, bell: Wakeup, wait_s: float) -> AsyncIterator[None]:
        """Yield now, at each change and at intervals, until `wait_s` is over or the service stops.

        The interval grows with the waiting requests beyond `CROWD`, and the time between two changes by `LOOKS`, as
        each result may be a change for all: so the rate of all together is bounded.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        self.waiting += 1
        try:
            while not self.stopping:
                seen, at = bell.count, loop.time()
                yield
                left = deadline - loop.time()
                if left <= 0 or self.stopping:
                    return
                pause_s = self.settings.poll_s * max(1.0, self.waiting / CROWD)
                await bell.changed(seen, min(left, pause_s))
                rest_s = min(at + self.waiting / LOOKS, deadline) - loop.time()
                if rest_s > 0:
                    await self.ending.changed(0, rest_s)
                if self.stopping:  # so many looks would take longer than the server has to stop
                    return
        finally:
            self.waiting -= 1


def has_ended(request: Request) -> bool:
    """Return whether the client has closed its side of the connection, after which it can still be answered."""
    ended: Callable[[], bool] | None = getattr(request.state, "has_ended", None)  # None: a server that cannot tell
    return ended is not None and ended()


# `async`, as other dependencies take a thread for each request.
async def context_of(request: Request) -> Context:
    """The dependency of every route."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(context_of)]


async def read_body(request: Request) -> bytes:
    """The request's body, within the settings' limits of size and time."""
    settings: Settings = request.app.state.context.settings
    try:
        async with asyncio.timeout(settings.body_s):
            return await _read(request, settings.max_request_bytes)
    except TimeoutError as error:
        raise TooSlowError(f"the body took more than {settings.body_s:g} s: send it faster, or in parts") from error


async def _read(request: Request, limit: int) -> bytes:
    data = bytearray()
    too_large = TooLargeError(f"the body is larger than {limit} bytes: send it in parts")
    if (named_length(request) or 0) > limit:
        raise too_large
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise too_large
    return bytes(data)


def named_length(request: Request) -> int | None:
    """The length of the body, if the client has named one; None where it takes more digits than Python reads."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 100 else None
