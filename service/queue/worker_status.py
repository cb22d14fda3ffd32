"""Status of workers and of the devices that they drive."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from service.queue.fleet import is_alive
from service.store.tables import device, lease, target, worker, worker_device

SILENT = 1000


class WorkerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a live worker."""

    identity: str
    slot: str
    model: str
    target: str
    leases: int = 0


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker that has not left."""

    id: int
    name: str
    host: str
    pid: int
    version: str
    alive: bool
    registered_at: float
    seen_at: float
    devices: tuple[WorkerDevice, ...] = ()


def statuses(connection: sa.Connection, alive_s: float) -> list[WorkerStatus]:
    """The workers that have not left, live ones first, then the newest; at most `SILENT` that are not alive."""
    alive = is_alive(alive_s)
    silent = (
        sa.select(worker.c.id)
        .where(worker.c.ended_at.is_(None), ~alive)
        .order_by(worker.c.id.desc())
        .limit(SILENT)
    )
    rows = connection.execute(
        sa.select(worker, alive.label("alive"))
        .where(worker.c.ended_at.is_(None), sa.or_(alive, worker.c.id.in_(silent)))
        .order_by(alive.desc(), worker.c.id.desc())
    ).all()
    live = (
        sa.select(lease.c.worker_id, lease.c.device_id, sa.func.count().label("leases"))
        .where(lease.c.ended_at.is_(None))
        .group_by(lease.c.worker_id, lease.c.device_id)
        .subquery()
    )
    devices: dict[int, list[WorkerDevice]] = {}
    for d in connection.execute(
        sa.select(worker_device.c.worker_id, device.c.identity, device.c.slot, device.c.model,
                  target.c.key, sa.func.coalesce(live.c.leases, 0).label("leases"))
        .join(device, device.c.id == worker_device.c.device_id)
        .join(target, target.c.id == worker_device.c.target_id)
        .outerjoin(live, sa.and_(live.c.worker_id == worker_device.c.worker_id,
                                 live.c.device_id == worker_device.c.device_id))
        .where(worker_device.c.worker_id.in_([r.id for r in rows]))
        .order_by(device.c.id)
    ):
        devices.setdefault(d.worker_id, []).append(
            WorkerDevice(
                identity=d.identity, slot=d.slot, model=d.model, target=d.key, leases=d.leases
            )
        )
    return [
        WorkerStatus(
            id=r.id, name=r.name, host=r.host, pid=r.pid, version=r.version, alive=bool(r.alive),
            registered_at=r.created_at, seen_at=r.seen_at, devices=tuple(devices.get(r.id, ())),
        )
        for r in rows
    ]
