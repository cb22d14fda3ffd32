"""`/`: live runs, the rate of trials, failures, and recent improvements."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.context import Ctx
from service.dashboard.query import overview, run_list
from service.dashboard.view import render
from service.turn import ListRoute

router = APIRouter(include_in_schema=False, route_class=ListRoute)
LATEST = 6  # runs


@router.get("/")
def show(context: Ctx, request: Request) -> Response:
    """The page; for htmx, which polls it, only the live part."""
    alive_s = context.settings.alive_s
    with context.store.read() as connection:
        queue = overview.queue(connection, alive_s)
        values = {
            "pulse": overview.pulse(connection),
            "live": overview.count_live(connection),
            "running": overview.running(connection),
            "queue": queue[: overview.QUEUE],
            "more_targets": len(queue) > overview.QUEUE,
            "failures": overview.failures(connection),
            "devices": overview.devices(connection, alive_s),
            "runs": run_list.page(connection, size=LATEST)[:LATEST],
        }
    fragment = "hx-request" in request.headers
    return render("overview_live.html" if fragment else "overview.html", **values)


@router.get("/faster")
def show_faster(context: Ctx) -> Response:
    """The part of the overview that reads old records, loaded after the first paint."""
    with context.store.read() as connection:
        return render("overview_faster.html", faster=overview.faster(connection))
