"""`/devices`: devices, workers, quarantined jobs, and the drift of a device."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from service.context import Ctx
from service.dashboard.listing import Words, read_sort, read_span
from service.dashboard.query import device as query
from service.dashboard.query import selection as known
from service.dashboard.query.overview import HOUR_S, NOISY
from service.dashboard.view import MAX_ID, PageNumber, render
from service.queue import pause, worker_status
from service.queue.place import Operators
from service.store.sql import read_clock
from service.turn import ListRoute
from strategy.installed import installed
from strategy.installed_code import code_identity
from strategy.table import show_number

router = APIRouter(include_in_schema=False, route_class=ListRoute)
MAX_WORKERS = 100
NAMED = 3  # implementations of a worker in another version


@router.get("/devices")
def show(
    context: Ctx, device_has: Words = "", target: Words = "", since: str = "", until: str = "", sort: str = "",
    page: PageNumber = 1,
) -> Response:
    span, by = read_span(since, until), read_sort(sort, query.SORTS, query.LAST_SEEN)
    alive_s = context.settings.alive_s
    with context.store.read() as connection:
        devices = query.page(
            connection, alive_s, (page - 1) * query.PAGE, span=span, sort=by, has=device_has, target_has=target
        )
        targets = known.targets(connection)
        workers = worker_status.statuses(connection, alive_s)
        quarantined = query.quarantined(connection)
        pauses = pause.current(connection)
        instant = read_clock(connection)
    filters = {"device_has": device_has, "target": target, "since": since, "until": until, "sort": sort}
    return render(
        "devices.html", devices=devices[: query.PAGE], more=len(devices) > query.PAGE, page=page,
        workers=workers[:MAX_WORKERS], unshown=max(len(workers) - MAX_WORKERS, 0), noisy=NOISY,
        quarantined=quarantined[: query.QUARANTINED], more_quarantined=len(quarantined) > query.QUARANTINED,
        hour_s=HOUR_S, sort=by, now=instant, pauses=pauses, targets=targets, filters=filters,
        filtered=any(v for k, v in filters.items() if k != "sort"), code=code_identity(),
    )


@router.get("/devices/{device_id}")
def show_one(context: Ctx, device_id: Annotated[int, Path(ge=1, le=MAX_ID)]) -> Response:
    with context.store.read() as connection:
        found = query.head(connection, device_id)
        drift = query.drift(connection, device_id)
        workers = query.drivers(connection, device_id, context.settings.alive_s)
        pauses = [p for p in pause.current(connection) if found.identity == p.device or found.target_key == p.target]
    return render(
        "device.html", device=found, drift=drift, line=_line(drift), noisy=NOISY, workers=workers, pauses=pauses,
        now=found.now, code=code_identity(), others={w.id: _other_versions(w.operators) for w in workers},
    )


def _other_versions(operators: Operators) -> str:
    """The implementations that a worker has in other versions than this service, with both; empty without any."""
    own = installed()
    found = [
        f"{name} {version} (here {own[op][name]})"
        for op, listed in sorted(operators.items())
        for name, version in sorted(listed.items())
        if own.get(op, {}).get(name, version) != version
    ]
    named = [*found[:NAMED], *(["…"] if len(found) > NAMED else [])]
    return f"{show_number(len(found), 'implementation')} in another version: {', '.join(named)}" if found else ""


def _line(drift: query.Drift | None) -> str:
    """The drift as an SVG path, 1000 wide and 100 high, from 0.8 to 1.2 times the median."""
    if drift is None:
        return ""
    first, last = drift.points[0][0], drift.points[-1][0]
    places = [
        (1000 * (at - first) / max(last - first, 1e-9), 250 * (1.2 - min(max(ratio, 0.8), 1.2)))
        for at, ratio in drift.points
    ]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in [*places, (1000.0, places[-1][1])])
