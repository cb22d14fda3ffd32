"""Statements of the selection's database, built once: building them would take most of a selection's time.

All are of the tasks of workloads in the namespace `namespace`, with their targets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.records.as_of import Best
from service.records.best import standing, stood
from service.store.listed import Texts
from service.store.sql import among
from service.store.tables import advice, best, device, record, target, task, workload

_TARGET = (target.c.key.label("target"), sa.cast(target.c["keys"], sa.Text()).label("target_keys"))
_FOUND = {c.name: c for c in (*best.c, *task.c, *workload.c, *_TARGET)}


def _of_tasks(query: sa.Select[Any], tasks: sa.FromClause) -> sa.Select[Any]:
    """A query of tasks, alone or joined with others, from which it also has their workloads and targets."""
    return (
        query.join_from(tasks, workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .where(task.c.namespace == sa.bindparam("namespace"))
    )


# The best, with the columns of `Best`.
BEST = _of_tasks(
    sa.select(*(_FOUND[name] for name in Best._fields)), best.join(task, task.c.id == best.c.task_id)
).order_by(task.c.id, best.c.scope_value)

# The tasks, and those of which something failed and nothing has a time.
TASKS = _of_tasks(
    sa.select(workload.c.digest, *_TARGET, *task.c["implementation", "version"]), task
).order_by(task.c.id)
_ATTEMPT = sa.exists().where(record.c.task_id == task.c.id)
FAILED = TASKS.where(
    ~sa.exists().where(best.c.task_id == task.c.id), _ATTEMPT.where(record.c.error.is_not(None), standing())
)


def failed_at(when: float) -> list[sa.ColumnElement[bool]]:
    """The conditions on `TASKS` that something had failed at an instant."""
    return [_ATTEMPT.where(record.c.error.is_not(None), *stood(when))]


# The tasks of other tools' implementations.
FOREIGN = _of_tasks(
    sa.select(workload.c.digest, *_TARGET, *task.c["implementation", "version", "plevel", "library", "space"]), task
).where(task.c.implementation.contains(":")).order_by(task.c.id)

# The advice, the newest first; purged one, too.
ADVICE = _of_tasks(
    sa.select(
        workload.c.digest, *_TARGET, *task.c["implementation", "version"], *advice.c["config", "source"], device.c.model
    ),
    advice.join(task, task.c.id == advice.c.task_id).outerjoin(device, device.c.id == advice.c.device_id),
).order_by(advice.c.measured_at.desc(), advice.c.id.desc())

STANDING_ADVICE = ADVICE.where(standing(advice))

_ONE = workload.c.digest == sa.bindparam("digest")
_SEVERAL = among(workload.c.digest, sa.bindparam("digests", type_=Texts()))


@cache
def _of(query: sa.Select[Any], several: bool) -> sa.Select[Any]:
    return query.where(_SEVERAL if several else _ONE)


def of_given(
    query: sa.Select[Any], digests: Collection[str], namespace: str
) -> tuple[sa.Select[Any], Mapping[str, Any]]:
    """One of these queries, of workloads given by digests, and its parameters.

    That of one workload is another statement, whose plan PostgreSQL keeps: it expects several of a list, and would plan
    the query anew for each list of one.
    """
    if len(digests) == 1:
        (digest,) = digests
        return _of(query, several=False), {"digest": digest, "namespace": namespace}
    return _of(query, several=True), {"digests": sorted(digests), "namespace": namespace}
