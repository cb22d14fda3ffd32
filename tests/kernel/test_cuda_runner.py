"""Sessions on a device, with a stand-in for the driver that runs the same source on a processor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("tvm")

from strategy.compile.cuda import emit
from strategy.compile.lower import lower
from strategy.cuda.program import CudaArtefact
from strategy.op_strategy import candidates
from strategy.record import ErrorKind, Job, JobEntry, Phase, Result, TimingPolicy, convert
from strategy.target import Target
from strategy.workload import Workload
from tests.kernel.emulation.device import EmulatedDriver
from tests.limit import HANG_S
from workers.builder import Built
from workers.cuda.kernel import CudaKernel
from workers.cuda.library import CudaError
from workers.cuda.runner import CudaRunner, runner_on
from workers.data import Data
from workers.reference import random_inputs
from workers.runner import Session
from workers.sandbox import ForkServer, SandboxError

TARGET = Target.parse("cuda -arch=sm_80")
POLICY = TimingPolicy(warmup_s=0, min_repeat_s=1e-6, min_repeats=2, max_repeats=3, budget_s=60)


class Channel:
    """A channel that keeps what a runner sends."""

    def __init__(self) -> None:
        self.results: dict[int, Result] = {}
        self.marks: list[int] = []

    def mark(self, stage: int) -> None:
        self.marks.append(stage)

    def send(self, message: dict[str, Any]) -> None:
        if "result" in message:
            result = convert(message["result"], Result)
            self.results[result.entry] = result


def artefact_of(workload: Workload, implementation: str) -> CudaArtefact:
    lowered = lower(workload, TARGET, implementation)
    source = emit(lowered)
    return CudaArtefact(
        signature=lowered.signature, programs=source.programs, source=source.code, arch="sm_80",
        compiler="none", cubin=b"", usage={},
    )


def session_of(workload: Workload, artefacts: list[CudaArtefact], folder: Path) -> Session:
    candidate = candidates(workload, TARGET)[0]
    entries, built = [], []
    for index, artefact in enumerate(artefacts):
        path = folder / f"{index}.json"
        artefact.save(path)
        entries.append(
            JobEntry(
                index=index, task_id=0, implementation=candidate.implementation,
                version=candidate.version, config=candidate.fallback,
            )
        )
        built.append(Built(entry=index, path=str(path), code_digest=str(index)))
    job = Job(
        id=1, run_id=1, workload=workload, target=TARGET, phase=Phase.SEARCH,
        entries=tuple(entries), policy=POLICY, seed=0,
    )
    return Session(job=job, built=tuple(built), cores=(0,))


@pytest.fixture
def no_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's threads stay where they are."""
    monkeypatch.setattr("workers.runner.pin_threads", lambda cores, known: None)


@pytest.mark.usefixtures("no_pinning")
def test_a_session_tells_right_from_wrong(tmp_path: Path) -> None:
    workload = Workload.make("exp", {"data": "float32[40,20]"})
    good = artefact_of(workload, "broadcast.cuda")
    made = [good, begin(good, "return;"), begin(good, "data_ptr[0] = 0.5f;")]
    channel, driver = Channel(), EmulatedDriver(tmp_path / "emulation", l2_bytes=10_000)
    runner = CudaRunner(channel, driver)
    runner.run(session_of(workload, made, tmp_path))
    first, second, third = (channel.results[i] for i in range(3))
    assert first.error is None, first.message
    assert first.samples_s
    assert second.error is third.error is ErrorKind.WRONG_ANSWER
    assert "instead of" in second.message
    assert "writes to its input data" in third.message
    assert runner.toolchain() == {"cuda": {"driver": "emulation"}}
    assert {0, 1, 2} <= set(channel.marks)


@pytest.mark.usefixtures("no_pinning")
def test_a_time_below_the_peak_of_the_device_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload.make("exp", {"data": "float32[40,20]"})
    monkeypatch.setattr("workers.runner.least_seconds", lambda workload, target: 1000.0)
    channel, driver = Channel(), EmulatedDriver(tmp_path / "emulation")
    made = [artefact_of(workload, "broadcast.cuda")]
    CudaRunner(channel, driver).run(session_of(workload, made, tmp_path))
    assert channel.results[0].error is ErrorKind.IMPLAUSIBLE
    assert channel.results[0].samples_s == ()


def begin(artefact: CudaArtefact, statement: str) -> CudaArtefact:
    """The same with a statement more, where its kernel begins."""
    source, count = re.subn(r"(main_kernel\([^;{]*\) \{\n)", rf"\1  {statement}\n", artefact.source)
    assert count == 1
    return msgspec.structs.replace(artefact, source=source)


@pytest.mark.full
@pytest.mark.usefixtures("no_pinning")
def test_constants_are_prepared_once_and_workspaces_are_made(tmp_path: Path) -> None:
    workload = Workload.make(
        "conv2d", {"data": "float32[1,4,8,8]", "weight": "float32[8,4,3,3]"}, {}, ["weight"]
    )
    channel, driver = Channel(), EmulatedDriver(tmp_path / "emulation")
    artefact = artefact_of(workload, "conv2d_nchw_winograd.cuda")
    assert len(artefact.programs["main"].workspaces) == 2
    CudaRunner(channel, driver).run(session_of(workload, [artefact], tmp_path))
    assert channel.results[0].error is None, channel.results[0].message
    assert channel.results[0].prepare_s is not None


@pytest.mark.usefixtures("no_pinning")
def test_a_device_without_room_says_so(tmp_path: Path) -> None:
    workload = Workload.make("exp", {"data": "float32[40,20]"})
    channel, driver = Channel(), EmulatedDriver(tmp_path / "emulation", room_bytes=4000)
    artefact = artefact_of(workload, "broadcast.cuda")
    CudaRunner(channel, driver).run(session_of(workload, [artefact], tmp_path))
    assert channel.results[0].error is ErrorKind.OOM
    assert channel.results[0].message == "no 3200 bytes left"  # of the device, not of the runner


class Noting(EmulatedDriver):
    """A device that notes how often, and of how much at once, its memory was taken."""

    allocated = held = most = 0

    def allocate(self, size_bytes: int) -> Any:
        buffer = super().allocate(size_bytes)
        self.allocated += 1
        self.held += size_bytes
        self.most = max(self.most, self.held)
        return buffer

    def free(self, buffer: Any) -> None:
        super().free(buffer)
        self.held -= buffer.size


@pytest.mark.usefixtures("no_pinning")
def test_entries_that_do_not_fit_the_device_together_are_timed_one_after_another(tmp_path: Path) -> None:
    workload = Workload.make("exp", {"data": "float32[40,20]"})  # 6400 bytes with its output
    made = [artefact_of(workload, "broadcast.cuda")] * 3
    # Two sets of buffers each; other processes on the device may have most of it.
    for room_bytes, others_bytes in ((20_000, 0), (100_000, 80_000)):
        channel, driver = Channel(), Noting(tmp_path / "emulation", 5_000, room_bytes)
        driver.allocate(others_bytes)
        CudaRunner(channel, driver).run(session_of(workload, made, tmp_path))
        assert [channel.results[i].error for i in range(3)] == [None] * 3, channel.results
        if not others_bytes:
            assert driver.allocated == 1 + 3 * 2 * 2  # no entry lacks a set, which would leave its data in L2


@pytest.mark.full
@pytest.mark.usefixtures("no_pinning")
def test_a_copy_for_whose_workspace_there_is_no_room_is_left_out(tmp_path: Path) -> None:
    workload = Workload.make(
        "conv2d", {"data": "float32[1,4,8,8]", "weight": "float32[8,4,3,3]"}, {}, ["weight"]
    )
    artefact = artefact_of(workload, "conv2d_nchw_winograd.cuda")

    def most(l2_bytes: int, room_bytes: int = 1 << 30) -> int:
        channel, driver = Channel(), Noting(tmp_path / "emulation", l2_bytes, room_bytes)
        CudaRunner(channel, driver).run(session_of(workload, [artefact], tmp_path))
        assert channel.results[0].samples_s, channel.results[0].message
        return driver.most

    all_copies = most(9_000)
    # The last to be allocated is a workspace.
    assert most(0) < most(9_000, all_copies - 1) < all_copies


def test_a_device_that_is_gone_is_no_crash_of_an_entry(tmp_path: Path) -> None:
    workload = Workload.make("exp", {"data": "float32[40,20]"})
    session = session_of(workload, [artefact_of(workload, "broadcast.cuda")] * 2, tmp_path)
    reported: list[Result] = []
    with ForkServer(tmp_path, ("numpy",)) as server:
        runner = runner_on(server, sorted(os.sched_getaffinity(0))[:1], "cuda:99")
        try:
            with pytest.raises(SandboxError, match="the device cannot be used any more: cuda:99"):
                runner.run(session.job, session.built, threading.Event(), reported.append)
        finally:
            runner.close()
    assert reported == []


@pytest.mark.usefixtures("no_pinning")
def test_a_context_that_is_lost_ends_the_child(tmp_path: Path) -> None:
    class Failing(EmulatedDriver):
        def time(self, queue: Any) -> float:
            raise CudaError("a kernel failed on the device: illegal address")

    workload = Workload.make("exp", {"data": "float32[40,20]"})
    runner = CudaRunner(Channel(), Failing(tmp_path / "emulation"))
    with pytest.raises(SystemExit, match="entry 0: a kernel failed"):
        runner.run(session_of(workload, [artefact_of(workload, "broadcast.cuda")], tmp_path))


def test_many_calls_are_replayed_in_whole_rounds_of_the_copies(tmp_path: Path) -> None:
    class Counting(EmulatedDriver):
        def __init__(self) -> None:
            super().__init__(tmp_path / "emulation", l2_bytes=9_000)
            self.captured: list[int] = []

        def capture(self, queue: Callable[[], None]) -> Callable[[], None]:
            before = self.launched
            queue()
            self.captured.append(self.launched - before)
            return queue

        def time(self, queue: Callable[[], None]) -> float:
            before = self.launched
            queue()
            return float(self.launched - before)

    workload = Workload.make("exp", {"data": "float32[40,20]"})
    driver, inputs = Counting(), random_inputs(workload, 0)
    (built,) = session_of(workload, [artefact_of(workload, "broadcast.cuda")], tmp_path).built
    kernel = CudaKernel(built, Data(inputs, {}, (), ()), driver)
    kernel.load()
    assert [kernel.measure(calls) for calls in (31, 100, 33)] == [31, 100, 33]
    assert driver.captured == [33]  # three copies of all buffers
    assert driver.launched == 31 + 33 + 4 * 33 + 33


def test_a_worker_says_in_one_line_what_is_missing() -> None:
    hidden = "import sys; sys.modules['pycuda'] = None; sys.argv = ['w', '3']; import runpy; "
    done = subprocess.run(
        [sys.executable, "-c", hidden + "runpy.run_module('workers.cuda.driver', run_name='__main__')"],
        capture_output=True, text=True, check=False, timeout=HANG_S, env=dict(os.environ),
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("cuda:3: pycuda is not installed")
    assert "docs/gpu.md" in line


@pytest.mark.parametrize(
    ("device", "words"), [("cuda:x", "write cuda:0"), ("cudax", "write cuda:0")]
)
def test_a_device_that_cannot_be_read_is_refused(device: str, words: str) -> None:
    from workers.__main__ import describe_cuda
    from workers.cpu import DeviceError

    with pytest.raises(DeviceError, match=words):
        describe_cuda(device)


def test_a_driver_that_ends_its_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.__main__ import describe_cuda
    from workers.cpu import DeviceError

    crash = subprocess.CompletedProcess([], -signal.SIGSEGV, "", "")
    monkeypatch.setattr("workers.__main__.subprocess.run", lambda *given, **options: crash)
    with pytest.raises(DeviceError, match=r"^cuda:1: the driver ended the process .* SIGSEGV: see what `nvidia-smi`"):
        describe_cuda("cuda:1")
