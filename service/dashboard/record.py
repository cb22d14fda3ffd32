"""`/records`: the log with filters, and single records."""

from __future__ import annotations

import json
import re
import shlex
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.context import Ctx
from service.dashboard.listing import Words, read_choice, read_sort, read_span
from service.dashboard.query import record as query
from service.dashboard.query import selection as known
from service.dashboard.view import HEADERS, MAX_ID, render
from service.errors import InvalidError
from service.records import exporter
from service.records.installed_version import installed_versions
from service.stream import Stream
from service.turn import ListRoute
from strategy.record import ErrorKind, Phase, convert
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(prefix="/records", include_in_schema=False, route_class=ListRoute)
_ERRORS = ("any", "none", *(e.value for e in ErrorKind))
_PHASES = tuple(p.value for p in Phase)
_MEDIA = {"native": "application/x-ndjson", "csv": "text/csv"}


async def read_filters(
    workload_has: Words = "", op: str = "", implementation: str = "", target: Words = "", phase: str = "",
    error: str = "", run: str = "", task: str = "", device: str = "",
) -> dict[str, str]:
    """The dependency of both routes: the fields by which they filter, as they are given."""
    return {
        "workload_has": workload_has, "op": op, "implementation": implementation, "target": target, "phase": phase,
        "error": error, "run": run, "task": task, "device": device,
    }


Given = Annotated[dict[str, str], Depends(read_filters)]


def _wanted(given: Given, message: str = "", *, calibration: bool = False) -> query.Filter:
    return query.Filter(
        run_id=_id("run", given["run"]), task_id=_id("task", given["task"]),
        device_id=_id("device", given["device"]), op=given["op"] or None,
        implementation=given["implementation"] or None, workload_has=given["workload_has"], target_has=given["target"],
        phase=Phase(phase) if (phase := read_choice("phase", given["phase"], _PHASES)) else None,
        error=read_choice("error", given["error"], _ERRORS), message=message or None, calibration=calibration,
    )


@router.get("")
def list_records(
    context: Ctx,
    given: Given,
    message: Annotated[str, Query(max_length=200)] = "",
    since: str = "",
    until: str = "",
    sort: str = "",
    calibration: bool = False,
    cursor: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> Response:
    span, by = read_span(since, until), read_sort(sort, query.SORTS, query.NEWEST)
    wanted = _wanted(given, message, calibration=calibration)
    with context.store.read() as connection:
        page = query.page(connection, wanted, cursor, span=span, sort=by)
        targets = known.targets(connection)
        if not page.rows:
            wanted.check_names(connection)
    filters = {
        **given, "message": message, "since": since, "until": until,
        "calibration": 1 if calibration else None, "sort": sort,
    }
    return render(
        "records.html", page=page, filters=filters, cursor=cursor, errors=_ERRORS, phases=_PHASES,
        targets=targets, sort=by, oldest_first=by == "record",
        filtered=any(v for k, v in filters.items() if k != "sort"),
        # An export searches no messages, and no days of recording.
        exported=None if message or since or until else given,
    )


@router.get("/export")
def export(context: Ctx, given: Given, format: Literal["native", "csv"] = "native") -> Response:
    """All matching records of all namespaces, calibration kernels included, as a stream."""
    wanted = _wanted(given)
    parts = exporter.export(context.store, format, wanted)
    exporter.check_any(context.store, format, wanted)
    return Stream(parts, 200, HEADERS, _MEDIA[format])


def _id(name: str, text: str) -> int | None:
    """The id of a filter's field, None if the field is empty."""
    digits = text.strip()
    if not digits:
        return None
    # The length first, as Python refuses to read integers of more than 4300 digits.
    if not re.fullmatch("[0-9]{1,19}", digits) or not 1 <= int(digits) <= MAX_ID:
        raise InvalidError(f"{name}: {text!r:.40} is no id: enter a whole number")
    return int(digits)


@router.get("/{record_id}")
def show(
    context: Ctx, request: Request, record_id: Annotated[int, Path(ge=1, le=MAX_ID)]
) -> Response:
    """The page; for htmx, only the full message."""
    with context.store.read() as connection:
        row = query.one(connection, record_id)
    if "hx-request" in request.headers:
        return render("record_message.html", record=row)
    target = Target.parse(row.target_body)
    return render(
        "record.html", record=row, command=_command(row, target), same_way=target.host.key == target.key
    )


def _command(row: Any, target: Target) -> str:
    """The command that measures a record's configuration again; empty where other code is installed than it is of."""
    known = installed_versions(convert(row.workload_body, Workload), target)
    if known is None or known.get(row.implementation) != row.version:
        return ""
    words = ["plevel", "measure", row.workload, "-I", row.implementation]
    for name, value in row.config.items():
        words += ["-c", f"{name}={json.dumps(value, separators=(',', ':'))}"]
    words += ["--device", row.slot or "cuda:0"] if target.kind == "cuda" else ["--threads", str(target.threads)]
    if row.seed:
        words += ["--seed", str(row.seed)]
    if (row.policy or {}).get("cache_flush"):
        words.append("--cache-flush")
    return shlex.join(words)
