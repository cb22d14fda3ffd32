"""Operators: which implementation wins at which shape, and what plevel alone would have cost."""

from __future__ import annotations

import math
from typing import Any

import sqlalchemy as sa

from service.errors import NotFoundError
from service.models import best, run_task, target, task, workload
from service.records import REFERENCE

PAGE = 40
MAX_IMPLEMENTATIONS = 24


def ops(connection: sa.Connection) -> list[Any]:
    """Operators on record with counts of their workloads, targets, implementations and times."""
    query = (
        sa.select(
            workload.c.op, sa.func.count(workload.c.id.distinct()).label("workloads"),
            sa.func.count(task.c.target_id.distinct()).label("targets"),
            sa.func.count(task.c.implementation.distinct()).label("implementations"),
            sa.func.count(best.c.task_id).label("measured"), sa.func.count(task.c.id).label("tasks"),
        )
        .join(task, task.c.workload_id == workload.c.id)
        .outerjoin(best, sa.and_(best.c.task_id == task.c.id, best.c.scope == "target"))
        .where(workload.c.op != REFERENCE.op)
        .group_by(workload.c.op)
        .order_by(workload.c.op)
        .limit(500)
    )  # fmt: skip
    return list(connection.execute(query))


def targets(connection: sa.Connection, op: str) -> list[Any]:
    """Targets with tasks of the operator, those with the most workloads first.

    Raises:
        NotFoundError: nothing of the operator is on record.
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
        raise NotFoundError(f"nothing of operator {op!r:.80} is on record: tune a workload of it first")
    return found


def judged(op: str, target_id: int) -> Any:
    """Each workload's implementations in their newest version, with what the rules say of them.

    What runs here have tuned goes before what was imported, whenever that came.

    `wins` marks the one that selection takes: of those whose interval overlaps the lowest
    median's, the highest plevel. `by_plevel` marks the highest plevel of all, measured or not.
    """
    tuned_here = sa.exists().where(run_task.c.task_id == task.c.id)
    versions = (
        sa.select(
            task.c.id,
            sa.func.row_number()
            .over(partition_by=(task.c.workload_id, task.c.implementation),
                  order_by=(sa.case((tuned_here, 0), else_=1), task.c.id.desc()))
            .label("age"),
        )
        .join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == op, task.c.target_id == target_id)
        .subquery()
    )  # fmt: skip
    newest = sa.select(versions.c.id).where(versions.c.age == 1)
    by_time: dict[str, Any] = {
        "partition_by": task.c.workload_id,
        "order_by": (best.c.median_s.is_(None), best.c.median_s, task.c.id),
    }
    timed = (
        sa.select(
            task.c.id, task.c.workload_id, task.c.implementation, task.c.version, task.c.plevel,
            best.c.median_s, best.c.low_s, best.c.high_s, best.c.phase,
            sa.func.first_value(best.c.median_s).over(**by_time).label("lowest_s"),
            sa.func.first_value(best.c.high_s).over(**by_time).label("lowest_high_s"),
        )
        .outerjoin(best, sa.and_(best.c.task_id == task.c.id, best.c.scope == "target"))
        .where(task.c.id.in_(newest))
        .subquery()
    )  # fmt: skip
    close = sa.case((timed.c.low_s <= timed.c.lowest_high_s, 0), else_=1)

    by_rule: dict[str, Any] = {
        "partition_by": timed.c.workload_id, "order_by": (close, timed.c.plevel.desc(), timed.c.id),
    }  # fmt: skip
    by_plevel: dict[str, Any] = {
        "partition_by": timed.c.workload_id, "order_by": (timed.c.plevel.desc(), timed.c.id),
    }  # fmt: skip
    return sa.select(
        timed, (timed.c.median_s / timed.c.lowest_s).label("ratio"),
        sa.func.row_number().over(**by_rule).label("by_rule"),
        sa.func.row_number().over(**by_plevel).label("by_plevel"),
        sa.func.first_value(timed.c.id).over(**by_rule).label("winner_task_id"),
        sa.func.first_value(timed.c.implementation).over(**by_rule).label("winner"),
        sa.func.first_value(timed.c.median_s).over(**by_rule).label("winner_s"),
    ).subquery()  # fmt: skip


def summary(connection: sa.Connection, ranked: Any) -> list[Any]:
    """Per implementation: at how many shapes it is measured, wins, and is what plevel would take."""
    timed = ranked.c.median_s.is_not(None)
    wins = sa.and_(timed, ranked.c.by_rule == 1)
    query = (
        sa.select(
            ranked.c.implementation, sa.func.max(ranked.c.plevel).label("plevel"),
            sa.func.count().label("shapes"), sa.func.count(ranked.c.median_s).label("measured"),
            sa.func.count().filter(wins).label("wins"),
            sa.func.count().filter(ranked.c.by_plevel == 1).label("by_plevel"),
            sa.func.max(ranked.c.ratio).label("worst"),
        )
        .group_by(ranked.c.implementation)
        .order_by(sa.func.count().filter(wins).desc(), ranked.c.implementation)
        .limit(MAX_IMPLEMENTATIONS)
    )  # fmt: skip
    return list(connection.execute(query))


def plevel_cost(connection: sa.Connection, ranked: Any) -> dict[str, Any]:
    """Where the highest plevel is measured: at how many shapes it is not the winner, and the cost.

    `mean` is the geometric mean of its time to the lowest; None where nothing is measured.
    """
    rows = connection.execute(
        sa.select(ranked.c.ratio, ranked.c.by_rule)
        .where(ranked.c.by_plevel == 1, ranked.c.median_s.is_not(None))
    ).all()  # fmt: skip
    ratios = [r.ratio for r in rows]
    return {
        "shapes": len(rows),
        "wrong": sum(r.by_rule != 1 for r in rows),
        "mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "worst": max(ratios, default=None),
    }


def misjudged(connection: sa.Connection, ranked: Any, limit: int = 10) -> list[Any]:
    """The shapes at which plevel would have been wrong, the most costly first."""
    cost = ranked.c.median_s / ranked.c.winner_s
    query = (
        sa.select(
            workload.c.key, ranked.c.id.label("task_id"), ranked.c.implementation,
            ranked.c.median_s, ranked.c.winner_task_id, ranked.c.winner, ranked.c.winner_s,
            cost.label("cost"),
        )
        .join(workload, workload.c.id == ranked.c.workload_id)
        .where(ranked.c.by_plevel == 1, ranked.c.median_s.is_not(None), ranked.c.by_rule != 1)
        .order_by(cost.desc(), ranked.c.id)
        .limit(limit)
    )  # fmt: skip
    return list(connection.execute(query))


def shapes(connection: sa.Connection, op: str, target_id: int, offset: int) -> list[Any]:
    """Workloads of the operator on the target; one more than a page where there are more."""
    on_target = sa.select(task.c.workload_id).where(task.c.target_id == target_id)
    query = (
        sa.select(workload.c.id, workload.c.key)
        .where(workload.c.op == op, workload.c.id.in_(on_target))
        .order_by(workload.c.id)
        .offset(offset)
        .limit(PAGE + 1)
    )
    return list(connection.execute(query))


def cells(connection: sa.Connection, ranked: Any, workloads: list[int]) -> dict[int, dict[str, Any]]:
    """What is known of each implementation at these workloads."""
    found: dict[int, dict[str, Any]] = {}
    for r in connection.execute(sa.select(ranked).where(ranked.c.workload_id.in_(workloads))):
        found.setdefault(r.workload_id, {})[r.implementation] = r
    return found
