"""Routes of results by task: the best records, the tuning curve, and coverage."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from service.access.auth import Who, Within
from service.api.query import OfWorkload, WorkloadHas
from service.api.wire import describe, reply
from service.context import Ctx
from service.records import coverage, log_page
from service.records.filter import Tasks
from service.store.tables import Scope
from service.tuning import run_status
from service.turn import ListRoute

router = APIRouter(prefix="/v1", tags=["records"], route_class=ListRoute)


def tasks_of(
    within: Within,
    digest: OfWorkload,
    op: str | None = None,
    implementation: str | None = None,
    target: str | None = None,
    workload_has: WorkloadHas = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> Tasks:
    """The dependency of routes that filter tasks."""
    return Tasks(
        namespace=within, op=op, implementation=implementation, target=target, workload=digest,
        workload_has=workload_has, limit=limit, cursor=cursor,
    )


OfTasks = Annotated[Tasks, Depends(tasks_of)]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of a task's search that improved on all previous ones of one device model.

    Failures count as trials.
    """

    task_id: int
    points: tuple[log_page.CurvePoint, ...]


@router.get(
    "/records/best",
    **describe(
        "The best of each task", gives=coverage.BestPage, errors=(422,),
        note="By `scope`: device, device model, or target; all three if none is named. "
        "`target` is a target's key.",
    ),
)
def list_best(context: Ctx, which: OfTasks, scope: Scope | None = None) -> Response:
    with context.store.read() as connection:
        page = coverage.list_best(connection, which, scope)
    return reply(page)


@router.get(
    "/tasks/{task_id}/curve",
    **describe(
        "The tuning curve of a task", gives=Curve, errors=(404,),
        note="Of `device_model`, by default the one by which the task is ranked: times of several do not compare.",
    ),
)
def show_curve(
    context: Ctx, who: Who, task_id: int, run_id: int | None = None, device_model: str | None = None
) -> Response:
    with context.store.read() as connection:
        points = log_page.curve(connection, task_id, run_id, device_model)
        if not points or who.namespace is not None:  # 404 if the task does not exist
            run_status.task_status(connection, task_id, who.namespace)
    return reply(Curve(task_id=task_id, points=tuple(points)))


@router.get(
    "/coverage",
    **describe(
        "The tuning state of tasks", gives=coverage.Coverage, errors=(422,),
        note="For each task: its trials, the tuner and budget of its newest run, the size of its space, "
        "its best, the time of its last measurement, and `stale`. `target` is a target's key.",
    ),
)
def show_coverage(context: Ctx, which: OfTasks) -> Response:
    with context.store.read() as connection:
        found = coverage.cover(connection, which)
    return reply(found)
