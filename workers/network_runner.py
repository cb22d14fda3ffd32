"""Running of a network's library: the child that calls it on arrays, and keeps what its steps give."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from strategy.record import convert
from workers.array_file import read_array, write_array
from workers.fork import Channel
from workers.reference import numpy_dtype


class Array(msgspec.Struct, frozen=True):
    """An array in a file of `write_array`."""

    path: str
    dtype: str
    shape: tuple[int, ...]


class RunNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A request: the files of the inputs, and those to write: of the outputs, and of some of the steps.

    Args:
        sizes: the symbolic sizes that the library takes.
    """

    library: str
    function: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    steps: tuple[Array | None, ...]
    sizes: tuple[int, ...] = ()


def draw(random: np.random.Generator, dtype: str, shape: Sequence[int]) -> Any:
    """Normally distributed numbers; of integers 0 or 1, which index most tables."""
    found = random.standard_normal(shape) if "float" in dtype else random.integers(0, 2, shape)
    return found.astype(numpy_dtype(dtype))


def serve(channel: Channel) -> None:
    """The child's loop; the answer is the function's result."""
    while True:
        request = convert(channel.receive(), RunNetwork)
        channel.mark(0)
        channel.send(run(request))


def run(request: RunNetwork) -> int:
    """Call the library once, and write what it and its steps give."""
    library = ctypes.CDLL(request.library)

    def keep(number: int, output: int) -> None:
        step = request.steps[number]
        if step is not None:
            found = np.empty(step.shape, numpy_dtype(step.dtype))
            ctypes.memmove(found.ctypes.data, output, found.nbytes)
            write_array(step.path, found)

    trace = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(keep)
    library[f"{request.function}_trace"](trace)
    inputs = [read_array(a.path, a.dtype) for a in request.inputs]
    outputs = [np.empty(a.shape, numpy_dtype(a.dtype)) for a in request.outputs]
    arrays: list[Any] = [*inputs, *outputs]
    sizes = map(ctypes.c_int64, request.sizes)
    code = int(library[request.function](*sizes, *(ctypes.c_void_p(a.ctypes.data) for a in arrays)))
    for given, array in zip(request.outputs, outputs, strict=True):
        write_array(given.path, array)
    return code
