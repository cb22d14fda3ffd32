"""Runs, tasks and selections as HTML tables, as notebooks show them.

Whatever comes from elsewhere (names, messages) is written as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategy.record import Estimate, RunStatus, TaskStatus
    from strategy.select import Selection


def show_run(run: RunStatus) -> str:
    """The state of a run, and its tasks, the fastest first."""
    said = f": {run.message}" if run.message else ""
    head = f"run {run.id} is {run.state}, {run.trials_done} of {run.trials} trials, on {run.target}{said}"
    tasks = sorted(run.tasks, key=lambda t: (t.workload, t.best.median_s if t.best else float("inf")))
    return _table(head, _TASK, [_task(t) for t in tasks])


def show_task(task: TaskStatus) -> str:
    """One task, on one row."""
    return _table(f"task {task.task_id}", _TASK, [_task(task)])


def show_selection(answer: Selection) -> str:
    """What is selected and why, and the rivals, the selected one in bold."""
    head = f"{answer.workload} on {answer.target}: {answer.explanation}"
    rows = []
    for rival in answer.rivals:
        known = "" if rival.valid else f"not valid: needs {rival.condition}"
        row = (rival.implementation, str(rival.plevel), *_times(rival.estimate), known or str(rival.level or ""))
        rows.append((row, rival.implementation == answer.implementation))
    return _table(head, ("implementation", "plevel", "median", "95 %", "level"), rows)


_TASK = ("workload", "implementation", "plevel", "median", "95 %", "trials", "failed")


def _task(task: TaskStatus) -> tuple[Sequence[str], bool]:
    row = (
        task.workload, task.implementation, str(task.plevel), *_times(task.best), str(task.trials),
        str(task.failed),
    )  # fmt: skip
    return row, False


def _times(found: Estimate | None) -> tuple[str, str]:
    from strategy.select import show_seconds

    if found is None:
        return "", ""
    half = (found.high_s - found.low_s) / 2 / found.median_s
    return show_seconds(found.median_s), f"±{half:.1%}"


def _table(head: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[str], bool]]) -> str:
    """A table with a caption; rows that stand out are bold."""
    lines = [f"<table><caption>{escape(head)}</caption>"]
    lines.append(f"<thead><tr>{''.join(f'<th>{c}</th>' for c in columns)}</tr></thead><tbody>")
    for cells, stands_out in rows:
        mark = "b" if stands_out else "span"
        lines.append(f"<tr>{''.join(f'<td><{mark}>{escape(c)}</{mark}></td>' for c in cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])
