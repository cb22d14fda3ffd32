"""Guarded buffers, in memory that is really protected: what is outside kills, or is noticed."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tvm

from strategy.compile.artefact import ALIGNMENT
from strategy.record import ErrorKind
from strategy.types import DTYPES
from workers import guard
from workers.data import Data
from workers.guard import OutOfBoundsError, Placement, Region, allocate, locate
from workers.reference import numpy_dtype

SHAPES = [(), (1,), (5,), (3, 7), (16,), (2, 1024), (0, 4), (1031,)]


def died(action: Callable[[], object]) -> int:
    """The signal that a fork dies of, 0 where it lives."""
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()  # pytest's: it would write of a crash that is expected
        action()
        os._exit(0)
    return os.waitpid(pid, 0)[1] & 0x7F


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_buffer_is_an_aligned_array_of_any_dtype(
    dtype: str, shape: tuple[int, ...], placement: Placement
) -> None:
    buffer = allocate("data", shape, dtype, placement)
    assert buffer.pointer == buffer.array.ctypes.data
    assert buffer.pointer % ALIGNMENT == 0
    given = np.random.default_rng(1).integers(0, 2, shape).astype(numpy_dtype(dtype))
    buffer.array[...] = given
    tensor = buffer.tensor
    assert (str(tensor.dtype), tuple(tensor.shape)) == (dtype, shape)
    assert np.array_equal(tensor.numpy(), given)
    tensor.copyfrom(1 - given if dtype != "bool" else ~given)
    assert not np.any(buffer.array == given)
    buffer.verify()


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_page_behind_the_end_is_inaccessible(shape: tuple[int, ...]) -> None:
    buffer = allocate("data", shape, "float32")
    gap = -buffer.array.nbytes % ALIGNMENT
    end = buffer.span.end + gap
    assert end % mmap.PAGESIZE == 0
    for address in (end, end + 100_000):
        assert died(lambda a=address: ctypes.string_at(a, 1)) == signal.SIGSEGV
        assert died(lambda a=address: ctypes.memset(a, 0, 1)) == signal.SIGSEGV
    assert died(lambda: ctypes.string_at(buffer.pointer, end - buffer.pointer)) == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_page_before_the_beginning_is_inaccessible(shape: tuple[int, ...]) -> None:
    buffer = allocate("data", shape, "float32", Placement.BEGIN)
    for address in (buffer.pointer - 1, buffer.pointer - 100_000):
        assert died(lambda a=address: ctypes.string_at(a, 1)) == signal.SIGSEGV
        assert died(lambda a=address: ctypes.memset(a, 0, 1)) == signal.SIGSEGV


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("rows", [4, 400])
def test_an_array_away_nothing_is_accessible(rows: int, placement: Placement) -> None:
    buffer = allocate("data", (rows, 1 << 18), "float32", placement)  # rows of 1 MiB
    bytes_ = buffer.array.nbytes
    outside = ErrorKind.OUT_OF_BOUNDS
    for address, where in (
        (buffer.span.end + bytes_ - 1, "past the end"), (buffer.span.begin - bytes_, "before the beginning"),
    ):
        assert locate([buffer.span], address) == (outside, f"it accesses memory {bytes_} bytes {where} of data")
        assert died(lambda a=address: ctypes.string_at(a, 1)) == signal.SIGSEGV
        assert died(lambda a=address: ctypes.memset(a, 0, 1)) == signal.SIGSEGV


def test_guards_count_as_no_memory() -> None:
    """A child's limit is of what it can write."""

    def use() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE  # what it can write
        resource.setrlimit(resource.RLIMIT_DATA, (used + (48 << 20),) * 2)
        for _ in range(3):
            allocate("data", (32 << 20,), "uint8").array[...] = 1  # one after the other: each is freed
        os._exit(7)

    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            use()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize(
    ("offset", "size", "words"),
    [
        (20, 1, "1 byte, the last of them 1 byte past the end"),
        (20, 44, "44 bytes, the last of them 44 bytes past the end"),
        (60, 4, "4 bytes, the last of them 44 bytes past the end"),
    ],
)
def test_a_write_into_the_alignment_gap_is_noticed(
    placement: Placement, offset: int, size: int, words: str
) -> None:
    buffer = allocate("data", (5,), "float32", placement)
    ctypes.memset(buffer.pointer + offset, 0, size)
    with pytest.raises(OutOfBoundsError, match=rf"outside of data: {words} of float32\[5\]"):
        buffer.verify()


def test_a_write_before_the_beginning_is_noticed() -> None:
    buffer = allocate("data", (5,), "float32")
    ctypes.memset(buffer.pointer - 8, 0, 4)
    with pytest.raises(
        OutOfBoundsError, match="4 bytes, the last of them 8 bytes before the beginning"
    ):
        buffer.verify()


def test_a_canary_copied_from_another_buffer_is_noticed() -> None:
    source, target = (allocate(name, (5,), "float32") for name in "ab")
    source.verify()
    ctypes.memmove(target.pointer, source.pointer, ALIGNMENT)
    with pytest.raises(OutOfBoundsError, match="outside of b"):
        target.verify()


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_lies_around_an_array_is_no_number(dtype: str, placement: Placement) -> None:
    kind = numpy_dtype(dtype)
    buffer = allocate("data", (3,), dtype, placement)
    gap = (ALIGNMENT - buffer.array.nbytes) // kind.itemsize
    around = np.frombuffer(ctypes.string_at(buffer.span.end, gap * kind.itemsize), kind)
    assert np.isnan(around.astype(np.float64)).all()


def test_a_region_serves_one_buffer_after_another() -> None:
    region = Region(10_000)
    assert region.capacity == 3 * mmap.PAGESIZE
    for shape in ((2500,), (1,), (3072,), (0,)):
        for placement in Placement:
            buffer = region.place("data", shape, "float32", placement)
            buffer.array[...] = 0
            buffer.verify()
    with pytest.raises(ValueError, match="data has 12292 bytes: the region has 12288"):
        region.place("data", (3073,), "float32")


def test_memory_is_kept_for_as_long_as_a_view_of_it() -> None:
    tensor = allocate("data", (1000,), "float32").tensor
    tensor.copyfrom(np.arange(1000, dtype=np.float32))
    assert float(tensor.numpy()[999]) == 999


def test_a_read_only_buffer_can_be_read_only() -> None:
    buffer = allocate("data", (5,), "float32")
    buffer.region.protect()
    assert died(lambda: ctypes.string_at(buffer.pointer, 20)) == 0
    assert died(lambda: ctypes.memset(buffer.pointer, 0, 1)) == signal.SIGSEGV


def test_an_address_is_explained() -> None:
    buffers = [allocate(name, (5,), "float32", p) for name, p in zip("ab", Placement, strict=True)]
    spans = [b.span for b in buffers]
    a, b = spans
    outside = ErrorKind.OUT_OF_BOUNDS
    assert locate(spans, a.end + 44) == (outside, "it accesses memory 45 bytes past the end of a")
    assert locate(spans, b.begin - 1) == (outside, "it accesses memory 1 byte before the beginning of b")
    assert locate(spans, a.begin) == (ErrorKind.WRONG_ANSWER, "it writes to its a")
    assert locate(spans, 1) is None
    assert isinstance(buffers[0].tensor, tvm.runtime.Tensor)


def test_canaries_fill_pages_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """AArch64 may have pages of 64 KiB."""
    monkeypatch.setattr(guard.mmap, "PAGESIZE", 1 << 16)
    for begin in (0, 1):
        memory = np.zeros((1 << 16) + begin, np.uint8)[begin:]
        for _ in range(3):
            np.testing.assert_array_equal(guard._canary(memory), memory)
            assert memory.all()


def test_what_a_workload_s_data_takes_includes_a_tolerance_for_each_element() -> None:
    zeros = np.zeros(4, "float32")
    assert Data({"x": zeros}, {"x": zeros}, (zeros,), (np.ones(4),)).nbytes == 3 * 16 + 32
