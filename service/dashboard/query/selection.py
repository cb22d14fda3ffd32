"""Choices of the selection form, and candidates of operators that are not installed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store.tables import best, device, target, task, workload
from strategy.condition import SpecializedCondition
from strategy.op_strategy import Candidate
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import Workload

OFFERED = 30


def targets(connection: sa.Connection) -> list[str]:
    """The keys of the newest targets on record, for the fields of forms."""
    return list(connection.scalars(sa.select(target.c.key).order_by(target.c.id.desc()).limit(OFFERED)))


def known(connection: sa.Connection) -> dict[str, list[Any]]:
    """Targets and devices on record, and the most recently measured workloads, for the form."""
    recent = (
        sa.select(task.c.workload_id, task.c.target_id, sa.func.max(best.c.updated_at).label("at"))
        .join(best, best.c.task_id == task.c.id)
        .where(best.c.scope == "target")
        .group_by(task.c.workload_id, task.c.target_id)
        .order_by(sa.func.max(best.c.updated_at).desc())
        .limit(8)
        .subquery()
    )
    lately = connection.execute(
        sa.select(workload.c.key.label("workload"), target.c.key.label("target"))
        .join(recent, recent.c.workload_id == workload.c.id)
        .join(target, target.c.id == recent.c.target_id)
        .order_by(recent.c.at.desc())
    )
    devices = connection.execute(
        sa.select(device.c.identity, sa.func.max(device.c.model).label("model"))
        .group_by(device.c.identity)
        .order_by(sa.func.max(device.c.seen_at).desc())
        .limit(OFFERED)
    )
    return {"lately": list(lately), "targets": targets(connection), "devices": list(devices)}


def find_target(connection: sa.Connection, key: str) -> Target | None:
    """The target on record with this key."""
    body = connection.scalar(sa.select(target.c.body).where(target.c.key == key.strip()))
    return None if body is None else Target.parse(body)


def has_device(connection: sa.Connection, identity: str) -> bool:
    return bool(connection.scalar(sa.select(sa.exists().where(device.c.identity == identity))))


def candidates_on_record(
    connection: sa.Connection, asked: Workload, on: Target, namespace: str
) -> list[Candidate] | None:
    """The newest version of each implementation that was tuned in a namespace for the workload on the target.

    None if there is none.
    """
    newest = (
        sa.select(sa.func.max(task.c.id))
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .where(workload.c.digest == asked.digest, target.c.key == on.key, task.c.namespace == namespace)
        .group_by(task.c.implementation)
    )
    rows = connection.execute(sa.select(task).where(task.c.id.in_(newest)).order_by(task.c.id))
    return [
        Candidate(
            r.implementation, r.version, r.plevel,
            None if r.condition is None else SpecializedCondition.from_json(r.condition),
            None if r.space is None else ConfigSpace.from_json(r.space), r.library,
        )
        for r in rows
    ] or None
