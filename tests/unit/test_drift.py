"""Batches on a host that changes, and entries of the same code, with a child that does as it is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from strategy.record import (
    ErrorKind,
    Job,
    JobEntry,
    Phase,
    Reference,
    Result,
    TimingPolicy,
    convert,
    to_json,
)
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload
from workers.builder import Built
from workers.cpu import state
from workers.drift import DRIFT, REPEATS, drift, time_reference
from workers.runner import Session
from workers.sandbox import UNKNOWN, Died, Interrupted, Late
from workers.timing_runner import TimingRunner

NEVER = threading.Event()
TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=1")


class Child:
    """Answers each session with its reference times around one result per entry."""

    def __init__(self, references: list[float], failing: dict[int, list[bool]]) -> None:
        self.references = references
        self.failing = failing  # of an entry, in which sessions
        self.sessions: list[list[int]] = []
        self.checked: list[dict[int, float]] = []  # before each session
        self.alive = True
        self.stage = -1
        self._messages: list[Any] = []

    def send(self, message: Any) -> None:
        session = convert(message, Session)
        self.sessions.append([b.entry for b in session.built])
        self.checked.append(dict(session.checked))
        self._messages = [self._reference()]
        for built in session.built:
            fails = self.failing.get(built.entry, [])
            if fails and fails.pop(0):
                result = Result(entry=built.entry, error=ErrorKind.WRONG_ANSWER, message="wrong")
            else:
                median_s = 1e-3 * len(self.sessions)
                result = Result(entry=built.entry, samples_s=(median_s,) * 3, run_s=1.0, check_s=1.0)
            self._messages.append({"result": to_json(result)})
        self._messages += [self._reference(), {"end": True, "environment": {"llvm": "1"}}]

    def _reference(self) -> Any:
        return {"reference": [self.references.pop(0)] * 3}

    def receive(self, stage_s: float, interrupt: threading.Event, *, first_s: float) -> Any:
        if interrupt.is_set():
            raise Interrupted
        message = self._messages.pop(0)
        if message == "interrupt":
            raise Interrupted
        return message

    def kill(self) -> None:
        self.alive = False


class Server:
    def __init__(self, child: Child) -> None:
        self.child = child

    def spawn(self, limits: Any) -> Child:
        return self.child


def built(tmp_path: Path, *codes: str) -> list[Built]:
    found = []
    for i, code in enumerate(codes):
        path = tmp_path / f"{i}.so"
        Path(f"{path}.json").write_text("{}")
        found.append(Built(entry=i, path=str(path), code_digest=code, build_s=0.5))
    return found


def run(
    child: Child, made: list[Built], interrupt: threading.Event = NEVER
) -> tuple[dict[int, Result], Any]:
    entries = tuple(
        JobEntry(index=b.entry, task_id=1, implementation="i", version="1.0", config=Config())
        for b in made
    )
    job = Job(
        id=1, run_id=1, workload=Workload("op", (Input("data", "float32[4]"),)), target=TARGET,
        phase=Phase.SEARCH, entries=entries, policy=TimingPolicy(), seed=1,
    )
    results: list[Result] = []
    runner = TimingRunner(Server(child), (0,), 2**30)
    conditions = runner.run(job, made, interrupt, results.append)
    assert len({r.entry for r in results}) == len(results)
    return {r.entry: r for r in results}, conditions


class DyingAfterResult(Child):
    """Dies once, after the result of entry 0 and before the next entry begins."""

    died = False

    def receive(self, stage_s: float, interrupt: threading.Event, *, first_s: float) -> Any:
        if self.stage == 0 and not self.died:
            self.died = True
            raise Died(6, 0, "")
        message = super().receive(stage_s, interrupt, first_s=first_s)
        self.stage = message.get("result", {}).get("entry", self.stage)
        return message


def test_a_death_after_a_result_is_no_other_entrys(tmp_path: Path) -> None:
    child = DyingAfterResult([1.0] * 20, {})
    results, _ = run(child, built(tmp_path, "a", "b", "c"))
    assert [results[i].error for i in range(3)] == [None] * 3
    assert child.sessions == [[0, 1, 2], [1, 2]]


def test_a_quiet_batch_is_timed_once(tmp_path: Path) -> None:
    child = Child([1.0, 1.04], {})
    results, conditions = run(child, built(tmp_path, "a", "b"))
    assert child.sessions == [[0, 1]]
    assert [r.drift for r in results.values()] == [None, None]
    assert [r.samples_s[0] for r in conditions.references] == [1.0, 1.04]
    assert conditions.environment == {"llvm": "1"}
    assert all(r.measured_at > 0 for r in conditions.references)


@pytest.mark.parametrize("after", [1.06, 0.94])
def test_a_batch_on_a_host_that_changed_is_timed_again(tmp_path: Path, after: float) -> None:
    child = Child([1.0, after, 1.0, 1.0], {0: [True]})
    results, conditions = run(child, built(tmp_path, "a", "b", "c"))
    assert child.sessions == [[0, 1, 2], [1, 2]]  # what failed is known already
    assert results[0].error is ErrorKind.WRONG_ANSWER
    assert [results[i].samples_s[0] for i in (1, 2)] == [2e-3, 2e-3]  # the second time's
    assert [results[i].drift for i in (1, 2)] == [None, None]
    assert results[1].run_s == 2.0  # both are time that the device was timing
    assert child.checked == [{}, {1: 1.0, 2: 1.0}]  # what is right stays right
    assert results[1].check_s == 1.0
    assert len(conditions.references) == 4


def test_one_that_changes_again_marks_the_batch(tmp_path: Path) -> None:
    child = Child([1.0, 1.5, 1.0, 1.2], {1: [False, True]})
    results, _ = run(child, built(tmp_path, "a", "b"))
    assert len(child.sessions) == 2
    assert results[0].drift == pytest.approx(0.2)
    assert results[1].error is ErrorKind.WRONG_ANSWER  # a failure of the second time counts


def test_the_same_code_is_timed_once(tmp_path: Path) -> None:
    child = Child([1.0, 1.0], {})
    results, _ = run(child, built(tmp_path, "a", "b", "a", "", "", "a"))
    assert child.sessions == [[0, 1, 3, 4]]
    assert sorted(results) == [0, 1, 2, 3, 4, 5]
    twin = results[5]
    assert twin.samples_s == results[0].samples_s
    assert (twin.run_s, twin.build_s) == (0.0, 0.5)
    assert "same code as entry 0" in twin.message and results[0].message == ""


def test_the_same_code_with_other_arguments_is_another(tmp_path: Path) -> None:
    made = built(tmp_path, "a", "a")
    Path(f"{made[1].path}.json").write_text("[]")
    child = Child([1.0, 1.0], {})
    run(child, made)
    assert child.sessions == [[0, 1]]


def test_the_same_wrong_code_is_wrong_everywhere(tmp_path: Path) -> None:
    results, _ = run(Child([1.0, 1.0], {0: [True]}), built(tmp_path, "a", "a"))
    assert [r.error for r in results.values()] == [ErrorKind.WRONG_ANSWER] * 2
    assert results[1].message == "wrong; the same code as entry 0, which was timed"


def test_what_was_timed_before_an_interruption_is_reported(tmp_path: Path) -> None:
    child = Child([1.0, 1.5], {})
    made = built(tmp_path, "a", "b")
    results: list[Result] = []
    send = child.send

    def send_once(message: Any) -> None:
        send(message)
        child._messages[2:] = ["interrupt"]

    child.send = send_once
    runner = TimingRunner(Server(child), (0,), 2**30)
    job = Job(
        id=1, run_id=1, workload=Workload("op", (Input("data", "float32[4]"),)), target=TARGET,
        phase=Phase.SEARCH, policy=TimingPolicy(), seed=1,
        entries=tuple(
            JobEntry(index=i, task_id=1, implementation="i", version="1.0", config=Config())
            for i in range(2)
        ),
    )
    with pytest.raises(Interrupted):
        runner.run(job, made, NEVER, results.append)
    assert [(r.entry, r.drift) for r in results] == [(0, None)]


def test_drift_is_between_medians() -> None:
    def of(*samples_s: float) -> Reference:
        return Reference(samples_s=samples_s, measured_at=1.0)

    assert drift([]) == drift([of(1.0)]) == 0.0
    assert drift([of(1.0, 1.0, 9.0), of(1.0, 1.02, 0.1)]) == 0.0
    assert drift([of(1.0), of(2.0), of(1.5)]) == 1.0
    assert 0 < DRIFT < 1


def test_the_reference_kernel_and_the_host_say_something() -> None:
    samples = time_reference()
    assert len(samples) == REPEATS
    assert all(s > 0 for s in samples)
    found = state((0,))
    assert found["load"] >= 0
    assert all(isinstance(v, int | float) for v in found.values())


class Dying(Child):
    """Dies at some entries, of each so many times."""

    def __init__(self, deaths: dict[int, int]) -> None:
        super().__init__([1.0] * 20, {})
        self.deaths = deaths

    def receive(self, stage_s: float, interrupt: threading.Event, *, first_s: float) -> Any:
        message = super().receive(stage_s, interrupt, first_s=first_s)
        entry = message.get("result", {}).get("entry")
        if self.deaths.get(entry, 0):
            self.deaths[entry] -= 1
            self.stage = entry
            raise Died(11, 0, "")
        return message


def test_an_entry_that_kills_the_child_is_tried_once_more_by_itself(tmp_path: Path) -> None:
    """Memory that one kernel corrupts may kill another."""
    child = Dying({1: 1, 2: 2})
    results, _ = run(child, built(tmp_path, "a", "b", "c", "d"))
    assert {entry: r.error for entry, r in results.items()} == {
        0: None, 1: None, 2: ErrorKind.CRASH, 3: None,
    }
    assert sorted(child.sessions[-2:]) == [[1], [2]]


class Damaging(Child):
    """Entry 2 kills it, and damages its mark."""

    def __init__(self, stage: int) -> None:
        super().__init__([1.0] * 20, {})
        self.stage = stage

    def receive(self, stage_s: float, interrupt: threading.Event, *, first_s: float) -> Any:
        message = super().receive(stage_s, interrupt, first_s=first_s)
        if message.get("result", {}).get("entry") == 2:
            assert len(self.sessions) < 10
            raise Died(11, 0, "")
        return message


@pytest.mark.parametrize("stage", [0, UNKNOWN])
def test_only_the_entry_that_damages_its_mark_fails(tmp_path: Path, stage: int) -> None:
    """Also if the damaged one is of an entry that is done."""
    child = Damaging(stage)
    results, _ = run(child, built(tmp_path, "a", "b", "c", "d"))
    assert {entry: r.error for entry, r in results.items()} == {0: None, 1: None, 2: ErrorKind.CRASH, 3: None}
    assert sorted(child.sessions[-2:]) == [[2], [3]]


class Killed(Child):
    """Killed so many times before the first entry."""

    def __init__(self, kills: int) -> None:
        super().__init__([1.0] * 20, {})
        self.kills = kills

    def receive(self, stage_s: float, interrupt: threading.Event, *, first_s: float) -> Any:
        if self.kills:
            self.kills -= 1
            raise Died(9, 0, "")
        return super().receive(stage_s, interrupt, first_s=first_s)


@pytest.mark.parametrize(("kills", "error"), [(1, None), (2, ErrorKind.OOM)])
def test_a_session_that_the_kernel_kills_before_its_first_entry_is_tried_again(
    tmp_path: Path, kills: int, error: ErrorKind | None
) -> None:
    """For want of memory it kills children first, whoever has taken it."""
    child = Killed(kills)
    results, _ = run(child, built(tmp_path, "a", "b"))
    assert [results[i].error for i in range(2)] == [error] * 2
    assert child.sessions == [[0, 1]] * 2


class Slow(Child):
    """Computes the reference for longer than any kernel may take."""

    def receive(self, stage_s: float, interrupt: threading.Event, *, first_s: float) -> Any:
        assert stage_s == TimingPolicy().run_timeout_s < first_s
        raise Late(f"took longer than {first_s:g} s and was killed")


def test_a_reference_that_takes_too_long_is_named(tmp_path: Path) -> None:
    child = Slow([1.0, 1.0], {})
    results, _ = run(child, built(tmp_path, "a", "b"))
    assert child.sessions == [[0, 1]]
    for result in results.values():
        assert result.error is ErrorKind.RUN_TIMEOUT
        assert result.message.startswith("nothing was run: NumPy's reference of op(")
        assert result.message.endswith("took longer than 600 s and was killed")
