"""The lowest mean cost of each task, target as written, and device model.

The input of TVM's own rule (`strategy.select.History`). As for `best`, rows are derived from the records in
the transaction that stores them; purged records and times of the calibration kernel are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.records.best import standing, stood
from service.store.catalogue import age
from service.store.sql import Ask, among, given_table, put_rows, values_of, values_table
from service.store.tables import device, history, record, target_variant, task, workload
from strategy.record import Phase
from strategy.select import History
from strategy.space import Config

# Task, variant, device, mean cost, digest of the configuration, and its key.
Attempt = tuple[int, int, int | None, float, str, str]
Fastest = Mapping[tuple[int, int, int | None], Attempt]  # of each task, variant and device

_IDENTITY = ("task_id", "variant_id", "model")
_NAMES = (*_IDENTITY, "mean_s", "config_digest", "config")
_COLUMNS = tuple(history.c[_NAMES])
_REPLACED = (
    f"({', '.join(_IDENTITY)}) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in _NAMES[3:])}"
)


def fastest_of(attempts: Iterable[Attempt]) -> Fastest:
    fastest: dict[tuple[int, int, int | None], Attempt] = {}
    for attempt in attempts:
        if attempt[3] < fastest.setdefault(attempt[:3], attempt)[3]:
            fastest[attempt[:3]] = attempt
    return fastest


def ask_known(connection: sa.Connection, ask: Ask, fastest: Fastest) -> list[Any]:
    """The lowest of each so far. Few records are faster, so reading it is cheaper than rewriting all."""
    return ask(_known_of(connection.dialect.name), {"rows": values_of(fastest)})


def settle(connection: sa.Connection, fastest: Fastest, read: Iterable[Any]) -> None:
    """Update the rows by new successes, for which the answer of `ask_known` has come.

    The caller holds the tasks' locks (`best.lock`).
    """
    known = {tuple(row[:3]): (row.model, row.mean_s) for row in read}
    lower: dict[tuple[int, int, str], Attempt] = {}
    for place, attempt in fastest.items():
        model, mean_s = known[place]
        if mean_s is None or attempt[3] < mean_s:
            of_model = *place[:2], model
            if attempt[3] < lower.setdefault(of_model, attempt)[3]:
                lower[of_model] = attempt
    if lower:
        rows = [(*of_model, *attempt[3:]) for of_model, attempt in lower.items()]
        put_rows(connection, _COLUMNS, rows, _REPLACED)


@cache
def _known_of(dialect: str) -> sa.Select[Any]:
    """The device model of each task, variant and device, and the lowest mean so far, if any."""
    given = given_table(dialect, list(record.c["task_id", "variant_id", "device_id"]))
    model = sa.func.coalesce(device.c.model, "")
    same = sa.and_(
        history.c.task_id == given.c.task_id, history.c.variant_id == given.c.variant_id,
        history.c.model == model,
    )
    return (
        sa.select(*given.c, model.label("model"), history.c.mean_s)
        .outerjoin_from(given, device, device.c.id == given.c.device_id)
        .outerjoin(history, same)
    )


def derive(connection: sa.Connection, tasks: Collection[int]) -> None:
    """Derive the rows of these tasks again, from all of their records."""
    given = values_table(connection, [task.c.id], [(i,) for i in sorted(tasks)])
    wanted = sa.select(given.c.id)
    connection.execute(sa.delete(history).where(history.c.task_id.in_(wanted)))
    found = _ranked(standing(), record.c.task_id.in_(wanted)).subquery()
    rows = sa.select(*(found.c[name] for name in _NAMES)).where(found.c.place == 1)
    connection.execute(sa.insert(history).from_select(_NAMES, rows))


def read(
    connection: sa.Connection, digests: Iterable[str], namespace: str, as_of: float | None = None
) -> list[tuple[str, History]]:
    """Rows of workloads, each with its workload's digest.

    Only the newest version of each implementation on a target counts, as TVM's rule has no versions.

    Args:
        as_of: the instant after which records are ignored; default: now.
    """
    given = values_table(connection, [workload.c.digest], [(d,) for d in sorted(digests)])
    tasks = (
        sa.select(*task.c["id", "workload_id", "implementation", "target_id", "version"])
        .join(workload, workload.c.id == task.c.workload_id)
        .join(given, given.c.digest == workload.c.digest)
        .where(task.c.namespace == namespace)
    )
    if as_of is not None:
        tasks = tasks.where(task.c.created_at <= as_of)
    by_age = sorted(connection.execute(tasks).all(), key=lambda one: age(one.version, one.id))
    newest = {(one.workload_id, one.implementation, one.target_id): one.id for one in by_age}
    if as_of is None:
        found: Any = history
        wanted = among(task.c.id)
    else:
        found = _ranked(*stood(as_of), among(record.c.task_id)).subquery()
        wanted = found.c.place == 1
    rows = connection.execute(
        sa.select(*(found.c[name] for name in ("config", "mean_s", "model")),
                  workload.c.digest, task.c.implementation,
                  target_variant.c["keys"].label("target_keys"))
        .join(task, task.c.id == found.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target_variant, target_variant.c.id == found.c.variant_id)
        .where(wanted)
        .order_by(found.c.task_id, found.c.model, found.c.variant_id),
        {"ids": sorted(newest.values())},
    )
    return [
        (r.digest, History(implementation=r.implementation, config=Config(r.config),
                           mean_s=r.mean_s, model=r.model, keys=tuple(r.target_keys)))
        for r in rows
    ]


def _ranked(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Successes, each with its rank within its task, variant and device model."""
    model = sa.func.coalesce(device.c.model, "")
    place = sa.func.row_number().over(
        partition_by=(record.c.task_id, record.c.variant_id, model),
        order_by=(record.c.mean_s, record.c.id),
    )
    return (
        sa.select(*record.c["task_id", "variant_id"], model.label("model"),
                  *record.c["mean_s", "config_digest", "config"], place.label("place"))
        .outerjoin(device, device.c.id == record.c.device_id)
        .where(record.c.error.is_(None), record.c.phase != Phase.REFERENCE.value, *conditions)
    )
