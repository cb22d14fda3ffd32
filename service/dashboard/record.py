"""`/records`: the log with filters, and single records."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.context import Ctx
from service.dashboard.listing import read_sort, read_span
from service.dashboard.query import record as query
from service.dashboard.view import MAX_ID, render
from service.errors import InvalidError
from service.records.known import check_names
from strategy.record import ErrorKind, Phase

router = APIRouter(prefix="/records", include_in_schema=False)
_ERRORS = ("any", "none", *(e.value for e in ErrorKind))
_PHASES = tuple(p.value for p in Phase)


@router.get("")
def list_records(
    context: Ctx,
    run: str = "",
    task: str = "",
    device: str = "",
    op: str = "",
    implementation: str = "",
    phase: str = "",
    error: str = "",
    message: Annotated[str, Query(max_length=200)] = "",
    since: str = "",
    until: str = "",
    sort: str = "",
    calibration: bool = False,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> Response:
    span, by = read_span(since, until), read_sort(sort, query.SORTS, query.NEWEST)
    wanted = query.Filter(
        run=_id("run", run), task=_id("task", task), device=_id("device", device), op=op or None,
        implementation=implementation or None, phase=_one_of("phase", phase, _PHASES),
        error=_one_of("error", error, _ERRORS), message=message or None,
        calibration=calibration,
    )  # fmt: skip
    with context.store.read() as connection:
        page = query.page(connection, wanted, cursor, span=span, sort=by)
        if not page.rows:
            check_names(connection, op=op, implementation=implementation)
        identity = None if wanted.device is None else query.identity(connection, wanted.device)
    shared = {"op": op, "implementation": implementation, "phase": phase, "error": error}
    filters = {
        **shared, "run": run, "task": task, "device": device, "message": message, "since": since,
        "until": until, "calibration": 1 if calibration else None, "sort": sort,
    }  # fmt: skip
    # The REST parameters have other names, cannot search messages, and filter by the day of measuring.
    own = {**shared, "run_id": run, "task_id": task, "device": identity}
    return render(
        "records.html", page=page, filters=filters, cursor=cursor, errors=_ERRORS, phases=_PHASES,
        sort=by, filtered=any(v for k, v in filters.items() if k != "sort"), oldest_first=by == "record",
        exported=None if message or since or until else own,
    )  # fmt: skip


def _id(name: str, text: str) -> int | None:
    """The id of a filter's field, None if the field is empty."""
    if not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and 1 <= int(text) <= MAX_ID):
        raise InvalidError(f"{name}: {text!r:.40} is no id: enter a whole number")
    return int(text)


def _one_of(name: str, text: str, known: tuple[str, ...]) -> str | None:
    if text and text not in known:
        raise InvalidError(f"{name}: {text!r:.40} is unknown: expected one of {', '.join(known)}")
    return text or None


@router.get("/{record_id}")
def show(
    context: Ctx, request: Request, record_id: Annotated[int, Path(ge=1, le=MAX_ID)]
) -> Response:
    """The page; for htmx, only the full message."""
    with context.store.read() as connection:
        row = query.one(connection, record_id)
    fragment = "hx-request" in request.headers
    return render("record_message.html" if fragment else "record.html", record=row)
