"""Finals: the sessions at the end of a run that time the best of all implementations interleaved."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from service.store.sql import is_given
from service.store.tables import Scope, best, device, job, record, task
from strategy.record import Estimate, Phase


def count(connection: sa.Connection, run_id: int, workload_id: int) -> int:
    """The finals of one workload that a run has enqueued, in any state."""
    query = sa.select(sa.func.count()).where(
        job.c.run_id == run_id, job.c.workload_id == workload_id,
        job.c.phase == Phase.CONFIRM.value, job.c.parent_id.is_(None),
    )  # fmt: skip
    return int(connection.execute(query).scalar_one())


def find_models(connection: sa.Connection, task_id: int, run_id: int | None = None) -> list[str]:
    """The device models that timed a task's candidates, or those that did in one run."""
    query = (
        sa.select(device.c.model)
        .distinct()
        .join(record, record.c.device_id == device.c.id)
        .where(
            record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, record.c.error.is_(None),
            is_given(record.c.run_id, run_id),
        )
        .order_by(device.c.model)
    )  # fmt: skip
    return list(connection.scalars(query))


def find_estimates(
    connection: sa.Connection, run_id: int, tasks: Sequence[int]
) -> Collection[dict[str, Estimate]]:
    """The confirmed time of each implementation of one workload, by each device model of the run's finals.

    Times of different device models are not comparable.
    """
    models = (
        sa.select(device.c.model)
        .join(record, record.c.device_id == device.c.id)
        .where(record.c.run_id == run_id, record.c.phase == Phase.CONFIRM.value)
    )
    of_model: dict[str, dict[str, Estimate]] = {}
    for row in connection.execute(
        sa.select(best, task.c.implementation)
        .join(task, task.c.id == best.c.task_id)
        .where(task.c.id.in_(tasks), best.c.scope == Scope.MODEL.value,
               best.c.phase == Phase.CONFIRM.value, best.c.scope_value.in_(models))
    ):  # fmt: skip
        found = Estimate(row.median_s, row.low_s, row.high_s, row.samples)
        of_model.setdefault(row.scope_value, {})[row.implementation] = found
    return of_model.values()
