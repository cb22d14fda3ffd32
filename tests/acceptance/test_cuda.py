"""A CUDA worker end to end, without a GPU: real processes, with stand-ins for the driver, nvcc and cuBLAS.

The stand-ins are found where the real ones would be: cuBLAS's wheel on PYTHONPATH, nvcc on PATH, and the
driver where the linker looks. Where pycuda is not installed, a stand-in takes its place too. Kernels are
compiled from the same source, for this processor, and run there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from plevel.client import Client
from strategy.record import RunRequest, RunState, RunWorkload, TimingPolicy
from strategy.target import Target
from strategy.workload import Workload
from tests.acceptance.conftest import Stage, wait_until
from tests.kernel.emulation.cubin import install_nvcc
from tests.kernel.emulation.device import (
    compile_driver,
    compile_vendor,
    find_cxx,
    headers,
    missing_for_driver,
)

pytestmark = pytest.mark.skipif(find_cxx() is None, reason="no C++ compiler on this host")
ROOT = Path(__file__).parents[2]
DENSE = Workload.make("dense", {"data": "float32[24,20]", "weight": "float32[17,20]"})
TARGET = Target.parse("cuda -arch=sm_80 -libs=cublas")
QUICK = TimingPolicy(budget_s=0.02)
MEASURE = ("dense", "-i", "data=float32[8,8]", "-i", "weight=float32[8,8]", "-I", "dense_cublas.cuda")


def emulate_cuda(stage: Stage) -> None:
    """The files and environment of a host with a GPU, in a folder of this stage."""
    packages = stage.folder / "packages"
    compile_vendor(packages / "nvidia/cublas/lib/libcublas.so.12")
    tools = stage.folder / "bin"
    install_nvcc(tools, headers())
    paths = [packages, ROOT]
    if missing_for_driver():
        paths.insert(0, ROOT / "tests/kernel/emulation/host")
    else:
        compile_driver(stage.folder / "lib")
    stage.environment |= {
        "LD_LIBRARY_PATH": str(stage.folder / "lib"),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "XDG_CACHE_HOME": str(stage.folder / "cache"),
    }


@pytest.mark.full
def test_a_cuda_worker_tunes_for_a_service_and_measures_by_itself(stage: Stage) -> None:
    emulate_cuda(stage)
    stage.start_service()
    worker = stage.start("worker", "--url", stage.url, "--device", "cuda:0")
    names = ("dense_cublas.cuda", "dense_tiled.cuda")
    request = RunRequest(
        workloads=(RunWorkload(workload=DENSE),), target=TARGET, trials=3, implementations=names,
        search_policy=QUICK, confirm_policy=QUICK,
    )
    with Client(stage.url) as client:
        wait_until(lambda: worker.poll() is not None or client.workers(), "the registration")
        assert worker.poll() is None, stage.logs()
        (device,) = client.workers()[0]["devices"]
        assert (device["slot"], device["model"]) == ("cuda:0", "Emulated device")
        assert re.search(r"/cuda:0000:\w\w:00\.0$", device["identity"])  # whatever slot a process sees it as
        *_, run = client.follow(client.create_run(request).id)
        assert run.state is RunState.DONE, stage.logs()
        records = [json.loads(line) for line in b"".join(client.export_records("native")).splitlines()]
        answer = client.select(DENSE, TARGET)
    found = [r for r in records if r["kind"] == "record" and r.get("phase") != "reference"]
    assert not [r["message"] for r in found if r.get("error")]
    timed = [r for r in found if r.get("samples_s")]
    assert {r["task"]["implementation"] for r in timed} == set(names)
    assert {r["environment"]["cuda"]["driver_api"] for r in timed} == {"13.0"}
    assert any(r["environment"].get("cublas", {}).get("version") == "13.12.11" for r in timed)
    assert answer.reason == "measured"
    done = stage.run("measure", *MEASURE, "--device", "cuda:0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples_s"]
