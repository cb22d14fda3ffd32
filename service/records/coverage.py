"""Coverage of tasks by records: the best and the tuning state of each."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from service.records import ranking
from service.records.best import standing
from service.records.filter import Tasks
from service.records.installed_version import installed_versions
from service.records.ranking import Ranked
from service.store.sql import among, is_given
from service.store.tables import (
    MEASURED_HERE,
    best,
    device,
    record,
    run,
    run_task,
    target,
    task,
    workload,
)
from strategy.record import Estimate, ModelBest, Phase, convert
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload


class BestRow(msgspec.Struct, frozen=True, kw_only=True):
    """The best configuration of a task over a device, a device model, or all of its target."""

    task_id: int
    workload: str
    target: str
    implementation: str
    version: str
    scope: str
    where: str  # the device's identity or the device model; empty for the target
    config: Config
    estimate: Estimate
    confirmed: bool
    updated_at: float


class BestPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page in the order of tasks; `next` is the cursor of the following one."""

    best: tuple[BestRow, ...]
    next: int | None = None


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """The tuning state of one task.

    `stale` is True if the implementation has a newer version.
    """

    task_id: int
    workload: str
    target: str
    implementation: str
    version: str
    stale: bool
    trials: int
    failed: int
    space_size: int | None
    tuner: str | None  # of the newest run
    budget: int | None
    best: Estimate | None
    best_config: Config | None
    confirmed: bool
    measured_at: float | None  # the newest record
    imported: int = 0  # trials not measured by a worker of this service
    # The device model of `best`, equal for all tasks of a workload and target. `models` has the best of each.
    device_model: str = ""
    models: tuple[ModelBest, ...] = ()


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """A page in the order of tasks; `next` is the cursor of the following one."""

    tasks: tuple[Covered, ...]
    next: int | None = None


def list_best(connection: sa.Connection, which: Tasks, scope: str | None = None) -> BestPage:
    """The best of a page of tasks: of a device, a device model or a target, as `scope` says, or of all three."""
    ids, following = which.find(connection)
    query = (
        sa.select(best, task.c.implementation, task.c.version, workload.c.key.label("workload"),
                  target.c.key.label("target"), device.c.identity)
        .join(task, task.c.id == best.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .outerjoin(device, sa.and_(best.c.scope == "device",
                                   sa.cast(device.c.id, sa.Text()) == best.c.scope_value))
        .where(best.c.task_id.in_(ids), is_given(best.c.scope, scope))
        .order_by(best.c.task_id, best.c.scope, best.c.scope_value)
    )
    rows = tuple(
        BestRow(
            task_id=r.task_id, workload=r.workload, target=r.target,
            implementation=r.implementation, version=r.version, scope=r.scope,
            where=r.identity or r.scope_value, config=Config(r.config),
            estimate=Estimate(r.median_s, r.low_s, r.high_s, r.samples),
            confirmed=r.phase == Phase.CONFIRM.value, updated_at=r.updated_at,
        )
        for r in connection.execute(query)
    )
    return BestPage(best=rows, next=following)


def cover(connection: sa.Connection, which: Tasks) -> Coverage:
    """Progress of a page of tasks."""
    ids, following = which.find(connection)
    rows = connection.execute(
        sa.select(task, workload.c.key.label("workload"), workload.c.body.label("workload_body"),
                  target.c.key.label("target"), target.c.body.label("target_body"))
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .where(task.c.id.in_(ids)).order_by(task.c.id)
    ).all()
    counts = _counts(connection, ids)
    runs = _newest_runs(connection, ids)
    ranked = ranking.rank(connection, ids)
    versions = _Versions(connection, ids)
    covered = []
    for r in rows:
        n = counts.get(r.id)
        newest = runs.get(r.id)
        covered.append(
            Covered(
                task_id=r.id, workload=r.workload, target=r.target,
                implementation=r.implementation, version=r.version,
                stale=versions.of(r) != r.version, trials=n.trials if n else 0,
                failed=n.failed if n else 0, space_size=r.space_size, tuner=newest.tuner if newest else None,
                budget=newest.budget if newest else None, measured_at=n.measured_at if n else None,
                imported=n.imported if n else 0, **vars(ranked.get(r.id, Ranked())),
            )
        )
    return Coverage(tasks=tuple(covered), next=following)


def _counts(connection: sa.Connection, ids: list[int]) -> dict[int, Any]:
    searching = record.c.phase == Phase.SEARCH.value
    rows = connection.execute(
        sa.select(
            record.c.task_id,
            sa.func.count().filter(searching).label("trials"),
            sa.func.count().filter(searching, record.c.error.is_not(None)).label("failed"),
            sa.func.count().filter(searching, ~MEASURED_HERE).label("imported"),
            sa.func.max(record.c.measured_at).label("measured_at"),
        )
        .where(record.c.task_id.in_(ids), standing())
        .group_by(record.c.task_id)
    )
    return {r.task_id: r for r in rows}


def _newest_runs(connection: sa.Connection, ids: list[int]) -> dict[int, Any]:
    """The tuner and the budget of the newest run of each task.

    Tasks share runs, and a run's request has the candidates of all of its tasks: it is read in the database, once.
    """
    newest = (
        sa.select(run_task.c.task_id, sa.func.max(run_task.c.run_id).label("run_id"))
        .where(run_task.c.task_id.in_(ids))
        .group_by(run_task.c.task_id)
    )
    of = {r.task_id: r.run_id for r in connection.execute(newest)}
    asked = sa.select(
        run.c.id, run.c.request["tuner"].as_string().label("tuner"),
        run.c.request["trials"].as_integer().label("budget"),
    ).where(among(run.c.id))
    runs = {r.id: r for r in connection.execute(asked, {"ids": sorted(set(of.values()))})}
    return {task_id: runs[run_id] for task_id, run_id in of.items()}


class _Versions:
    """The current versions of tasks' implementations: the installed one, else the newest on record."""

    def __init__(self, connection: sa.Connection, ids: list[int]) -> None:
        other = task.alias()
        same = [other.c[name] == task.c[name] for name in ("workload_id", "target_id", "implementation", "namespace")]
        newest = (
            sa.select(task.c.id, sa.func.max(other.c.id).label("newest"))
            .join(other, sa.and_(*same))
            .where(task.c.id.in_(ids))
            .group_by(task.c.id)
            .subquery()
        )
        query = sa.select(newest.c.id, task.c.version).join(task, task.c.id == newest.c.newest)
        self._newest: dict[int, str] = {r.id: r.version for r in connection.execute(query)}
        self._installed: dict[tuple[int, int], dict[str, str]] = {}

    def of(self, r: Any) -> str:
        place = r.workload_id, r.target_id
        if place not in self._installed:
            known = installed_versions(convert(r.workload_body, Workload), Target.parse(r.target_body))
            self._installed[place] = known or {}
        return self._installed[place].get(r.implementation) or self._newest[r.id]
