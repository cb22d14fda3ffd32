"""Requests to several children at once, each killed where it takes too long."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from strategy.host import usable_cores
from strategy.record import to_json
from workers.fork import Limits
from workers.sandbox import WORKER_IMPORTS, Child, Died, ForkServer, Late


def ask_all(
    requests: Sequence[tuple[Limits, Any]], timeout_s: float, imports: tuple[str, ...] = WORKER_IMPORTS
) -> list[Any]:
    """The answers to the requests, in their order, of children with these limits; `Died` or `Late` where one failed.

    Args:
        imports: as of `ForkServer`; children that build nothing need no TVM, which takes half a second.

    Raises:
        SandboxError: no children can be started.
    """
    if not requests:
        return []
    idle: dict[str, SimpleQueue[Child]] = defaultdict(SimpleQueue)
    with (
        tempfile.TemporaryDirectory(prefix="plevel-") as logs,
        ForkServer(Path(logs), imports) as server,
        ThreadPoolExecutor(min(usable_cores(), len(requests))) as threads,
    ):

        def ask_idle(request: tuple[Limits, Any]) -> Any:
            limits, message = request
            try:
                child = idle[limits.module].get_nowait()
            except Empty:
                child = server.spawn(limits)
            answer = _ask(child, message, timeout_s)
            if child.alive:
                idle[limits.module].put(child)
            return answer

        try:
            answers = list(threads.map(ask_idle, requests))
        except BaseException:  # Ctrl-C, above all: no child is waited for
            threads.shutdown(wait=False, cancel_futures=True)
            server.close()
            raise
        for children in idle.values():
            while not children.empty():
                children.get().kill()
    return answers


def _ask(child: Child, request: Any, timeout_s: float) -> Any:
    try:
        child.send(to_json(request))
        return child.receive(timeout_s)
    except (Died, Late) as error:
        return error
