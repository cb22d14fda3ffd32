"""Turns on the cores that time: between threads, and between the workers of a host."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from workers import cpu
from workers.cpu import claimed, timing_lock
from workers.turn import Turn


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of this test's own: no worker of this host is in its way."""
    monkeypatch.setattr(cpu, "_SHARED", (tmp_path,))


CORES = (1, 3)


def never() -> bool:
    return False


def test_timing_waits_for_all_builds_and_builds_for_timing() -> None:
    turn, events = Turn(CORES), list[str]()
    timing_began, timing_may_end = threading.Event(), threading.Event()

    def time() -> None:
        with turn.time(never) as mine:
            events.append("timing" if mine else "refused")
            timing_began.set()
            timing_may_end.wait()
            events.append("timed")

    def build() -> None:
        with turn.build(CORES):
            events.append("built later")

    threads = [threading.Thread(target=time), threading.Thread(target=build)]
    with turn.build(CORES):
        with turn.build(CORES):
            threads[0].start()
            events.append("both build")
        events.append("one builds")
    timing_began.wait()
    threads[1].start()
    timing_may_end.set()
    for thread in threads:
        thread.join()
    assert events == ["both build", "one builds", "timing", "timed", "built later"]


def test_a_failure_ends_its_turn() -> None:
    turn = Turn(CORES)
    with pytest.raises(RuntimeError), turn.build(CORES):
        raise RuntimeError
    with pytest.raises(RuntimeError), turn.time(never):
        raise RuntimeError
    with turn.build(CORES):
        pass


def test_other_workers_of_the_host_build_together_and_time_alone() -> None:
    ours, theirs = Turn(CORES), Turn(CORES)
    with ours.build(CORES), theirs.build(CORES), timing_lock(lambda: True, CORES) as mine:
        assert not mine
    with ours.time(never) as first, theirs.time(lambda: True) as second:
        assert first and not second


def test_nothing_is_built_on_cores_that_another_worker_times_on() -> None:
    ours, theirs = Turn(CORES), Turn((3, 4))

    def may_build(*cores: int) -> bool:
        with ours.build(cores, lambda: True) as mine:
            return mine

    with theirs.time(never) as timing:
        assert timing
        assert not may_build(2, 4)
        assert may_build(2, 5)
    with theirs.time(never) as timing, ours.build((0, 2)), ours.build((0, 2)):  # beside it, both at once
        assert timing
    for cores, free in (((0, 4), False), ((0, 2), True)):
        with ours.build(cores), theirs.time(lambda: True) as timing:
            assert timing is free
    with timing_lock(cores=range(8)):  # of a command that names no cores
        assert not may_build(0)


def test_a_second_worker_of_the_same_cores_is_noticed() -> None:
    with claimed((1, 3)) as first, claimed((3, 4)) as second, claimed((0, 4)) as other, claimed(()) as gpu:
        assert (first, second, other, gpu) == (True, False, True, True)
        with timing_lock(cores=(1, 3)) as mine:
            assert mine
    with claimed((3, 4)) as again:
        assert again


TIMES_ON = """
import sys, time
from pathlib import Path
from workers import cpu

cpu._SHARED = (Path(sys.argv[1]),)
for turn in range(200):
    with cpu.timing_lock(cores=(1,)):
        if not turn:
            print("begun", flush=True)
        time.sleep(0.01)
"""


def test_a_worker_that_times_on_and_on_leaves_turns_to_others(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TIMES_ON, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as other:
        assert other.stdout is not None and other.stdout.readline()
        for _ in range(4):
            with timing_lock(cores=(5,)):
                pass
            time.sleep(0.05)
        assert other.poll() is None, "it had all of its turns first"
        other.kill()


def test_a_long_wait_for_another_worker_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as for one that is stopped, by Ctrl-Z."""
    monkeypatch.setattr(cpu, "_LONG_WAIT_S", 0.0)
    looks = iter([False, False, True])
    with timing_lock() as mine, timing_lock(lambda: next(looks)) as second:
        assert mine and not second
    assert caplog.text.count(f"another process holds {tmp_path / cpu._LOCK_NAME}: 'fuser -v") == 1
