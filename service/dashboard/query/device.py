"""Devices: what they are, whether they are alive and busy, and which jobs killed their workers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.dashboard.query.overview import HOUR_S, recent
from service.db import now
from service.fleet import is_alive
from service.models import (
    JobState,
    best,
    device,
    job,
    lease,
    record,
    target,
    worker,
    worker_device,
    workload,
)
from strategy.record import Phase

PAGE = 50


def page(connection: sa.Connection, alive_s: float, offset: int) -> list[Any]:
    """Devices, the last seen first; one more than a page where there are more."""
    at = float(connection.execute(sa.select(now())).scalar_one())
    last = recent(record.c.device_id, record.c.run_s, record.c.error, record.c.recorded_at)
    busy = (
        sa.select(
            last.c.device_id, sa.func.sum(last.c.run_s).label("busy_s"),
            sa.func.count().label("trials"), sa.func.count(last.c.error).label("failed"),
        )
        .where(last.c.recorded_at > at - HOUR_S)
        .group_by(last.c.device_id)
        .subquery()
    )  # fmt: skip
    driven = (
        sa.select(
            worker_device.c.device_id,
            sa.func.max(worker.c.seen_at).label("seen_at"),
            sa.func.count().filter(is_alive(alive_s)).label("alive"),
        )
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .group_by(worker_device.c.device_id)
        .subquery()
    )  # fmt: skip
    leased = (
        sa.select(lease.c.device_id, sa.func.count().label("leases"))
        .where(lease.c.ended_at.is_(None))
        .group_by(lease.c.device_id)
        .subquery()
    )
    width = sa.func.avg((best.c.high_s - best.c.low_s) / 2 / best.c.median_s)
    noise = (
        sa.select(best.c.scope_value, width.label("noise"))
        .where(best.c.scope == "device", best.c.phase == Phase.CONFIRM.value)
        .group_by(best.c.scope_value)
        .subquery()
    )
    query = (
        sa.select(
            device.c.id, device.c.identity, device.c.slot, device.c.model, device.c.fingerprint,
            target.c.key.label("target"),
            sa.func.coalesce(driven.c.seen_at, device.c.seen_at).label("seen_at"),
            sa.func.coalesce(driven.c.alive, 0).label("alive"),
            sa.func.coalesce(leased.c.leases, 0).label("leases"),
            sa.func.coalesce(busy.c.busy_s, 0.0).label("busy_s"),
            sa.func.coalesce(busy.c.trials, 0).label("trials"),
            sa.func.coalesce(busy.c.failed, 0).label("failed"),
            noise.c.noise, sa.literal(at).label("now"),
        )
        .join(target, target.c.id == device.c.target_id)
        .outerjoin(driven, driven.c.device_id == device.c.id)
        .outerjoin(leased, leased.c.device_id == device.c.id)
        .outerjoin(busy, busy.c.device_id == device.c.id)
        .outerjoin(noise, noise.c.scope_value == sa.cast(device.c.id, sa.Text()))
        .order_by(sa.func.coalesce(driven.c.seen_at, device.c.seen_at).desc(), device.c.id)
        .offset(offset)
        .limit(PAGE + 1)
    )  # fmt: skip
    return list(connection.execute(query))


def quarantined(connection: sa.Connection, limit: int = 20) -> list[Any]:
    """Jobs that killed workers, the newest first."""
    query = (
        sa.select(job.c.id, job.c.run_id, job.c.reason, job.c.attempts, job.c.finished_at,
                  workload.c.op, workload.c.key)
        .join(workload, workload.c.id == job.c.workload_id)
        .where(job.c.state == JobState.QUARANTINED.value)
        .order_by(job.c.id.desc())
        .limit(limit)
    )  # fmt: skip
    return list(connection.execute(query))
