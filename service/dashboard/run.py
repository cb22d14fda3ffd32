"""`/runs`: runs and their progress; pages of live runs follow by server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from service.access import audit
from service.access.auth import Who
from service.context import Context, Ctx, Seen
from service.dashboard.listing import Words, read_choice, read_sort, read_span
from service.dashboard.query import run as query
from service.dashboard.query import run_list
from service.dashboard.query import selection as known
from service.dashboard.selection import select_each
from service.dashboard.view import HEADERS, MAX_ID, PageNumber, render, reply
from service.queue import fleet
from service.records.installed_version import installed_versions
from service.store.sql import read_clock
from service.store.tables import LIVE
from service.stream import Stream
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status, webhook
from service.tuning.ownership import find_interrupted, is_interrupted, is_overdue
from service.tuning.run_filter import LIVE_STATE, OfRun
from service.tuning.tally import tally
from service.turn import ListRoute
from strategy.record import RunState, convert
from strategy.select import Selection
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(prefix="/runs", include_in_schema=False, route_class=ListRoute)
RunId = Annotated[int, Path(ge=1, le=MAX_ID)]
OptionalId = Annotated[int | None, Query(ge=1, le=MAX_ID)]
_STATES = (LIVE_STATE, *(s.value for s in RunState))
_PAUSE_S = 0.5  # least time between two events, as a page redraws for each


@router.get("")
def list_runs(
    context: Ctx, state: str = "", workload_has: Words = "", op: str = "", target: Words = "", since: str = "",
    until: str = "", sort: str = "", page: PageNumber = 1,
) -> Response:
    span, by = read_span(since, until), read_sort(sort, run_list.SORTS, run_list.NEWEST)
    wanted = OfRun(
        state=read_choice("state", state, _STATES), op=op or None, workload_has=workload_has, target_has=target
    )
    with context.store.read() as connection:
        found = run_list.page(connection, wanted, span=span, sort=by, offset=(page - 1) * run_list.PAGE)
        targets = known.targets(connection)
        if not found:
            wanted.check_names(connection)
        at = read_clock(connection)
        interrupted = find_interrupted(connection, [r.id for r in found])
    filters = {
        "state": state, "workload_has": workload_has, "op": op, "target": target, "since": since, "until": until,
        "sort": sort,
    }
    return render(
        "runs.html", runs=found[: run_list.PAGE], more=len(found) > run_list.PAGE, page=page, now=at, sort=by,
        interrupted=interrupted, filters=filters, filtered=any(v for k, v in filters.items() if k != "sort"),
        states=_STATES, targets=targets,
    )


@router.get("/{run_id}")
def show(
    context: Ctx, request: Request, run_id: RunId, workload: OptionalId = None,
    page: Annotated[int, Query(ge=1, le=1000)] = 1,
) -> Response:
    """The page; for htmx, which requests it at each event, only the live part."""
    with context.store.read() as connection:
        values = _values(connection, context, run_id, workload)
        if "hx-request" in request.headers:
            return render("run_live.html", **values)
        model = query.device_model(connection, run_id)
        found = query.workloads(connection, run_id, (page - 1) * query.WORKLOADS, model)
        shown = found[: query.WORKLOADS] if len(found) > 1 or page > 1 else []
        portions = query.portions(connection, run_id, tally(connection, run_id), model) if shown else {}
        bodies = query.bodies(connection, [w.id for w in shown])
        asked = values["request"].target
        selected = select_each(connection, bodies, asked, values["run"].namespace)
    return render(
        "run.html", **values, workloads=shown, page=page, more=len(found) > query.WORKLOADS,
        portions=portions, model=model, selected=selected, selected_s={i: _time_s(s) for i, s in selected.items()},
        workload_count=max(len(portions), 1),
    )


def _values(
    connection: sa.Connection, context: Context, run_id: int, workload: int | None
) -> dict[str, Any]:
    row = query.head(connection, run_id)
    asked = query.request_of(row)
    told = tally(connection, run_id)
    shown = query.first_workload(connection, run_id, workload)
    leaders = [] if shown is None else query.leaders(connection, run_id, shown)
    workers = fleet.count_alive(connection, row.target_id, context.settings.alive_s)
    waits = _waits(connection, context, row)
    ended = row.finished_at
    idle_s = run_status.idle_s(connection, [run_id]).get(run_id, 0.0)
    elapsed_s = (row.now if ended is None else ended) - row.created_at
    progress = query.progress(connection, run_id, asked, told)
    left = asked.trials - progress["trials"]
    return {
        "run": row, "request": asked, "live": row.state in LIVE, "workers": workers,
        "interrupted": is_interrupted(connection, run_id), "overdue": is_overdue(connection, run_id), "waits": waits,
        "progress": progress, "tried": query.tried(told),
        "shown": shown, "leaders": leaders, "stale": _stale(leaders, asked.target),
        "failures": query.failures(connection, told),
        "elapsed_s": elapsed_s, "idle_s": idle_s, "worked_s": elapsed_s - idle_s,
        "left_s": time_left_s(elapsed_s - idle_s, progress["own"], left) if workers else None,
        "flops": run_status.flops_of(leaders[0].workload) if leaders else None,
        "several_models": len({row.model for row in leaders if row.model}) > 1,
    }


def _time_s(selection: Selection) -> float | None:
    """The time by which an implementation is selected; None if it has none."""
    of = (r.estimate for r in selection.rivals if r.implementation == selection.implementation)
    return next((e.median_s for e in of if e is not None), None)


def _stale(leaders: list[Any], target: Target) -> set[int]:
    """The ids of the tasks of one workload whose version is not the installed one."""
    known = installed_versions(convert(leaders[0].workload, Workload), target) if leaders else None
    return set() if known is None else {r.id for r in leaders if known.get(r.implementation) != r.version}


def _waits(connection: sa.Connection, context: Context, row: Any) -> str:
    """The reason why live workers take no job of a run; empty if they do, or it has ended."""
    return run_status.explain_rest(connection, row.id, context.settings.alive_s) if row.state in LIVE else ""


def time_left_s(elapsed_s: float, own: int, left: int) -> float | None:
    """Extrapolate the pace of a run's own trials to those that are left; None until it has 2 % of both."""
    return elapsed_s * left / own if own > 0 and own >= 0.02 * (own + left) else None


@router.get("/{run_id}/curve.json")
def show_curve(context: Ctx, run_id: RunId, workload: OptionalId = None) -> Response:
    with context.store.read() as connection:
        query.head(connection, run_id)
        shown = query.first_workload(connection, run_id, workload)
        found = [] if shown is None else query.curves(connection, run_id, shown)
    return reply({"curves": msgspec.to_builtins(found)})


@router.get("/{run_id}/live")
async def follow(context: Ctx, run_id: RunId, request: Request) -> Response:
    """Server-sent events: `change` when the page has changed, `end` at the end of the run."""

    def look() -> Seen:
        with context.store.read() as connection:
            version = query.version(connection, run_id)
            row = query.head(connection, run_id)
            workers = fleet.count_alive(connection, row.target_id, context.settings.alive_s)
            mark = (*version, workers, is_interrupted(connection, run_id), _waits(connection, context, row))
        return Seen(mark, b"{}", version[0] not in LIVE)

    await run_in_threadpool(look)  # 404 before the stream begins
    headers = {**HEADERS, "x-accel-buffering": "no"}
    return Stream(context.follow(look, b"change", _PAUSE_S, request), 200, headers, "text/event-stream")


@router.post("/{run_id}/cancel")
def cancel(context: Ctx, who: Who, run_id: RunId) -> Response:
    with context.store.write() as connection:
        runs.cancel(connection, run_id)
        audit.note(connection, who, "run.cancel", run=run_id)
    context.changed.notify()
    context.queued.notify()
    return RedirectResponse(f"/runs/{run_id}", 303)


@router.post("/{run_id}/again")
def run_again(context: Ctx, who: Who, run_id: RunId) -> Response:
    """Repeat the request, even if all is tuned enough."""
    with context.store.read() as connection:
        before = query.head(connection, run_id)
    asked = msgspec.structs.replace(query.request_of(before), force=True)
    planned = planning.plan(asked)
    with context.store.write() as connection:
        new = runs.create(connection, asked, planned, before.namespace)
        if asked.webhook is not None:
            webhook.subscribe(connection, new, asked.webhook)  # its address is checked when it is sent
        audit.note(connection, who, "run.create", run=new, trials=asked.trials)
    context.changed.notify()
    return RedirectResponse(f"/runs/{new}", 303)
