"""Exported libraries: called from C through the header, and by TVM; right for every shape."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from strategy.compile import compile as compile_graph
from strategy.compile.entry import LibraryRow, common_code, instructions_code
from strategy.compile.export import (
    export_library,
    link,
    pack_once,
    place,
    table_rows,
    vendor_libraries,
)
from strategy.compile.huge_page import HUGE_PAGE
from strategy.compile.lower import lower
from strategy.condition import SpecializedCondition, ceildiv, maximum, minimum
from strategy.expr import Constant, Var, call
from strategy.fault import CompileError
from strategy.network import library
from strategy.network.library import Manifest, symbol_of, write_library
from strategy.network.plan import Area, Buffer, Place, Plan, Port, Step, Weight
from strategy.op_strategy import candidates
from strategy.select import NO_RECORDS, SelectionError
from strategy.select.dispatch import dispatch
from strategy.target import Target, cpu_target
from strategy.types import Dim, TensorType
from strategy.workload import EpilogueStep, Input, Workload
from tests.limit import HANG_S
from tests.maps import asks_for_huge_pages
from workers.guard import allocate

TARGET = Target.parse("cpu").with_threads(2)
N, K = 37, 29


def dense(m: int | str) -> Workload:
    return Workload.make(
        "dense", {"data": f"float32[{m},{K}]", "weight": f"float32[{N},{K}]"}, constants=["weight"]
    )


def aligned(shape: tuple[int, ...]) -> Any:
    """An uninitialised float32 array at an address that is a multiple of 64."""
    count = int(np.prod(shape))
    raw = np.empty(count + 16, np.float32)
    start = (-raw.ctypes.data % 64) // 4
    return raw[start : start + count].reshape(shape)


def filled(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    array = aligned(shape)
    array[:] = rng.uniform(-1, 1, shape)
    return array


def prepared_shape(header: str) -> tuple[int, ...]:
    line = next(x for x in header.splitlines() if "prepared once from" in x)
    return tuple(int(v) for v in line.split("[")[1].split("]")[0].split(","))


def test_a_table_compiles_to_one_function_that_is_right_for_every_m(tmp_path: Path) -> None:
    offered = [c for c in candidates(dense("m"), TARGET) if c.library is None]
    table = dispatch(dense("m"), TARGET, NO_RECORDS, offered=offered)
    assert len({row.implementation for row in table.rows}) > 1
    header = export_library(dense("m"), table_rows(table), tmp_path / "libdense.so").read_text()
    library = ctypes.CDLL(str(tmp_path / "libdense.so"))
    rng = np.random.default_rng(0)
    weight = filled(rng, (N, K))
    packed = []
    for line in header.splitlines():
        if "prepared once from weight" in line:
            name, shape = line.split()[1].rstrip(":"), line.split("[")[1].split("]")[0]
            buffer = aligned(tuple(int(v) for v in shape.split(",")))
            prepare = library[f"plevel_dense_prepare_{name}"]
            assert (
                prepare(ctypes.c_void_p(weight.ctypes.data), ctypes.c_void_p(buffer.ctypes.data))
                == 0
            )
            packed.append(buffer)
    takes_weight = "*weight," in header.split("int plevel_dense(")[1]
    for m in [*range(1, 40), 63, 64, 65, 127, 200]:
        data, output = filled(rng, (m, K)), aligned((m, N))
        output[:] = np.nan
        declared = header.split("int plevel_dense(")[1].split(")")[0].split(",")
        by_name = {"data": data, "weight": weight, "output": output}
        pointers = []
        for parameter in declared[1:]:
            name = parameter.split("*")[1].strip()
            array = by_name.get(name)
            pointers.append(packed[_nth_packed(declared, name)] if array is None else array)
        code = library.plevel_dense(
            ctypes.c_int64(m), *(ctypes.c_void_p(p.ctypes.data) for p in pointers)
        )
        assert code == 0
        np.testing.assert_allclose(output, data @ weight.T, rtol=1e-4, atol=1e-4, err_msg=f"m={m}")
    assert takes_weight or packed


def test_a_table_of_one_row_is_not_lowered_to_compare_its_packings(monkeypatch: pytest.MonkeyPatch) -> None:
    data, weight = Input("data", "float32[m,16,8,8]"), Input("weight", "float32[32,16,1,1]", constant=True)
    table = dispatch(Workload("conv2d", (data, weight)), TARGET, NO_RECORDS, libraries=False)
    assert len(table.rows) == 1
    monkeypatch.delattr("strategy.compile.export.lower")
    assert pack_once(table) is table


@pytest.mark.full
def test_the_row_of_one_size_may_come_first(tmp_path: Path) -> None:
    names = ("dense_gemv.cpu", "dense_nopack.cpu")  # the first where m is 1, and packs nothing then
    workload = Workload.make("dense", {"data": f"float32[m,{K}]", "weight": f"float32[{N},{K}]"})
    offered = [c for c in candidates(workload, TARGET) if c.implementation in names]
    table = dispatch(workload, TARGET, NO_RECORDS, offered=offered)
    assert [row.implementation for row in table.rows] == list(names)
    export_library(workload, table_rows(table), tmp_path / "libdense.so")
    library = ctypes.CDLL(str(tmp_path / "libdense.so"))
    rng = np.random.default_rng(0)
    weight = filled(rng, (N, K))
    for m in (1, 7):
        data, output = filled(rng, (m, K)), aligned((m, N))
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (data, weight, output))
        assert library.plevel_dense(ctypes.c_int64(m), *pointers) == 0
        np.testing.assert_allclose(output, data @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", ["4", "n"])
def test_an_extent_that_types_assume_is_checked_at_the_call(tmp_path: Path, first: str) -> None:
    workload = Workload.make("add", {"lhs": f"float32[{first},3]", "rhs": "float32[h,3]"})
    table = dispatch(workload, TARGET, NO_RECORDS)
    sizes = {"h": 1} if first == "4" else {"n": 4, "h": 1}
    with pytest.raises(SelectionError, match=r"(h == 4|h == n) does not hold"):
        table.row(**sizes)
    header = export_library(workload, table_rows(table), tmp_path / "libadd.so").read_text()
    assert re.search("needs (h == 4|h == n), and fails otherwise", header)
    library = ctypes.CDLL(str(tmp_path / "libadd.so"))
    lhs = filled(np.random.default_rng(0), (4, 3))
    for h in (1, 4):
        # Behind the buffer is NaN.
        rhs, output = allocate("rhs", (h, 3), "float32").array, aligned((4, 3))
        rhs[:], output[:] = 1, 77
        extents = {**sizes, "h": h}
        dims = [ctypes.c_int64(extents[d]) for d in header.split("int64_t ")[1:] for d in [d.split(",")[0]]]
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (lhs, rhs, output))
        assert bool(library.plevel_add(*dims, *pointers)) == (h == 1)
        np.testing.assert_array_equal(output, lhs + 1 if h == 4 else 77)
        x, y = (Var(i.name, i.type) for i in workload.inputs)
        np.testing.assert_array_equal(compile_graph(call("add", x, y), TARGET)(lhs, rhs), lhs + 1)


def test_an_extent_of_an_epilogue_is_checked_at_the_call_too(tmp_path: Path) -> None:
    steps = [EpilogueStep("bias_add", (None, Input("bias", "float32[n]")), {"axis": 1})]
    workload = Workload.make("relu", {"data": "float32[4,3]"}, epilogue=steps)
    assert not workload.is_constant
    table = dispatch(workload, TARGET, NO_RECORDS)
    with pytest.raises(SelectionError, match="n == 3 does not hold"):
        table.row(n=1)
    assert all(table.row(**row.example) is row for row in table.rows)
    header = export_library(workload, table_rows(table), tmp_path / "librelu.so").read_text()
    assert "needs n == 3, and fails otherwise" in header
    library = ctypes.CDLL(str(tmp_path / "librelu.so"))
    data = filled(np.random.default_rng(0), (4, 3))
    for n in (1, 3):
        bias, output = allocate("bias", (n,), "float32").array, aligned((4, 3))
        bias[:], output[:] = 1, 77
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (data, bias, output)]
        assert bool(library.plevel_relu(ctypes.c_int64(n), *pointers)) == (n == 1)
        np.testing.assert_array_equal(output, np.maximum(data, 0) + 1 if n == 3 else 77)


def test_a_row_pinned_in_one_of_two_dimensions_leaves_the_other_rows_theirs(tmp_path: Path) -> None:
    workload, one = Workload.make("relu", {"data": "float32[m,n]"}), SpecializedCondition(Dim("m") == 1)
    rows = [
        LibraryRow(lower(workload.bind({"m": 1}), TARGET, "broadcast.cpu"), (one,), ()),
        LibraryRow(lower(workload, TARGET, "broadcast.cpu"), (), (one,)),
    ]
    header = export_library(workload, rows, tmp_path / "librelu.so").read_text()
    assert "float32[m,n]" in header and "float32[1,n]" not in header
    library = ctypes.CDLL(str(tmp_path / "librelu.so"))
    for m in (1, 5):
        data, output = filled(np.random.default_rng(0), (m, 6)), aligned((m, 6))
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (data, output)]
        assert library.plevel_relu(ctypes.c_int64(m), ctypes.c_int64(6), *pointers) == 0
        np.testing.assert_array_equal(output, np.maximum(data, 0))


def _nth_packed(declared: list[str], name: str) -> int:
    names = [p.split("*")[1].strip() for p in declared[1:]]
    return [x for x in names if x.startswith("weight_packed")].index(name)


def test_a_c_program_calls_it_without_tvm(tmp_path: Path) -> None:
    lowered = lower(dense(5), TARGET, "dense_pack.cpu")
    header = export_library(dense(5), [LibraryRow(lowered)], tmp_path / "libdense.so").read_text()
    count = int(np.prod(prepared_shape(header)))
    (tmp_path / "main.c").write_text(f"""
#include "libdense.h"
#include <stdio.h>
static _Alignas(64) float data[5 * {K}], weight[{N} * {K}], packed[{count}], output[5 * {N}];
int main(void) {{
  for (int i = 0; i < 5 * {K}; ++i) data[i] = (float)(i % 7) - 3;
  for (int i = 0; i < {N} * {K}; ++i) weight[i] = (float)(i % 5) - 2;
  if (plevel_dense_prepare_weight_packed(weight, packed)) return 1;
  if (plevel_dense(data, packed, output)) return 2;
  for (int i = 0; i < 5 * {N}; ++i) printf("%g ", output[i]);
  return 0;
}}
""")
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Werror", "main.c", "libdense.so", "-o", "main"],
        cwd=tmp_path, check=True,
    )
    done = subprocess.run(
        ["./main"],
        cwd=tmp_path,
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    data = (np.arange(5 * K) % 7 - 3).reshape(5, K)
    weight = (np.arange(N * K) % 5 - 2).reshape(N, K)
    np.testing.assert_array_equal(
        np.array(done.stdout.split(), float).reshape(5, N), data @ weight.T
    )


@pytest.mark.full
def test_a_second_call_finds_the_workspaces_of_the_first(tmp_path: Path) -> None:
    work = Workload.make(
        "conv2d", {"data": "float32[1,64,56,56]", "weight": "float32[64,64,3,3]"},
        attrs={"padding": [1, 1, 1, 1]},
    )
    export_library(work, [LibraryRow(lower(work, TARGET, "conv2d_nchw_winograd_4x4.cpu"))], tmp_path / "lib.so")
    # A fresh process, whose memory nothing else touches.
    script = f"""
import ctypes, numpy as np, resource
function = ctypes.CDLL({str(tmp_path / "lib.so")!r}).plevel_conv2d
arrays = [np.ones(64 * n + 16, 'f') for n in (56 * 56, 64 * 9, 56 * 56)]
given = [ctypes.c_void_p(a.ctypes.data + -a.ctypes.data % 64) for a in arrays]
faults = []
for _ in range(3):
    assert function(*given) == 0
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[2] - faults[1])
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) < 100  # of some thousand pages


@pytest.mark.sample(2)
@pytest.mark.parametrize("symbol", ["int", "Tensor", "_t0", "data"])
def test_a_dimension_may_be_called_what_c_calls_something_else(symbol: str, tmp_path: Path) -> None:
    workload = Workload.make("relu", {"data": f"float32[{symbol},8]"})
    table = dispatch(workload, TARGET, NO_RECORDS)
    export_library(workload, table_rows(table), tmp_path / "librelu.so")
    library = ctypes.CDLL(str(tmp_path / "librelu.so"))
    data, output = filled(np.random.default_rng(0), (3, 8)), aligned((3, 8))
    pointers = (ctypes.c_void_p(a.ctypes.data) for a in (data, output))
    assert library.plevel_relu(ctypes.c_int64(3), *pointers) == 0
    np.testing.assert_array_equal(output, np.maximum(data, 0))


def test_the_tensors_of_a_tuple_are_parameters_each(tmp_path: Path) -> None:
    shape = {"data.0": "float32[4,8]", "data.1": "float32[2,8]"}
    workload = Workload.make("concatenate", shape, {"axis": 0})
    row = LibraryRow(lower(workload, TARGET, "injective.cpu"))
    header = export_library(workload, [row], tmp_path / "libcat.so").read_text()
    assert "const float *data_0, const float *data_1, float *output" in header
    library = ctypes.CDLL(str(tmp_path / "libcat.so"))
    rng = np.random.default_rng(0)
    first, second, output = filled(rng, (4, 8)), filled(rng, (2, 8)), aligned((6, 8))
    pointers = (ctypes.c_void_p(a.ctypes.data) for a in (first, second, output))
    assert library.plevel_concatenate(*pointers) == 0
    np.testing.assert_array_equal(output, np.concatenate([first, second]))


def test_conditions_are_decided_in_c_as_in_python(tmp_path: Path) -> None:
    relu = Workload.make("relu", {"data": "float32[m,8]"})
    m = Dim("m")
    conditions = [
        (ceildiv(m, -3) >= -2) & (((m - 9) // 4 >= 0) | ((m - 9) % 4 == 3)),
        (ceildiv(m - 9, 4) > 0) & ((minimum(m, 7) * 2 == m + 3) | (maximum(m, 7) / 2 >= 4.5)),
    ]
    lowered = lower(relu, TARGET, "broadcast.cpu")
    for number, condition in enumerate(conditions):
        path = tmp_path / f"lib{number}.so"
        export_library(relu, [LibraryRow(lowered, must=(condition,))], path)
        function = ctypes.CDLL(str(path)).plevel_relu
        for size in range(1, 31):
            data, output = aligned((size, 8)), aligned((size, 8))
            pointers = (ctypes.c_void_p(a.ctypes.data) for a in (data, output))
            held = function(ctypes.c_int64(size), *pointers) == 0
            assert held == condition.evaluate({"m": size}), (str(condition), size)


@pytest.mark.full
def test_two_libraries_of_one_program_call_their_own_functions(tmp_path: Path) -> None:
    for op in ("sigmoid", "relu"):
        workload = Workload.make(op, {"data": "float32[8]"})
        lowered = lower(workload, TARGET, "broadcast.cpu")
        export_library(workload, [LibraryRow(lowered)], tmp_path / f"lib{op}.so")
    other = Workload.make("dense", {"data": "float32[5,3]", "weight": "float32[2,3]"}, constants=["weight"])
    for name, workload in (("first", dense(5)), ("First", other)):
        lowered = lower(workload, TARGET, "dense_pack.cpu")
        export_library(workload, [LibraryRow(lowered)], tmp_path / f"lib{name}.so", name)
    (tmp_path / "main.c").write_text("""
#include "libsigmoid.h"
#include "librelu.h"
#include "libfirst.h"
#include "libFirst.h"
#include <stdio.h>
static _Alignas(64) float data[15], weight[6], packed[1024], output[10], x[8], y[8];
int main(void) {
  for (int i = 0; i < 8; ++i) x[i] = i - 4;
  if (plevel_sigmoid(x, y)) return 1;
  printf("%g ", y[4]);
  if (plevel_relu(x, y)) return 2;
  printf("%g ", y[7]);
  for (int i = 0; i < 15; ++i) data[i] = i;
  for (int i = 0; i < 6; ++i) weight[i] = i;
  if (First_prepare_weight_packed(weight, packed)) return 3;
  if (First(data, packed, output)) return 4;
  printf("%g", output[9]);
  return 0;
}
""")
    libraries = [f"lib{name}.so" for name in ("first", "sigmoid", "relu", "First")]
    subprocess.run(["cc", "-std=c11", "-Wall", "main.c", *libraries, "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(
        ["./main"], cwd=tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == ["0.5", "3", str(12 * 3 + 13 * 4 + 14 * 5)]


def test_it_can_be_unloaded_again_and_again_and_called_by_a_child_of_fork(tmp_path: Path) -> None:
    size = 1 << 20  # which both threads share
    workload = Workload.make("relu", {"data": f"float32[{size}]"})
    export_library(workload, [LibraryRow(lower(workload, TARGET, "broadcast.cpu"))], tmp_path / "librelu.so")
    (tmp_path / "main.c").write_text(f"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static _Alignas(64) float x[{size}], y[{size}];
typedef int (*Relu)(const float *, float *);
int main(void) {{
  void *library;
  Relu relu;
  for (int i = 0; i < 20; ++i) {{
    if (!(library = dlopen("./librelu.so", RTLD_NOW))) return 1;
    *(void **)&relu = dlsym(library, "plevel_relu");
    x[{size} - 1] = i;
    if (relu(x, y) || y[{size} - 1] != i || (i < 19 && dlclose(library))) return 2;
  }}
  DIR *threads = opendir("/proc/self/task");
  int count = 0;
  for (struct dirent *entry; (entry = readdir(threads));) count += entry->d_name[0] != '.';
  pid_t child = fork();
  x[0] = 3;
  if (!child) {{
    alarm({HANG_S:.0f});
    _exit(relu(x, y) || y[0] != 3);
  }}
  int status = -1;
  waitpid(child, &status, 0);
  printf("%d %d %d", count, status, relu(x, y) || y[0] != 3);
  return 0;
}}
""")
    subprocess.run(["cc", "-std=c11", "main.c", "-o", "main", "-ldl"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2 0 0", "two threads, and both processes compute"


def test_a_processor_without_its_instructions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    monkeypatch.setenv("CC", "cc '-D__builtin_cpu_supports(name)=0'")
    workload, kind = Workload.make("relu", {"data": "float32[4]"}), TensorType((4,), "float32")
    export_library(workload, [LibraryRow(lower(workload, TARGET, "broadcast.cpu"))], tmp_path / "librelu.so")
    copy = Step(None, (Buffer(Area.PORT, 0, kind), Buffer(Area.PORT, 1, kind)), 1, (None,))
    plan = Plan((Port("x", kind, 0),), (Port("y", kind, 0),), (copy,), (), (Place((16,), 0),), None)
    (tmp_path / "weights").write_bytes(b"")
    about = Manifest("a copy", "network", "cpu", 1, (), (), 0, 0, ())
    write_library(plan, tmp_path / "network.so", about, TARGET, objects=[], weights=tmp_path / "weights")
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (filled(np.random.default_rng(0), (4,)), aligned((4,)))]
    lacking = bool(TARGET.vector_instructions)  # none are known of some processors
    assert bool(ctypes.CDLL(str(tmp_path / "librelu.so")).plevel_relu(*pointers)) == lacking
    assert ctypes.CDLL(str(tmp_path / "network.so")).network(*pointers) == (-3 if lacking else 0)
    tensors = [tvm.runtime.empty((4,), "float32") for _ in range(2)]
    said = pytest.raises(ValueError, match="this processor lacks avx2: compile for") if lacking else nullcontext()
    for name in ("librelu.so", "network.so"):
        with said:
            tvm.runtime.load_module(str(tmp_path / name))["main"](*tensors)


def test_a_library_for_more_cores_takes_those_that_its_process_may_use(tmp_path: Path) -> None:
    workload = Workload.make("relu", {"data": "float32[64,4096]"})
    lowered = lower(workload, TARGET.with_threads(64), "broadcast.cpu")
    export_library(workload, [LibraryRow(lowered)], tmp_path / "librelu.so")
    program = f"""
import ctypes, mmap, os
relu = ctypes.CDLL({str(tmp_path / "librelu.so")!r}).plevel_relu
rooms = [mmap.mmap(-1, 4 * 64 * 4096) for _ in range(2)]
cores = sorted(os.sched_getaffinity(0))
for some in (cores[:1], cores[:4]):
    os.sched_setaffinity(0, some)
    assert not relu(*(ctypes.byref(ctypes.c_char.from_buffer(room)) for room in rooms))
    print(len(some), len(os.listdir("/proc/self/task")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 2
    assert all(cores == threads for cores, threads in lines)


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("gcc") is None, reason="of GCC for x86-64")
@pytest.mark.parametrize(
    ("lacking", "version", "dtype", "known"),
    [
        ("avx512bf16", 11, "float32", True), ("avx512bf16", 9, "float32", False), ("avx512fp16", 12, "float16", True),
        ("avx512fp16", 11, "float16", False), ("avx512fp16", 12, "float32", False), ("avx512vnni", 9, "float32", True),
        ("avx512fp16", 12, "bfloat16", True), ("avx512vbmi", 9, "float32", True), ("avx512ifma", 9, "float32", True),
    ],
)
def test_a_compiler_is_asked_for_instructions_that_it_knows_and_the_dtypes_need(
    lacking: str, version: int, dtype: str, known: bool, tmp_path: Path
) -> None:
    (tmp_path / "main.c").write_text(f"""
#include <stdint.h>
#include <string.h>
#define PLEVEL_THREADS 1
#define PLEVEL_ALIGNMENT 64
#define PLEVEL_LIBRARY_THREADS
{instructions_code(Target.parse("llvm -mcpu=sapphirerapids"), {dtype})}
{common_code()}
int main(void) {{ return puts(_plevel_lacks() ? _plevel_lacks() : "") < 0; }}
""")
    lacks = f'-D__builtin_cpu_supports(name)=strcmp(name, "{lacking}")'
    asked = ["-U__GNUC__", f"-D__GNUC__={version}", lacks]
    command = ["gcc", "-w", *asked, "main.c", "-o", "main", "-lpthread"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (f"this processor lacks {lacking}: compile for this one" if known else "")


def test_no_extent_is_0_and_a_wrong_call_says_what_is_wrong(tmp_path: Path) -> None:
    import tvm

    workload = Workload.make("cumsum", {"data": "float32[n]"}, {"axis": 0})
    export_library(workload, table_rows(dispatch(workload, TARGET, NO_RECORDS)), tmp_path / "lib.so")
    data, output = aligned((4,)), aligned((4,))
    output[:] = 77
    function = ctypes.CDLL(str(tmp_path / "lib.so")).plevel_cumsum
    for extent in (0, -1):
        assert function(ctypes.c_int64(extent), *(ctypes.c_void_p(a.ctypes.data) for a in (data, output)))
    np.testing.assert_array_equal(output, 77)
    main = tvm.runtime.load_module(str(tmp_path / "lib.so"))["main"]
    given, number = tvm.runtime.empty((4,), "float32"), tvm.runtime.empty((), "float32")
    for arguments, expected in (
        ([given], "cumsum: expected 2 tensors: see the header"),
        ([number, given], "cumsum: data is no tensor of its type"),
        ([7, given], "cumsum: data is no tensor of its type"),
        ([tvm.runtime.empty((0,), "float32"), given], "cumsum: n is not positive"),
    ):
        with pytest.raises(ValueError, match=expected):
            main(*arguments)


@pytest.mark.parametrize("place", [0, 1])
def test_a_buffer_that_is_not_aligned_is_refused(place: int, tmp_path: Path) -> None:
    """Vectors are read and written at multiples of the alignment: elsewhere they end the process."""
    import tvm
    from tvm_ffi import from_dlpack

    export_library(dense(5), [LibraryRow(lower(dense(5), TARGET, "dense_pack.cpu"))], tmp_path / "libdense.so")
    library, module = ctypes.CDLL(str(tmp_path / "libdense.so")), tvm.runtime.load_module(str(tmp_path / "libdense.so"))
    packed = prepared_shape((tmp_path / "libdense.h").read_text())
    for function, main, shapes in (
        (library.plevel_dense, module["main"], ((5, K), packed, (5, N))),
        (library.plevel_dense_prepare_weight_packed, module["prepare_weight_packed"], ((N, K), packed)),
    ):
        arrays = []
        for number, shape in enumerate(shapes):
            size = int(np.prod(shape))
            arrays.append(aligned((size + 1,))[number == place :][:size].reshape(shape))
        assert function(*(ctypes.c_void_p(a.ctypes.data) for a in arrays)) == -1
        with pytest.raises(ValueError, match="a buffer is not aligned as the header says: allocate it by"):
            main(*(from_dlpack(a, require_alignment=1) for a in arrays))


def test_a_buffer_without_elements_may_be_anywhere(tmp_path: Path) -> None:
    workload = Workload.make("relu", {"data": "float32[0,4]"})
    export_library(workload, [LibraryRow(lower(workload, TARGET, "broadcast.cpu"))], tmp_path / "librelu.so")
    assert ctypes.CDLL(str(tmp_path / "librelu.so")).plevel_relu(ctypes.c_void_p(4), ctypes.c_void_p(8)) == 0


def test_tvm_loads_it_as_a_module(tmp_path: Path) -> None:
    import tvm

    lowered = lower(dense("m"), TARGET, "dense_pack.cpu")
    header = export_library(dense("m"), [LibraryRow(lowered)], tmp_path / "libdense.so").read_text()
    module = tvm.runtime.load_module(str(tmp_path / "libdense.so"))
    rng = np.random.default_rng(1)
    weight = tvm.runtime.tensor(rng.uniform(-1, 1, (N, K)).astype("float32"))
    packed = tvm.runtime.empty(prepared_shape(header), "float32")
    module["prepare_weight_packed"](weight, packed)
    for m in (1, 8, 33):
        data = tvm.runtime.tensor(rng.uniform(-1, 1, (m, K)).astype("float32"))
        output = tvm.runtime.empty((m, N), "float32")
        module["main"](data, packed, output)
        np.testing.assert_allclose(
            output.numpy(), data.numpy() @ weight.numpy().T, rtol=1e-4, atol=1e-4
        )


def test_a_size_without_a_row_is_an_error_that_says_so(tmp_path: Path) -> None:
    import tvm

    workload = Workload.make("dense", {"data": f"float32[m,{K}]", "weight": f"float32[{N},{K}]"})
    rows = [r for r in table_rows(dispatch(workload, TARGET, NO_RECORDS)) if r.must]
    assert rows
    export_library(workload, rows, tmp_path / "libdense.so")
    arrays = [aligned((7, K)), aligned((N, K)), aligned((7, N))]
    module = tvm.runtime.load_module(str(tmp_path / "libdense.so"))
    with pytest.raises(ValueError, match="dense: no row of this library is for these sizes"):
        module["main"](*map(tvm.runtime.tensor, arrays))
    pointers = (ctypes.c_void_p(a.ctypes.data) for a in arrays)
    assert ctypes.CDLL(str(tmp_path / "libdense.so")).plevel_dense(ctypes.c_int64(7), *pointers) != 0


@pytest.mark.skipif(
    not any(c.library for c in candidates(dense(5), Target.parse("cpu"))),
    reason="no OpenBLAS on this host",
)
def test_a_vendor_library_is_linked_in(tmp_path: Path) -> None:
    lowered = lower(dense(5), Target.parse("cpu"), "dense_cblas.cpu")
    export_library(dense(5), [LibraryRow(lowered)], tmp_path / "libdense.so")
    # A fresh process, in which nothing has loaded the library.
    script = f"""
import ctypes, numpy as np
library = ctypes.CDLL({str(tmp_path / "libdense.so")!r})
def ones(*shape):
    raw = np.ones(shape[0] * shape[1] + 16, 'f')
    begin = -raw.ctypes.data % 64 // 4
    return raw[begin : begin + shape[0] * shape[1]].reshape(shape)
x, w, y = ones(5, {K}), ones({N}, {K}), ones(5, {N})
assert library.plevel_dense(*(ctypes.c_void_p(a.ctypes.data) for a in (x, w, y))) == 0
assert (y == {K}).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(
    not any(c.library for c in candidates(dense(5), Target.parse("cpu"))),
    reason="no OpenBLAS on this host",
)
def test_a_folder_with_bundled_libraries_runs_where_the_venv_is_not(tmp_path: Path) -> None:
    rows = [LibraryRow(lower(dense(5), Target.parse("cpu"), "dense_cblas.cpu"))]
    (vendor,) = vendor_libraries(rows)
    made, moved = tmp_path / "made", tmp_path / "moved"
    made.mkdir()
    export_library(dense(5), rows, made / "libdense.so", bundle=True)
    assert {p.name for p in made.iterdir()} == {"libdense.so", "libdense.h", vendor.name}
    export_library(dense(5), rows, made / "libdense.so", bundle=True)  # over the first
    made.rename(moved)
    (tmp_path / "main.c").write_text(f"""
#include "libdense.h"
#include <stdio.h>
static _Alignas(64) float data[5 * {K}], weight[{N} * {K}], output[5 * {N}];
int main(void) {{
  for (int i = 0; i < 5 * {K}; ++i) data[i] = 1;
  for (int i = 0; i < {N} * {K}; ++i) weight[i] = 2;
  if (plevel_dense(data, weight, output)) return 1;
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[4096];
  while (fgets(line, sizeof line, maps)) fputs(line, stdout);
  printf("answer %g %g\\n", output[0], output[5 * {N} - 1]);
  return 0;
}}
""")
    link = ["cc", "-std=c11", "-I", str(moved), "main.c", str(moved / "libdense.so"), "-o", "main"]
    subprocess.run([*link, f"-Wl,-rpath-link,{moved}"], cwd=tmp_path, check=True)
    # Whatever still looked into the virtual environment would be mapped from there.
    done = subprocess.run(["./main"], cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"answer {2 * K} {2 * K}"
    assert str(moved / vendor.name) in done.stdout
    assert str(vendor) not in done.stdout
    assert str(vendor.parent).encode() not in (moved / "libdense.so").read_bytes()
    # Without the copy there is none: it does not look anywhere else.
    (moved / vendor.name).unlink()
    alone = subprocess.run(["./main"], cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert alone.returncode and vendor.name in alone.stderr


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = lower(dense(5), TARGET, "dense_pack.cpu")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompileError, match="install gcc or clang"):
        export_library(dense(5), [LibraryRow(lowered)], tmp_path / "libdense.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compiler", ["no-such-compiler -O1", "/"])
def test_a_compiler_that_cannot_be_run_is_named(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(CompileError, match=rf"{compiler} cannot be run \(set CC for another compiler\)"):
        export_library(dense(5), [LibraryRow(lower(dense(5), TARGET, "dense_pack.cpu"))], tmp_path / "libdense.so")


@pytest.mark.parametrize("command", ['"', " "])
def test_a_compiler_that_is_no_command_is_named(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises(CompileError, match="^CC = .* is no command: correct its quotes, or unset it$"):
        link([], tmp_path)


def test_the_compiler_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "env cc -g0")
    export_library(dense(5), [LibraryRow(lower(dense(5), TARGET, "dense_pack.cpu"))], tmp_path / "libdense.so")
    assert (tmp_path / "libdense.so").exists()


def test_the_old_file_survives_a_failed_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libdense.so").write_text("old")
    monkeypatch.setenv("CC", "false")
    lowered = lower(dense(5), TARGET, "dense_pack.cpu")
    with pytest.raises(CompileError, match="failed"):
        export_library(dense(5), [LibraryRow(lowered)], tmp_path / "libdense.so")
    (tmp_path / "libdense.h").mkdir()  # the header cannot be written
    monkeypatch.delenv("CC")
    with pytest.raises(OSError, match=r"libdense\.h"):
        export_library(dense(5), [LibraryRow(lowered)], tmp_path / "libdense.so")
    assert (tmp_path / "libdense.so").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_two_that_write_one_library_at_once_both_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, copy = threading.Barrier(2), shutil.copyfile

    def copy_both(source: Path, target: Path) -> None:
        copy(source, target)
        both.wait(HANG_S)

    made = tmp_path / "made.so"
    made.write_text("library")
    monkeypatch.setattr(shutil, "copyfile", copy_both)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(place, [made] * 2, [tmp_path / "kept.so"] * 2))
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == dict.fromkeys(("made.so", "kept.so"), "library")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("says", "said"), [("", "a kernel failed"), ('(const char *[]){"why"}', "why")])
def test_a_network_says_that_a_kernel_failed_which_has_not_said_so_itself(
    says: str, said: str, tmp_path: Path
) -> None:
    workload, kind = Workload.make("relu", {"data": "float32[4]"}), TensorType((4,), "float32")
    call = f'TVMFFIErrorSetRaisedFromCStrParts("ValueError", {says}, 1);' if says else ""
    (tmp_path / "kernel.c").write_text(
        "void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int count);\n"
        f"int __tvm_ffi_{symbol_of(workload)}(void) {{ {call} return -1; }}\n"
    )
    subprocess.run(["cc", "-c", "-fPIC", "kernel.c"], cwd=tmp_path, check=True)
    (tmp_path / "weights").write_bytes(b"")
    step = Step(workload, (Buffer(Area.PORT, 0, kind), Buffer(Area.PORT, 1, kind)), 1, (None,))
    plan = Plan((Port("x", kind, 0),), (Port("y", kind, 0),), (step,), (), (Place((16,), 0),), None)
    out = tmp_path / "network.so"
    about = Manifest("a kernel", "network", "cpu", 1, (), (), 0, 0, ())
    write_library(plan, out, about, cpu_target(), objects=[tmp_path / "kernel.o"], weights=tmp_path / "weights")
    # An error that is not set ends the process.
    script = f"""
import sys
sys.modules["torch"] = None  # which TVM would load
import tvm
tensors = [tvm.runtime.empty((4,), "float32") for _ in range(2)]
try:
    tvm.runtime.load_module({str(out)!r})["main"](*tensors)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines()[0] == said


@pytest.mark.full
def test_a_network_may_have_more_weights_than_code_can_address(tmp_path: Path) -> None:
    at, kind = 2_400_000_000, TensorType((4,), "float32")
    with (tmp_path / "weights").open("wb") as file:  # the rest is a hole
        file.seek(at)
        file.write(np.arange(4, dtype="float32").tobytes())
    copy = Step(None, (Buffer(Area.WEIGHTS, at, kind), Buffer(Area.PORT, 0, kind)), 1, (None,))
    weight = Weight(Constant(np.arange(4, dtype="float32")), at, 16)
    plan = Plan((), (Port("y", kind, 0),), (copy,), (weight,), (Place((16,), 0),), None)
    out = tmp_path / "large.so"
    about = Manifest("weights", "large", "cpu", 1, (), (), 0, 0, ())
    write_library(plan, out, about, cpu_target(), objects=[], weights=tmp_path / "weights")
    y = np.empty(4, "float32")
    assert ctypes.CDLL(str(out)).large(ctypes.c_void_p(y.ctypes.data)) == 0
    assert y.tolist() == [0, 1, 2, 3]


def test_an_empty_weight_behind_all_others_takes_no_place_in_their_file(tmp_path: Path) -> None:
    kind, number = TensorType((4,), "float32"), np.arange(4, dtype="float32")
    (tmp_path / "weights").write_bytes(number.tobytes())
    copy = Step(None, (Buffer(Area.WEIGHTS, 0, kind), Buffer(Area.PORT, 0, kind)), 1, (None,))
    weights = Weight(Constant(number), 0, 16), Weight(Constant(np.zeros((0, 4), "float32")), 64, 0)
    plan = Plan((), (Port("y", kind, 0),), (copy,), weights, (Place((16,), 0),), None)
    out = tmp_path / "empty.so"
    about = Manifest("weights", "small", "cpu", 1, (), (), 0, 0, ())
    write_library(plan, out, about, cpu_target(), objects=[], weights=tmp_path / "weights")
    y = np.empty(4, "float32")
    assert ctypes.CDLL(str(out)).small(ctypes.c_void_p(y.ctypes.data)) == 0
    assert y.tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this system has no transparent huge pages"
)
@pytest.mark.parametrize("appended", [False, True])
def test_large_weights_begin_at_a_huge_page_and_ask_for_such(
    appended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_STRETCH_BYTES", HUGE_PAGE)  # two, one behind the other
    numbers = np.arange(2 * HUGE_PAGE // 4, dtype="int32")
    (tmp_path / "weights").write_bytes(numbers.tobytes())
    kind = TensorType((numbers.size,), "int32")
    copy = Step(None, (Buffer(Area.WEIGHTS, 0, kind), Buffer(Area.PORT, 0, kind)), 1, (None,))
    weight = Weight(Constant(numbers), 0, numbers.nbytes)
    plan = Plan((), (Port("y", kind, 0),), (copy,), (weight,), (Place((numbers.nbytes,), 0),), None)
    out = tmp_path / "large.so"
    about = Manifest("weights", "large", "cpu", 1, (), (), 0, 0, ())
    given = {"objects": [], "weights": tmp_path / "weights"}
    write_library(plan, out, about, cpu_target(), **given, appended=appended)
    y = np.empty_like(numbers)
    found = ctypes.CDLL(str(out))
    assert not appended or found.large_map(os.fsencode(out)) == 0
    assert found.large(ctypes.c_void_p(y.ctypes.data)) == 0
    np.testing.assert_array_equal(y, numbers)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(out) in line]
    begins = [int(line[0].split("-")[0], 16) for line in mapped]
    assert any(at % HUGE_PAGE == 0 and asks_for_huge_pages(at) for at in begins)


@pytest.mark.parametrize("size", [12, 2 * HUGE_PAGE])
def test_weights_that_follow_their_library_are_mapped_if_all_of_them_are_there(size: int, tmp_path: Path) -> None:
    numbers = np.arange(size // 4, dtype="int32")
    (tmp_path / "weights").write_bytes(numbers.tobytes())
    kind = TensorType((numbers.size,), "int32")
    copy = Step(None, (Buffer(Area.WEIGHTS, 0, kind), Buffer(Area.PORT, 0, kind)), 1, (None,))
    plan = Plan((), (Port("y", kind, 0),), (copy,), (Weight(Constant(numbers), 0, size),), (Place((size,), 0),), None)
    out, about = tmp_path / "apart.so", Manifest("weights", "apart", "cpu", 1, (), (), 0, 0, ())
    write_library(plan, out, about, cpu_target(), objects=[], weights=tmp_path / "weights", appended=True)
    found, y = ctypes.CDLL(str(out)), np.empty_like(numbers)
    for damaged in (out.read_bytes()[:-4], b"", out.read_bytes() + bytes(8)):
        (tmp_path / "damaged").write_bytes(damaged)
        assert found.apart_map(os.fsencode(tmp_path / "damaged")) == -1
    assert found.apart_map(os.fsencode(tmp_path / "none")) == -1
    assert found.apart_map(os.fsencode(out)) == 0
    out.unlink()  # of which the mapping stays
    assert found.apart(ctypes.c_void_p(y.ctypes.data)) == 0
    np.testing.assert_array_equal(y, numbers)
