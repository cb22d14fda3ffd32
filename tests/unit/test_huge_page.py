"""Huge pages: which memory asks for them, and that it keeps its contents."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from strategy.compile.huge_page import HUGE_PAGE, advise, collapse
from tests.maps import asks_for_huge_pages

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this system has no transparent huge pages"
)


def test_the_whole_huge_pages_of_memory_are_asked_for() -> None:
    memory = mmap.mmap(-1, 5 * HUGE_PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -(-start // HUGE_PAGE) * HUGE_PAGE  # the first whole one
    advise(first + 1, 3 * HUGE_PAGE)
    assert [asks_for_huge_pages(first + i * HUGE_PAGE) for i in range(4)] == [False, True, True, False]


def test_less_than_a_huge_page_stays_as_it_is() -> None:
    memory = mmap.mmap(-1, 3 * HUGE_PAGE)
    start = -(-ctypes.addressof(ctypes.c_char.from_buffer(memory)) // HUGE_PAGE) * HUGE_PAGE
    advise(start, HUGE_PAGE - 1)
    assert not asks_for_huge_pages(start)


def test_what_is_moved_keeps_its_contents() -> None:
    numbers = np.arange(3 * HUGE_PAGE // 4, dtype="int32")
    collapse(numbers.ctypes.data, numbers.nbytes)
    np.testing.assert_array_equal(numbers, np.arange(numbers.size))
