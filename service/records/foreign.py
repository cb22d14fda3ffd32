"""Results of other tools' kernels: the best known configurations of problems, and pages of kernels and problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from service.formats.foreign import UNKNOWN
from service.records.foreign_ranking import (
    ForeignAnswer,
    ForeignBest,
    ForeignQuestion,
    ForeignTerms,
    Likeness,
    Ranked,
    count_fitting,
    rank,
    read_answers,
    read_best,
)
from service.records.foreign_reading import (
    Group,
    count_readable,
    has_results,
    read_groups,
    select_tasks,
    tasks_of_problem,
)
from service.store.tables import task, workload
from strategy.record import encode


class ForeignKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's problem on one device model: its best, and the spread of its candidates."""

    task_id: int
    workload: str
    best: ForeignAnswer | None
    candidates: int
    failures: int
    slowest_s: float | None


class ForeignList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of kernels, the newest first; `next` is the cursor of the following page."""

    kernels: tuple[ForeignKernel, ...]
    next: int | None


class ForeignProblem(ForeignBest, frozen=True, kw_only=True):
    """The answers of one problem, from the likest device that has any."""

    workload: str


class ForeignProblems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one kernel's problems, the newest first; `next` is the cursor of the following page."""

    problems: tuple[ForeignProblem, ...]
    next: int | None


def find_best(
    connection: sa.Connection, tool: str, asked: ForeignQuestion, namespace: str
) -> ForeignBest:
    """The best known configurations of a problem."""
    tasks = [
        t for t in tasks_of_problem(connection, asked.workload.digest, namespace)
        if t.implementation.startswith(f"{tool}:") and (asked.version is None or t.version in (asked.version, UNKNOWN))
    ]
    (found,) = read_best(connection, [rank(read_groups(connection, tasks), asked)])
    return found


def find_many(
    connection: sa.Connection, tool: str, asked: Sequence[ForeignQuestion], namespace: str
) -> list[ForeignBest]:
    """The answers in the order of the questions; equal questions are answered once."""
    keys = [encode(one) for one in asked]
    found = {
        key: find_best(connection, tool, one, namespace)
        for key, one in dict(zip(keys, asked, strict=True)).items()
    }
    return [found[key] for key in keys]


def find_problems(
    connection: sa.Connection,
    tool: str,
    kernel: str,
    asked: ForeignTerms,
    namespace: str,
    *,
    page: int,
    cursor: int | None = None,
) -> ForeignProblems:
    """The best known configurations of each problem of a kernel, on the likest device: a page."""
    query = select_tasks(tool, namespace, asked.version).where(workload.c.op == f"{tool}.{kernel}")
    ids = query.with_only_columns(workload.c.id).group_by(workload.c.id)
    if cursor is not None:
        ids = ids.where(workload.c.id < cursor)
    found = connection.scalars(ids.order_by(workload.c.id.desc()).limit(page + 1)).all()
    by_problem: dict[int, list[Any]] = {i: [] for i in found[:page]}
    for one in connection.execute(query.where(workload.c.id.in_(by_problem))):
        by_problem[one.workload_id].append(one)
    parts = list(by_problem.values())
    shown = parts[: count_readable(connection, [[t.id for t in tasks] for tasks in parts])]
    groups: dict[str, list[Group]] = {tasks[0].key: [] for tasks in shown}
    for group in read_groups(connection, chain.from_iterable(shown)):
        groups[group.task.key].append(group)
    rankings = [rank(own, asked).of_likest() for own in groups.values()]
    shown = shown[: count_fitting(connection, [one.best for one in rankings])]
    answers = read_best(connection, rankings[: len(shown)])
    problems = tuple(
        ForeignProblem(workload=tasks[0].key, answers=one.answers, failed=one.failed)
        for tasks, one in zip(shown, answers, strict=True)
    )
    last = found[len(shown) - 1] if len(shown) < len(found) else None
    return ForeignProblems(problems=problems, next=last)


def list_kernels(
    connection: sa.Connection,
    tool: str | None,
    namespace: str | None,
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    limit: int = 100,
    cursor: int | None = None,
) -> ForeignList:
    """A page of the kernels of one tool, or of all; of one namespace, or of all."""
    query = select_tasks(tool, namespace).where(has_results(device_model))
    if kernel is not None:
        name, end = task.c.implementation, f":{kernel}"
        # SQLite's LIKE ignores case, which the names of kernels do not.
        exact = sa.func.substr(name, sa.func.length(name) - (len(end) - 1)) == end
        query = query.where(name.endswith(end, autoescape=True), exact)
    if cursor is not None:
        query = query.where(task.c.id < cursor)
    tasks = connection.execute(query.order_by(task.c.id.desc()).limit(limit + 1)).all()
    readable = count_readable(connection, [[t.id] for t in tasks[:limit]], device_model)
    of_task: dict[int, list[_Measured]] = {t.id: [] for t in tasks[:readable]}
    groups = read_groups(connection, tasks[:readable], device_model)
    for group in sorted(groups, key=lambda g: (-g.newest, g.model)):
        of_task[group.task.id].append(_Measured(group, group.ranked()))
    shown = tasks[: count_fitting(connection, [[r for m in found for r in m.best] for found in of_task.values()])]
    measured = [m for t in shown for m in of_task[t.id]]
    best = iter(read_answers(connection, [r for m in measured for r in m.best]))
    kernels = tuple(
        ForeignKernel(
            task_id=m.group.task.id, workload=m.group.task.key, best=next(best) if m.best else None,
            candidates=len(m.rows), failures=len(m.group.failed),
            slowest_s=max((t for t, _ in m.rows if t is not None), default=None),
        )
        for m in measured
    )
    return ForeignList(kernels=kernels, next=shown[-1].id if len(shown) < len(tasks) else None)


class _Measured(NamedTuple):
    """A kernel's problem on one device model, with times and rows of its configurations, the fastest first."""

    group: Group
    rows: list[tuple[float | None, Any]]

    @property
    def best(self) -> list[Ranked]:
        return [Ranked(self.group, *row, Likeness.MODEL) for row in self.rows[:1]]
