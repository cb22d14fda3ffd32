"""Comparison of two libraries of one network by their times: the child that calls both in turns."""

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

ROUNDS = 15
LEAST_ROUNDS = 7
BURST_S = 0.02
LIMIT_S = 10.0  # of a comparison, once it has the least rounds


class TimeNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """A request: two libraries with one interface, which are called on random inputs; no file of an array is read."""

    libraries: tuple[str, str]
    function: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


def serve(channel: Channel) -> None:
    """The child's loop; the answer has the seconds of a call of each library, by rounds."""
    while True:
        request = convert(channel.receive(), TimeNetworks)
        channel.mark(0)
        channel.send(run(request))


def run(request: TimeNetworks) -> list[tuple[float, float]]:
    """Seconds of a call of both libraries, by rounds."""
    inputs = (draw(np.random.default_rng(0), a.dtype, a.shape) for a in request.inputs)
    arrays = [*inputs, *(np.empty(a.shape, numpy_dtype(a.dtype)) for a in request.outputs)]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in arrays]  # of arrays that live until the end

    def call(path: str) -> Callable[[], None]:
        function = ctypes.CDLL(path)[request.function]

        def once() -> None:
            if code := function(*pointers):
                raise RuntimeError(f"a library fails with {code}")

        return once

    first, second = map(call, request.libraries)
    return compare(first, second)


def compare(first: Callable[[], None], second: Callable[[], None]) -> list[tuple[float, float]]:
    """Seconds of a call of both functions, of bursts in turns whose order alternates."""
    _burst(first), _burst(second)
    found: list[tuple[float, float]] = []
    end = time.perf_counter() + LIMIT_S
    while len(found) < LEAST_ROUNDS or (len(found) < ROUNDS and time.perf_counter() < end):
        if len(found) % 2:
            late = _burst(second)
            found.append((_burst(first), late))
        else:
            found.append((_burst(first), _burst(second)))
    return found


def _burst(function: Callable[[], None]) -> float:
    calls, begin = 0, time.perf_counter()
    while True:
        function()
        calls += 1
        spent_s = time.perf_counter() - begin
        if spent_s >= BURST_S:  # whatever a busy host does to each
            return spent_s / calls
