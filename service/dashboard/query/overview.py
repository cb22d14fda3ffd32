"""Current and recent activity, from the newest end of the log only."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from service.dashboard.query.run_list import FIRST_TASK
from service.queue.fleet import of_live
from service.queue.pause import is_paused
from service.records.best import standing
from service.records.ranking import of_one_model
from service.store.sql import read_clock
from service.store.tables import (
    LIVE,
    MEASURED_HERE,
    JobState,
    best,
    device,
    job,
    record,
    run,
    target,
    task,
    worker_device,
    workload,
)
from strategy.record import LEAST_SAMPLES, Phase

# Ids of records and jobs rise with time, so recent rows are found without an index on instants.
RECENT = 20_000
RUNNING = 10
QUEUE = 20
HOUR_S = 3600.0
WEEK_S = 7 * 86_400.0
NOISY = 0.05  # half an interval's width to the median, of confirmed times


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """Current counts of records measured by workers of this service; imports are counted apart."""

    now: float
    trials_hour: int
    trials_minute: float  # over the last five minutes
    failed_hour: int
    per_minute: list[int]  # of the last hour, the oldest minute first
    bounded: bool  # True if the hour has more records than were read
    imported_hour: int


def recent(*columns: Any, calibration: bool = False) -> Any:
    """The newest records measured here, as a subquery of these columns.

    `calibration` includes calibration kernels, which are no trials.
    """
    newest = (record.c.job_id.desc(), record.c.entry.desc())  # the order of an index
    query = sa.select(*columns).where(MEASURED_HERE).order_by(*newest).limit(RECENT)
    if not calibration:
        query = query.where(record.c.phase != Phase.REFERENCE.value)
    return query.subquery()


def pulse(connection: sa.Connection) -> Pulse:
    at = read_clock(connection)
    last = recent(record.c.recorded_at, record.c.error)
    # PostgreSQL's cast rounds, SQLite's truncates: of milliseconds, it makes no difference.
    minute = sa.cast((at - last.c.recorded_at) * 1000, sa.BigInteger) // 60_000
    rows = connection.execute(
        sa.select(
            minute.label("minute"), sa.func.count().label("n"),
            sa.func.count(last.c.error).label("failed"),
        )
        .where(last.c.recorded_at > at - HOUR_S)
        .group_by(minute)
    ).all()
    per_minute = [0] * 60
    for r in rows:
        per_minute[59 - min(max(r.minute, 0), 59)] += r.n
    total = sum(per_minute)
    return Pulse(
        now=at, trials_hour=total, trials_minute=sum(per_minute[-5:]) / 5,
        failed_hour=sum(r.failed for r in rows), per_minute=per_minute, bounded=total >= RECENT,
        imported_hour=_imported(connection, at - HOUR_S),
    )


def _imported(connection: sa.Connection, since: float) -> int:
    """Count records imported since an instant, among the newest of the log."""
    columns = record.c.recorded_at, MEASURED_HERE.label("here")
    last = sa.select(*columns).order_by(record.c.id.desc()).limit(RECENT).subquery()
    query = sa.select(sa.func.count()).where(last.c.recorded_at > since, ~last.c.here)
    return int(connection.execute(query).scalar_one())


def count_live(connection: sa.Connection) -> int:
    return connection.scalar(sa.select(sa.func.count()).where(run.c.state.in_(LIVE))) or 0


def running(connection: sa.Connection) -> list[Any]:
    """The `RUNNING` oldest live runs, with their first workload and the trials done for them."""
    own = sa.select(sa.func.count()).select_from(record).where(
        record.c.run_id == run.c.id, record.c.phase == Phase.SEARCH.value
    )
    query = (
        sa.select(
            run.c.id, run.c.state, run.c.created_at, target.c.key.label("target"),
            run.c.request["trials"].as_integer().label("trials"),
            run.c.request["workloads"][0]["workload"]["op"].as_string().label("op"),
            own.scalar_subquery().label("done"),
        )
        .select_from(run)
        .outerjoin(task, task.c.id == FIRST_TASK)
        .join(target, target.c.id == sa.func.coalesce(task.c.target_id, run.c.target_id))
        .where(run.c.state.in_(LIVE))
        .order_by(run.c.id)
        .limit(RUNNING)
    )
    return list(connection.execute(query))


def queue(connection: sa.Connection, alive_s: float) -> list[Any]:
    """Open jobs of live runs by target, with the devices alive for each.

    The `QUEUE` targets with the most jobs; one more if there are more.
    """
    devices = of_live(alive_s, sa.func.count(worker_device.c.device_id.distinct())).where(
        worker_device.c.target_id == job.c.target_id
    )
    query = (
        sa.select(
            target.c.key,
            sa.func.count().filter(job.c.state == JobState.QUEUED.value).label("queued"),
            sa.func.count().filter(job.c.state == JobState.LEASED.value).label("leased"),
            devices.correlate(job).scalar_subquery().label("devices"),
            is_paused(sa.null(), job.c.target_id).label("paused"),
        )
        .join(target, target.c.id == job.c.target_id)
        .where(job.c.state.in_((JobState.QUEUED.value, JobState.LEASED.value)))
        .where(job.c.run_id.in_(sa.select(run.c.id).where(run.c.state.in_(LIVE))))
        .group_by(job.c.target_id, target.c.key)
        .order_by(sa.func.count().desc())
        .limit(QUEUE + 1)
    )
    return list(connection.execute(query))


def failures(connection: sa.Connection) -> list[Any]:
    """The failures by kind of the newest records measured here, with the newest of each."""
    last = recent(record.c.id, record.c.error)
    query = (
        sa.select(last.c.error, sa.func.count().label("n"), sa.func.max(last.c.id).label("last_id"))
        .where(last.c.error.is_not(None))
        .group_by(last.c.error)
        .order_by(sa.func.count().desc())
    )
    return list(connection.execute(query))


def devices(connection: sa.Connection, alive_s: float) -> Any:
    """Count the devices that are up, those of them that are noisy or paused, those down, and those only imported."""

    def count(*conditions: sa.ColumnElement[bool]) -> int:
        return connection.scalar(sa.select(sa.func.count()).select_from(device).where(*conditions)) or 0

    driven = device.c.id.in_(sa.select(worker_device.c.device_id))
    up = device.c.id.in_(of_live(alive_s, worker_device.c.device_id))
    scatter = noise()
    noisy = sa.cast(device.c.id, sa.Text()).in_(sa.select(scatter.c.scope_value).where(scatter.c.noise > NOISY))
    alive = count(up)
    return {"up": alive, "down": count(driven) - alive, "noisy": count(up, noisy), "imported": count(~driven),
            "paused": count(up, is_paused(device.c.id, device.c.target_id))}


def noise() -> sa.Subquery:
    """The scatter of devices' confirmed times: the mean relative half-width of their intervals."""
    width = sa.func.avg((best.c.high_s - best.c.low_s) / 2 / best.c.median_s)
    return (
        sa.select(best.c.scope_value, width.label("noise"))
        .where(best.c.scope == "device", best.c.phase == Phase.CONFIRM.value,
               best.c.samples >= LEAST_SAMPLES)
        .group_by(best.c.scope_value)
        .subquery()
    )


def faster(connection: sa.Connection, limit: int = 8) -> list[Any]:
    """The best time of a week ago, of tasks whose best on a device model has changed since."""
    at = read_clock(connection)
    lately = (
        sa.select(*best.c["task_id", "median_s", "updated_at"], best.c.scope_value.label("model"))
        .where(of_one_model(), best.c.updated_at > at - WEEK_S)
        .order_by(best.c.updated_at.desc())
        .limit(limit * 3)
        .subquery()
    )
    before = (
        sa.select(sa.func.min(record.c.median_s))
        .outerjoin(device, device.c.id == record.c.device_id)
        .where(
            record.c.task_id == lately.c.task_id, record.c.recorded_at <= at - WEEK_S,
            sa.or_(lately.c.model == "", device.c.model == lately.c.model), standing(),
        )
        .scalar_subquery()
    )
    dated = sa.select(lately, before.label("before_s")).subquery()
    query = (
        sa.select(dated, task.c.implementation, workload.c.op, workload.c.key)
        .join(task, task.c.id == dated.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(dated.c.before_s > dated.c.median_s)
        .order_by((dated.c.before_s / dated.c.median_s).desc())
        .limit(limit)
    )
    return list(connection.execute(query))
