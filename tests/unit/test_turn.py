"""Turns on the cores that time: between threads, and between the workers of a host."""

from __future__ import annotations

import threading

import pytest

from workers import cpu
from workers.cpu import timing_lock
from workers.turn import Turn


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of this test's own: no worker of this host is in its way."""
    monkeypatch.setattr(cpu, "_LOCK_NAME", "plevel-timing-test.lock")


def never() -> bool:
    return False


def test_timing_waits_for_all_builds_and_builds_for_timing() -> None:
    turn, events = Turn(), list[str]()
    timing_began, timing_may_end = threading.Event(), threading.Event()

    def time() -> None:
        with turn.time(never) as mine:
            events.append("timing" if mine else "refused")
            timing_began.set()
            timing_may_end.wait()
            events.append("timed")

    def build() -> None:
        with turn.build():
            events.append("built later")

    threads = [threading.Thread(target=time), threading.Thread(target=build)]
    with turn.build():
        with turn.build():
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
    turn = Turn()
    with pytest.raises(RuntimeError), turn.build():
        raise RuntimeError
    with pytest.raises(RuntimeError), turn.time(never):
        raise RuntimeError
    with turn.build():
        pass


def test_other_workers_of_the_host_build_together_and_time_alone() -> None:
    ours, theirs = Turn(), Turn()
    with ours.build(), theirs.build(), timing_lock(lambda: True) as mine:
        assert not mine
    with ours.time(never) as first, theirs.time(lambda: True) as second:
        assert first and not second
