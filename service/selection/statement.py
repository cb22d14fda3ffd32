"""Statements of the selection's database, built once: building them would take most of a selection's time."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa

from service.records.as_of import Best
from service.records.best import standing
from service.store.sql import given_table
from service.store.tables import advice, best, device, target, task
from service.store.tables import workload as workload_table

TARGET = sa.select(target.c.id, target.c.key, target.c["keys"].label("all")).where(
    target.c.id == sa.bindparam("target_id")
)
_OF_NAMESPACE = task.c.namespace == sa.bindparam("namespace")


@cache
def best_of_given(dialect: str) -> sa.Select[Any]:
    """The best of workloads, with the columns of `Best`."""
    given = given_table(dialect, [workload_table.c.digest])
    found = {c.name: c for table in (best, task, workload_table) for c in table.c}
    return (
        sa.select(*(found[name] for name in Best._fields))
        .join(task, task.c.id == best.c.task_id)
        .join(workload_table, workload_table.c.id == task.c.workload_id)
        .join(given, given.c.digest == workload_table.c.digest)
        .where(_OF_NAMESPACE)
        .order_by(task.c.id, best.c.scope_value)
    )


@cache
def targets_of_given(dialect: str) -> sa.Select[Any]:
    """The targets with a task of workloads, with the columns of `TARGET`."""
    given = given_table(dialect, [workload_table.c.digest])
    used = (
        sa.select(task.c.target_id)
        .join(workload_table, workload_table.c.id == task.c.workload_id)
        .join(given, given.c.digest == workload_table.c.digest)
        .where(_OF_NAMESPACE)
    )
    return sa.select(*TARGET.selected_columns).where(target.c.id.in_(used))


@cache
def foreign_of_given(dialect: str) -> sa.Select[Any]:
    """The tasks of other tools' implementations of workloads."""
    given = given_table(dialect, [workload_table.c.digest])
    columns = ("target_id", "implementation", "version", "plevel", "library", "space")
    return (
        sa.select(workload_table.c.digest, *task.c[columns])
        .join(task, task.c.workload_id == workload_table.c.id)
        .join(given, given.c.digest == workload_table.c.digest)
        .where(task.c.implementation.contains(":"), _OF_NAMESPACE)
        .order_by(task.c.id)
    )


@cache
def standing_advice_of_given(dialect: str) -> sa.Select[Any]:
    """The advice for workloads that was not purged, the newest first."""
    return advice_of_given(dialect).where(standing(advice))


@cache
def advice_of_given(dialect: str) -> sa.Select[Any]:
    """The advice for workloads, the newest first; purged ones, too."""
    given = given_table(dialect, [workload_table.c.digest])
    return (
        sa.select(
            workload_table.c.digest, *task.c["target_id", "implementation", "version"],
            *advice.c["config", "source"], device.c.model,
        )
        .join_from(advice, task, task.c.id == advice.c.task_id)
        .join(workload_table, workload_table.c.id == task.c.workload_id)
        .join(given, given.c.digest == workload_table.c.digest)
        .outerjoin(device, device.c.id == advice.c.device_id)
        .where(_OF_NAMESPACE)
        .order_by(advice.c.measured_at.desc(), advice.c.id.desc())
    )
