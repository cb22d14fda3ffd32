"""Workers: registration and heartbeats."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from service.access.auth import Who
from service.api.wire import TARGET, Body, describe, reply
from service.context import Ctx
from service.queue import fleet, worker_status
from service.queue import lease as leasing
from strategy.record import Registered, WorkerInfo

router = APIRouter(prefix="/v1/workers", tags=["workers"])


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Registered workers that have not left, live ones first, then the newest; at most 1000 that are not alive."""

    workers: tuple[worker_status.WorkerStatus, ...]


@router.post(
    "",
    **describe(
        "Register a worker", takes=WorkerInfo, gives=Registered, status=201, errors=(403,),
        example={
            "name": "lab-7", "host": "lab-7", "pid": 4711, "devices": [
                {"identity": "3f2a91c0/cpu:0-7", "slot": "cpu:0-7", "model": "AMD EPYC 9B45", "target": TARGET}
            ],
        },
        note="A device belongs to the token that registers it first; 403 if it belongs to another.",
    ),
)
def register(context: Ctx, who: Who, info: Body[WorkerInfo]) -> Response:
    with context.store.write() as connection:
        worker_id = fleet.register(connection, info, who.token_id)
    context.changed.notify()
    settings = context.settings
    answer = Registered(
        worker_id=worker_id, heartbeat_s=settings.heartbeat_s, lease_s=settings.lease_s
    )
    return reply(answer, 201)


@router.get("", **describe("List the workers", gives=Workers))
def list_workers(context: Ctx) -> Response:
    with context.store.read() as connection:
        return reply(Workers(workers=tuple(worker_status.statuses(connection, context.settings.alive_s))))


@router.post(
    "/{worker_id}/heartbeat",
    **describe(
        "Send a worker's heartbeat", status=204, errors=(404,),
        note="404: the service does not know the worker, which must register again.",
    ),
)
async def heartbeat(context: Ctx, who: Who, worker_id: int) -> Response:
    await context.worker_batches.see(worker_id, who.owner)
    return Response(status_code=204)


@router.delete(
    "/{worker_id}",
    **describe("Unregister a worker and release its leases", status=204, errors=(404,)),
)
def leave(context: Ctx, who: Who, worker_id: int) -> Response:
    with context.store.write() as connection:
        fleet.check_worker(connection, worker_id, who.owner)
        leasing.leave(connection, worker_id, context.terms)
    context.queued.notify()
    context.changed.notify()
    return Response(status_code=204)
