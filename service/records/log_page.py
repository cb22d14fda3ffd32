"""Reading the log: pages of records, the curve of a task, the first failure of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import orjson
import sqlalchemy as sa

from service.records import best, ranking
from service.records.filter import Wanted
from service.store.sql import is_given
from service.store.tables import device, environment, record, task, worker
from service.store.tables import target as target_table
from service.store.tables import workload as workload_table
from strategy.record import ErrorKind, Estimate, Phase, estimate
from strategy.space import Config

# Records scanned for one page if no index serves the filter, which bounds its time.
SCAN = 50_000


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one configuration, as it was recorded.

    `source` is `plevel`, or the format of its import, in which case `run_id` and `seed` may be unknown.
    """

    id: int
    source: str
    run_id: int | None
    task_id: int
    workload: str
    target: str
    implementation: str
    version: str
    config: Config
    phase: Phase
    session: str
    error: ErrorKind | None
    message: str
    estimate: Estimate | None
    samples_s: tuple[float, ...]
    prepare_s: float | None
    build_s: float
    check_s: float
    run_s: float
    code_digest: str
    measured_at: float
    device: str | None
    device_model: str | None
    worker: str | None
    environment: dict[str, Any]
    seed: int | None
    drift: float | None = None  # change of the host's speed during the batch: it is noisy
    imported: bool = False  # not measured by a worker of this service


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of records; `next` is the cursor of the following page.

    A page may have fewer than `limit` records, or none, if matches are rare: more follow as long as there is
    a `next`.
    """

    records: tuple[RecordRow, ...]
    next: int | None = None


def page(
    connection: sa.Connection,
    wanted: Wanted,
    *,
    limit: int = 100,
    cursor: int = 0,
    newest: bool = False,
    last: int | None = None,
) -> RecordPage:
    """A page of matching records.

    In the order of arrival, or the `newest` first, after the record with the id `cursor`, or from the first.
    If no index serves the filter, at most `SCAN` records are scanned.

    Args:
        connection: the transaction.
        wanted: the filter.
        limit: maximum number of records.
        cursor: the id after which the page begins; 0: none.
        newest: reverse the order.
        last: the last id to look at (`settled.find`, for readers who resume); None: the newest.

    Raises:
        InvalidError: none matches, and a name of the filter is mistyped.
    """
    if last is None:
        last = connection.scalar(sa.select(sa.func.max(record.c.id))) or 0
    scan = last if wanted.is_indexed else SCAN
    if newest:
        end = min(cursor - 1, last) if cursor else last
        begin = max(end - scan, 0)
        following = begin + 1 if begin else None
    else:
        begin, end = cursor, min(cursor + scan, last)
        following = end if end < last else None
    query = (
        sa.select(record, task.c.implementation, task.c.version, workload_table.c.key.label("workload"),
                  target_table.c.key.label("target"), device.c.identity.label("device"),
                  device.c.model.label("device_model"), device.c.slot,
                  sa.func.coalesce(worker.c.name, record.c.origin_worker).label("worker"),
                  environment.c.body.label("environment"))
        .join(task, task.c.id == record.c.task_id)
        .join(workload_table, workload_table.c.id == task.c.workload_id)
        .join(target_table, target_table.c.id == task.c.target_id)
        .outerjoin(device, device.c.id == record.c.device_id)
        .outerjoin(worker, worker.c.id == record.c.worker_id)
        .outerjoin(environment, environment.c.id == record.c.environment_id)
        .where(record.c.id > begin, record.c.id <= end, best.standing(), *wanted.conditions)
        .order_by(record.c.id.desc() if newest else record.c.id)
        .limit(limit + 1)
    )
    rows = connection.execute(query).all()
    shown = tuple(_row(r) for r in rows[:limit])
    if not shown and following is None:
        wanted.check_names(connection)
    return RecordPage(records=shown, next=shown[-1].id if len(rows) > limit else following)


def _row(r: Any) -> RecordRow:
    return RecordRow(
        id=r.id, source=r.source, run_id=r.run_id, task_id=r.task_id, workload=r.workload, target=r.target,
        implementation=r.implementation, version=r.version, config=Config(r.config),
        phase=Phase(r.phase), session=r.session, error=ErrorKind(r.error) if r.error else None,
        message=r.message, estimate=estimate(r.samples_s) if r.samples_s else None,
        samples_s=tuple(r.samples_s), prepare_s=r.prepare_s, build_s=r.build_s,
        check_s=r.check_s, run_s=r.run_s, code_digest=r.code_digest, measured_at=r.measured_at,
        device=r.device if r.slot else None, device_model=r.device_model, worker=r.worker,
        environment=r.environment or {}, seed=r.seed, drift=_drift(r), imported=r.job_id is None,
    )


def _drift(r: Any) -> float | None:
    if r.source != "plevel" or not r.extra:
        return None
    found: float | None = orjson.loads(r.extra).get("drift")
    return found


def find_first_failure(
    connection: sa.Connection, run_id: int, tasks: Collection[int], counted: sa.ColumnElement[bool]
) -> Any | None:
    """The `error` and `message` of a run's first failure, None if nothing has failed.

    If nothing of its own has failed, it is the first one of the `counted` records of its tasks, which other runs have.
    """
    query = sa.select(*record.c["error", "message"]).where(
        sa.or_(record.c.run_id == run_id, sa.and_(record.c.task_id.in_(tasks), counted)), record.c.error.is_not(None)
    )
    own = sa.case((record.c.run_id == run_id, 0), else_=1)
    return connection.execute(query.order_by(own, record.c.id).limit(1)).one_or_none()


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that improved on all previous ones of its device model, whose name is empty if it is not known."""

    trial: int
    median_s: float
    recorded_at: float
    device_model: str = ""


def curve(
    connection: sa.Connection, task_id: int, run_id: int | None = None, device_model: str | None = None
) -> list[CurvePoint]:
    """The tuning curve of a task on one device model: the trials that improved; failures count as trials.

    By default it is the one by which the task is ranked, if it has times there, else the one with the most.
    """
    searched = [
        record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, best.standing(),
        is_given(record.c.run_id, run_id),
    ]
    if device_model is None:
        device_model = _curve_model(connection, task_id, searched)
    query = improvements(record.c.task_id, *searched, ranking.measured_on(device_model))
    return [
        CurvePoint(trial=r.trial, median_s=r.median_s, recorded_at=r.recorded_at, device_model=device_model)
        for r in connection.execute(query)
    ]


def improvements(group: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The trials that improved on all previous ones of their group (`which`), each with its number there, in order.

    In the database, as a task may have any number of trials.
    """
    window: dict[str, Any] = {"partition_by": group, "order_by": record.c.id}
    trials = (
        sa.select(
            group.label("which"), *record.c["median_s", "recorded_at"],
            sa.func.row_number().over(**window).label("trial"),
            sa.func.min(record.c.median_s).over(**window, rows=(None, -1)).label("before_s"),
        )
        .where(*conditions)
        .subquery()
    )
    improved = sa.or_(trials.c.before_s.is_(None), trials.c.median_s < trials.c.before_s)
    return sa.select(trials).where(trials.c.median_s.is_not(None), improved).order_by(trials.c.trial)


def _curve_model(connection: sa.Connection, task_id: int, searched: Sequence[sa.ColumnElement[bool]]) -> str:
    """The device model of a task's curve; empty if none is known.

    Of the model by which the task is ranked, one time is looked for: a count reads all records of the task.
    """
    timed = [*searched, record.c.error.is_(None)]
    ranked = ranking.rank(connection, [task_id]).get(task_id)
    if ranked is not None and ranked.device_model:
        on_it = sa.select(sa.exists().where(*timed, ranking.measured_on(ranked.device_model)))
        if connection.scalar(on_it):
            return ranked.device_model
    most = (
        sa.select(device.c.model)
        .join(record, record.c.device_id == device.c.id)
        .where(*timed)
        .group_by(device.c.model)
        .order_by(sa.func.count().desc(), device.c.model)
        .limit(1)
    )
    return connection.scalar(most) or ""
