"""Requests to several children at once, each killed where it takes too long."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any, Self

from strategy.folder import scratch
from strategy.host import usable_cores
from strategy.record import to_json
from workers.fork import Limits
from workers.sandbox import WORKER_IMPORTS, Child, Died, ForkServer, Interrupt, Interrupted, Late

Ask = Callable[[Sequence[tuple[Limits, Any]], float], list[Any]]


class Over(Late):
    """The time of all requests was over, which is no fault of this one."""

    def __init__(self) -> None:
        super().__init__("no time was left for it")


class _Deadline:
    """The end of the time of all requests, which may move while one is waited for."""

    def __init__(self, left: Callable[[], float]) -> None:
        self._left = left

    def is_set(self) -> bool:
        return self._left() <= 0


class Pool:
    """Children of one fork server, for all requests until the pool is closed, or one fails. Thread-safe.

    Args:
        imports: as of `ForkServer`; children that build nothing need no TVM, which takes half a second.
        left: the seconds that all requests may take still; what is not answered then fails as `Over`.
    """

    def __init__(
        self, imports: tuple[str, ...] = WORKER_IMPORTS, left: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._imports = imports
        self._deadline = _Deadline(left)
        self._lock = threading.Lock()
        self._held = ExitStack()
        self._server: ForkServer | None = None
        self._idle: defaultdict[str, SimpleQueue[Child]] = defaultdict(SimpleQueue)

    def start(self) -> ForkServer:
        """The fork server, started by the first who asks; raise `SandboxError` if it cannot be."""
        with self._lock:
            if self._server is None:
                logs = self._held.enter_context(scratch("pool"))
                self._server = self._held.enter_context(ForkServer(logs, self._imports))
            return self._server

    def ask_all(self, requests: Sequence[tuple[Limits, Any]], timeout_s: float) -> list[Any]:
        """The answers to the requests, in their order; `Died` or `Late` where a child failed.

        An error ends all children; the next requests get new ones.

        Raises:
            SandboxError: no children can be started.
        """
        if not requests:
            return []
        server, idle = self.start(), self._idle
        with ThreadPoolExecutor(min(usable_cores(), len(requests))) as threads:

            def ask_idle(request: tuple[Limits, Any]) -> Any:
                limits, message = request
                while True:
                    if self._deadline.is_set():
                        return Over()
                    try:
                        child, fresh = idle[limits.module].get_nowait(), False
                    except Empty:
                        child, fresh = server.spawn(limits), True
                    answer = _ask(child, message, timeout_s, self._deadline)
                    if child.alive:
                        idle[limits.module].put(child)
                    # One that died before it began this request did so of an earlier one, or was killed while idle.
                    if fresh or not isinstance(answer, Died) or child.stage >= 0:
                        return answer

            try:
                return list(threads.map(ask_idle, requests))
            except BaseException:  # Ctrl-C, above all: no child is waited for
                threads.shutdown(wait=False, cancel_futures=True)
                with self._lock:
                    if self._server is server:
                        self._server, self._idle = None, defaultdict(SimpleQueue)
                server.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for children in self._idle.values():
            while not children.empty():
                children.get().kill()
        self._held.close()


def ask_all(
    requests: Sequence[tuple[Limits, Any]], timeout_s: float, imports: tuple[str, ...] = WORKER_IMPORTS
) -> list[Any]:
    """The answers of a pool that ends with them; raise as `Pool.ask_all`."""
    with Pool(imports) as pool:
        return pool.ask_all(requests, timeout_s)


def _ask(child: Child, request: Any, timeout_s: float, deadline: Interrupt) -> Any:
    try:
        child.send(to_json(request))
        return child.receive(timeout_s, deadline)
    except Interrupted:
        return Over()
    except (Died, Late) as error:
        return error
