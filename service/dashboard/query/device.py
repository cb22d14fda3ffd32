"""Devices with their state and load, and quarantined jobs."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
import sqlalchemy as sa

from service.dashboard.listing import ALWAYS, Span, order
from service.dashboard.query.overview import HOUR_S, noise, recent
from service.errors import NotFoundError
from service.queue.fleet import is_alive
from service.queue.pause import is_paused
from service.records.best import standing
from service.records.filter import has_words, of_target
from service.records.log import REFERENCE
from service.store.sql import now, read_clock
from service.store.tables import (
    JobState,
    device,
    job,
    lease,
    record,
    target,
    task,
    worker,
    worker_device,
    workload,
)
from strategy.record import Phase

PAGE = 50
QUARANTINED = 20
DRIVERS = 10
SORTS = ("name", "target", "seen", "timing", "trials", "failed", "noise")
LAST_SEEN = "-seen"
MAX_REFERENCES = 10_000  # the newest of a device
MAX_POINTS = 400


def page(
    connection: sa.Connection, alive_s: float, offset: int = 0, *,
    span: Span = ALWAYS, sort: str = LAST_SEEN, has: str = "", target_has: str = "",
) -> list[Any]:
    """Devices sorted by one of `SORTS`, imported ones last; one more than a page if there are more.

    `has` are words of their model or identity, `target_has` as `of_target` takes them; `span` restricts when they were
    last seen. Counts are of trials measured here, times with those of calibration kernels; `here` is True if a worker
    has registered the device.
    """
    at = read_clock(connection)
    last = recent(*record.c["device_id", "run_s", "error", "recorded_at", "phase"], calibration=True)
    is_trial = last.c.phase != Phase.REFERENCE.value
    busy = (
        sa.select(
            last.c.device_id, sa.func.sum(last.c.run_s).label("busy_s"),
            sa.func.count().filter(is_trial).label("trials"),
            sa.func.count(last.c.error).filter(is_trial).label("failed"),
        )
        .where(last.c.recorded_at > at - HOUR_S)
        .group_by(last.c.device_id)
        .subquery()
    )
    driven = (
        sa.select(
            worker_device.c.device_id,
            sa.func.max(worker.c.seen_at).label("seen_at"),
            sa.func.count().filter(is_alive(alive_s)).label("alive"),
        )
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .group_by(worker_device.c.device_id)
        .subquery()
    )
    leased = (
        sa.select(lease.c.device_id, sa.func.count().label("leases"))
        .where(lease.c.ended_at.is_(None))
        .group_by(lease.c.device_id)
        .subquery()
    )
    scatter = noise()
    query = (
        sa.select(
            device.c.id, device.c.identity, device.c.slot, device.c.model, device.c.fingerprint,
            target.c.key.label("target"),
            driven.c.seen_at, driven.c.device_id.is_not(None).label("here"),
            sa.func.coalesce(driven.c.alive, 0).label("alive"),
            sa.func.coalesce(leased.c.leases, 0).label("leases"),
            sa.func.coalesce(busy.c.busy_s, 0.0).label("busy_s"),
            sa.func.coalesce(busy.c.trials, 0).label("trials"),
            sa.func.coalesce(busy.c.failed, 0).label("failed"),
            scatter.c.noise, sa.literal(at).label("now"), is_paused(device.c.id, device.c.target_id).label("paused"),
        )
        .join(target, target.c.id == device.c.target_id)
        .outerjoin(driven, driven.c.device_id == device.c.id)
        .outerjoin(leased, leased.c.device_id == device.c.id)
        .outerjoin(busy, busy.c.device_id == device.c.id)
        .outerjoin(scatter, scatter.c.scope_value == sa.cast(device.c.id, sa.Text()))
        .where(
            *span.conditions(driven.c.seen_at), *of_target(target_has),
            *has_words(device.c.model + " " + device.c.identity, has),
        )
        .order_by(
            driven.c.device_id.is_(None),
            order(sort, {
                "seen": driven.c.seen_at, "name": device.c.model, "target": target.c.key,
                "noise": scatter.c.noise, "timing": sa.func.coalesce(busy.c.busy_s, 0.0),
                "trials": sa.func.coalesce(busy.c.trials, 0), "failed": sa.func.coalesce(busy.c.failed, 0),
            }),
            device.c.id,
        )
        .offset(offset)
        .limit(PAGE + 1)
    )
    return list(connection.execute(query))


def quarantined(connection: sa.Connection) -> list[Any]:
    """The `QUARANTINED` newest quarantined jobs, the newest first; one more if there are more."""
    query = (
        sa.select(job.c.id, job.c.run_id, job.c.reason, job.c.attempts, job.c.finished_at,
                  workload.c.op, workload.c.key)
        .join(workload, workload.c.id == job.c.workload_id)
        .where(job.c.state == JobState.QUARANTINED.value)
        .order_by(job.c.id.desc())
        .limit(QUARANTINED + 1)
    )
    return list(connection.execute(query))


def head(connection: sa.Connection, device_id: int) -> Any:
    """A device with the database's time; raises `NotFoundError`."""
    row = connection.execute(
        sa.select(
            device, target.c.key.label("target_key"), now().label("now"),
            sa.exists().where(worker_device.c.device_id == device.c.id).label("here"),
        )
        .join(target, target.c.id == device.c.target_id)
        .where(device.c.id == device_id)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"device {device_id} does not exist: /devices lists the devices")
    return row


def drivers(connection: sa.Connection, device_id: int, alive_s: float) -> list[Any]:
    """The newest workers that have driven a device, the newest first; `ended_at` is None if they have not left."""
    query = (
        sa.select(
            *worker.c["id", "name", "host", "pid", "version", "operators", "seen_at", "ended_at"],
            is_alive(alive_s).label("alive"),
        )
        .join(worker_device, worker_device.c.worker_id == worker.c.id)
        .where(worker_device.c.device_id == device_id)
        .order_by(worker.c.id.desc())
        .limit(DRIVERS)
    )
    return list(connection.execute(query))


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration kernel's times on a device over time, relative to their median."""

    median_s: float
    low: float
    high: float
    points: list[tuple[float, float]]  # Unix time, ratio to the median


def drift(connection: sa.Connection, device_id: int) -> Drift | None:
    """Return the change of a device's speed, by its newest calibration times; None if there are none."""
    of_reference = (
        sa.select(task.c.id).join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == REFERENCE.op)
    )
    newest = (
        sa.select(record.c.measured_at, record.c.median_s)
        .where(record.c.task_id.in_(of_reference), record.c.phase == Phase.REFERENCE.value,
               record.c.device_id == device_id, record.c.median_s.is_not(None), standing())
        .order_by(record.c.id.desc()).limit(MAX_REFERENCES)
    )
    found = sorted((r.measured_at, r.median_s) for r in connection.execute(newest))
    if not found:
        return None
    middle = statistics.median(s for _, s in found)
    step = -(-len(found) // MAX_POINTS)
    # Keep the slowest of each stretch, as thinning must not hide drift.
    shown = [max(found[i : i + step], key=lambda p: p[1]) for i in range(0, len(found), step)]
    return Drift(
        median_s=middle, low=min(s for _, s in found) / middle, high=max(s for _, s in found) / middle,
        points=[(at, s / middle) for at, s in shown],
    )
