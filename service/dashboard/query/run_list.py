"""Runs, a page of them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.dashboard.listing import ALWAYS, Span, order
from service.store.sql import now
from service.store.tables import record, run, run_task, target, task, workload
from service.tuning.run_filter import ANY, OfRun

PAGE = 25
SORTS = ("run", "target", "budget", "records", "took")
NEWEST = "-run"
FIRST_TASK = (
    sa.select(sa.func.min(run_task.c.task_id)).where(run_task.c.run_id == run.c.id).correlate(run).scalar_subquery()
)


def page(
    connection: sa.Connection, of: OfRun = ANY, *,
    span: Span = ALWAYS, sort: str = NEWEST, offset: int = 0, size: int = PAGE,
) -> list[Any]:
    """Matching runs, sorted by one of `SORTS`; one more than a page if there are more."""
    several = (
        sa.select(sa.func.count(task.c.workload_id.distinct()))
        .join(run_task, run_task.c.task_id == task.c.id)
        .where(run_task.c.run_id == run.c.id)
        .correlate(run)
        .scalar_subquery()
    )
    records = (
        sa.select(sa.func.count()).select_from(record).where(record.c.run_id == run.c.id).scalar_subquery()
    )
    trials = run.c.request["trials"].as_integer()
    query = (
        sa.select(
            run.c.id, run.c.state, run.c.message, run.c.created_at, run.c.finished_at,
            trials.label("trials"), several.label("workloads"),
            target.c.key.label("target"), workload.c.op, workload.c.key.label("workload"),
            records.label("records"),
        )
        .select_from(run)
        .outerjoin(task, task.c.id == FIRST_TASK)
        # A run's own is that of the devices that time it, however they do.
        .join(target, target.c.id == sa.func.coalesce(task.c.target_id, run.c.target_id))
        .outerjoin(workload, workload.c.id == task.c.workload_id)
        .where(*of.conditions, *span.conditions(run.c.created_at))
        .order_by(
            order(sort, {
                "run": run.c.id, "budget": trials, "records": records, "target": target.c.key,
                "took": sa.func.coalesce(run.c.finished_at, now()) - run.c.created_at,
            }),
            run.c.id.desc(),
        )
        .offset(offset)
        .limit(size + 1)
    )
    return list(connection.execute(query))
