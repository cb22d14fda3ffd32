"""`/tasks/{id}`: one implementation of one workload on one target."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response

from service.context import Ctx
from service.dashboard.listing import Words, read_choice, read_sort, read_span
from service.dashboard.query import selection as known
from service.dashboard.query import task as query
from service.dashboard.query.task import By
from service.dashboard.view import MAX_ID, PageNumber, render, reply
from service.records.filter import OfTask
from service.records.installed_version import installed_versions
from service.search.importance import LEAST, importance
from service.turn import ListRoute
from strategy.record import convert
from strategy.space import Config, ConfigError, ConfigSpace
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(prefix="/tasks", include_in_schema=False, route_class=ListRoute)
TaskId = Annotated[int, Path(ge=1, le=MAX_ID)]
Name = Annotated[str, Query(max_length=300)]


@router.get("")
def list_tasks(
    context: Ctx, workload_has: Words = "", op: str = "", implementation: str = "", target: Words = "",
    status: str = "", since: str = "", until: str = "", sort: str = "", calibration: bool = False,
    page: PageNumber = 1,
) -> Response:
    span, by = read_span(since, until), read_sort(sort, query.SORTS, query.NEWEST)
    wanted = OfTask(
        op=op or None, implementation=implementation or None, workload_has=workload_has, target_has=target
    )
    filters = {
        "workload_has": workload_has, "op": op, "implementation": implementation, "target": target, "status": status,
        "since": since, "until": until, "calibration": 1 if calibration else None, "sort": sort,
    }
    filtered = any(v for k, v in filters.items() if k != "sort")
    which: dict[str, Any] = {
        "status": read_choice("status", status, query.STATUSES), "span": span, "calibration": calibration
    }
    with context.store.read() as connection:
        found = query.page(connection, wanted, **which, sort=by, offset=(page - 1) * query.PAGE)
        matching = query.count(connection, wanted, **which) if filtered else None
        targets = known.targets(connection)
        if not found:
            wanted.check_names(connection)
    return render(
        "tasks.html", tasks=found[: query.PAGE], more=len(found) > query.PAGE, page=page, sort=by,
        filters=filters, filtered=filtered, targets=targets, statuses=query.STATUSES, matching=matching,
        counted=query.COUNTED,
    )


@router.get("/{task_id}")
def show(
    context: Ctx, task_id: TaskId, by: By = "all", x: Literal["trials", "time"] = "trials",
    first: Name = "", second: Name = "", knob: Name = "", colour: Name = "",
) -> Response:
    """The page, with curves `by` run, device or version; `first` and `second` are compared.

    Times are drawn against one `knob`, with the `colour` of another.
    """
    with context.store.read() as connection:
        row = query.head(connection, task_id)
        siblings = query.siblings(connection, row)
        values = {
            "places": query.places(connection, task_id),
            "counts": query.counts(connection, task_id),
        }
    return render(
        "task.html", task=row, by=by, x=x, first=first, second=second, knob=knob, colour=colour,
        now_version=_current_version(row, siblings),
        others=[s for s in siblings if s.implementation != row.implementation],
        versions=[s for s in siblings if s.implementation == row.implementation],
        knobs=_knobs(row.space, row.config), **values,
    )


@router.get("/{task_id}/spread")
def show_spread(context: Ctx, task_id: TaskId) -> Response:
    """The part of the page that reads all records of the task, loaded after the first paint."""
    with context.store.read() as connection:
        row = query.head(connection, task_id)
        return render("task_spread.html", spread=query.spread(connection, row))


@router.get("/{task_id}/importance")
def show_importance(context: Ctx, request: Request, task_id: TaskId) -> Response:
    """The importance of each knob, from the trials of the scatter: a page; for htmx, only the table."""
    with context.store.read() as connection:
        row = query.head(connection, task_id)
        trials = query.points(connection, row) if row.space is not None else []
    digits, log_s, found = [], [], None
    if trials:
        space = ConfigSpace.from_json(row.space)
        for t in trials:
            with contextlib.suppress(ConfigError):  # an imported space may have changed
                digits.append(space.digits(Config(t.config)))
                log_s.append(math.log(t.median_s))
        found = importance(space, np.array(digits, dtype=np.int32), np.array(log_s))
    fragment = "hx-request" in request.headers
    return render(
        "task_importance.html" if fragment else "importance.html", found=found, n=len(digits),
        least=LEAST, task=row,
    )


@router.get("/{task_id}/failures")
def show_failures(context: Ctx, task_id: TaskId) -> Response:
    """As `show_spread`."""
    with context.store.read() as connection:
        return render("task_failures.html", failures=query.failures(connection, task_id))


def _current_version(row: Any, siblings: list[Any]) -> str | None:
    """The implementation's current version: of the installed code, else the newest on record.

    None if the installed code no longer has the implementation.
    """
    known = installed_versions(convert(row.workload_body, Workload), Target.parse(row.target_body))
    if known is not None:
        return known.get(row.implementation)
    own = [s for s in siblings if s.implementation == row.implementation]
    newest: str = max(own, key=lambda s: s.id).version
    return newest


def _knobs(space: Any, config: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Each knob with its values and the position of the optimum among them."""
    if space is None:
        return []
    best = config or {}
    return [
        {
            "name": k.name, "kind": k.kind, "count": len(k.values), "first": k.values[0],
            "last": k.values[-1], "best": best.get(k.name),
            "at": _place(k.values, best.get(k.name)),
        }
        for k in ConfigSpace.from_json(space).knobs
    ]


def _place(values: Any, value: Any) -> float | None:
    """Return the position of the best value among a knob's values, from 0 to 1; None if it is not one."""
    wanted = tuple(value) if isinstance(value, list) else value
    if wanted not in values:
        return None
    return float(values.index(wanted) / max(len(values) - 1, 1))


@router.get("/{task_id}/curve.json")
def show_curve(context: Ctx, task_id: TaskId, by: By = "all") -> Response:
    with context.store.read() as connection:
        row = query.head(connection, task_id)
        found = query.curves(connection, row, by)
    return reply({"curves": msgspec.to_builtins(found)})


@router.get("/{task_id}/points.json")
def show_points(context: Ctx, task_id: TaskId) -> Response:
    """Configurations as rows of positions among each knob's values, with their times."""
    with context.store.read() as connection:
        row = query.head(connection, task_id)
        found = query.points(connection, row) if row.space is not None else []
    space = None if row.space is None else ConfigSpace.from_json(row.space)
    knobs = [] if space is None else list(space.knobs)
    shown = [[_text(v) for v in k.values] for k in knobs]
    places = [{text: i for i, text in enumerate(texts)} for texts in shown]
    points = []
    for p in found:
        row_of = [
            place.get(_text(p.config.get(k.name)), -1) for k, place in zip(knobs, places, strict=True)
        ]
        points.append([p.id, p.median_s, *row_of])
    return reply(
        {
            "knobs": [{"name": k.name, "values": texts} for k, texts in zip(knobs, shown, strict=True)],
            "points": points,
            "total": found[0].total if found else 0,
        }
    )


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "×".join(map(str, value))
    return str(value)
