"""Huge pages for large constants: a processor keeps the addresses of a few thousand pages, 8 MB of 4 KiB ones."""

from __future__ import annotations

import ctypes
import mmap

HUGE_PAGE = 2 << 20  # bytes, on x86-64 and on AArch64 with pages of 4 KiB
MOST_PAGE = 1 << 16  # of pages that are not huge, on any processor
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which Python has no name for


def advise(address: int, size_bytes: int) -> None:
    """Ask for huge pages before memory is first written; a system that has none leaves it as it is."""
    _madvise(address, size_bytes, getattr(mmap, "MADV_HUGEPAGE", None))


def collapse(address: int, size_bytes: int) -> None:
    """Have what is written already moved to huge pages, as far as the system can."""
    _madvise(address, size_bytes, _COLLAPSE)


def _madvise(address: int, size_bytes: int, advice: int | None) -> None:
    begin = -(-address // HUGE_PAGE) * HUGE_PAGE
    end = (address + size_bytes) // HUGE_PAGE * HUGE_PAGE
    if advice is not None and begin < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
