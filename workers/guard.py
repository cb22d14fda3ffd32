"""Guarded buffers: arrays that end or begin at an inaccessible page, with canaries around them.

An access that reaches the page kills the process with a fault address that `locate` explains, and so does a
write to a read-only buffer; one that stays in the alignment gap damages a canary, which `Buffer.verify`
reports. Canaries are NaN in every width of floating point, so that a kernel that reads them gives a wrong
answer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from strategy.compile.artefact import ALIGNMENT
from strategy.record import ErrorKind, WireError, convert
from strategy.table import show_number
from workers.reference import numpy_dtype

# Least bytes on each side. A larger array has as many as it has itself, beyond which no index leads that is a row, an
# image or a matrix too far. Whole huge pages, so that what lies between them may be of huge pages as other memory is.
_GUARD = 1 << 26
_HUGE = 1 << 21
_KEPT_BYTES = 1 << 27  # of regions that nothing uses
_NONE = 0  # PROT_NONE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value
# Differs from all of its shifts, so that copying one canary cannot repair another.
_NOISE = np.random.default_rng(0).integers(0xF1, 0x100, (1 << 16, 2), np.uint8)
_NOISE[:, 1] = 0xFF
_serial = count()


class OutOfBoundsError(Exception):
    """An access outside of a buffer; the message has the buffer and the distance."""


class Placement(StrEnum):
    """The side of a buffer that touches an inaccessible page."""

    END = "end"  # up to the alignment gap
    BEGIN = "begin"


class Span(msgspec.Struct, frozen=True):
    """Addresses: of an array, and of the inaccessible pages around it."""

    name: str
    begin: int
    end: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Buffer:
    """An array in guarded memory, which is freed with its last view."""

    name: str
    array: NDArray[Any]
    dtype: str
    span: Span
    region: Region
    _before: NDArray[np.uint8]
    _behind: NDArray[np.uint8]
    _canaries: tuple[NDArray[np.uint8], NDArray[np.uint8]]

    @property
    def pointer(self) -> int:
        """The address of the first element."""
        return self.span.begin

    @property
    def tensor(self) -> Any:
        """The same memory as a TVM tensor."""
        import tvm

        if self.dtype != "bfloat16":
            return tvm.runtime.from_dlpack(self.array)
        raw = tvm.runtime.from_dlpack(self.array.view(np.uint16))  # NumPy's DLPack lacks bfloat16
        return raw._create_view(self.array.shape, self.dtype)

    @property
    def is_tight(self) -> bool:
        """True if it fills its pages: inaccessible ones touch both of its sides, at either placement."""
        return not (self._before.size or self._behind.size)

    def verify(self) -> None:
        """Raise `OutOfBoundsError` if something was written right before or behind the array."""
        for found, right, where in zip(
            (self._before[::-1], self._behind),
            (self._canaries[0][::-1], self._canaries[1]),
            ("before the beginning", "past the end"),
            strict=True,
        ):
            if not np.array_equal(found, right):
                damaged = np.flatnonzero(found != right)
                raise OutOfBoundsError(
                    f"it writes outside of {self.name}: {show_number(len(damaged), 'byte')}, the last of them "
                    f"{show_number(int(damaged[-1]) + 1, 'byte')} {where} of {self.dtype}{list(self.array.shape)}"
                )


class Region:
    """Memory between inaccessible pages, in which buffers are placed one after another.

    Args:
        capacity: the bytes of the largest array.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = _whole_pages(capacity)
        self._guard = max(_GUARD, -(-self.capacity // _HUGE) * _HUGE)
        self._memory = _map(self.capacity, self._guard)
        self._start = self._memory.ctypes.data

    def protect(self) -> None:
        """Make its buffers read-only, for good."""
        _protect(self._start, self.capacity, mmap.PROT_READ)

    def place(
        self, name: str, shape: Sequence[int], dtype: str, placement: Placement = Placement.END
    ) -> Buffer:
        """A buffer with fresh canaries; earlier buffers of the region are no longer verified.

        Args:
            name: its name in messages.
            shape: of at most `capacity` bytes.
        """
        kind, size = numpy_dtype(dtype), size_bytes(shape, dtype)
        if size > self.capacity:
            raise ValueError(f"{name} has {size} bytes: the region has {self.capacity}")
        begin = 0 if placement is Placement.BEGIN else (self.capacity - size) // ALIGNMENT * ALIGNMENT
        end = begin + size
        before = self._memory[max(0, begin - mmap.PAGESIZE) : begin]
        behind = self._memory[end : min(self.capacity, end + mmap.PAGESIZE)]
        canaries = _canary(before), _canary(behind)
        span = Span(
            name, self._start + begin, self._start + end, self._start - self._guard,
            self._start + self.capacity + self._guard,
        )
        array: NDArray[Any] = np.ndarray(shape, kind, self._memory, begin)
        return Buffer(name, array, dtype, span, self, before, behind, canaries)


def _map(capacity: int, guard: int) -> NDArray[np.uint8]:
    """Fresh memory with inaccessible pages on both sides, which take addresses alone; freed with its last view."""
    size = ctypes.c_size_t(capacity + 2 * guard)
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    begin = _libc.mmap(None, size, _NONE, kind, -1, ctypes.c_long(0))
    if begin == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_uint8 * capacity).from_address(begin + guard)
    weakref.finalize(memory, _libc.munmap, ctypes.c_void_p(begin), size).atexit = False  # others may still use it
    _protect(begin + guard, capacity, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.ctypeslib.as_array(memory)


def _protect(address: int, size: int, access: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _canary(memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill memory with a unique pattern and return the pattern."""
    # A row is two bytes; one more row for an odd address.
    first = next(_serial) * 61 % (len(_NOISE) - mmap.PAGESIZE // 2)
    # High bytes of numbers lie at odd addresses.
    odd = memory.ctypes.data % 2
    canary = _NOISE[first:].reshape(-1)[odd : odd + len(memory)]
    memory[...] = canary
    return canary


def allocate(
    name: str, shape: Sequence[int], dtype: str, placement: Placement = Placement.END
) -> Buffer:
    """A buffer in a region of its own."""
    return Region(size_bytes(shape, dtype)).place(name, shape, dtype, placement)


class Pool:
    """Regions that are kept for later buffers, as making one and touching its pages is expensive."""

    def __init__(self) -> None:
        self._free: list[Region] = []  # the oldest first

    def take(self, name: str, shape: Sequence[int], dtype: str, placement: Placement) -> Buffer:
        """A buffer whose region has no more pages than it needs."""
        capacity = _whole_pages(size_bytes(shape, dtype))
        kept = next((region for region in self._free if region.capacity == capacity), None)
        if kept is not None:
            self._free.remove(kept)
        return (kept or Region(capacity)).place(name, shape, dtype, placement)

    def give_back(self, buffers: Iterable[Buffer]) -> None:
        """Keep the regions of buffers that are no longer used."""
        self._free += [b.region for b in buffers]
        while sum(region.capacity for region in self._free) > _KEPT_BYTES:
            del self._free[0]


def _whole_pages(size: int) -> int:
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


def size_bytes(shape: Sequence[int], dtype: str) -> int:
    """The bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * numpy_dtype(dtype).itemsize


def explain(note: Any, address: int) -> tuple[ErrorKind, str] | None:
    """`locate` among the spans of a process's note (JSON), None if it has none."""
    try:
        return locate(convert(note, list[Span]), address)
    except WireError:
        return None


def locate(spans: Iterable[Span], address: int) -> tuple[ErrorKind, str] | None:
    """Describe a forbidden access at an address; None if it is near none of the buffers."""
    for span in spans:
        if span.begin <= address < span.end:
            return ErrorKind.WRONG_ANSWER, f"it writes to its {span.name}"
        if span.end <= address < span.high:
            far = show_number(address - span.end + 1, "byte")
            return ErrorKind.OUT_OF_BOUNDS, f"it accesses memory {far} past the end of {span.name}"
        if span.low <= address < span.begin:
            far = show_number(span.begin - address, "byte")
            return ErrorKind.OUT_OF_BOUNDS, f"it accesses memory {far} before the beginning of {span.name}"
    return None
