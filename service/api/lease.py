"""Leases: a worker asks for a job, keeps it, reports its results, or gives it back."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from service import fleet, queue
from service.api.wire import body_of, describe, reply
from service.auth import Who
from service.context import Context, context_of
from strategy.record import (
    Lease,
    LeaseRequest,
    Leases,
    Renewal,
    Renewed,
    Results,
    ResultsAccepted,
)

router = APIRouter(prefix="/v1/leases", tags=["leases"])
Ctx = Annotated[Context, Depends(context_of)]


@router.post(
    "",
    **describe(
        "Lease a job", takes=LeaseRequest, gives=Leases, errors=(404,),
        note="Waits up to `wait_s` for a job that the device can take; the list is empty where none "
        "came. A device holds one lease that builds beside the one that times.",
    ),
)  # fmt: skip
async def lease(
    context: Ctx, who: Who, request: Request, asked: Annotated[LeaseRequest, body_of(LeaseRequest)]
) -> Response:
    def claim() -> Lease | None:
        try:
            with context.store.write() as connection:
                fleet.check_worker(connection, asked.worker_id, who.token_id)
                return queue.lease_job(connection, asked.worker_id, asked.device, context.terms)
        except sa.exc.IntegrityError:
            return None  # another call for this device was faster

    async for leased in context.looks(claim, context.queued, asked.wait_s):
        if leased is not None:
            if await request.is_disconnected():
                await run_in_threadpool(_give_back, context, leased.id, leased.token)
                break
            context.changed.notify()
            return reply(Leases(leases=(leased,)))
        if await request.is_disconnected():
            break
    return reply(Leases())


def _give_back(context: Context, lease_id: int, token: int) -> None:
    with context.store.write() as connection:
        queue.release(connection, lease_id, token, context.terms)
    context.queued.notify()


@router.post(
    "/{lease_id}/renew",
    **describe(
        "Keep a lease", takes=Renewal, gives=Renewed, errors=(409,),
        note="409 `urn:plevel:lease-lost`: the job is another's now. 409 `urn:plevel:device-busy`: "
        "`timing` was asked for while another lease of the device is timing; the lease stays.",
    ),
)  # fmt: skip
def renew(
    context: Ctx, who: Who, lease_id: int, body: Annotated[Renewal, body_of(Renewal)]
) -> Response:
    with context.store.write() as connection:
        fleet.check_lease(connection, lease_id, who.token_id)
        renewed = queue.renew(connection, lease_id, body.token, body.timing, context.terms)
    if body.timing:
        context.queued.notify()  # its device may build the next job now
    return reply(renewed)


@router.post(
    "/{lease_id}/results",
    **describe(
        "Report results", takes=Results, gives=ResultsAccepted, errors=(409,),
        note="As they come, several at once or one by one; sending one again changes nothing. `done` "
        "with the last ends the lease. 409: the lease is lost, and nothing is stored.",
    ),
)  # fmt: skip
def report(
    context: Ctx, who: Who, lease_id: int, body: Annotated[Results, body_of(Results)]
) -> Response:
    with context.store.write() as connection:
        fleet.check_lease(connection, lease_id, who.token_id)
        accepted = queue.report(connection, lease_id, body, context.terms)
    context.changed.notify()
    if body.done:
        context.queued.notify()
    return reply(accepted)


@router.post(
    "/{lease_id}/release",
    **describe(
        "Give a job back", takes=Renewal, status=204, errors=(409,),
        note="Its entries without results go back to the queue, and it is not held against them.",
    ),
)  # fmt: skip
def release(
    context: Ctx, who: Who, lease_id: int, body: Annotated[Renewal, body_of(Renewal)]
) -> Response:
    with context.store.read() as connection:
        fleet.check_lease(connection, lease_id, who.token_id)
    _give_back(context, lease_id, body.token)
    context.changed.notify()
    return Response(status_code=204)
