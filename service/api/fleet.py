"""Administration of the fleet: explanations of jobs, pauses, renamed and transferred devices."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from service.access import audit
from service.access.auth import Who
from service.api.wire import Body, describe, reply
from service.context import Ctx
from service.queue import explain as why
from service.queue import fleet, pause
from strategy.record import Name

router = APIRouter(prefix="/v1", tags=["fleet"])


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Current and future pauses."""

    pauses: tuple[pause.Pause, ...]


class Renaming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device's old identity, and the one that its worker sends now."""

    old: Name
    new: Name


class Moving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device, by its identity, and the name of the token that is to own it."""

    device: Name
    token: Name


@router.get(
    "/jobs/{job_id}/why",
    **describe("Explain a job's place in the queue", gives=why.Explanation, errors=(404,)),
)
def explain(context: Ctx, who: Who, job_id: int) -> Response:
    with context.store.read() as connection:
        found = why.explain(connection, job_id, context.settings.alive_s, who.namespace)
    return reply(found)


@router.post(
    "/pauses",
    **describe(
        "Pause a device or a target", takes=pause.PauseRequest, gives=pause.Pause, status=201,
        example={"target": "llvm/znver4/threads=8", "reason": "new fans"},
        errors=(404,), note="It gets no jobs from `starts_at` (default: now) to `ends_at` (default: no end); "
        "running jobs finish.",
    ),
)
def create_pause(context: Ctx, who: Who, body: Body[pause.PauseRequest]) -> Response:
    with context.store.write() as connection:
        made = pause.create(connection, body)
        audit.note(connection, who, "pause", pause=made.id, device=made.device, target=made.target)
    return reply(made, 201)


@router.get("/pauses", **describe("List pauses", gives=Pauses))
def list_pauses(context: Ctx) -> Response:
    with context.store.read() as connection:
        return reply(Pauses(pauses=tuple(pause.current(connection))))


@router.delete("/pauses/{pause_id}", **describe("End a pause", status=204, errors=(404,)))
def end_pause(context: Ctx, who: Who, pause_id: int) -> Response:
    with context.store.write() as connection:
        pause.end(connection, pause_id)
        audit.note(connection, who, "resume", pause=pause_id)
    context.queued.notify()
    return Response(status_code=204)


@router.post(
    "/devices:rename",
    **describe(
        "Give a device's history a new identity", takes=Renaming, status=204, errors=(404,),
        example={"old": "3f2a91c0/cpu:0-7", "new": "77b04e1d/cpu:0-7"},
        note="For a machine that was reinstalled, or a board replaced by an identical one: records "
        "of `old` then belong to `new`. If `new` exists, the two are exchanged.",
    ),
)
def rename(context: Ctx, who: Who, body: Body[Renaming]) -> Response:
    with context.store.write() as connection:
        fleet.rename(connection, body.old, body.new)
        audit.note(connection, who, "device.rename", old=body.old, new=body.new)
    return Response(status_code=204)


@router.post(
    "/devices:move",
    **describe(
        "Transfer a device to another token", takes=Moving, status=204, errors=(404,),
        example={"device": "3f2a91c0/cpu:0-7", "token": "lab-7"},
        note="A device belongs to the token that registered it first, and to others of the same name. Workers "
        "with other tokens are refused when they register again. Its history is kept.",
    ),
)
def move(context: Ctx, who: Who, body: Body[Moving]) -> Response:
    with context.store.write() as connection:
        fleet.move(connection, body.device, body.token)
        audit.note(connection, who, "device.move", device=body.device, token=body.token)
    return Response(status_code=204)
