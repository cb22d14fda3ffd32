"""Guarded workspaces: the buffers that a kernel allocates while it runs, each between inaccessible pages.

A library calls the runtime's allocator through pointers of its own, which are set here for as long as a
run is checked. Arrays of less than 1 KiB lie on the stack, where nothing guards them.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from strategy.compile.export import link
from workers.guard import Buffer, Placement, Span, allocate

_SOURCE = Path(__file__).with_suffix(".c")
_MAKE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64)


def build_allocator(folder: Path) -> Path:
    """The allocator that guarded workspaces need, as a shared library, made in the folder.

    Raises:
        CompileError: there is no C compiler, or it failed.
    """
    shutil.copy(_SOURCE, folder)
    return link([_SOURCE.name], folder)


@contextmanager
def guarded_workspaces(
    path: Path, allocator: Path, placement: Placement, note: Callable[[Sequence[Span]], None]
) -> Iterator[list[Buffer]]:
    """Guard the workspaces of a loaded library while the context lasts; it gives those made so far.

    They begin as NaN, so that what is read before it is written makes a wrong answer. One that was freed is
    given out again as it was left, as the runtime's own pool does: kernels allocate some thousands a run, and
    making one costs a hundred times as much.

    Args:
        path: of the library.
        allocator: of `build_allocator`. A process has one such context at a time.
        note: called with all that were made, whenever one more is.

    Raises:
        OutOfBoundsError: at the end, where something was written right before or behind one.
        MemoryError: at the end, where there was no memory for one; the run has failed then.
    """
    library, ours = ctypes.CDLL(str(path)), ctypes.CDLL(str(allocator))
    made: list[Buffer] = []
    refused: list[MemoryError] = []

    # A callback of ctypes cannot raise. TVM's threads may each be in one.
    def make(size: int) -> int | None:
        try:
            buffer = allocate("a workspace", (size,), "uint8", placement)
        except Exception as error:
            refused.append(MemoryError(f"no memory for a workspace of {size} bytes: {error}"))
            return None
        buffer.array[...] = 0xFF
        made.append(buffer)
        note([b.span for b in list(made)])
        return buffer.pointer

    maker = _MAKE(make)
    with ExitStack() as changed:
        ours.plevel_begin(maker)
        changed.callback(ours.plevel_end)
        for hook, function in (("Alloc", ours.plevel_allocate), ("Free", ours.plevel_free)):
            with suppress(ValueError):  # of a library that allocates nothing
                pointer = ctypes.c_void_p.in_dll(library, f"__TVMBackend{hook}Workspace")
                changed.callback(setattr, pointer, "value", pointer.value)
                pointer.value = ctypes.cast(function, ctypes.c_void_p).value
        try:
            yield made
        finally:
            if refused:
                raise refused[0]
    for buffer in made:
        buffer.verify()
