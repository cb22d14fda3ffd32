"""Guarded workspaces: the buffers that a kernel allocates while it runs, each between inaccessible pages.

A library calls the runtime's allocator through pointers of its own, which are set here for as long as a
run is checked. Arrays of less than 1 KiB lie on the stack, where nothing guards them.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from workers.guard import Buffer, Placement, Span, allocate

_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


@contextmanager
def guarded_workspaces(
    path: Path, placement: Placement, note: Callable[[Sequence[Span]], None]
) -> Iterator[None]:
    """Guard the workspaces of a loaded library while the context lasts.

    They begin as NaN, so that what is read before it is written makes a wrong answer. One that was freed is
    given out again as it was left, as the runtime's own pool does: kernels allocate some thousands a run, and
    making one costs a hundred times as much.

    Args:
        path: of the library.
        note: called with all that were made, whenever one more is.

    Raises:
        OutOfBoundsError: at the end, where something was written right before or behind one.
    """
    library = ctypes.CDLL(str(path))
    made: dict[int, Buffer] = {}  # by address
    free: defaultdict[int, list[int]] = defaultdict(list)  # addresses by size

    # TVM's threads call these, thousands of times a run; a callback of ctypes cannot raise.
    def allocate_one(kind: int, index: int, size: int, code: int, bits: int) -> int:
        try:
            return free[size].pop()
        except IndexError:
            pass
        buffer = allocate("a workspace", (size,), "uint8", placement)
        buffer.array[...] = 0xFF
        made[buffer.pointer] = buffer
        note([b.span for b in list(made.values())])
        return buffer.pointer

    def free_one(kind: int, index: int, pointer: int) -> int:
        free[made[pointer].array.nbytes].append(pointer)
        return 0

    ours = {"Alloc": _ALLOCATE(allocate_one), "Free": _FREE(free_one)}
    with ExitStack() as changed:
        for name, function in ours.items():
            with suppress(ValueError):  # of a library that allocates nothing
                pointer = ctypes.c_void_p.in_dll(library, f"__TVMBackend{name}Workspace")
                changed.callback(setattr, pointer, "value", pointer.value)
                pointer.value = ctypes.cast(function, ctypes.c_void_p).value
        yield
    for buffer in made.values():
        buffer.verify()
