"""Supervision of one worker process for each device of a host."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait

from strategy.ending import ending_signals

_PR_SET_PDEATHSIG = 1
log = logging.getLogger(__name__)


def serve_each(devices: Sequence[str], serve: Callable[[str], int]) -> int:
    """Run `serve` for each device in a process of its own until all have ended.

    Signals that ask it to end are forwarded. If one fails, the others finish what they are timing and end too, so that
    a service manager can restart this process; they end if this process dies. Must be called while this process has
    one thread.

    Args:
        devices: at least one.
        serve: serves one device; returns the exit status of its process.

    Returns:
        the exit status of the first that failed, else 0.
    """
    kinds = ending_signals()
    context = multiprocessing.get_context("fork")
    parent = os.getpid()
    children = [
        context.Process(target=_begin, args=(parent, serve, device), name=device)
        for device in devices
    ]
    signal.pthread_sigmask(signal.SIG_BLOCK, kinds)  # until the children can receive them
    for child in children:
        child.start()

    is_asked = False

    def end(number: int, frame: object) -> None:
        nonlocal is_asked
        is_asked = True
        for child in children:
            child.terminate()

    for number in kinds:
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, kinds)
    status, running = 0, children
    while running:
        wait([child.sentinel for child in running])
        ended = [child for child in running if not child.is_alive()]
        running = [child for child in running if child not in ended]
        for child in ended:
            if is_asked and -(child.exitcode or 0) in kinds:  # before it could take a job
                continue
            if child.exitcode and not status:
                status = max(child.exitcode, 1)  # negative if killed by a signal
                log.error("the worker of %s failed (see above): stopping the others", child.name)
                for other in running:
                    other.terminate()
    return status


def _begin(parent: int, serve: Callable[[str], int], device: str) -> None:
    os.setsid()  # Ctrl-C goes to the parent, which forwards it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    kinds = ending_signals()
    for number in kinds:  # not as the command line has it, which would end this process with a traceback
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, kinds)
    if os.getppid() == parent:  # else the parent died before prctl
        sys.exit(serve(device))
