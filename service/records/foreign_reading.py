"""Reading of other tools' results: tasks, and their results in groups of one task and device model.

The columns that results are ranked by are read first: configurations and extra fields, which may be large, are read of
those results only that are answered.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any

import sqlalchemy as sa

from service.formats.foreign import UNKNOWN
from service.records.best import standing
from service.store.sql import among, is_given
from service.store.tables import advice, device, record, target, task, workload
from strategy.record import REFUTING

MAX_ROWS = 50_000  # the newest results that one answer is derived from
_REFUTING = frozenset(k.value for k in REFUTING)


class Group:
    """The results of one task on one device model."""

    def __init__(self, of: Any, model: str) -> None:
        self.task = of
        self.model = model
        self.times: dict[str, list[Any]] = defaultdict(list)
        self.failed: dict[str, Any] = {}
        self.advised: list[Any] = []

    def add(self, row: Any) -> None:
        if row.error is None:
            self.times[row.config_digest].append(row)
        elif row.error in _REFUTING or row.config_digest not in self.failed:
            self.failed[row.config_digest] = row  # a refutation outlasts later failures

    def close(self) -> None:
        """Leave out what gave a wrong answer once, and failures of what ran another time."""
        for digest, row in list(self.failed.items()):
            if row.error in _REFUTING:
                self.times.pop(digest, None)
            elif digest in self.times:
                del self.failed[digest]

    @property
    def newest(self) -> float:
        rows = [*(rows[-1] for rows in self.times.values()), *self.advised]
        return max((r.recorded_at for r in rows), default=0.0)

    def ranked(self) -> list[tuple[float | None, Any]]:
        """Time and newest row of each configuration: the measured ones, the fastest first, then advice."""
        timed = [
            (statistics.median(r.median_s for r in rows), rows[-1]) for rows in self.times.values()
        ]
        timed.sort(key=lambda found: (found[0], found[1].config_digest))
        seen = set(self.times) | set(self.failed)
        advised = [r for r in reversed(self.advised) if r.config_digest not in seen]
        return [*timed, *((None, r) for r in advised)]


def _has_some(table: sa.Table) -> sa.Exists:
    return sa.exists().where(table.c.task_id == task.c.id).correlate(task)


# Few tasks have results of both kinds, so that one of the two queries for them is left out.
_TASKS = (
    sa.select(
        *task.c["id", "implementation", "version", "workload_id"], workload.c.key,
        target.c.key.label("target"), target.c.body.label("body"),
        _has_some(record).label("timed"), _has_some(advice).label("advised"),
    )
    .join(workload, workload.c.id == task.c.workload_id)
    .join(target, target.c.id == task.c.target_id)
)
# Made once, as are those below: making a statement takes longer than executing it.
_OF_PROBLEM = _TASKS.where(
    workload.c.digest == sa.bindparam("digest"), task.c.namespace == sa.bindparam("namespace")
)


def tasks_of_problem(connection: sa.Connection, digest: str, namespace: str) -> Sequence[Any]:
    """The tasks of one workload, of any tool."""
    return connection.execute(_OF_PROBLEM, {"digest": digest, "namespace": namespace}).all()


def select_tasks(tool: str | None, namespace: str | None, version: str | None = None) -> sa.Select[Any]:
    """The tasks of one tool, or of all; of one namespace, or of all; of one source and of unknown ones."""
    of_tool = (
        task.c.implementation.contains(":") if tool is None
        else task.c.implementation.startswith(f"{tool}:", autoescape=True)
    )
    return _TASKS.where(
        of_tool, is_given(task.c.namespace, namespace),
        sa.true() if version is None else task.c.version.in_((version, UNKNOWN)),
    )


def _standing(table: sa.Table, *columns: Any) -> sa.Select[Any]:
    """Columns of results that were not purged, with their devices."""
    found = sa.select(*columns).select_from(table)
    return found.outerjoin(device, device.c.id == table.c.device_id).where(standing(table))


def _on(model: Any) -> list[sa.ColumnElement[bool]]:
    return [] if model is None else [sa.func.coalesce(device.c.model, "") == model]


def _of_tasks(table: sa.Table, on_one: bool, *columns: Any) -> sa.Select[Any]:
    """Columns of the results of tasks, on the device model of the parameter `model` or on all."""
    model = _on(sa.bindparam("model") if on_one else None)
    return _standing(table, *columns).where(among(table.c.task_id), *model)


@cache
def _sizes(table: sa.Table, on_one: bool) -> sa.Select[Any]:
    """The number of results of each task."""
    return _of_tasks(table, on_one, table.c.task_id, sa.func.count()).group_by(table.c.task_id)


@cache
def _newest(table: sa.Table, on_one: bool) -> sa.Select[Any]:
    """The newest results, the newest first."""
    more = ("error", "median_s") if table is record else ()
    columns = table.c["id", "task_id", "config_digest", "recorded_at", *more]
    query = _of_tasks(table, on_one, *columns, device.c.model)
    return query.order_by(table.c.id.desc()).limit(sa.bindparam("rows"))


def has_results(device_model: str | None) -> sa.ColumnElement[bool]:
    """The condition on `task` that it has results: on one device model, or on any."""
    return sa.or_(
        *(
            _standing(table, table.c.id)
            .where(table.c.task_id == task.c.id, *_on(device_model))
            .correlate(task)
            .exists()
            for table in (record, advice)
        )
    )


def read_groups(
    connection: sa.Connection, tasks: Iterable[Any], device_model: str | None = None
) -> list[Group]:
    """The results of tasks, on one device model or on all, without their configurations and extra fields."""
    by_id = {t.id: t for t in tasks}
    groups: dict[tuple[int, str], Group] = {}
    if not by_id:
        return []

    def group_of(row: Any) -> Group:
        place = row.task_id, row.model or ""
        if place not in groups:
            groups[place] = Group(by_id[row.task_id], place[1])
        return groups[place]

    def results(table: sa.Table, ids: list[int]) -> Iterable[Any]:
        given = {"ids": ids, "rows": MAX_ROWS, "model": device_model}
        query = _newest(table, device_model is not None)
        return reversed(connection.execute(query, given).all()) if ids else ()

    for row in results(record, [t.id for t in by_id.values() if t.timed]):
        group_of(row).add(row)
    for row in results(advice, [t.id for t in by_id.values() if t.advised]):
        group_of(row).advised.append(row)
    for group in groups.values():
        group.close()
    return list(groups.values())


def count_readable(
    connection: sa.Connection, parts: Sequence[Sequence[int]], device_model: str | None = None
) -> int:
    """The number of first parts, each the ids of its tasks, of which `MAX_ROWS` cuts no result off; at least one."""
    sizes: Counter[int] = Counter()
    which = {"ids": [*chain.from_iterable(parts)], "model": device_model}
    for table in (record, advice):
        for task_id, rows in connection.execute(_sizes(table, device_model is not None), which):
            sizes[task_id] += rows
    totals = accumulate(sum(sizes[i] for i in part) for part in parts)
    return max(1, sum(rows <= MAX_ROWS for rows in totals))


# Of each table: configuration, origin and extra fields, and the characters of the first and the last.
BODIES = {
    table: sa.select(
        *table.c["id", "config", "source", "origin_worker", "measured_at", "extra"]
    ).where(among(table.c.id))
    for table in (record, advice)
}
SIZES = {
    table: sa.select(
        table.c.id,
        (
            sa.func.length(sa.cast(table.c.config, sa.Text()))
            + sa.func.coalesce(sa.func.length(table.c.extra), 0)
        ).label("size"),
    ).where(among(table.c.id))
    for table in (record, advice)
}


def read_each(connection: sa.Connection, query: sa.Select[Any], ids: Sequence[int]) -> dict[int, Any]:
    """The rows of a query of ids, by their ids."""
    return {r.id: r for r in connection.execute(query, {"ids": ids})} if ids else {}
