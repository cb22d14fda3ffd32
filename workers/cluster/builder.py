"""The process of `plevel builder`: a Dask worker in a child, and another whenever its scheduler is back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from distributed import Nanny, Status
from distributed.security import Security

from strategy.ending import ending_signals
from workers.cluster.client import reach

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_CLOSE_S = 10.0
_LOOK_S, _RESTART_S = 5.0, 60.0  # between two looks at the Dask worker; for its restart
log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """The builder did not start; the message has the reason."""


async def serve(scheduler: str, security: Security, threads: int, name: str | None = None) -> None:
    """Build for a scheduler until a signal ends it.

    A Dask worker ends with the connection to its scheduler. Another is started then, ever less often while the
    scheduler is away.

    Args:
        threads: builds at once.
        name: the worker's, in Dask.

    Raises:
        StartError: the first worker did not start, as where there is no such scheduler.
    """
    ends = asyncio.Event()
    for kind in ending_signals():
        asyncio.get_running_loop().add_signal_handler(kind, ends.set)
    ending = asyncio.create_task(ends.wait())
    pause_s, has_worked = _FIRST_PAUSE_S, False
    while not ends.is_set():
        nanny, problem = None, "the connection has ended"
        try:
            if not await _is_done(reach(scheduler, security), ending):
                break
            nanny = Nanny(
                scheduler, nthreads=threads, name=name, security=security, dashboard=False,
                preload=["workers.cluster.site"], preload_argv=[],
            )
            if await _is_done(nanny.start(), ending):
                pause_s, has_worked = _FIRST_PAUSE_S, True
                log.info("building for %s", scheduler)
                await _is_done(_await_end(nanny), ending)
        except Exception as error:  # Dask's have no class in common
            problem = _reason(error)
            if not has_worked:
                raise StartError(problem) from error
        finally:
            if nanny is not None:
                with contextlib.suppress(Exception):  # of a worker that has yet to start, and ends with this process
                    await nanny.close(timeout=_CLOSE_S)
        if not ends.is_set():
            log.warning("%s: %s: trying again in %g s", scheduler, problem, pause_s)
            await asyncio.wait([ending], timeout=pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _await_end(nanny: Nanny) -> None:
    """Wait for the end of a nanny; raise RuntimeError if it goes on without a worker that it failed to start again."""
    missing_s = 0.0
    while missing_s < _RESTART_S:
        try:
            await asyncio.wait_for(nanny.finished(), _LOOK_S)
        except TimeoutError:
            works = nanny.process is not None and nanny.process.status == Status.running
            missing_s = 0.0 if works else missing_s + _LOOK_S
        else:
            return
    raise RuntimeError("its Dask worker did not start again")


async def _is_done(work: Coroutine[Any, Any, Any], ending: asyncio.Task[Any]) -> bool:
    """Wait for some work, whose errors are raised; return False if it was cancelled, as the process is to end."""
    task = asyncio.create_task(work)
    await asyncio.wait([task, ending], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait([task])
    return False


def _reason(error: BaseException) -> str:
    """The first cause of an error that has words, in one line."""
    found = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        found = " ".join(str(cause).split()) or found
        cause = cause.__cause__
    return found
