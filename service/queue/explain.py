"""Why a job is where it is: what `plevel why` says."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.queue import claim, fleet, pause, retry
from service.store.db import now
from service.store.tables import JobState, device, job, lease, run, target, worker, worker_device
from strategy.record import Phase, RunState


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A job's state and the reasons for it, the ones that must go first first."""

    job: int
    run: int
    state: str
    reasons: tuple[str, ...]


def explain(
    connection: sa.Connection, job_id: int, alive_s: float, namespace: str | None = None
) -> Explanation:
    """Of a job in whatever namespace where none is given; raises `NotFoundError`."""
    query = (
        sa.select(job, run.c.state.label("run_state"), run.c.max_jobs, target.c.key, now().label("now"))
        .join(run, run.c.id == job.c.run_id)
        .join(target, target.c.id == job.c.target_id)
        .where(job.c.id == job_id)
    )
    if namespace is not None:
        query = query.where(run.c.namespace == namespace)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"job {job_id} does not exist")
    if row.state == JobState.LEASED:
        reasons = _who_has(connection, row)
    elif row.state == JobState.QUEUED:
        reasons = _waits_for(connection, row, alive_s)
    else:
        reasons = [row.reason or "all of its configurations have a result"]
    return Explanation(job=job_id, run=row.run_id, state=row.state, reasons=tuple(reasons))


def _who_has(connection: sa.Connection, row: Any) -> list[str]:
    held = connection.execute(
        sa.select(lease, worker.c.name, device.c.identity, now().label("now"))
        .join(worker, worker.c.id == lease.c.worker_id)
        .join(device, device.c.id == lease.c.device_id)
        .where(lease.c.job_id == row.id, lease.c.ended_at.is_(None))
    ).one()
    doing = "times" if held.timing else "builds"
    since_s, left_s = held.now - held.created_at, held.expires_at - held.now
    who = f"worker {held.worker_id} ({held.name}) {doing} it on {held.identity}"
    return [f"{who} since {since_s:.0f} s, and has {left_s:.0f} s to say so again"]


def _waits_for(connection: sa.Connection, row: Any, alive_s: float) -> list[str]:
    reasons = []
    if row.run_state not in (RunState.RUNNING, RunState.CONFIRMING):
        reasons.append(f"run {row.run_id} is {row.run_state}")
    if 0 < row.available_at - row.now <= retry.MAX_BACKOFF_S:
        reasons.append(f"it rests for {row.available_at - row.now:.0f} s more: {row.reason}")
    left_s = row.available_at + claim.ELSEWHERE_S - row.now
    if row.phase == Phase.CONFIRM and 0 < left_s <= claim.ELSEWHERE_S:
        reasons.append(f"a final: for {left_s:.0f} s more it is left to devices that had no other of them")
    running = connection.scalar(
        sa.select(sa.func.count()).where(job.c.run_id == row.run_id, job.c.state == JobState.LEASED)
    )
    if row.max_jobs is not None and (running or 0) >= row.max_jobs:
        reasons.append(f"run {row.run_id} has {running} jobs at work, and asked for {row.max_jobs} at most")
    able = _able(connection, row, alive_s, reasons)
    if able:
        reasons += _queue_before(connection, row, able)
    return reasons


def _able(connection: sa.Connection, row: Any, alive_s: float, reasons: list[str]) -> list[Any]:
    """The devices that may take the job; where there are none, the reason is added."""
    places = connection.execute(
        sa.select(worker.c.name, worker.c.operators, device.c.id, device.c.identity,
                  pause.is_paused(device.c.id, row.target_id).label("paused"))
        .join(worker_device, worker_device.c.worker_id == worker.c.id)
        .join(device, device.c.id == worker_device.c.device_id)
        .where(worker_device.c.target_id == row.target_id, fleet.is_alive(alive_s))
    ).all()  # fmt: skip
    if not places:
        reasons.append(f"no worker is alive for target {row.key}")
        return []
    building = [p for p in places if not p.operators or claim.can_build(row.needs, p.operators)]
    if not building:
        names = ", ".join(sorted({p.name for p in places}))
        reasons.append(f"no worker for the target can build {row.needs}: {names}")
        return []
    able = [p for p in building if not p.paused]
    if not able:
        reasons += [
            f"{p.device or p.target} is paused: {p.reason}"
            for p in pause.current(connection)
            if p.target == row.key or p.device in {b.identity for b in building}
        ]
    return able


def _queue_before(connection: sa.Connection, row: Any, able: list[Any]) -> list[str]:
    before = connection.scalar(
        sa.select(sa.func.count()).where(
            job.c.state == JobState.QUEUED, job.c.target_id == row.target_id,
            sa.tuple_(job.c.priority, job.c.turn, job.c.id)
            < sa.tuple_(sa.literal(row.priority), sa.literal(row.turn), sa.literal(row.id)),
        )
    )  # fmt: skip
    devices = {p.id for p in able}
    free = len(devices) - (
        connection.scalar(
            sa.select(sa.func.count(lease.c.device_id.distinct())).where(
                lease.c.ended_at.is_(None), lease.c.timing.is_(sa.false()), lease.c.device_id.in_(devices)
            )
        )
        or 0
    )
    reasons = []
    if row.attempts:
        reasons.append(
            f"it was lost {row.attempts} times ({row.reason}): it waits for a worker that has nothing else"
        )
    if before:
        reasons.append(f"{before} jobs are before it for {len(devices)} devices")
    elif not free:
        reasons.append(f"all {len(devices)} devices for it have their next job already")
    else:
        reasons.append(f"nothing: {free} devices may take it, and ask every few seconds")
    return reasons
