"""The device's own side with the real pycuda, on a stand-in for NVIDIA's driver (emulation/driver.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("tvm")

from strategy.cuda.program import CudaArtefact, Launch, Pointer, Program, Scalar
from strategy.cuda.template import C_TYPES
from strategy.record import ErrorKind, Result
from strategy.workload import Workload
from tests.kernel.emulation.cubin import install_nvcc, make_cubin
from tests.kernel.emulation.device import (
    compile_driver,
    compile_kernels,
    compile_vendor,
    find_cxx,
    headers,
    missing_for_driver,
)
from tests.kernel.test_cuda_runner import artefact_of, begin, session_of
from tests.limit import HANG_S
from workers.cuda.driver import _FORMATS
from workers.cuda.runner import runner_on
from workers.sandbox import ForkServer

pytestmark = pytest.mark.skipif(bool(missing_for_driver()), reason=missing_for_driver())
ROOT = Path(__file__).parents[2]
EXP = Workload.make("exp", {"data": "float32[40,20]"})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a host with a driver, cuBLAS and nvcc."""
    folder = tmp_path_factory.mktemp("driver")
    compile_driver(folder / "lib")
    compile_vendor(folder / "packages/nvidia/cublas/lib/libcublas.so.12")
    tools = install_nvcc(folder / "bin", headers()).parent
    return os.environ | {
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(folder / "packages"), str(ROOT)]),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


@pytest.fixture
def emulated(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that are started find the stand-in."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return


def compiled(artefact: CudaArtefact, folder: Path) -> CudaArtefact:
    """With a stand-in cubin of its kernels."""
    kernels = {a.kernel: len(a.arguments) for p in artefact.programs.values() for a in p.launches}
    compile_kernels(artefact.source, list(kernels), folder / "kernel.so", headers())
    cubin = make_cubin(kernels, (folder / "kernel.so").read_bytes())
    return msgspec.structs.replace(artefact, cubin=cubin)


def run(
    workload: Workload, artefacts: list[CudaArtefact], folder: Path
) -> tuple[dict[int, Result], dict[str, Any]]:
    """The reports of a worker's runner in a child of its own, and the environment."""
    session = session_of(workload, artefacts, folder)
    found: dict[int, Result] = {}
    cores = sorted(os.sched_getaffinity(0))[:1]
    with ForkServer(folder, ("numpy",)) as server:
        runner = runner_on(server, cores, "cuda:0")
        try:
            conditions = runner.run(
                session.job, session.built, threading.Event(), lambda r: found.update({r.entry: r})
            )
        finally:
            runner.close()
    return found, conditions.environment


@pytest.mark.usefixtures("emulated")
def test_a_kernel_that_fails_takes_its_child_along_and_no_other_entry(tmp_path: Path) -> None:
    good = artefact_of(EXP, "broadcast.cuda")
    made = [good, begin(good, "__trap();"), begin(good, "return;"), begin(good, ";")]
    results, environment = run(EXP, [compiled(one, tmp_path) for one in made], tmp_path)
    assert [results[i].error for i in range(4)] == [
        None, ErrorKind.CRASH, ErrorKind.WRONG_ANSWER, None,
    ], [r.message for r in results.values()]
    assert "unspecified launch failure" in results[1].message
    assert results[0].samples_s and results[3].samples_s
    assert environment["cuda"] == {
        "driver_api": "13.0", "driver": "580.65.06", "sm_mhz": 1410, "memory_mhz": 1215,
        "temperature_c": 41, "power_w": 61.5, "throttle_reasons": 4,
    }


@pytest.mark.usefixtures("emulated")
def test_a_device_without_room_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_MEMORY", "4000")
    artefact = compiled(artefact_of(EXP, "broadcast.cuda"), tmp_path)
    results, _ = run(EXP, [artefact], tmp_path)
    assert results[0].error is ErrorKind.OOM


@pytest.mark.usefixtures("emulated")
def test_code_that_the_driver_does_not_take_is_refused_in_words(tmp_path: Path) -> None:
    good = compiled(artefact_of(EXP, "broadcast.cuda"), tmp_path)
    made = [
        msgspec.structs.replace(good, arch="sm_90"),
        msgspec.structs.replace(good, cubin=good.cubin.partition(b"\0emulated")[0] + bytes(64)),
    ]
    results, _ = run(EXP, made, tmp_path)
    assert "build it for -arch=sm_80" in results[0].message
    assert "the driver refuses a cubin" in results[1].message


_GATHER = r"""
extern "C" __global__ void main_kernel(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char kept[];
  float* numbers = (float*)kept;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  numbers[WORDS - blockDim.x + threadIdx.x] = data[i];
  if (CONDITION) output[i] = expf(numbers[WORDS - blockDim.x + threadIdx.x]);
}
"""


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shared", [48 * 1024, 100_000])
def test_arguments_of_all_types_and_much_shared_memory_arrive(
    shared: int, tmp_path: Path
) -> None:
    scalars = tuple(Scalar(dtype, number) for number, dtype in enumerate(_FORMATS, 1))
    declared = [f"{C_TYPES[s.dtype]} n{s.value}" for s in scalars]
    checked = [f"n{s.value} == ({C_TYPES[s.dtype]}){s.value}" for s in scalars]
    # Pointers among them: where each lies depends on those before.
    declared = ["bool n0", "const float* data", *declared, "float* output"]
    source = f"#define PARAMETERS {', '.join(declared)}\n#define WORDS {shared // 4}\n"
    source += f"#define CONDITION {' && '.join(checked)}{_GATHER}"
    arguments = (Scalar("bool", 1), Pointer("data"), *scalars, Pointer("output"))
    launch = Launch("main_kernel", arguments, (8, 1, 1), (100, 1, 1), shared)
    artefact = msgspec.structs.replace(
        artefact_of(EXP, "broadcast.cuda"), source=source,
        programs={"main": Program(("data", "output"), (launch,))},
    )
    results, _ = run(EXP, [compiled(artefact, tmp_path)], tmp_path)
    assert results[0].error is None, results[0].message


@pytest.mark.usefixtures("emulated")
def test_bfloat16_is_carried_there_and_back(tmp_path: Path) -> None:
    workload = Workload.make("exp", {"data": "bfloat16[40,20]"})
    artefact = compiled(artefact_of(workload, "broadcast.cuda"), tmp_path)
    results, _ = run(workload, [artefact], tmp_path)
    assert results[0].error is None, results[0].message


@pytest.mark.usefixtures("emulated")
def test_a_bundle_is_run_and_a_configuration_measured_by_command(tmp_path: Path) -> None:
    def plevel(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "plevel", *arguments], cwd=tmp_path, check=False, timeout=HANG_S,
            capture_output=True, text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    dense = ["dense", "-i", "data=float32[9,8]", "-i", "weight=float32[8,8]"]
    measured = plevel("measure", *dense, "-I", "dense_cublas.cuda", "--device", "cuda:0", "--json")
    assert json.loads(measured)["samples_s"]
    plevel("bundle", "key", "key")
    database = ["--database", "sqlite:///records.db"]
    where = ["-t", "cuda -arch=sm_80 -libs=cublas", *database]
    plevel("db", "upgrade", *database)
    plevel("bundle", "make", *dense, *where, "-n", "3", "-k", "key", "-o", "round")
    plevel("bundle", "run", "round", "-k", "key", "-o", "out")
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    records = [line for line in lines if line["kind"] == "record"]
    assert len(records) == 3
    assert not [r["message"] for r in records if r.get("error")]
    assert {r["environment"]["cuda"]["driver"] for r in records} == {"580.65.06"}


def test_the_benchmark_runs_to_its_end_and_leaves_out_what_loses_the_context(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script, trap = str(ROOT / "benchmarks/gpu.py"), tmp_path / "trap"
    trap.touch()
    options = ["--small", "--only", "topk", "--trials", "2", "--no-peer", "--out", "gpu.json"]
    done = subprocess.run(
        [sys.executable, script, *options], env=environment | {"EMULATED_TRAP": str(trap)}, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "gpu.json").read_text())
    (case,) = written["cases"]
    assert (case["tried"], case["correct"], case["selected"]) == (1, 1, "topk_sort.cuda")
    (lost,) = case["lost"]
    assert "unspecified launch failure" in lost
    assert written["copy_bytes_per_s"] > 0
    assert written["fingerprint"]["driver"] == "580.65.06"


def test_a_driver_older_than_its_toolkit_is_named(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"  # that has none of the names
    subprocess.run([str(find_cxx()), "-shared", "-o", str(library), "-x", "c", os.devnull], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "workers.cuda.driver", "0"], env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_S,
    )
    assert done.returncode == 1
    assert "the driver is older than pycuda's toolkit" in done.stderr.splitlines()[-1]
