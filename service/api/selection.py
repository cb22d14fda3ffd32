"""Selection: which implementation, with which configuration, and why."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from service import runs
from service.api.wire import body_of, describe, reply
from service.context import Context, context_of
from service.records import RecordDatabase
from strategy.dispatch import DispatchTable, dispatch
from strategy.op_strategy import Candidate
from strategy.select import Policy, Selection, select
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(prefix="/v1", tags=["selection"])


class SelectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. `candidates` go with an operator that the service has not installed.

    `device` is the identity of a device whose own records count first. The target `cpu` means the
    host of this service.
    """

    workload: Workload
    target: Target
    device: str | None = None
    candidates: tuple[Candidate, ...] | None = None
    policy: Policy = "plevel"


@router.post(
    "/select",
    **describe(
        "Select an implementation", takes=SelectRequest, gives=Selection,
        note="From measurements first, then by the static priority level; the answer says why and "
        "lists the rivals. The target `cpu` means the host of this service.",
    ),
)  # fmt: skip
def choose(
    context: Annotated[Context, Depends(context_of)],
    body: Annotated[SelectRequest, body_of(SelectRequest)],
) -> Response:
    workload, known = runs.known_candidates(
        body.workload, body.target, body.candidates, "workload"
    )
    with context.store.read() as connection:
        found = select(
            workload, body.target, RecordDatabase(connection), device=body.device,
            policy=body.policy, offered=known,
        )  # fmt: skip
    return reply(found)


class DispatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """As for a selection, of a workload with symbolic dimensions (`float32[m,768]`)."""

    workload: Workload
    target: Target
    device: str | None = None
    candidates: tuple[Candidate, ...] | None = None


@router.post(
    "/dispatch",
    **describe(
        "Select for symbolic shapes", takes=DispatchRequest, gives=DispatchTable,
        note="A table with a row for each satisfiable combination of the strategy's conditions; "
        "each row's choice rests on the concrete shapes on record in its range, and names them.",
    ),
)  # fmt: skip
def tabulate(
    context: Annotated[Context, Depends(context_of)],
    body: Annotated[DispatchRequest, body_of(DispatchRequest)],
) -> Response:
    workload, known = runs.known_candidates(
        body.workload, body.target, body.candidates, "workload"
    )
    offered = None if body.candidates is None else known
    with context.store.read() as connection:
        table = dispatch(
            workload, body.target, RecordDatabase(connection), device=body.device, offered=offered
        )
    return reply(table)
