"""`/runs/new`: start a run from the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import RedirectResponse

from service.access import audit
from service.access.auth import Who
from service.context import Ctx, read_body
from service.dashboard.query import selection as known
from service.dashboard.view import render
from service.dashboard.workload_text import FAULTS, read_workload
from service.errors import ForbiddenError, InvalidError
from service.selection import candidate
from service.store import namespace
from service.tuning import plan as planning
from service.tuning import run as runs
from strategy.op import find_op
from strategy.record import RunRequest, RunWorkload
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(prefix="/runs/new", include_in_schema=False)
MOST_TRIALS = 10_000_000  # as `RunRequest` has it
MOST_WORKLOADS = 1000
MOST_FIELDS = 100
EMPTY = {"workload": "", "target": "cpu", "trials": "128", "namespace": namespace.DEFAULT}


async def read_fields(request: Request) -> Mapping[str, str]:
    """Return a form's fields, the last of each name, within the limits of other bodies.

    Raises:
        InvalidError: the body is no form.
    """
    data = await read_body(request)
    try:
        found = parse_qsl(
            data.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise InvalidError(f"the form cannot be read: {error}: send it from its page") from error
    return dict(found)


Fields = Annotated[Mapping[str, str], Depends(read_fields)]


@router.get("")
def show(context: Ctx, workload: str = "", target: str = "cpu") -> Response:
    """The form, filled in from the address."""
    with context.store.read() as connection:
        return _render(connection, {**EMPTY, "workload": workload, "target": target}, {})


@router.post("")
def start(context: Ctx, who: Who, fields: Fields) -> Response:
    """Start the run and redirect to its page; on a fault, show the form with the fault beside its field."""
    given = {name: fields.get(name, "").strip() for name in EMPTY}
    with context.store.read() as connection:
        target, faults = _read_target(connection, given["target"])
        trials = _read_trials(given["trials"], faults)
        workloads = _read_workloads(given["workload"], faults)
        within = given["namespace"] or namespace.DEFAULT
        try:
            within = who.enter(namespace.check(within))
        except (InvalidError, ForbiddenError) as error:
            faults["namespace"] = str(error)
        if faults or target is None:
            return _render(connection, given, faults)
    asked = RunRequest(
        workloads=tuple(RunWorkload(workload=w) for w in workloads), target=target, trials=trials
    )
    try:
        planned = planning.plan(asked)
    except FAULTS as error:
        with context.store.read() as connection:
            return _render(connection, given, {"workload": _one_line(error)})
    with context.store.write() as connection:
        run_id = runs.create(connection, asked, planned, within)
        audit.note(connection, who, "run.create", run=run_id, trials=trials)
    context.changed.notify()
    return RedirectResponse(f"/runs/{run_id}", 303)


def _render(
    connection: sa.Connection, given: Mapping[str, str], faults: Mapping[str, str]
) -> Response:
    page = render("start.html", given=given, faults=faults, targets=known.targets(connection))
    page.status_code = 422 if faults else 200
    return page


def _read_target(connection: sa.Connection, text: str) -> tuple[Target | None, dict[str, str]]:
    """The target, or the fault of its field: the key of one on record, or a target's text."""
    try:
        return known.find_target(connection, text) or Target.parse(text), {}
    except FAULTS as error:
        return None, {"target": _one_line(error)}


def _read_trials(text: str, faults: dict[str, str]) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and 1 <= int(text) <= MOST_TRIALS):
        faults["trials"] = f"trials: {text!r:.40} is invalid: enter a whole number from 1 to {MOST_TRIALS}"
        return 1
    return int(text)


def _read_workloads(text: str, faults: dict[str, str]) -> list[Workload]:
    """Parse one workload per line; a fault names the line if there are several."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MOST_WORKLOADS:
        faults["workload"] = f"workload: enter 1 to {MOST_WORKLOADS} of them, one per line"
        return []
    found = []
    for i, line in enumerate(lines):
        try:
            workload = read_workload(line)
            if find_op(workload.op) is None:
                raise candidate.not_installed(workload, "workload")
            found.append(workload.checked())
        except FAULTS as error:
            at = f"line {i + 1}: " if len(lines) > 1 else ""
            faults["workload"] = at + _one_line(error)
            return []
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
