"""Results of other tools' kernels: the best known configurations of problems, and pages of kernels and problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

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
    ]  # fmt: skip
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
    groups = read_groups(connection, tasks[:readable], device_model)
    groups.sort(key=lambda g: (-g.task.id, -g.newest, g.model))
    ranked = [g.ranked() for g in groups]
    first = [Ranked(g, *rows[0], Likeness.MODEL) for g, rows in zip(groups, ranked, strict=True) if rows]
    of_task: dict[int, list[Ranked]] = {t.id: [] for t in tasks[:readable]}
    for one in first:
        of_task[one.group.task.id].append(one)
    shown = tasks[: count_fitting(connection, list(of_task.values()))]
    last = shown[-1].id if len(shown) < len(tasks) else None
    if last is not None:
        groups = [g for g in groups if g.task.id >= last]
        first = [r for r in first if r.group.task.id >= last]
        ranked = ranked[: len(groups)]
    best = {id(r.group): answer for r, answer in zip(first, read_answers(connection, first), strict=True)}
    kernels = tuple(
        ForeignKernel(
            task_id=g.task.id, workload=g.task.key, best=best.get(id(g)), candidates=len(rows),
            failures=len(g.failed), slowest_s=max((t for t, _ in rows if t is not None), default=None),
        )
        for g, rows in zip(groups, ranked, strict=True)
    )  # fmt: skip
    return ForeignList(kernels=kernels, next=last)
