"""`/devices`: devices and their workers, and the jobs that killed workers."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response

from service import fleet
from service.dashboard.query import device as query
from service.dashboard.query.overview import HOUR_S, NOISY
from service.dashboard.view import Ctx, render
from service.db import now

router = APIRouter(include_in_schema=False)
MAX_WORKERS = 100


@router.get("/devices")
def show(context: Ctx, page: Annotated[int, Query(ge=1, le=10_000)] = 1) -> Response:
    alive_s = context.settings.alive_s
    with context.store.read() as connection:
        devices = query.page(connection, alive_s, (page - 1) * query.PAGE)
        workers = fleet.statuses(connection, alive_s)
        values = {
            "quarantined": query.quarantined(connection),
            "now": connection.execute(sa.select(now())).scalar_one(),
        }
    return render(
        "devices.html", devices=devices[: query.PAGE], more=len(devices) > query.PAGE, page=page,
        workers=workers[:MAX_WORKERS], unshown=max(len(workers) - MAX_WORKERS, 0), noisy=NOISY,
        hour_s=HOUR_S, **values,
    )  # fmt: skip
