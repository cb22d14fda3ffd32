"""The choice between two libraries of a network by their times, of libraries whose work is known."""

from __future__ import annotations

import errno
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plevel import faster
from plevel.deployment import Deployed
from strategy.fault import CompileError
from strategy.record import estimate
from strategy.types import TensorType
from workers.network_timer import LEAST_ROUNDS, ROUNDS, compare

pytestmark = pytest.mark.usefixtures("builds")
WORK = """
int run(const float *x, float *y) {
  for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (volatile long j = 0; j < %d; ++j) sum += x[i];
    y[i] = sum;
  }
  return %d;
}
"""
FEW, MANY = 2_000, 20_000


@dataclass(frozen=True)
class Work:
    """In place of a network's draft: a library of one C function that does so much."""

    amount: int
    code: int = 0
    fails: str = ""
    has_measured_blocks: bool = True
    has_measured_pairs: bool = False

    def write(self, path: Path, *, name: str, about: str) -> Deployed:
        if self.fails:
            raise CompileError(self.fails)
        source = path.with_suffix(".c")
        source.write_text(WORK % (self.amount, self.code))
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True, timeout=60)
        source.unlink()
        header, manifest = path.with_suffix(".h"), path.with_suffix(".json")
        for file in (header, manifest):
            file.write_text(f"{self.amount}")
        port = SimpleNamespace(type=TensorType((4,), "float32"))
        description: Any = SimpleNamespace(function=name)
        plan: Any = SimpleNamespace(inputs=[port], outputs=[port])
        return Deployed(path, header, manifest, description, plan)


def deploy(monkeypatch: pytest.MonkeyPatch, path: Path, *, blocked: Work, plain: Work) -> faster.Faster:
    monkeypatch.setattr(faster, "draft", lambda *_, blocks=True: blocked if blocks else plain)
    anything: Any = None
    return faster.deploy_faster(anything, anything, anything, path, name="run", about="work")


def is_kept(work: Work, made: faster.Faster, path: Path) -> bool:
    """Return whether a library's files lie at the path, and nothing else."""
    files = {path, path.with_suffix(".h"), path.with_suffix(".json")}
    assert set(path.parent.iterdir()) == files
    assert {made.deployed.library, made.deployed.header, made.deployed.manifest} == files
    return path.with_suffix(".h").read_text() == path.with_suffix(".json").read_text() == f"{work.amount}"


def test_blocked_layouts_that_are_faster_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, path = Work(FEW), tmp_path / "model.so"
    made = deploy(monkeypatch, path, blocked=blocked, plain=Work(MANY))
    assert made.ratio is not None
    assert 0.02 < made.ratio.median_s < 0.5
    assert made.is_blocked
    assert not made.failure
    assert is_kept(blocked, made, path)


@pytest.mark.full
def test_nchw_takes_the_place_of_blocked_layouts_that_are_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, path = Work(FEW), tmp_path / "model.so"
    made = deploy(monkeypatch, path, blocked=Work(MANY), plain=plain)
    assert made.ratio is not None
    assert 2 < made.ratio.median_s < 50
    assert not made.is_blocked
    assert is_kept(plain, made, path)


@pytest.mark.parametrize(
    ("plain", "reason"), [(Work(FEW, fails="no linker"), "no linker"), (Work(FEW, code=3), "a library fails with 3")]
)
def test_a_library_of_nchw_that_cannot_be_had_or_run_leaves_the_blocked_one(
    plain: Work, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, path = Work(MANY), tmp_path / "model.so"
    made = deploy(monkeypatch, path, blocked=blocked, plain=plain)
    assert made.ratio is None
    assert made.is_blocked
    assert reason in made.failure
    assert is_kept(blocked, made, path)


def test_an_interrupt_leaves_no_library_whose_rival_was_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(faster, "_time", interrupt)
    with pytest.raises(KeyboardInterrupt):
        deploy(monkeypatch, tmp_path / "model.so", blocked=Work(FEW), plain=Work(FEW))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_part_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(file: Path, place: Path) -> None:
        place.write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(faster, "_time", lambda *_: estimate([2.0] * 6))
    monkeypatch.setattr(faster.shutil, "copy", fill)
    with pytest.raises(OSError, match="No space left") as refused:
        deploy(monkeypatch, tmp_path / "model.so", blocked=Work(FEW), plain=Work(FEW))
    assert refused.value.filename2 == str(tmp_path / "model.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize(("joined", "apart", "fails", "kept"), [
    (FEW, MANY, "", FEW), (MANY, FEW, "", FEW), (MANY, FEW, "no linker", MANY),
])
def test_convolutions_stay_joined_where_that_is_faster(
    joined: int, apart: int, fails: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Work(joined, has_measured_blocks=False, has_measured_pairs=True)
    two, path = Work(apart, fails=fails), tmp_path / "model.so"
    anything: Any = None
    monkeypatch.setattr(faster, "draft", lambda *_, pairs=True: one if pairs else two)
    made = faster.deploy_faster(anything, anything, anything, path, name="run", about="work")
    assert (made.ratio, made.is_blocked, made.failure) == (None, False, "")
    assert is_kept(Work(kept), made, path)


def test_two_functions_are_called_in_turns_whose_order_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, []

    def call(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        calls.append(name)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    found = compare(lambda: call("slow", 0.5), lambda: call("fast", 0.125))
    assert found == [(0.5, 0.125)] * ROUNDS
    assert calls[2:6] == ["slow", "fast", "fast", "slow"]
    now, calls = 0.0, []
    assert len(compare(lambda: call("slow", 50.0), lambda: call("fast", 0.001))) == LEAST_ROUNDS
    assert calls.count("fast") > 10 * calls.count("slow")


def test_the_seconds_are_those_of_one_call() -> None:
    """At least: a busy host makes any call longer."""
    found = compare(lambda: time.sleep(0.004), lambda: time.sleep(0.001))
    assert all(slow > 0.004 and fast > 0.001 for slow, fast in found)
