"""Operators: the fastest implementation at each shape, and the cost of selecting by plevel alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.records.filter import ANY, OfTask, has_words
from service.records.log import REFERENCE
from service.records.ranking import best_on, of_one_model
from service.store.namespace import DEFAULT
from service.store.sql import among
from service.store.tables import best, run_task, target, task, workload
from strategy.record import Estimate
from strategy.select import find_close

OPS = 50
PAGE = 40  # shapes
# Of one operator on one target: a page of all of a large log would take seconds.
JUDGED = 500  # shapes that are summed up
LOOKED_AT = 20_000  # tasks whose device models are offered
MAX_IMPLEMENTATIONS = 24


def ops(connection: sa.Connection, of: OfTask = ANY, offset: int = 0) -> list[Any]:
    """Operators on record with counts of their workloads, targets, implementations and times, of matching tasks.

    One more than a page of `OPS` if there are more.
    """
    wanted = of.of_task()
    # PostgreSQL sorts all rows for each count of distinct values: few rows are left for it.
    grouped = (
        sa.select(
            workload.c.op, task.c.target_id, task.c.implementation, sa.func.count().label("tasks"),
            sa.func.count(best.c.task_id).label("measured"),
        )
        .join(task, task.c.workload_id == workload.c.id)
        .outerjoin(best, sa.and_(best.c.task_id == task.c.id, best.c.scope == "target"))
        .where(workload.c.op != REFERENCE.op, *wanted)
        .group_by(workload.c.op, task.c.target_id, task.c.implementation)
        .subquery()
    )
    workloads = (
        sa.select(sa.func.count())
        .where(workload.c.op == grouped.c.op, sa.exists().where(task.c.workload_id == workload.c.id, *wanted))
        .scalar_subquery()
    )
    query = (
        sa.select(
            grouped.c.op, workloads.label("workloads"),
            sa.func.count(grouped.c.target_id.distinct()).label("targets"),
            sa.func.count(grouped.c.implementation.distinct()).label("implementations"),
            sa.func.sum(grouped.c.measured).label("measured"), sa.func.sum(grouped.c.tasks).label("tasks"),
        )
        .group_by(grouped.c.op)
        .order_by(grouped.c.op)
        .offset(offset)
        .limit(OPS + 1)
    )
    return list(connection.execute(query))


def targets(connection: sa.Connection, op: str) -> list[Any]:
    """Targets with tasks of the operator, those with the most workloads first.

    Raises:
        NotFoundError: the operator has no records.
    """
    query = (
        sa.select(target.c.id, target.c.key, sa.func.count(task.c.workload_id.distinct()).label("n"))
        .join(task, task.c.target_id == target.c.id)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == op)
        .group_by(target.c.id, target.c.key)
        .order_by(sa.func.count(task.c.workload_id.distinct()).desc(), target.c.id)
        .limit(200)
    )
    found = list(connection.execute(query))
    if not found:
        raise NotFoundError(f"operator {op!r:.80} has no records: tune a workload of it first")
    return found


def models(connection: sa.Connection, op: str, target_id: int) -> list[Any]:
    """Device models with times of the operator on a target, those with the most tasks first.

    Of its `LOOKED_AT` newest tasks. The empty name stands for records of unknown devices.
    """
    newest = _of_op(sa.select(task.c.id), op, target_id).order_by(task.c.id.desc()).limit(LOOKED_AT).subquery()
    n = sa.func.count()
    query = (
        sa.select(best.c.scope_value.label("model"), n.label("n"))
        .join(newest, newest.c.id == best.c.task_id)
        .where(of_one_model())
        .group_by(best.c.scope_value)
        .order_by(n.desc(), best.c.scope_value)
        .limit(200)
    )
    return list(connection.execute(query))


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One implementation at one shape; its times are None if nothing ran.

    Attributes:
        ratio: the ratio of its median to the shape's lowest.
        wins: it is selected: the highest plevel of those whose interval overlaps the lowest median's.
        by_plevel: it has the highest plevel, measured or not.
    """

    id: int
    implementation: str
    version: str
    plevel: int
    median_s: float | None
    ratio: float | None
    wins: bool
    by_plevel: bool


# By workload, then by implementation.
Judged = dict[int, dict[str, Cell]]


def newest_shapes(connection: sa.Connection, op: str, target_id: int, has: str = "") -> Sequence[int]:
    """The ids of the `JUDGED` newest workloads of the operator on a target, which its page sums up.

    Of those whose text `has` these words, as in `shapes`.
    """
    return connection.scalars(
        sa.select(workload.c.id)
        .where(workload.c.op == op, _on_target(target_id), *has_words(workload.c.key, has))
        .order_by(workload.c.id.desc())
        .limit(JUDGED)
    ).all()


def _of_op(query: sa.Select[Any], op: str, target_id: int) -> sa.Select[Any]:
    """The query of tasks, of those of an operator on a target."""
    of_op = sa.select(workload.c.id).where(workload.c.op == op)
    # The + prevents an index, by which all tasks of the operator would be sorted for the newest.
    return query.where(task.c.target_id == target_id, (task.c.workload_id + 0).in_(of_op))


def _on_target(target_id: int) -> sa.ColumnElement[bool]:
    """The condition that a workload has a task on a target."""
    return sa.exists().where(task.c.workload_id == workload.c.id, task.c.target_id == target_id)


def judge(connection: sa.Connection, target_id: int, model: str, shapes: Iterable[int]) -> Judged:
    """The implementations of workloads, given by their ids, in their newest version, marked by both rules.

    Times are of one device model and one namespace, as those of several do not compare.

    Records of runs here are preferred to imported ones, whatever their age.
    """
    tuned_here = sa.exists().where(run_task.c.task_id == task.c.id)
    rows = connection.execute(
        sa.select(
            *task.c["id", "workload_id", "implementation", "version", "plevel", "namespace"],
            *best.c["median_s", "low_s", "high_s", "samples"],
        )
        .select_from(task)
        .outerjoin(best, best_on(model))
        .where(among(task.c.workload_id), task.c.target_id == target_id)
        .order_by(task.c.workload_id, sa.case((tuned_here, 1), else_=0), task.c.id),
        {"ids": set(shapes)},
    )
    # The last of each name stays.
    return {
        workload_id: _compare({t.implementation: t for t in _of_one_namespace(list(tasks))}.values())
        for workload_id, tasks in groupby(rows, key=lambda t: t.workload_id)
    }


def _of_one_namespace(tasks: list[Any]) -> list[Any]:
    """Tasks of the default namespace, else of the last task's, as times of two may not compare."""
    names = {t.namespace for t in tasks}
    chosen = DEFAULT if DEFAULT in names else tasks[-1].namespace
    return [t for t in tasks if t.namespace == chosen]


def _compare(tasks: Iterable[Any]) -> dict[str, Cell]:
    known = sorted(tasks, key=lambda t: t.id)
    # The first on a tie. Implementations of other tools' logs have no plevel.
    static = max((t for t in known if ":" not in t.implementation), key=lambda t: t.plevel, default=None)
    timed = {t.id: Estimate(t.median_s, t.low_s, t.high_s, t.samples) for t in known if t.median_s is not None}
    lowest_s = min((e.median_s for e in timed.values()), default=None)
    close = find_close(timed)[1] if timed else []
    winner = max((t for t in known if t.id in close), key=lambda t: t.plevel, default=None)
    return {
        t.implementation: Cell(
            id=t.id, implementation=t.implementation, version=t.version, plevel=t.plevel,
            median_s=t.median_s, wins=t is winner, by_plevel=t is static,
            ratio=None if lowest_s is None or t.median_s is None else t.median_s / lowest_s,
        )
        for t in known
    }


class Summary(msgspec.Struct, kw_only=True):
    """Numbers of shapes at which an implementation is known, measured, selected, and has the highest plevel."""

    implementation: str
    plevel: int = 0
    shapes: int = 0
    measured: int = 0
    wins: int = 0
    by_plevel: int = 0
    worst: float | None = None


def summarize(judged: Judged) -> list[Summary]:
    """Each implementation over all shapes, those that win most first."""
    found: dict[str, Summary] = {}
    for cell in _cells(judged):
        of = found.setdefault(cell.implementation, Summary(implementation=cell.implementation))
        of.plevel = max(of.plevel, cell.plevel)
        of.shapes += 1
        of.wins += cell.wins
        of.by_plevel += cell.by_plevel
        if cell.ratio is not None:
            of.measured += 1
            of.worst = max(of.worst or 0.0, cell.ratio)
    return sorted(found.values(), key=lambda s: (-s.wins, s.implementation))


def plevel_cost(judged: Judged) -> dict[str, Any]:
    """Compare the highest plevel with the winner: the number of shapes at which they differ, and the cost.

    `mean` is the geometric mean of the ratio of its time to the lowest; None if nothing is measured.
    """
    static = [(c.ratio, c.wins) for c in _cells(judged) if c.by_plevel and c.ratio is not None]
    ratios = [ratio for ratio, _ in static]
    return {
        "shapes": len(ratios),
        "wrong": sum(not wins for _, wins in static),
        "mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "worst": max(ratios, default=None),
    }


def _cells(judged: Judged) -> Iterator[Cell]:
    return chain.from_iterable(cells.values() for cells in judged.values())


class Mistake(msgspec.Struct, frozen=True, kw_only=True):
    """A shape at which plevel would have been wrong, with the cost."""

    key: str
    taken: Cell
    winner: Cell
    cost: float


def find_mistakes(connection: sa.Connection, judged: Judged, limit: int = 10) -> list[Mistake]:
    """The shapes at which plevel would have been wrong, the most costly first."""
    found = []
    for workload_id, cells in judged.items():
        taken = next((c for c in cells.values() if c.by_plevel), None)
        winner = next((c for c in cells.values() if c.wins), None)
        if taken is None or winner is None or taken is winner or taken.median_s is None or winner.median_s is None:
            continue
        found.append((taken.median_s / winner.median_s, workload_id, taken, winner))
    found.sort(key=lambda m: (-m[0], m[1]))
    shown = found[:limit]
    named = sa.select(workload.c.id, workload.c.key).where(workload.c.id.in_([m[1] for m in shown]))
    keys = {w.id: w.key for w in connection.execute(named)}
    return [Mistake(key=keys[m[1]], taken=m[2], winner=m[3], cost=m[0]) for m in shown]


def shapes(connection: sa.Connection, op: str, target_id: int, offset: int, has: str = "") -> list[Any]:
    """Workloads of the operator on the target; one more than a page if there are more."""
    query = (
        sa.select(workload.c.id, workload.c.key)
        .where(workload.c.op == op, _on_target(target_id), *has_words(workload.c.key, has))
        .order_by(workload.c.id)
        .offset(offset)
        .limit(PAGE + 1)
    )
    return list(connection.execute(query))
