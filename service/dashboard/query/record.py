"""The log: a page of it under filters, and one record in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.dashboard.listing import ALWAYS, Span, order
from service.errors import NotFoundError
from service.records.best import standing
from service.records.filter import Wanted, of_error
from service.store.tables import (
    advice,
    device,
    environment,
    record,
    target,
    task,
    timing_policy,
    tombstone,
    worker,
    workload,
)
from strategy.record import Phase

PAGE = 45
SORTS = ("record", "median")
NEWEST = "-record"
# Records read for one page if no index serves the filter; rare matches are on further pages.
SCAN = 50_000


@dataclass(frozen=True, kw_only=True)
class Filter(Wanted):
    """A filter by a device's id: of imported records, often only its model is known. An export searches no messages."""

    device_id: int | None = None
    message: str | None = None  # a part of it
    calibration: bool = False  # include times of the calibration kernel

    @property
    def conditions(self) -> list[sa.ColumnElement[bool]]:
        return [*super().conditions, *self._on_device(record)]

    @property
    def of_advice(self) -> list[sa.ColumnElement[bool]]:
        return [*super().of_advice, *self._on_device(advice)]

    def _on_device(self, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        return [] if self.device_id is None else [table.c.device_id == self.device_id]

    @property
    def of_page(self) -> list[sa.ColumnElement[bool]]:
        """The conditions on `record` alone, for a query without joins."""
        phase = None if self.phase is None else self.phase.value
        equal = ((record.c.run_id, self.run_id), (record.c.task_id, self.task_id), (record.c.phase, phase))
        found = [column == wanted for column, wanted in equal if wanted is not None]
        found += self._on_device(record)
        if of_task := self.of_task():
            found.append(record.c.task_id.in_(sa.select(task.c.id).where(*of_task)))
        found += of_error(self.error)
        if self.message is not None:
            found.append(record.c.message.icontains(self.message, autoescape=True))
        return found


@dataclass(frozen=True)
class Page:
    """Records of a page. `further` is the cursor of the next page, None if there is none."""

    rows: list[Any]
    further: int | None
    looked_from: int  # range of ids that were read
    looked_to: int
    is_whole: bool  # all records that may match were read


def page(
    connection: sa.Connection, wanted: Filter, cursor: int | None = None, *,
    span: Span = ALWAYS, sort: str = NEWEST,
) -> Page:
    """A page of the matching records, sorted by one of `SORTS`.

    The cursor is the last id of the previous page or, if sorted by time, the number of earlier records.
    """
    first, last = _ids(connection, span)
    conditions = wanted.of_page
    by_id = sort.removeprefix("-") == "record"
    scans = not wanted.is_indexed and (bool(conditions) or not by_id)
    low, high = first, last
    if by_id and cursor is not None:
        low, high = (low, min(high, cursor - 1)) if sort == NEWEST else (max(low, cursor + 1), high)
    begin, end = low, high
    if scans:
        begin, end = (low, min(high, low + SCAN)) if sort == "record" else (max(low, high - SCAN), high)
    if not wanted.calibration and wanted.phase is None and wanted.task_id is None:
        conditions.append(record.c.phase != Phase.REFERENCE.value)
    offset = 0 if by_id else cursor or 0
    ids = (
        sa.select(record.c.id)
        .where(record.c.id.between(begin, end), standing(), *conditions, *span.conditions(record.c.recorded_at))
        .order_by(order(sort, {"record": record.c.id, "median": record.c.median_s}), record.c.id)
        .offset(offset)
        .limit(PAGE + 1)
    )
    found = connection.scalars(ids).all()
    shown = found[:PAGE]
    rows = {} if not found else {r.id: r for r in connection.execute(_rows(shown))}
    further = None
    if len(found) > PAGE:
        further = shown[-1] if by_id else offset + PAGE
    elif by_id and (begin, end) != (low, high):
        further = begin if sort == NEWEST else end
    is_whole = (begin, end) == (low, high)
    return Page([rows[i] for i in shown], further, end, begin, is_whole)


def _ids(connection: sa.Connection, span: Span) -> tuple[int, int]:
    """The range of ids that records of these days may have, as ids rise with time."""
    newest = connection.scalar(sa.select(sa.func.max(record.c.id))) or 0
    first = 1 if span.since is None else _first_since(connection, span.since, newest)
    last = newest if span.until is None else _first_since(connection, span.until, newest) - 1
    return first, last


def _first_since(connection: sa.Connection, at: float, newest: int) -> int:
    """The id of the first record at or after an instant; if none, one more than the newest."""
    low, high = 1, newest + 1
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            sa.select(record.c.id, record.c.recorded_at)
            .where(record.c.id >= middle).order_by(record.c.id).limit(1)
        ).one()
        if row.recorded_at >= at:
            high = middle
        else:
            low = row.id + 1
    return low


def _rows(ids: Any) -> sa.Select[Any]:
    return (
        sa.select(
            record.c.id, record.c.run_id, record.c.task_id, record.c.phase, record.c.error,
            record.c.median_s, record.c.config, record.c.build_s, record.c.recorded_at,
            sa.func.substr(record.c.message, 1, 120).label("message"),
            task.c.implementation, task.c.version, workload.c.op, workload.c.key,
            device.c.id.label("device_id"), device.c.identity, device.c.model,
        )
        .join(task, task.c.id == record.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .outerjoin(device, device.c.id == record.c.device_id)
        .where(record.c.id.in_(ids))
    )


def one(connection: sa.Connection, record_id: int) -> Any:
    """A record with its details; raise `NotFoundError`."""
    row = connection.execute(
        sa.select(
            *record.c[
                "id", "run_id", "task_id", "job_id", "entry", "device_id", "phase", "session", "seed",
                "config", "error", "message", "samples_s", "median_s", "mean_s", "prepare_s",
                "build_s", "check_s", "run_s", "code_digest", "measured_at", "recorded_at", "source", "origin_run",
            ],
            task.c.implementation, task.c.version, task.c.plevel, workload.c.op,
            workload.c.key.label("workload"), workload.c.body.label("workload_body"),
            target.c.key.label("target"), target.c.body.label("target_body"),
            *device.c["identity", "model", "slot"],
            sa.func.coalesce(worker.c.name, record.c.origin_worker).label("worker"), worker.c.host,
            environment.c.body.label("environment"), timing_policy.c.body.label("policy"),
            tombstone.c.purge_id,
        )
        .join(task, task.c.id == record.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .outerjoin(timing_policy, timing_policy.c.id == record.c.policy_id)
        .outerjoin(tombstone, tombstone.c.record_id == record.c.id)
        .outerjoin(device, device.c.id == record.c.device_id)
        .outerjoin(worker, worker.c.id == record.c.worker_id)
        .outerjoin(environment, environment.c.id == record.c.environment_id)
        .where(record.c.id == record_id)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"record {record_id} does not exist: /records lists the records")
    return row
