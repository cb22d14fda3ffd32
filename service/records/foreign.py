"""Results of other tools' kernels: the best known configurations of problems, and pages of kernels and problems."""

from __future__ import annotations

from collections.abc import Sequence

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
    rank,
    read_answers,
)
from service.records.foreign_reading import (
    Group,
    count_readable,
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
    return rank(connection, read_groups(connection, tasks), asked)


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
    query = query.where(workload.c.id.in_(found[:page])).order_by(workload.c.id.desc())
    tasks = connection.execute(query).all()
    by_problem: dict[str, list[Group]] = {t.key: [] for t in tasks}
    for group in read_groups(connection, tasks):
        by_problem[group.task.key].append(group)
    problems = []
    for key, groups in by_problem.items():
        best = rank(connection, groups, asked)
        places = [(a.likeness, a.device_model) for a in best.answers]
        likest = best.answers[: places.count(places[0])] if places else ()
        problems.append(ForeignProblem(workload=key, answers=likest, failed=best.failed))
    return ForeignProblems(
        problems=tuple(problems), next=found[page - 1] if len(found) > page else None
    )


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
    query = select_tasks(tool, namespace)
    if kernel is not None:
        query = query.where(task.c.implementation.endswith(f":{kernel}", autoescape=True))
    if cursor is not None:
        query = query.where(task.c.id < cursor)
    tasks = connection.execute(query.order_by(task.c.id.desc()).limit(limit + 1)).all()
    shown = tasks[: min(limit, count_readable(connection, [[t.id] for t in tasks]))]
    last = shown[-1].id if len(shown) < len(tasks) else None
    groups = [g for g in read_groups(connection, shown) if device_model in (None, g.model)]
    groups.sort(key=lambda g: (-g.task.id, -g.newest, g.model))
    ranked = [g.ranked() for g in groups]
    first = [Ranked(g, *rows[0], Likeness.MODEL) for g, rows in zip(groups, ranked, strict=True) if rows]
    best = {id(r.group): answer for r, answer in zip(first, read_answers(connection, first), strict=True)}
    kernels = tuple(
        ForeignKernel(
            task_id=g.task.id, workload=g.task.key, best=best.get(id(g)), candidates=len(rows),
            failures=len(g.failed), slowest_s=max((t for t, _ in rows if t is not None), default=None),
        )
        for g, rows in zip(groups, ranked, strict=True)
    )  # fmt: skip
    return ForeignList(kernels=kernels, next=last)
