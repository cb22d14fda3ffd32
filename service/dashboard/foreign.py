"""`/foreign`: the kernels of other tools, with their best, the spread of their candidates, and their origin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.context import Ctx
from service.dashboard.view import MAX_ID, render
from service.records import foreign
from service.store.sql import read_clock

router = APIRouter(include_in_schema=False)
PAGE = 50
LATEST = 6  # on the overview


@router.get("/foreign")
def show(
    context: Ctx,
    request: Request,
    tool: Annotated[str, Query(max_length=31)] = "",
    kernel: Annotated[str, Query(max_length=200)] = "",
    device: Annotated[str, Query(max_length=200)] = "",
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> Response:
    """The page; for htmx, which loads it into the overview, only the newest."""
    latest = "hx-request" in request.headers
    with context.store.read() as connection:
        found = foreign.list_kernels(
            connection, tool or None, None, kernel=kernel or None, device_model=device or None,
            limit=LATEST if latest else PAGE, cursor=before,
        )
        instant = read_clock(connection)
    # A task may be of several devices.
    kernels = found.kernels[:LATEST] if latest else found.kernels
    return render(
        "foreign_table.html" if latest else "foreign.html", kernels=kernels, next=found.next,
        now=instant, latest=latest, filters={"tool": tool, "kernel": kernel, "device": device},
    )
