"""`/networks`: the verdicts on the kernels of whole models, timed in their graphs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.context import Ctx
from service.dashboard.listing import Words
from service.dashboard.view import MAX_ID, render
from service.records import network
from service.store.sql import read_clock

router = APIRouter(prefix="/networks", include_in_schema=False)
PAGE = 20
LATEST = 6  # on the overview


@router.get("")
def list_networks(
    context: Ctx,
    request: Request,
    graph: Annotated[str, Query(max_length=64)] = "",
    device: Words = "",
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> Response:
    """The page; for htmx, which loads it into the overview, only the newest."""
    latest = "hx-request" in request.headers
    with context.store.read() as connection:
        found = network.page(
            connection, None, graph_begin=graph.strip(), device_has=device,
            limit=LATEST if latest else PAGE, cursor=before,
        )
        instant = read_clock(connection)
    return render(
        "networks_table.html" if latest else "networks.html", networks=found.networks,
        next=found.next, now=instant, latest=latest, filters={"graph": graph, "device": device},
    )


@router.get("/{network_id}")
def show(context: Ctx, network_id: Annotated[int, Path(ge=1, le=MAX_ID)]) -> Response:
    with context.store.read() as connection:
        found = network.find(connection, network_id, None)
        others = network.page(connection, None, graph=found.confirmation.graph, limit=PAGE).networks
        instant = read_clock(connection)
    of = found.confirmation
    return render(
        "network.html", network=found, of=of, now=instant, latest=False,
        networks=[o for o in others if o.id != found.id],
    )
