"""Routes of leases: claim a job, renew, report results, or release it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from service.access.auth import Actor, Who
from service.api.wire import Body, describe, reply
from service.context import Context, Ctx
from service.errors import DeviceBusyError, ServiceError, StoppedError
from service.peer import may_have_left
from service.queue import fleet, renewal
from service.queue import lease as leasing
from service.queue.place import LeaseAsk
from service.queue.worker_batches import Answers
from strategy.record import (
    Lease,
    LeaseRequest,
    Leases,
    Renewal,
    Renewed,
    Report,
    Reported,
    Reports,
    ReportsAnswered,
    Results,
    ResultsAccepted,
)

router = APIRouter(prefix="/v1/leases", tags=["leases"])
_RENEWAL = {"token": 1, "timing": True}
_RESULTS = {
    "token": 1, "session": "lab-7-1", "done": True, "results": [
        {"entry": 0, "samples_s": [0.00162, 0.00161, 0.00162, 0.00163, 0.00162, 0.00162], "run_s": 0.05},
        {"entry": 1, "error": "compile", "message": "no register is left"},
    ],
}


@router.post(
    "",
    **describe(
        "Lease jobs", takes=LeaseRequest, gives=Leases, errors=(404,),
        example={"worker_id": 1, "device": "3f2a91c0/cpu:0-7", "wait_s": 10},
        note="Waits up to `wait_s` for a job that the device can run; the list is empty if there is none. "
        "The device then holds at most `jobs` leases, besides the one that it times.",
    ),
)
async def lease(context: Ctx, who: Who, request: Request, asked: Body[LeaseRequest]) -> Response:
    ask = LeaseAsk(asked.worker_id, asked.device, asked.jobs, who.owner)
    looked = False
    with contextlib.suppress(StoppedError):
        async for _ in context.moments(context.queued, asked.wait_s):
            # Poll read-only after the first attempt.
            if not looked or await context.worker_batches.may_lease(ask):
                looked = True
                with context.metrics.claim.time():
                    leased = await context.worker_batches.lease(ask)
                if leased:
                    if await may_have_left(request):
                        await run_in_threadpool(_give_back, context, leased)
                        break
                    context.changed.notify()
                    return reply(Leases(leases=tuple(leased)))
            if await may_have_left(request):
                break
    return reply(Leases())


def _give_back(context: Context, leases: Sequence[Lease]) -> None:
    with context.store.write() as connection:
        for one in leases:
            leasing.release(connection, one.id, one.token, context.terms)
    context.queued.notify()


@router.post(
    ":report",
    **describe(
        "Report results of several leases", takes=Reports, gives=ReportsAnswered,
        example={"reports": [{"lease_id": 1, "results": _RESULTS}]},
        note="As for the results of one lease; each answer says if its lease is lost.",
    ),
)
async def report_many(context: Ctx, who: Who, body: Body[Reports]) -> Response:
    found = await _deliver(context, who, body.reports)
    answers = [
        Reported(lease_id=one.lease_id, problem=str(answer))
        if isinstance(answer, ServiceError)
        else Reported(lease_id=one.lease_id, accepted=answer)
        for one, answer in zip(body.reports, found, strict=True)
    ]
    return reply(ReportsAnswered(answers=tuple(answers)))


async def _deliver(context: Context, who: Actor, reports: Sequence[Report]) -> Answers:
    answers = await context.worker_batches.report(reports, who.owner)
    for one, answer in zip(reports, answers, strict=True):
        if isinstance(answer, ResultsAccepted) and answer.accepted:
            context.metrics.count(one.results, answer)
    context.changed.notify()
    if any(one.results.done for one in reports):
        context.queued.notify()
    return answers


@router.post(
    "/{lease_id}/renew",
    **describe(
        "Renew a lease", takes=Renewal, example=_RENEWAL, gives=Renewed, errors=(409,),
        note="409 `urn:plevel:lease-lost`: the lease has expired or ended. 409 `urn:plevel:device-busy`: "
        "`timing` was requested while another lease of the device is timing; the lease is kept.",
    ),
)
async def renew(context: Ctx, who: Who, lease_id: int, body: Body[Renewal]) -> Response:
    kept = await context.worker_batches.renew(lease_id, body, who.owner)
    if kept is None:
        return reply(await run_in_threadpool(_renew, context, who, lease_id, body))
    if kept.began:
        context.queued.notify()  # the device may lease another job now
    return reply(kept.answer)


def _renew(context: Context, who: Actor, lease_id: int, body: Renewal) -> Renewed:
    """Renew a lease by a transaction of its own, which waits for others, and ends leases that are overdue."""
    try:
        with context.store.write() as connection:
            fleet.check_leases(connection, [lease_id], who.owner)
            renewed = renewal.renew(connection, lease_id, body.token, body.timing, context.terms)
    except DeviceBusyError:
        with context.store.write() as connection:  # what the refusal has rolled back
            renewal.renew(connection, lease_id, body.token, False, context.terms)
        raise
    if body.timing:
        context.queued.notify()
    return renewed


@router.post(
    "/{lease_id}/results",
    **describe(
        "Report results", takes=Results, example=_RESULTS, gives=ResultsAccepted, errors=(409,),
        note="Several at once or one by one; repeated results change nothing. `done` "
        "with the last ends the lease. 409: the lease is lost, and nothing is stored.",
    ),
)
async def report(context: Ctx, who: Who, lease_id: int, body: Body[Results]) -> Response:
    (answer,) = await _deliver(context, who, [Report(lease_id=lease_id, results=body)])
    if isinstance(answer, ServiceError):
        raise answer
    return reply(answer)


@router.post(
    "/{lease_id}/release",
    **describe(
        "Release a job", takes=Renewal, example={"token": 1}, status=204, errors=(409,),
        note="Its entries without results return to the queue, and this does not count as a loss.",
    ),
)
def release(context: Ctx, who: Who, lease_id: int, body: Body[Renewal]) -> Response:
    with context.store.write() as connection:
        fleet.check_leases(connection, [lease_id], who.owner)
        leasing.release(connection, lease_id, body.token, context.terms)
    context.queued.notify()
    context.changed.notify()
    return Response(status_code=204)
