"""The best configuration of each task per device, device model and target: derived from records.

A configuration's cost is the median of its pooled samples: of the confirm phase where the scope
has any confirm sample, of the search phase otherwise. One with a wrong answer on record in the
scope is never the best, and a failure has no cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from service.db import insert, now
from service.models import Scope, best, device, record, task
from strategy.record import ErrorKind, Estimate, Phase, estimate


def lock(connection: sa.Connection, tasks: Iterable[int]) -> None:
    """Makes others who report of these tasks wait: the rows shared by devices are derived in turn.

    SQLite's writers wait for each other anyway.
    """
    locked = sa.select(task.c.id).where(task.c.id.in_(sorted(tasks))).order_by(task.c.id)
    # Not against foreign keys, which every new record checks.
    connection.execute(locked.with_for_update(key_share=True))


def refresh(connection: sa.Connection, task_id: int, device_id: int, digests: Iterable[str]) -> None:
    """Brings the task's rows up to date after records of these configurations on this device.

    The caller holds the task's lock.
    """
    model = connection.execute(
        sa.select(device.c.model).where(device.c.id == device_id)
    ).scalar_one()
    changed = set(digests)
    for scope, value in (
        (Scope.DEVICE, str(device_id)), (Scope.MODEL, model), (Scope.TARGET, ""),
    ):  # fmt: skip
        _refresh_scope(connection, task_id, scope, value, changed)


def _refresh_scope(
    connection: sa.Connection, task_id: int, scope: Scope, value: str, changed: set[str]
) -> None:
    place = sa.and_(
        best.c.task_id == task_id, best.c.scope == scope.value, best.c.scope_value == value
    )
    current = connection.execute(sa.select(best).where(place)).one_or_none()
    phase = Phase.CONFIRM
    found = lowest(connection, task_id, scope, value, phase)
    if found is None:
        phase = Phase.SEARCH
        looked = changed if current is None else {*changed, current.config_digest}
        found = lowest(connection, task_id, scope, value, phase, looked)
        if current is not None and (found is None or found[1].median_s > current.median_s):
            # The best has become worse: any other may be the best now.
            found = lowest(connection, task_id, scope, value, phase)
    if found is None:
        connection.execute(sa.delete(best).where(place))
        return
    row, cost = found
    values: dict[str, Any] = {
        "config": row.config, "config_digest": row.config_digest, "phase": phase.value,
        "median_s": cost.median_s, "low_s": cost.low_s, "high_s": cost.high_s,
        "samples": cost.samples, "updated_at": now(),
    }  # fmt: skip
    identity = {"task_id": task_id, "scope": scope.value, "scope_value": value}
    statement = insert(connection, best).values(**identity, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(identity), set_=values))


def lowest(
    connection: sa.Connection,
    task_id: int,
    scope: Scope,
    value: str,
    phase: Phase,
    digests: set[str] | None = None,
) -> tuple[Any, Estimate] | None:
    """The configuration with the lowest median of pooled samples, a row of it and the estimate.

    Equal medians are decided by the digest. Looks among `digests` only where they are given.
    """
    ranked = pooled(connection, task_id, scope, value, phase, digests)
    return ranked[0] if ranked else None


def pooled(
    connection: sa.Connection,
    task_id: int,
    scope: Scope,
    value: str,
    phase: Phase,
    digests: set[str] | None = None,
) -> list[tuple[Any, Estimate]]:
    """Every configuration with samples in the scope and its estimate, the fastest first."""
    here = [record.c.task_id == task_id]
    if scope is Scope.DEVICE:
        here.append(record.c.device_id == int(value))
    elif scope is Scope.MODEL:
        same = sa.select(device.c.id).where(device.c.model == value)
        here.append(record.c.device_id.in_(same))
    wrong = record.alias("wrong")
    refuted = sa.select(wrong.c.config_digest).where(
        *(_on(wrong, condition) for condition in here), wrong.c.error == ErrorKind.WRONG_ANSWER.value
    )
    query = sa.select(record.c.config_digest, record.c.config, record.c.samples_s).where(
        *here, record.c.phase == phase.value, record.c.error.is_(None),
        record.c.config_digest.not_in(refuted),
    )  # fmt: skip
    if digests is not None:
        query = query.where(record.c.config_digest.in_(digests))
    rows: dict[str, Any] = {}
    samples: dict[str, list[float]] = {}
    for row in connection.execute(query.order_by(record.c.id)):
        rows.setdefault(row.config_digest, row)
        samples.setdefault(row.config_digest, []).extend(row.samples_s)
    costs = [(rows[digest], estimate(pool)) for digest, pool in samples.items()]
    return sorted(costs, key=lambda c: (c[1].median_s, c[0].config_digest))


def _on(table: Any, condition: Any) -> Any:
    """The same condition on an alias of `record`."""
    return sa.sql.util.ClauseAdapter(table).traverse(condition)
