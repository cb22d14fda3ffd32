"""As-of queries: the best at an instant, derived from the append-only records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.records import best
from service.store.sql import values_table
from service.store.tables import Scope, device, record, target, task, workload
from strategy.record import Phase, estimate


class Best(NamedTuple):
    """A current or past row of `best`, with its task and target."""

    digest: str
    target: str  # its key
    implementation: str
    version: str
    scope: Scope
    scope_value: str
    config: Any
    config_digest: str
    median_s: float
    low_s: float
    high_s: float
    samples: int
    target_keys: str  # the keys of all variants of the target, JSON


def best_at(
    connection: sa.Connection, digests: Iterable[str], when: float, namespace: str
) -> Iterator[Best]:
    """The best of each task of these workloads in a namespace, in the order of tasks."""
    given = values_table(connection, [workload.c.digest], [(d,) for d in sorted(digests)])
    tasks = connection.execute(
        sa.select(
            *task.c["id", "implementation", "version"], workload.c.digest, target.c.key,
            sa.cast(target.c["keys"], sa.Text()).label("target_keys"),
        )
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .join(given, given.c.digest == workload.c.digest)
        .where(task.c.created_at <= when, task.c.namespace == namespace)
        .order_by(task.c.id)
    ).all()
    for of in tasks:
        query = best.telling(*best.stood(when), record.c.task_id == of.id).add_columns(
            *record.c["config", "samples_s"], device.c.slot
        )
        rows = connection.execute(
            query.outerjoin_from(record, device, device.c.id == record.c.device_id)
            .order_by(record.c.id)
        ).all()
        samples = {row.id: row.samples_s for row in rows}
        places: dict[tuple[Scope, str], list[Any]] = {}
        for row in rows:
            for place in best.scopes_of(row.device_id, row):
                places.setdefault(place, []).append(row)
        for (scope, value), found in places.items():
            ranked = best.rank(found, Phase.CONFIRM, samples) or best.rank(
                found, Phase.SEARCH, samples
            )
            if ranked:
                pool = ranked[0][2]
                cost = estimate([s for row in pool for s in row.samples_s])
                yield Best(
                    of.digest, of.key, of.implementation, of.version, scope, value,
                    pool[0].config, pool[0].config_digest, cost.median_s, cost.low_s, cost.high_s, cost.samples,
                    of.target_keys,
                )
