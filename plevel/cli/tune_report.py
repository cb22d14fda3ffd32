"""The end of `plevel tune`: what was measured, what is selected, and how to ask for it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from plevel.cli import location, option

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from strategy.record import RunStatus, RunWorkload
    from strategy.select import Selection
    from strategy.target import Target
    from strategy.workload import Workload


def target_text(target: Target) -> str:
    """The target as `--target` takes it, which its key is not: `cpu` for this host, else JSON."""
    from strategy.target import cpu_target

    if target == cpu_target().with_threads(target.threads):
        return f"cpu -num-cores={target.threads}"
    return json.dumps(target.to_json(), ensure_ascii=False)


def again_command(workload: Workload, target: str, threads: int | None, place: location.Location) -> str:
    """The `plevel select` command for the same answer."""
    return option.workload_command("select", workload) + _target_options(target, threads) + place.option


def lock_command(model: Path, target: str | None, threads: int | None, place: location.Location) -> str:
    """The `plevel lock` command that keeps the answers for a model file, whose own target holds if none is given."""
    return f"plevel lock {shlex.quote(str(model))} -o plevel.lock{_target_options(target, threads)}{place.option}"


def _target_options(target: str | None, threads: int | None) -> str:
    named = "" if target is None else f" --target {shlex.quote(target)}"
    return named if threads is None else f"{named} --threads {threads}"


def report(
    console: Console, run: RunStatus, answer: Selection, place: location.Location, again: str
) -> None:
    from plevel.cli.output import print_tasks, selection_lines

    say = partial(console.print, markup=False, soft_wrap=True)
    say(f"{answer.workload}  on {answer.target}")
    print_tasks(console, run.tasks, answer.implementation)
    for line in selection_lines(answer):
        say(line)
    say(_ending(run))
    say(f"kept in    {place.shown}")
    say(f"next       {again}")


def _ending(run: RunStatus) -> str:
    from plevel.cli.output import show_duration

    spent = ""
    if run.finished_at is not None and run.timing_s > 0:
        took = show_duration(run.finished_at - run.created_at - run.idle_s)
        spent = f" in {took}, {show_duration(run.timing_s)} of them timing"
        if run.idle_s:
            spent += f", beside interruptions of {show_duration(run.idle_s)}"
    return f"run        {run.id} is {run.state}{spent}: {run.message or 'no reason given'}"


def report_model(
    console: Console,
    run: RunStatus,
    workloads: Sequence[RunWorkload],
    answers: Sequence[Selection],
    place: location.Location,
    again: str,
) -> None:
    """A row for each workload: the selected implementation, its time, and its share of the network's.

    `again`, the command that asks for the same, is empty if there is none.
    """
    from plevel.cli.output import find_estimate, print_table, show_noise
    from strategy.table import show_seconds

    best = [find_estimate(a) for a in answers]
    spent = [
        None if b is None else one.weight * b.median_s
        for one, b in zip(workloads, best, strict=True)
    ]
    total = sum(s for s in spent if s is not None)
    rows = [
        (a.workload.key, f"{one.weight:g}", a.implementation, str(a.reason),
         show_seconds(b.median_s) if b else "—",
         "" if s is None else "<1%" if s < total / 100 else f"{s / total:.0%}")
        for one, a, b, s in zip(workloads, answers, best, spent, strict=True)
    ]
    columns = ("workload", "weight", "selected", "reason", "median", "share")
    print_table(console, columns, rows, right=("weight", "median", "share"))
    part = "" if None not in spent else " without unmeasured workloads"
    for line in (
        f"total      {show_seconds(total)}{part}: the sum of median × weight" if total else "",
        *show_noise(best),
        _ending(run),
        f"kept in    {place.shown}",
        again and f"next       {again}",
    ):
        if line:
            console.print(line, markup=False, soft_wrap=True)
