"""Routes of runs: request tuning, follow it, cancel it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.access import audit
from service.access.auth import Actor, Who, Within
from service.api.query import OfWorkload, WorkloadHas
from service.api.wire import TARGET, Body, describe, reply
from service.context import Context, Ctx, Seen
from service.stream import Stream
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status, webhook
from service.tuning.run_filter import OfRun
from service.turn import ListRoute
from strategy.record import RunRequest, RunState, RunStatus, encode
from strategy.workload_text import EXAMPLE

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=ListRoute)
_ENDED = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
_PAUSE_S = 0.1  # least time between two events, as many results may arrive at once


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, the newest first; `next` is the cursor of the following page."""

    runs: tuple[RunStatus, ...]
    next: int | None = None


@router.post(
    "",
    **describe(
        "Tune", takes=RunRequest, gives=RunStatus, status=201,
        example={
            "workloads": [{"workload": EXAMPLE, "weight": 12}, {"workload": "softmax(data=float32[12,384])"}],
            "target": TARGET, "trials": 128,
        },
        note="Answers immediately with the run's status. An equal request joins the live run; "
        "if all of its tasks are tuned enough, the run is done without new trials, unless "
        "`force` is set. The target `cpu` means the host of this service; a client that means its "
        "own host sends that target as an object. The end of the run is POSTed to the URL `webhook` "
        "(docs/operations.md).",
    ),
)
def create(context: Ctx, who: Who, within: Within, body: Body[RunRequest]) -> Response:
    if body.webhook is not None:
        webhook.check(body.webhook, context.settings.webhook_hosts)
    planned = planning.plan(body)
    with context.store.write() as connection:
        run_id = runs.create(connection, body, planned, within)
        if body.webhook is not None:
            webhook.subscribe(connection, run_id, body.webhook)
        audit.note(connection, who, "run.create", run=run_id, trials=body.trials)
        status = run_status.status(connection, run_id, context.settings.alive_s)
    context.changed.notify()
    return reply(status, 201)


@router.get(
    "",
    **describe(
        "List runs", gives=Runs, errors=(422,),
        note="The newest first. `state` is a state, or `live` for any of a live run; the other filters are of tasks, "
        "of which a run has one at least. `target` is a target's key.",
    ),
)
def list_runs(
    context: Ctx,
    within: Within,
    digest: OfWorkload,
    workload_has: WorkloadHas = None,
    op: str | None = None,
    implementation: str | None = None,
    target: str | None = None,
    state: RunState | Literal["live"] | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    cursor: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    which = OfRun(
        namespace=within, op=op, implementation=implementation, target=target, workload=digest,
        workload_has=workload_has, state=None if state is None else str(state),
    )
    with context.store.read() as connection:
        ids = run_status.find_ids(connection, which, limit + 1, cursor)
    parts = _each(context, ids[:limit], following=ids[limit - 1] if len(ids) > limit else None)
    first = next(parts)  # an error before the stream begins is a problem document
    return Stream(itertools.chain([first], parts), 200, None, "application/json")


def _each(context: Context, ids: Sequence[int], following: int | None) -> Iterator[bytes]:
    """The JSON of `Runs`, a run at a time: each may have thousands of tasks."""
    begin = b'{"runs":['
    for run_id in ids:
        with context.store.read() as connection:
            status = run_status.status(connection, run_id, context.settings.alive_s)
        yield begin + encode(status)
        begin = b","
    yield (b"" if ids else begin) + b'],"next":' + encode(following) + b"}"


def _status(context: Context, who: Actor, run_id: int) -> RunStatus:
    with context.store.read() as connection:
        return run_status.status(connection, run_id, context.settings.alive_s, who.namespace)


@router.get("/{run_id}", **describe("The status of a run", gives=RunStatus, errors=(404,)))
def show(context: Ctx, who: Who, run_id: int) -> Response:
    return reply(_status(context, who, run_id))


@router.get(
    "/{run_id}/events",
    **describe(
        "Follow a run", gives=RunStatus, media="text/event-stream", errors=(404,),
        note="Server-sent events: `status` with a RunStatus at each change, and `end` with the last.",
    ),
)
async def events(context: Ctx, who: Who, run_id: int, request: Request) -> Response:
    def look() -> Seen:
        status = _status(context, who, run_id)
        data = encode(status)
        return Seen(data, data, status.state in _ENDED)

    await run_in_threadpool(look)  # 404 before the stream begins
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Stream(context.follow(look, b"status", _PAUSE_S, request), 200, headers, "text/event-stream")


@router.post("/{run_id}/cancel", **describe("Cancel a run", gives=RunStatus, errors=(404,)))
def cancel(context: Ctx, who: Who, run_id: int) -> Response:
    with context.store.write() as connection:
        runs.cancel(connection, run_id, who.namespace)
        audit.note(connection, who, "run.cancel", run=run_id)
    context.changed.notify()
    context.queued.notify()
    return reply(_status(context, who, run_id))
