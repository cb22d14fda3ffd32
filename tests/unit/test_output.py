"""Output of commands for runs and selections."""

from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from plevel.cli import output
from plevel.cli.location import Location
from plevel.cli.progress import Progress, follow_reading
from plevel.cli.tune_run import say_what_else_runs
from strategy.op_strategy import Candidate
from strategy.record import Estimate, ModelBest, RunState, RunStatus, TaskStatus
from strategy.select import Level, Measured, choose
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")


def task(
    name: str, median_s: float | None, *, confirmed: bool = False, **more: object
) -> TaskStatus:
    best = None if median_s is None else Estimate(median_s, median_s * 0.98, median_s * 1.02, 20)
    fields = {
        "task_id": 1, "workload": "dense", "implementation": name, "version": "1.0", "plevel": 10,
        "tunable": True, "best": best, "best_config": Config({"a": 1}), "confirmed": confirmed,
    }
    return TaskStatus(**(fields | more))


def run(done: int, *tasks: TaskStatus, **more: object) -> RunStatus:
    fields = {
        "id": 1, "state": RunState.RUNNING, "target": TARGET, "trials": 10, "trials_done": done,
        "created_at": 0.0, "workers": 1, "tasks": tasks,
    }
    return RunStatus(**(fields | more))


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200, highlight=False), out


def test_progress_without_a_terminal_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    console, out = plain()
    with Progress(console) as progress:
        progress.show(run(0, workers=0))
        progress.show(run(4, task("dense_pack.cpu", 2e-3)))
        progress.show(run(8, task("dense_pack.cpu", 1e-3), task("slow", 5e-3)))
        progress.show(run(8, message="waiting for a worker that can build it"))
    lines = out.getvalue().splitlines()
    assert lines[0] == "running 0/10 trials, waiting for a worker"
    assert lines[1].startswith("running 4/10 trials, best dense_pack.cpu 2.00 ms, about ")
    assert lines[2].startswith("running 8/10 trials, best dense_pack.cpu 1.00 ms, about ")
    assert lines[3].endswith(", waiting for a worker that can build it")
    assert "\x1b" not in out.getvalue()


def test_a_table_in_a_pipe_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    long = "dense(" + "x" * 400 + ")"
    output.print_table(output.make_console(), ("workload", "state"), [(long, ""), ("short", "")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "dense" in line or "short" in line] == [[long], ["short"]]
    assert lines == [line.rstrip() for line in lines]


def test_a_long_cell_costs_the_other_rows_of_its_table_little() -> None:
    """A search for spaces from each place of a gap would take a minute."""
    console = Console(file=io.StringIO(), width=10_000, highlight=False)
    began = time.process_time()
    output.print_table(console, ("workload", "state"), [("x" * 8000, "done"), *[("short", "done")] * 200])
    assert time.process_time() - began < 10


def test_progress_says_nothing_twice_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console, out = plain()
    with Progress(console) as progress:
        for done in (1, 2):  # the second is too soon
            progress.show(run(done, state=RunState.CONFIRMING))
        for _ in range(2):  # the second says the same
            now += Progress.LINE_EVERY_S
            progress.show(run(3, state=RunState.CONFIRMING))
    assert out.getvalue().splitlines() == ["confirming 1/10 trials", "confirming 3/10 trials"]


@pytest.mark.parametrize(("no_color", "width"), [("", 120), ("1", 120), ("", 40)])
def test_progress_on_a_terminal_is_live_and_in_colour_where_that_is_wanted(
    no_color: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width)
    with Progress(console) as progress:
        progress.show(run(3, task("dense_pack.cpu", 2e-3, gflops=301.5)))
    assert "dense_pack.cpu" in out.getvalue()
    assert "3/10 trials" in out.getvalue()
    assert ("GFLOP/s" in out.getvalue()) is (width == 120)  # no table of single letters
    assert bool(re.search(r"\x1b\[[39]\d", out.getvalue())) is not bool(no_color)


def test_a_terminal_that_redraws_nothing_has_progress_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, width=120)) as progress:
        progress.show(run(3))
    assert out.getvalue() == "running 3/10 trials\n"


def test_a_pipe_is_not_redrawn_where_colour_is_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    with Progress(output.make_console()) as progress:
        progress.show(run(3))
    with follow_reading(output.make_console(), "a.log", 1000) as advance:
        advance(1000)
    assert capsys.readouterr().out == "running 3/10 trials\n"


def test_progress_on_a_terminal_has_no_commands_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(console) as progress:
        progress.show(run(3, message="waiting\x1b]0;title\x07"))
    with follow_reading(console, "a\x1b[2J.log", 1000) as advance:
        advance(1000)
    assert r"waiting\x1b]0;title\x07" in out.getvalue()
    assert r"a\x1b[2J.log" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_reading_is_followed_on_terminals(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    with follow_reading(console, "[a].log", 4000) as advance:
        advance(1000)
        advance(3000)
    assert ("[a].log" in out.getvalue()) is terminal
    assert ("4.0/4.0 kB" in out.getvalue()) is terminal
    assert terminal or not out.getvalue()


def test_time_left_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 20.0, 20.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    console, out = plain()
    progress = Progress(console)
    progress.show(run(2))
    progress.show(run(6))  # four in twenty seconds, four to go
    assert "about 20 s left" in out.getvalue()


def test_no_time_is_left_for_trials_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 20.0, 20.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    console, out = plain()
    progress = Progress(console)
    progress.show(run(2))
    progress.show(run(10))  # the finals take some seconds yet
    assert "10/10 trials" in out.getvalue()
    assert "left" not in out.getvalue()


def test_what_a_run_waits_for_is_told_at_once_and_once() -> None:
    console, out = plain()
    progress = Progress(console)
    for done in (2, 3):
        progress.show(run(done))
    for done in (4, 5):
        progress.show(run(done, message="waiting for a worker that can build it"))
    assert [line.count("waiting") for line in out.getvalue().splitlines()] == [0, 1]


def test_what_finals_wait_for_is_told_and_the_end_of_their_search_is_not() -> None:
    console, out = plain()
    progress = Progress(console)
    confirming = {"state": RunState.CONFIRMING}
    progress.show(run(9, message="stopped after 9 trials", **confirming))
    progress.show(run(9, message="waiting for a worker that can build it", waiting=True, **confirming))
    lines = out.getvalue().splitlines()
    assert "stopped" not in lines[0]
    assert lines[1].endswith(", waiting for a worker that can build it")


def test_progress_of_several_workloads_names_none_of_them_the_best() -> None:
    console, out = plain()
    tasks = (
        task("dense_pack.cpu", 2e-3), task("dense_nopack.cpu", 3e-3),
        task("softmax.cpu", 1e-6, workload="softmax"), task("topk.cpu", None, workload="topk"),
    )
    Progress(console).show(run(4, *tasks))
    assert "2 of 3 workloads measured" in out.getvalue()
    assert "best" not in out.getvalue()

    console, out = plain()
    console.print(output.workload_table(tasks))
    rows = [line.split()[:2] for line in out.getvalue().splitlines() if line.strip()][2:]
    assert rows == [["dense", "dense_pack.cpu"], ["softmax", "softmax.cpu"], ["topk", "—"]]


def test_progress_of_a_confirmation_counts_the_workloads_that_have_one() -> None:
    console, out = plain()
    tasks = (
        task("dense_pack.cpu", 2e-3, confirmed=True), task("dense_nopack.cpu", 3e-3, confirmed=True),
        task("softmax.cpu", 1e-6, workload="softmax"),
    )
    Progress(console).show(run(10, *tasks, state=RunState.CONFIRMING))
    assert out.getvalue().strip() == "confirming 10/10 trials, 1 of 2 workloads confirmed"


def test_the_table_of_a_selection_tells_what_is_measured_in_another_version() -> None:
    console, out = plain()
    workload = Workload.make("dense", {"data": "float32[8,64]", "weight": "float32[128,64]"})
    known = [Candidate(name, "2.0", 10) for name in ("now.cpu", "old.cpu", "new.cpu")]
    records = [
        Measured(
            implementation=name, version=version, config=Config(), level=Level.DEVICE, target=TARGET.key, model="",
            estimate=Estimate(1e-3, 0.99e-3, 1.01e-3, 20),
        )
        for name, version in (("now.cpu", "2.0"), ("old.cpu", "1.0"))
    ]
    for measured in (records, records[1:]):
        output.print_rivals(console, choose(workload, TARGET, known, measured))
    lines = out.getvalue().splitlines()
    states = [line.rpartition("  ")[2].strip() for line in lines for name in ("old", "new") if f" {name}.cpu" in line]
    assert states == ["measured in version 1.0 only", "not measured"] * 2


@pytest.mark.parametrize(("high_s", "told"), [(1.04, ""), (1.4, "±20.0%"), (9.2, "up to 9.2×")])
def test_uncertain_times_are_told_with_the_remedy(high_s: float, told: str) -> None:
    lines = output.show_noise([None, Estimate(1.0, 1.0, high_s, 20), Estimate(2.0, 1.99, 2.01, 20)])
    assert len(lines) == bool(told)
    assert all(f"of the median is {told}: " in line and "plevel doctor" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_narrow_table_loses_no_letter_of_a_name(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(output.make_table(("name", "n"), [("conv2d_nchw_" * 5 + ".cpu", "1")], right=("n",)))
    assert re.sub(r"[^a-z0-9_.]", "", out.getvalue().splitlines()[1]) == "namen"
    kept = re.sub(r"[^a-z_.2]", "", out.getvalue().partition("─ ")[2] or out.getvalue())
    assert "conv2d_nchw_" * 5 + ".cpu" in kept


@pytest.mark.parametrize(("width", "terminal"), [(40, True), (80, True), (40, False)])
def test_on_a_narrow_terminal_a_row_has_a_line_for_each_cell(width: int, terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, highlight=False, no_color=True)
    columns = ("  implementation", "plevel", "median", "state")
    rows = [("→ dense_pack.cpu", "10", "1.30 ms", ""), ("  dense_cblas.cpu", "15", "", "not measured " + "x" * 20)]
    output.print_table(console, columns, rows, right=("plevel", "median"), none="none")
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    narrow = "→ dense_pack.cpu\n  plevel: 10\n  median: 1.30 ms\ndense_cblas.cpu\n  plevel: 15\n  state: not measured "
    assert text.startswith(narrow) == (terminal and width < output.NARROW)


def test_the_table_has_the_confirmed_first_and_names_failures() -> None:
    console, out = plain()
    tasks = [
        task("quick_but_unconfirmed", 1e-3),
        task("confirmed", 2e-3, confirmed=True, gflops=300.0, trials=64),
        task("broken", None, failed=3, failures={"compile": 2, "wrong_answer": 1}),
    ]
    output.print_tasks(console, tasks, "confirmed")
    text = out.getvalue()
    places = [text.index(n) for n in ("→ confirmed", "quick_but_unconfirmed", "broken")]
    assert places == sorted(places)
    assert "±2.0%" in text
    assert "1.00 ms (not confirmed)" in text
    assert "2 compile, 1 wrong_answer" in text


def test_times_of_device_models_are_not_ranked_with_each_other() -> None:
    def measured(name: str, **medians: float) -> TaskStatus:
        models = tuple(
            ModelBest(device_model=m, best=Estimate(s, s, s, 20), best_config=Config({}), confirmed=True)
            for m, s in medians.items()
        )
        named = {"device_model": models[0].device_model, "models": models, "confirmed": True}
        return task(name, models[0].best.median_s, **named)

    tasks = [measured("other", slow=3.0, quick=1.0), measured("first", slow=2.0), task("broken", None)]
    rows = [line.split() for line in shown(tasks).splitlines()]
    places = [
        next(i for i, row in enumerate(rows) if row[: len(words)] == words)
        for words in (["first", "slow"], ["other", "slow"], ["other", "quick"], ["broken"])
    ]
    assert places == sorted(places)
    assert "slow" not in shown([measured("other", slow=3.0)])  # one model needs no name


def shown(tasks: list[TaskStatus]) -> str:
    console, out = plain()
    console.print(output.task_table(tasks))
    return out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59.6, "1:00 min"), (125, "2:05 min"), (7260, "2:01 h")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert output.show_duration(seconds) == shown


def test_runs_that_go_on_beside_this_one_are_named() -> None:
    console, out = plain()
    elsewhere = Target.parse("cuda -arch=sm_80")
    runs = (
        run(2), run(6, id=2), run(10, id=3, state=RunState.DONE), run(0, id=4, target=elsewhere),
        run(7, id=5, target=TARGET.in_network()),
        run(8, task("dense_pack.cpu", 1.0, workload="dense(a=float32[1,1])", version="1.ab"), id=6),
    )
    place = Location(database="sqlite:////tmp/here.db")
    say_what_else_runs(console, cast("Any", SimpleNamespace(runs=lambda limit: runs)), run(2), place)
    assert out.getvalue().splitlines() == [
        f"Run {number}, at {done} of 10 trials, {goes_on}; 'plevel cancel {number} "
        "--database sqlite:////tmp/here.db' stops it, and keeps its measurements."
        for number, done, goes_on in (
            (2, 6, "goes on beside this one"), (5, 7, "goes on beside this one"),
            (6, 8, "needs other versions of implementations than are installed, and goes on only where these are"),
        )
    ]
