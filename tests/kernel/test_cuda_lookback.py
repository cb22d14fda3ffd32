"""Sorts by look-back on a processor, against NumPy: at the edges of tiles, and where a barrier is missing."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from strategy.cuda.source import CudaSource
from strategy.space import Config
from strategy.workload import Workload
from tests.kernel.emulation.device import (
    Emulation,
    TrapError,
    aligned,
    compile_together,
    compile_vendor,
)
from tests.kernel.test_cuda_ops import generate
from workers.reference import numpy_dtype, reference

TILE = 1024  # the smallest of a sort
SORTS = [
    ("float32", (2, 2 * TILE), {}, 8),
    ("float16", (2, TILE + 1, 2), {"axis": 1, "is_ascend": False, "dtype": "int64"}, 8),
    ("int8", (3, 3 * TILE - 1), {"is_ascend": False}, 8),
    ("uint8", (1, 2 * TILE + 1), {}, 7),
    ("bfloat16", (1, TILE + 31), {"is_ascend": False}, 7),
    ("float64", (1, 2 * TILE), {"dtype": "int64"}, 8),
    ("uint64", (1, TILE + 1), {"is_ascend": False}, 7),
    ("int32", (1, 2 * TILE - 1), {}, 7),
    ("float32", (1, 2 * TILE + 1), {"is_ascend": False}, 7),
]
SORTED = [Workload.make("argsort", {"data": f"{d}[{','.join(map(str, s))}]"}, attrs) for d, s, attrs, _ in SORTS]


def sort_of(number: int) -> CudaSource:
    config = Config({"threads": 256, "items": 4, "digit": SORTS[number][3], "looks": 2})
    return generate(SORTED[number], "argsort_radix.cuda", config)[1]


@pytest.fixture(scope="module")
def scratch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for libraries, with those of the sorts that are to run here."""
    folder = tmp_path_factory.mktemp("lookback")
    chosen = [i.callspec.params["number"] for i in request.session.items
              if isinstance(i, pytest.Function) and i.originalname == "test_rows_are_sorted"]
    compile_together({source.code: source.programs for source in map(sort_of, chosen)}, folder)
    return folder


def rows(dtype: str, shape: tuple[int, ...]) -> Iterator[Any]:
    """Random elements, equal ones, sorted ones, and those whose order is not that of their bits."""
    kind, rng = np.dtype(numpy_dtype(dtype)), np.random.default_rng(0)
    yield np.zeros(shape)
    yield np.arange(np.prod(shape)).reshape(shape) % 120
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        yield rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
        yield rng.choice(np.array([limits.min, limits.max, 0, 1], kind), shape)
    else:
        yield rng.standard_normal(shape)
        yield rng.choice([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-7, -1e-7, 1.0], shape)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(len(SORTS)), ids=lambda n: f"{SORTS[n][0]}-{SORTS[n][1]}")
def test_rows_are_sorted(number: int, scratch: Path) -> None:
    (dtype, shape, attrs, _), source = SORTS[number], sort_of(number)
    emulation = Emulation(source.code, source.programs, scratch)
    data, found = aligned(shape, numpy_dtype(dtype)), aligned(shape, attrs.get("dtype", "int32"))
    for given in rows(dtype, shape):
        data[...] = given
        found[...] = -1
        emulation.run("main", {"data": data, "positions": found})
        np.testing.assert_array_equal(found, reference(SORTED[number], {"data": data})[0])


@pytest.mark.full
def test_libraries_of_one_process_are_apart(tmp_path: Path) -> None:
    # Kernels of the same names, and a library that is loaded for all and has the emulation's functions, too.
    vendor = tmp_path / "libvendor.so"
    compile_vendor(vendor)
    ctypes.CDLL(str(vendor), mode=ctypes.RTLD_GLOBAL)
    first, source = sort_of(8), sort_of(0)
    Emulation(first.code, first.programs, tmp_path / "first")
    assert is_right(f"{source.code}\n", tmp_path)  # a line more: compiled here, whichever test ran before


def is_right(code: str, scratch: Path) -> bool:
    """Return whether a sort that is compiled from this code is right, and nothing has been noticed."""
    data, found = aligned(SORTS[0][1], "float32"), aligned(SORTS[0][1], "int32")
    data[...] = np.random.default_rng(0).standard_normal(data.shape)
    found[...] = -1
    try:
        Emulation(code, sort_of(0).programs, scratch).run("main", {"data": data, "positions": found})
    except TrapError:
        return False
    return np.array_equal(found, reference(SORTED[0], {"data": data})[0])


def without(code: str, kernel: str, pattern: str) -> list[str]:
    """The code without each of what matches in a kernel, one at a time."""
    begin = code.index(kernel)
    return [code[: begin + m.start()] + code[begin + m.end() :] for m in re.finditer(pattern, code[begin:])]


def test_earlier_tiles_are_summed_where_none_has_all_before_it(scratch: Path) -> None:
    # Blocks run one after the other here, so that else each tile would find the sum of all in that before it.
    (code,) = without(sort_of(0).code, "move_tile", r"if \(tile \+ 1 < TILES\) store_word\(words, OF_ALL.*;")
    assert is_right(code, scratch)


BARRIER = r"__sync(threads|warp)\(\);"


@pytest.mark.full
def test_a_missing_barrier_is_noticed(scratch: Path) -> None:
    source = sort_of(0)
    broken = without(source.code, "take_ticket", BARRIER)
    assert len(broken) == 11
    compile_together(dict.fromkeys([source.code, *broken], source.programs), scratch)
    assert is_right(source.code, scratch)
    assert [number for number, code in enumerate(broken) if is_right(code, scratch)] == []
