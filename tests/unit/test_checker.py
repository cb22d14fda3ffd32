"""The kernels whose checks disturb no times, and those that are left to the session that times."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strategy.record import ErrorKind, Job, JobEntry, Phase, Result, TimingPolicy
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload
from tests.limit import HANG_S
from workers.builder import Built
from workers.checker import Checker
from workers.cpu import Cores
from workers.turn import Turn

CPU = Target.parse("llvm -mcpu=znver4 -num-cores=1")
APART = Cores("cpu:0-3", timing=(2, 3), building=(0, 1))
SHARED = Cores("cpu:0-1", timing=(1,), building=(0, 1))
MEGABYTE = Workload.make("dense", {"data": "float32[256,256]", "weight": "float32[512,256]"})  # with the output, 1.25
LARGE = Workload.make("dense", {"data": "float32[256,512]", "weight": "float32[512,512]"})


def job_of(workload: Workload, target: Target) -> Job:
    entry = JobEntry(index=0, task_id=1, implementation="i", version="1.0", config=Config())
    return Job(
        id=1, run_id=1, workload=workload, target=target, phase=Phase.SEARCH, entries=(entry,), policy=TimingPolicy(),
        seed=1,
    )


@pytest.mark.parametrize(
    ("cores", "target", "cache_mb", "takes"),
    [
        (APART, CPU, 10, True),
        (APART, CPU, 9.9, False),  # the data of its checks would evict those of what is timed
        (APART, CPU, 0, False),  # unknown
        (APART, CPU.with_threads(2), 10, True),
        (APART, CPU.with_threads(3), 10, False),
        (SHARED, CPU, 10, False),
        (APART, Target.parse("cuda -arch=sm_90"), 10, False),
    ],
)
def test_checks_are_taken_that_disturb_no_times(
    monkeypatch: pytest.MonkeyPatch, cores: Cores, target: Target, cache_mb: float, takes: bool
) -> None:
    checker = Checker(None, cores, Turn(cores.timing), int(cache_mb * 2**20))
    asked: list[Built] = []

    def check(job: Job, built: list[Built], *_: Any) -> dict[int, float | None]:
        asked.extend(built)
        return {0: 0.5}

    monkeypatch.setattr(checker._runner, "check", check)
    built = [Built(entry=0, path="", build_s=0.1)]
    job = job_of(MEGABYTE, target)
    found = checker.check(job, built, threading.Event(), lambda result: None, lambda: job)
    assert found == {0: 0.5 if takes else None}
    assert bool(asked) == takes


@pytest.mark.parametrize("then", [None, job_of(LARGE, CPU)])
def test_checks_end_where_nothing_is_timed_or_what_is_has_large_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: Job | None
) -> None:
    checker = Checker(None, APART, Turn(APART.timing), 10 * 2**20)
    monkeypatch.setattr("workers.timing_runner.find_or_build", lambda folder, build: "")
    done: list[str] = []

    def run(work: Any, built: list[Built]) -> None:
        done.append(built[0].code_digest)
        if built[0].code_digest == "wrong":
            work.report(Result(entry=built[0].entry, error=ErrorKind.WRONG_ANSWER, message="wrong"))
        else:
            work.checked[built[0].entry] = 0.5

    monkeypatch.setattr(checker._runner, "_run", run)
    codes = ["right", "wrong", "right", "wrong", "late"]
    built = []
    for entry, code in enumerate(codes):
        path = tmp_path / f"{entry}.so"
        Path(f"{path}.json").write_text("{}")
        built.append(Built(entry=entry, path=str(path), code_digest=code, build_s=0.1))
    reported: list[Result] = []
    job = job_of(MEGABYTE, CPU)
    found = checker.check(
        job, built, threading.Event(), reported.append, lambda: job if len(done) < 2 else then
    )
    assert done == ["right", "wrong"]  # one check for all of the same code
    assert found == {0: 0.5, 2: None, 4: None}  # entry 2 is timed as entry 0
    assert [r.entry for r in reported] == [1, 3]


def test_a_job_does_not_wait_for_anothers_check_once_it_may_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = Checker(None, APART, Turn(APART.timing), 2**30)
    built = [Built(entry=0, path="", build_s=0.1)]
    job, begun, idle = job_of(MEGABYTE, CPU), threading.Event(), threading.Event()

    def check(job: Job, *_: Any) -> dict[int, float | None]:
        begun.set()
        assert idle.wait(HANG_S)  # a kernel that hangs
        return {0: 0.5}

    def ask(timed: Job | None) -> dict[int, float | None]:
        return checker.check(job, built, threading.Event(), lambda result: None, lambda: timed)

    monkeypatch.setattr(checker._runner, "check", check)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(ask, job)
        assert begun.wait(HANG_S)
        assert ask(None) == {0: None}
        idle.set()
        assert first.result() == {0: 0.5}
