"""Records and tasks: what happened to every configuration tried."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from service import records, runs
from service.api.wire import describe, reply
from service.context import Context, context_of
from strategy.record import ErrorKind, Phase, TaskStatus

router = APIRouter(prefix="/v1", tags=["records"])
Ctx = Annotated[Context, Depends(context_of)]


@router.get(
    "/records",
    **describe(
        "List records", gives=records.RecordPage, errors=(422,),
        note="In the order in which they came; `next` is the cursor of the following page. `error` is "
        "a kind of failure, `any` for all failures, or `none` for successes.",
    ),
)  # fmt: skip
def list_records(
    context: Ctx,
    run_id: int | None = None,
    task_id: int | None = None,
    phase: Phase | None = None,
    error: ErrorKind | Literal["any", "none"] | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    with context.store.read() as connection:
        page = records.page(
            connection, run_id=run_id, task_id=task_id, phase=phase, error=error, limit=limit,
            cursor=cursor,
        )  # fmt: skip
    return reply(page)


@router.get("/tasks/{task_id}", **describe("A task over all runs", gives=TaskStatus, errors=(404,)))
def show_task(context: Ctx, task_id: int) -> Response:
    with context.store.read() as connection:
        return reply(runs.task_status(connection, task_id))
