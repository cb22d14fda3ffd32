"""Times of the steps of a network's library: the child that calls it, in turns with a trace and without."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import msgspec
import numpy as np

from strategy.record import convert
from workers.fork import Channel
from workers.network_runner import Array, draw
from workers.reference import numpy_dtype

LEAST_CALLS = 7
WARM_S = 0.1  # of calls that are not counted: pages are mapped, and threads started


class ProfileNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A request: a library to be called on random inputs for `limit_s`; no file of an array is read.

    Args:
        steps: the number of the manifest's steps.
        sizes: the symbolic sizes that the library takes.
    """

    library: str
    function: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    steps: int
    sizes: tuple[int, ...]
    limit_s: float


class Profile(msgspec.Struct, frozen=True):
    """Seconds of calls without a trace, and for each step those of the calls with one; neither if `code` is not 0."""

    code: int
    calls_s: list[float]
    steps_s: list[list[float]]


def serve(channel: Channel) -> None:
    """The child's loop; the answer is a `Profile`."""
    while True:
        request = convert(channel.receive(), ProfileNetwork)
        channel.mark(0)
        channel.send(run(request))


def run(request: ProfileNetwork) -> Profile:
    """Call the library in turns with a trace and without."""
    library = ctypes.CDLL(request.library)
    function, trace = library[request.function], library[f"{request.function}_trace"]
    inputs = (draw(np.random.default_rng(0), a.dtype, a.shape) for a in request.inputs)
    arrays = [*inputs, *(np.empty(a.shape, numpy_dtype(a.dtype)) for a in request.outputs)]
    arguments = [*map(ctypes.c_int64, request.sizes), *(ctypes.c_void_p(a.ctypes.data) for a in arrays)]
    steps_s: list[list[float]] = [[] for _ in range(request.steps)]
    begin = 0.0

    def note(step: int, output: int) -> None:
        nonlocal begin
        steps_s[step].append(time.perf_counter() - begin)
        begin = time.perf_counter()  # after what this function takes

    noting = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(note)

    def call() -> float:
        nonlocal begin
        begin = started = time.perf_counter()
        if code := function(*arguments):
            raise _FailedError(code)
        return time.perf_counter() - started

    try:
        _repeat(call, WARM_S)
        calls_s: list[float] = []

        def both() -> None:
            trace(None)
            call()  # the caches are as after a call without a trace
            calls_s.append(call())
            trace(noting)
            call()

        _repeat(both, request.limit_s)
    except _FailedError as error:
        return Profile(error.code, [], [])
    return Profile(0, calls_s, steps_s)


def _repeat(function: Callable[[], object], limit_s: float) -> None:
    calls, end = 0, time.perf_counter() + limit_s
    while calls < LEAST_CALLS or time.perf_counter() < end:
        function()
        calls += 1


class _FailedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
