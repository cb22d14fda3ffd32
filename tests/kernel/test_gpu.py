"""Every CUDA implementation on this host's GPU, built by its own compiler and judged as a worker does."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm")

from strategy.compile.cuda import compile_cuda
from strategy.compile.lower import lower
from strategy.cuda.compiler import compile_cached, find_compiler
from strategy.cuda.program import CudaArtefact
from strategy.op_strategy import candidates
from strategy.record import ErrorKind, Result
from strategy.select import holds
from strategy.space import Config
from strategy.workload import Workload
from tests.kernel.test_cuda_ops import KEEP_NAN, OTHERS, PLAIN, TUNABLE
from tests.kernel.test_cuda_runner import begin, session_of
from tests.limit import HANG_S
from workers.__main__ import describe_cuda
from workers.builder import Built
from workers.cpu import DeviceError
from workers.cuda.runner import runner_on
from workers.data import Data
from workers.reference import random_inputs, reference, tolerances
from workers.sandbox import ForkServer

if find_spec("pycuda") is None:
    pytest.skip("no GPU on this host that can be used: no pycuda (docs/gpu.md)", allow_module_level=True)
try:
    TARGET = describe_cuda("cuda:0").target
except DeviceError as missing:
    pytest.skip(f"no GPU on this host that can be used: {missing}", allow_module_level=True)

EXP = Workload.make("exp", {"data": "float32[40,20]"})


def check(path: str, workload: Workload, *, nan: bool) -> str:
    """Run a built kernel in this process, and return what is wrong; a lost context ends the process."""
    from workers.cuda.kernel import CudaKernel

    inputs = random_inputs(workload, 7)
    for array in inputs.values() if nan else ():
        array.flat[::7] = np.nan
    expected = tuple(np.asarray(r) for r in reference(workload, inputs))
    data = Data(inputs, {}, expected, tolerances(workload, inputs, expected))
    kernel = CudaKernel(Built(entry=0, path=path, code_digest=""), data, _driver())
    try:
        kernel.load()
        kernel.check()
        for calls in (1, 40):  # queued, and replayed as a graph
            kernel.measure(calls)
        kernel.compare()
    except Exception as error:
        try:
            _driver().synchronize()
        except Exception as lost:
            print(lost, file=sys.stderr, flush=True)
            os._exit(1)
        return f"{type(error).__name__}: {error}"
    finally:
        kernel.release()
    return ""


@cache
def _driver() -> Any:
    from workers.cuda.driver import open_driver

    return open_driver(0)


class Device:
    """A process that has the GPU's context, and is started again where a kernel ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool: ProcessPoolExecutor | None = None

    def check(self, workload: Workload, implementation: str, config: Config | None, *, nan: bool = False) -> None:
        """Build and run one configuration; fail as a worker would."""
        path = self._folder / "artefact.json"
        compile_cuda(lower(workload, TARGET, implementation, config)).save(path)
        self._pool = self._pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            wrong = self._pool.submit(check, str(path), workload, nan=nan).result(HANG_S)
        except (BrokenProcessPool, TimeoutError) as error:
            self.close()
            wrong = f"its process ended: {error}"
        assert not wrong, f"{implementation} {config}: {wrong}"

    def close(self) -> None:
        if self._pool is not None:
            for process in (self._pool._processes or {}).values():
                process.kill()
            self._pool.shutdown()
            self._pool = None


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    found = Device(tmp_path_factory.mktemp("device"))
    yield found
    found.close()


def offered(workload: Workload, samples: int) -> Iterator[tuple[str, Config | None]]:
    """Of each implementation its fallback, and some configurations."""
    for candidate in candidates(workload, TARGET):
        if not holds(candidate, workload):
            continue
        yield candidate.implementation, candidate.space and candidate.fallback
        if candidate.space is not None:
            for config in candidate.space.sample(random.Random(3), samples):
                yield candidate.implementation, config


ALL = [*(w for w, _ in TUNABLE), *PLAIN, *(p.values[0] for p in OTHERS)]


@pytest.mark.parametrize("workload", ALL, ids=str)
def test_configurations_are_right(workload: Workload, device: Device, full: bool) -> None:
    wrong = []
    for name, config in offered(workload, 12 if full else 2):
        try:
            device.check(workload, name, config)
        except Exception as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("workload", KEEP_NAN, ids=str)
def test_nan_is_kept(workload: Workload, device: Device) -> None:
    for name, config in offered(workload, 0):
        device.check(workload, name, config, nan=True)


def test_a_kernel_that_fails_takes_its_child_along_and_no_other_entry(tmp_path: Path) -> None:
    good = compile_cuda(lower(EXP, TARGET, "broadcast.cuda"))
    bodies = ["", "__trap();", "return;", "for (;;) __nanosleep(1000);", ";"]
    bodies += ["((volatile float*)exp_ptr)[1 << 30] = 1.0f;", ";"]
    made = [good if not body else _compiled(begin(good, body)) for body in bodies]
    results = _run(EXP, made, tmp_path)
    assert [results[i].error for i in range(len(made))] == [
        None, ErrorKind.CRASH, ErrorKind.WRONG_ANSWER, ErrorKind.RUN_TIMEOUT, None, ErrorKind.CRASH, None,
    ], [r.message for r in results.values()]
    assert all(results[i].samples_s for i in (0, 4, 6))


def _compiled(artefact: CudaArtefact) -> CudaArtefact:
    found = compile_cached(artefact.source, artefact.arch, find_compiler())
    return msgspec.structs.replace(artefact, cubin=found.cubin, usage=found.usage)


def _run(workload: Workload, artefacts: list[CudaArtefact], folder: Path) -> dict[int, Result]:
    """The results of a worker's runner, in a child of its own."""
    session = session_of(workload, artefacts, folder)
    job = msgspec.structs.replace(session.job, policy=msgspec.structs.replace(session.job.policy, run_timeout_s=5.0))
    found: dict[int, Result] = {}
    with ForkServer(folder, ("numpy",)) as server:
        runner = runner_on(server, sorted(os.sched_getaffinity(0))[:1], "cuda:0")
        try:
            runner.run(job, session.built, threading.Event(), lambda r: found.update({r.entry: r}))
        finally:
            runner.close()
    return found


def test_a_run_on_this_machine_selects_what_it_has_measured(tmp_path: Path) -> None:
    def plevel(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "plevel", *arguments, "--json"], check=False, timeout=HANG_S,
            capture_output=True, text=True,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = msgspec.json.decode(done.stdout)
        return answer

    dense = ["dense", "-i", "data=float16[64,256]", "-i", "weight=float16[256,256]:const", "-t", "cuda:0"]
    place = ["--database", str(tmp_path / "records.db")]
    tuned = plevel("tune", *dense, *place, "--trials", "16")
    assert tuned["run"]["state"] == "done"
    assert tuned["selection"]["reason"] == "measured", tuned["selection"]
    assert plevel("select", *dense[:-1], f"cuda -arch={TARGET.arch}", *place)["reason"] == "measured"
