"""CUDA graphs, which replay launches, by the driver's C interface, as pycuda lacks them.

A launch from Python takes the host about five microseconds, which would hide the time of shorter kernels. The
kernels of a graph follow each other on the device without the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from ctypes import CDLL, byref, c_char_p, c_int, c_ulonglong, c_void_p
from functools import cache
from typing import Any

from workers.cuda.library import CudaError

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: libraries may allocate during capture


def capture(stream: int, queue: Callable[[], None]) -> Callable[[], None]:
    """Capture the launches of `queue` on a stream as a CUDA graph; calling the result replays it.

    The graph is freed with the result.

    Raises:
        CudaError: the driver or a called library does not support capture.
    """
    graph, replayed, on = c_void_p(), c_void_p(), c_void_p(stream)
    _call("cuStreamBeginCapture_v2", on, c_int(_RELAXED))
    try:
        queue()
    finally:
        _call("cuStreamEndCapture", on, byref(graph))
    try:
        _call("cuGraphInstantiateWithFlags", byref(replayed), graph, c_ulonglong(0))
    finally:
        _call("cuGraphDestroy", graph)

    def replay() -> None:
        _call("cuGraphLaunch", replayed, on)

    end = weakref.finalize(replay, _driver().cuGraphExecDestroy, replayed)
    end.atexit = False  # the context may be destroyed by then
    return replay


@cache
def _driver() -> CDLL:
    try:
        return CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"no NVIDIA driver on this host ({error}): install one") from error


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        said = c_char_p()
        _driver().cuGetErrorString(c_int(status), byref(said))
        raise CudaError(f"{name} failed: {(said.value or b'unknown error').decode()}")
