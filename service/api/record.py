"""Routes of the log and of single tasks."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from service.access.auth import Who, Within
from service.api.query import OfWorkload, WorkloadHas, refusal
from service.api.wire import describe, reply
from service.context import Context, Ctx
from service.records import exporter, log_page, settled
from service.records.filter import Wanted
from service.stream import Stream
from service.tuning import run_status
from service.turn import ListRoute
from strategy.record import ErrorKind, Phase, TaskStatus

router = APIRouter(prefix="/v1", tags=["records"], route_class=ListRoute)


Instant = Annotated[float | None, Query(allow_inf_nan=False)]


def wanted(
    within: Within,
    digest: OfWorkload,
    op: str | None = None,
    implementation: str | None = None,
    target: str | None = None,
    workload_has: WorkloadHas = None,
    source: str | None = None,
    run_id: int | None = None,
    task_id: int | None = None,
    device: str | None = None,
    worker: str | None = None,
    phase: Phase | None = None,
    error: ErrorKind | Literal["any", "none"] | None = None,
    since: Instant = None,
    until: Instant = None,
) -> Wanted:
    """The dependency of routes that filter records."""
    return Wanted(
        namespace=within, op=op, implementation=implementation, target=target, workload=digest,
        workload_has=workload_has, source=source, run_id=run_id, task_id=task_id, device=device, worker=worker,
        phase=phase, error=None if error is None else str(error), since=since, until=until,
    )


Filter = Annotated[Wanted, Depends(wanted)]


_MEDIA = {
    "kernel_tuner": "application/json", "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
}
_NDJSON = "application/x-ndjson"
_STREAMS: dict[str, Any] = {
    media: {"schema": {"type": "object" if media == "application/json" else "string"}}
    for media in (_NDJSON, *_MEDIA.values())
}
_LIST = describe(
    "List records", gives=log_page.RecordPage, errors=(422,),
    note="In order of arrival, or the `newest` first; `next` is the cursor of the following "
    "page of the same order. A page may hold "
    "fewer than `limit`, or none, if matches are rare, and still have a `next`. To follow the log, ask again with the "
    "last record's id as `cursor`: in order of arrival, a record is listed once no lower id can follow. `error` is a "
    "kind of failure, `any` for all failures, or `none` for successes; `target` is a target's key, "
    "`since` and `until` are Unix times. `format=ndjson` (plevel's own, see docs/formats.md), `csv` "
    "and `parquet` give all matching records as a stream, without pages: `limit`, `cursor` and `newest` are refused.",
)
_LIST["responses"][200]["content"] = _STREAMS | _LIST["responses"][200]["content"]


@router.get("/records", **_LIST)
def list_records(
    request: Request,
    context: Ctx,
    which: Filter,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int, Query(ge=0)] = 0,
    newest: bool = False,
    format: Literal["json", "ndjson", "csv", "parquet"] = "json",
) -> Response:
    if format != "json":
        for name in ("limit", "cursor", "newest"):
            if name in request.query_params:
                raise refusal("query", name, f"format={format} gives all that match, without pages: leave it out")
        return stream(context, "native" if format == "ndjson" else format, which)
    last = None if newest else settled.find(context.store)
    with context.store.read() as connection:
        page = log_page.page(connection, which, limit=limit, cursor=cursor, newest=newest, last=last)
    return reply(page)


_EXPORT = describe(
    "Export records", errors=(404, 422),
    note="All matching records, as a stream: `native` is plevel's own NDJSON, which is lossless; other "
    "formats omit what they cannot express. MetaSchedule's two files come in "
    "one stream, the workloads first. A Kernel Tuner file holds one task: if several match, 422 names them. "
    "404 if no record matches.",
)
_EXPORT["responses"][200]["content"] = _STREAMS


@router.get("/records:export", **_EXPORT)
def export_records(
    context: Ctx, which: Filter, format: exporter.Writable = "native"
) -> Response:
    answer = stream(context, format, which)
    exporter.check_any(context.store, format, which)
    return answer


def stream(context: Context, form: exporter.Writable, which: Wanted) -> Response:
    """A streamed response of an export; an error before its first part is a problem document."""
    parts = exporter.export(context.store, form, which)
    first = next(parts, b"")
    return Stream(itertools.chain([first], parts), 200, None, _MEDIA.get(form, _NDJSON))


@router.get("/tasks/{task_id}", **describe("A task over all runs", gives=TaskStatus, errors=(404,)))
def show_task(context: Ctx, who: Who, task_id: int) -> Response:
    with context.store.read() as connection:
        return reply(run_status.task_status(connection, task_id, who.namespace))
