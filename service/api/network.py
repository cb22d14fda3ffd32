"""Routes of networks: confirmations of kernels in whole graphs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Response

from service.access.auth import Within
from service.api.wire import TARGET, Body, describe, reply
from service.context import Ctx
from service.records import network
from service.records.network import Network, Networks
from strategy.confirmation import Confirmation
from strategy.workload_text import EXAMPLE

router = APIRouter(prefix="/v1/networks", tags=["networks"])


class NetworkRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a confirmation on record."""

    id: int


@router.post(
    "",
    **describe(
        "Record the confirmation of a network's kernels", takes=Confirmation, gives=NetworkRecorded,
        example={
            "key": "3f2a91c077b04e1d3f2a91c077b04e1d", "graph": "77b04e1d3f2a91c077b04e1d3f2a91c0",
            "framework": "torch 2.13.0", "target": TARGET, "before_s": 0.0124, "after_s": 0.0101,
            "parts": [
                {"workload": EXAMPLE, "occurrences": 12, "share": 1.0, "implementation": "dense_pack.cpu"}
            ],
        },
        note="What a framework's backend has timed in the whole graph of a model: its workloads, their kernels "
        "and why, and the times of a call before and after. A later one of the same key replaces it.",
    ),
)
def record_network(context: Ctx, within: Within, body: Body[Confirmation]) -> Response:
    with context.store.write() as connection:
        return reply(NetworkRecorded(id=network.put(connection, body, within)))


@router.get(
    "",
    **describe(
        "List the confirmations of networks", gives=Networks, errors=(422,),
        note="The latest reported first; a verdict that is reported again keeps its place. `graph` is the digest of a "
        "graph, which several machines may have timed.",
    ),
)
def list_networks(
    context: Ctx,
    within: Within,
    graph: Annotated[str | None, Query(max_length=64)] = None,
    device_model: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
) -> Response:
    with context.store.read() as connection:
        found = network.page(
            connection, within, graph=graph, device_model=device_model, limit=limit, cursor=cursor
        )
    return reply(found)


@router.get(
    "/{network_id}",
    **describe("One confirmation of a network", gives=Network, errors=(404, 422)),
)
def show_network(
    context: Ctx, within: Within, network_id: Annotated[int, Path(ge=1, le=2**63 - 1)]
) -> Response:
    with context.store.read() as connection:
        return reply(network.find(connection, network_id, within))
