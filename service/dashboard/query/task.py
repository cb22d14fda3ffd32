"""Tasks: pages of them, and the trials, optimum and failures of one."""
# Over 300 lines: all queries of the two pages, which choose the best of a task by one rule.

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa

from service.dashboard.listing import ALWAYS, Span
from service.dashboard.query.curve import MAX_CURVES, Curve, best_so_far
from service.dashboard.show import show_device
from service.errors import NotFoundError
from service.records.best import standing
from service.records.filter import ANY, OfTask
from service.records.log import REFERENCE
from service.records.ranking import best_on, choose, measured_on
from service.store.sql import among, now
from service.store.tables import Scope, best, device, record, target, task, workload
from strategy.record import Phase

PAGE = 50
COUNTED = 10_000
SORTS = ("task", "implementation", "target", "median", "updated")
NEWEST = "-task"
STATUSES = ("timed", "failed", "untried")  # failed: all of its records
MAX_POINTS = 1500  # of a scatter
FASTEST = 150  # the fastest of them are always shown
WITHIN = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0)
By = Literal["all", "run", "device", "version"]


def page(
    connection: sa.Connection, of: OfTask = ANY, *, status: str | None = None,
    span: Span = ALWAYS, sort: str = NEWEST, calibration: bool = False, offset: int = 0,
) -> list[Any]:
    """Matching tasks, sorted by one of `SORTS`; one more than a page if there are more.

    Of several device models the time is of the fastest, and `model` its name; empty if none is known.
    `span` restricts when their best was found, `status` is one of `STATUSES`; `calibration` includes
    calibration kernels. Of equal ones the newest
    come first, but the oldest of one implementation if those are sorted upwards.
    """
    wanted = _wanted(of, status, calibration)
    if sort.removeprefix("-") in _OF_BEST:
        ids = _by_best(connection, wanted, span, sort, offset)
    else:
        ids = _by_task(connection, wanted, span, sort, offset)
    rows = {} if not ids else {row.id: row for row in connection.execute(_SHOWN, {"ids": ids})}
    return [rows[i] for i in ids]


def count(
    connection: sa.Connection, of: OfTask, *, status: str | None = None, span: Span = ALWAYS, calibration: bool = False
) -> int:
    """The number of tasks that match as in `page`, at most one more than `COUNTED`."""
    query = _matching(_wanted(of, status, calibration), span).limit(COUNTED + 1)
    return connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0


_OF_BEST = {"median": best.c.median_s, "updated": best.c.updated_at}
# Written out, as the condition of the indexes by which `best` is read in its orders.
_LISTED = sa.text("best.scope <> 'device'")


def _faster() -> sa.Exists:
    """The condition on `best` that another row of its task precedes it: a device model's, the fastest first."""
    other = best.alias()
    same = other.c.median_s == best.c.median_s
    return sa.exists().where(
        other.c.task_id == best.c.task_id, other.c.scope == Scope.MODEL.value,
        sa.or_(
            best.c.scope == Scope.TARGET.value, other.c.median_s < best.c.median_s,
            sa.and_(same, other.c.scope_value < best.c.scope_value),
        ),
    )


_BEST_SHOWN = sa.and_(best.c.task_id == task.c.id, _LISTED, ~_faster())
_SHOWN = (
    sa.select(
        task.c.id, task.c.implementation, task.c.version, workload.c.op, workload.c.key,
        target.c.key.label("target"), best.c.median_s, best.c.low_s, best.c.high_s, best.c.samples,
        best.c.updated_at, best.c.scope_value.label("model"), now().label("now"),
    )
    .join(workload, workload.c.id == task.c.workload_id)
    .join(target, target.c.id == task.c.target_id)
    .outerjoin(best, _BEST_SHOWN)
    .where(among(task.c.id))
)


def _wanted(of: OfTask, status: str | None, calibration: bool) -> list[sa.ColumnElement[bool]]:
    """The conditions on `task`; its workload and target by their ids, so that rows passed over are not joined."""
    found = of.of_task() + _of_status(status)
    if not calibration:
        found.append(task.c.workload_id.not_in(sa.select(workload.c.id).where(workload.c.op == REFERENCE.op)))
    return found


def _matching(wanted: list[sa.ColumnElement[bool]], span: Span) -> sa.Select[Any]:
    query = sa.select(task.c.id).where(*wanted)
    if dated := span.conditions(best.c.updated_at):
        query = query.join_from(task, best, _BEST_SHOWN).where(*dated)
    return query


def _of_status(status: str | None) -> list[sa.ColumnElement[bool]]:
    """The conditions on `task` of one of `STATUSES`; empty for None."""
    if status is None:
        return []
    timed = sa.exists().where(best.c.task_id == task.c.id, _LISTED).correlate(task)
    if status == "timed":
        return [timed]
    tried = sa.exists().where(record.c.task_id == task.c.id, standing()).correlate(task)
    return [~timed, tried if status == "failed" else ~tried]


def _by_task(
    connection: sa.Connection, wanted: list[sa.ColumnElement[bool]], span: Span, sort: str, offset: int
) -> list[int]:
    """The ids of a page that a column of the tasks themselves sorts."""
    query = _matching(wanted, span)
    direction = sa.desc if sort.startswith("-") else sa.asc
    by = sort.removeprefix("-")
    if by == "target":
        query = query.join(target, target.c.id == task.c.target_id).order_by(direction(target.c.key), task.c.id.desc())
    elif by == "implementation":
        query = query.order_by(direction(task.c.implementation), direction(task.c.id))  # as its index
    else:
        query = query.order_by(direction(task.c.id))
    return list(connection.scalars(query.offset(offset).limit(PAGE + 1)))


def _by_best(
    connection: sa.Connection, wanted: list[sa.ColumnElement[bool]], span: Span, sort: str, offset: int
) -> list[int]:
    """The ids of a page sorted by a column of their best; tasks without one come last in either direction."""
    direction = sa.desc if sort.startswith("-") else sa.asc
    column = _OF_BEST[sort.removeprefix("-")]
    timed = (
        sa.select(task.c.id)
        .join_from(task, best, _BEST_SHOWN)
        .where(*wanted, *span.conditions(best.c.updated_at))
        .order_by(direction(column), task.c.id.desc())
    )
    found = list(connection.scalars(timed.offset(offset).limit(PAGE + 1)))
    if len(found) > PAGE or span != ALWAYS:
        return found
    passed = offset + len(found)
    if offset and not found:
        passed = connection.scalar(sa.select(sa.func.count()).select_from(timed.order_by(None).subquery())) or 0
    untimed = (
        sa.select(task.c.id)
        .where(*wanted, ~sa.exists().where(best.c.task_id == task.c.id, _LISTED))
        .order_by(task.c.id.desc())
        .offset(max(0, offset - passed))
        .limit(PAGE + 1 - len(found))
    )
    return found + list(connection.scalars(untimed))


def head(connection: sa.Connection, task_id: int) -> Any:
    """The task with its workload, target, and its best on the device model by which it is ranked.

    Raises:
        NotFoundError: it does not exist.
    """
    place = connection.execute(
        sa.select(*task.c["workload_id", "target_id", "namespace"]).where(task.c.id == task_id)
    ).one_or_none()
    model = "" if place is None else choose(connection, [task_id]).get(tuple(place), "")
    row = connection.execute(
        sa.select(
            task, sa.literal(model).label("model"), workload.c.op, workload.c.key.label("workload"),
            workload.c.body.label("workload_body"), target.c.key.label("target"),
            target.c.body.label("target_body"), best.c.median_s, best.c.low_s, best.c.high_s,
            best.c.samples, best.c.phase, best.c.config, best.c.updated_at,
        )
        .select_from(task)
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .outerjoin(best, best_on(model))
        .where(task.c.id == task_id)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"task {task_id} does not exist: /tasks lists the tasks")
    return row


def of_same_place(row: Any) -> sa.ColumnElement[bool]:
    """The condition on `task` that one has the workload, target and namespace of a row."""
    return sa.and_(
        task.c.workload_id == row.workload_id, task.c.target_id == row.target_id, task.c.namespace == row.namespace
    )


def siblings(connection: sa.Connection, row: Any) -> list[Any]:
    """Tasks of the same workload, target and namespace, with their best on the task's device model."""
    query = (
        sa.select(task.c.id, task.c.implementation, task.c.version, task.c.plevel, best.c.median_s)
        .select_from(task)
        .outerjoin(best, best_on(row.model))
        .where(of_same_place(row))
        .order_by(best.c.median_s.is_(None), best.c.median_s, task.c.id)
        .limit(100)
    )
    return list(connection.execute(query))


def places(connection: sa.Connection, task_id: int) -> list[Any]:
    """The best on each device and device model, those of one model together and the fastest first."""
    at = sa.and_(
        best.c.scope == Scope.DEVICE.value, best.c.scope_value == sa.cast(device.c.id, sa.Text())
    )
    query = (
        sa.select(best, device.c.id.label("device_id"), device.c.identity, device.c.model)
        .outerjoin(device, at)
        .where(best.c.task_id == task_id, best.c.scope != Scope.TARGET.value)
        .order_by(sa.func.coalesce(device.c.model, best.c.scope_value), best.c.median_s, best.c.scope)
        .limit(50)
    )
    return list(connection.execute(query))


def counts(connection: sa.Connection, task_id: int) -> Any:
    """Count the search's `trials` and distinct `configs`, by an index alone."""
    return connection.execute(
        sa.select(
            sa.func.count().label("trials"),
            sa.func.count(record.c.config_digest.distinct()).label("configs"),
        ).where(record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, standing())
    ).one()


def spread(connection: sa.Connection, row: Any) -> dict[str, Any]:
    """Count the search's timed trials on the task's device model, and those close to the lowest time.

    `within` has pairs of a ratio to the lowest time and the number of records within it.
    """
    timed = sa.and_(
        record.c.task_id == row.id, record.c.phase == Phase.SEARCH.value,
        record.c.median_s.is_not(None), standing(), measured_on(row.model),
    )
    ends = connection.execute(
        sa.select(
            sa.func.count().label("timed"), sa.func.min(record.c.median_s).label("low_s"),
            sa.func.max(record.c.median_s).label("high_s"),
        ).where(timed)
    ).one()
    if not ends.timed:
        return {**ends._mapping, "within": []}
    close = connection.execute(
        sa.select(
            *(sa.func.count().filter(record.c.median_s <= ends.low_s * w) for w in WITHIN)
        ).where(timed)
    ).one()
    return {**ends._mapping, "within": list(zip(WITHIN, close, strict=True))}


def failures(connection: sa.Connection, task_id: int) -> list[Any]:
    """Failures by kind over all runs, with the newest of each."""
    grouped = (
        sa.select(record.c.error, sa.func.count().label("n"), sa.func.max(record.c.id).label("last_id"))
        .where(record.c.task_id == task_id, record.c.error.is_not(None), standing())
        .group_by(record.c.error)
        .subquery()
    )
    query = (
        sa.select(grouped, sa.func.substr(record.c.message, 1, 200).label("message"))
        .join(record, record.c.id == grouped.c.last_id)
        .order_by(grouped.c.n.desc())
    )
    return list(connection.execute(query))


def curves(connection: sa.Connection, row: Any, by: By) -> list[Curve]:
    """Best-so-far curves of the whole task, or by run, device or version.

    They are of its device model, but of all by device.
    """
    own = sa.and_(record.c.task_id == row.id, sa.true() if by == "device" else measured_on(row.model))
    if by == "version":
        versions = connection.execute(
            sa.select(task.c.id, task.c.version)
            .where(of_same_place(row), task.c.implementation == row.implementation)
            .order_by(task.c.id.desc()).limit(MAX_CURVES)
        ).all()
        names = {v.id: f"version {v.version}" for v in versions}
        of_versions = sa.and_(record.c.task_id.in_(list(names)), measured_on(row.model))
        return best_so_far(connection, of_versions, record.c.task_id, names)
    if by == "all":
        return best_so_far(connection, own, record.c.task_id, {row.id: row.implementation})
    column = record.c.run_id if by == "run" else record.c.device_id
    found = connection.scalars(
        sa.select(column).where(own, column.is_not(None)).group_by(column)
        .order_by(sa.func.max(record.c.id).desc()).limit(MAX_CURVES)
    ).all()
    models: dict[Any, str] = {}
    if by == "run":
        names = {i: f"run {i}" for i in found}
    else:
        rows = connection.execute(
            sa.select(device.c.id, device.c.identity, device.c.model).where(device.c.id.in_(found))
        ).all()
        names = {r.id: show_device(r.model, r.identity) for r in rows}
        models = {r.id: r.model for r in rows}
    return best_so_far(connection, own, column, names, models)


def points(connection: sa.Connection, row: Any) -> list[Any]:
    """Configurations with their times on the task's device model: the fastest, and a sample of the others."""
    timed = sa.and_(
        record.c.task_id == row.id, record.c.phase == Phase.SEARCH.value,
        record.c.error.is_(None), standing(), measured_on(row.model),
    )
    ranked = (
        sa.select(
            record.c.id, record.c.config, record.c.median_s,
            sa.func.row_number().over(order_by=(record.c.median_s, record.c.id)).label("place"),
            sa.func.count().over().label("total"),
        )
        .where(timed)
        .subquery()
    )
    step = (ranked.c.total + MAX_POINTS - FASTEST - 1) // (MAX_POINTS - FASTEST)
    query = (
        sa.select(ranked)
        .where(sa.or_(ranked.c.place <= FASTEST, ranked.c.place % step == 0))
        .order_by(ranked.c.id)
    )
    return list(connection.execute(query))
