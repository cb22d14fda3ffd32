"""`/ops`: the fastest implementation at each shape, and the cost of selecting by plevel alone."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from service.context import Ctx
from service.dashboard.listing import Words
from service.dashboard.query import op as query
from service.dashboard.query import selection as known
from service.dashboard.view import MAX_ID, PageNumber, op_url, render
from service.errors import NotFoundError
from service.records.filter import OfTask
from service.store.catalogue import code_version
from service.turn import ListRoute
from strategy.installed import installed

router = APIRouter(prefix="/ops", include_in_schema=False, route_class=ListRoute)


@router.get("")
def list_ops(context: Ctx, workload_has: Words = "", target: Words = "", page: PageNumber = 1) -> Response:
    wanted = OfTask(workload_has=workload_has, target_has=target)
    with context.store.read() as connection:
        found = query.ops(connection, wanted, (page - 1) * query.OPS)
        targets = known.targets(connection)
    return render(
        "ops.html", ops=found[: query.OPS], more=len(found) > query.OPS, page=page, targets=targets,
        filters={"workload_has": workload_has, "target": target},
    )


@router.get("/{op:path}")
def show(
    context: Ctx,
    op: str,
    target: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    model: Annotated[str | None, Query(max_length=1000)] = None,
    value: Literal["ratio", "time"] = "ratio",
    workload_has: Words = "",
    page: PageNumber = 1,
) -> Response:
    with context.store.read() as connection:
        targets = query.targets(connection, op)
        chosen = targets[0] if target is None else next((t for t in targets if t.id == target), None)
        if chosen is None:
            raise NotFoundError(f"target {target} has no tasks of this operator: choose another from the list")
        models = query.models(connection, op, chosen.id)
        # The form may send the device model of the previous target.
        names = [m.model for m in models]
        of_model = next((name for name in names if name == model), names[0] if names else "")
        shapes = query.shapes(connection, op, chosen.id, (page - 1) * query.PAGE, workload_has)
        newest = query.newest_shapes(connection, op, chosen.id, workload_has)
        cells = query.judge(connection, chosen.id, of_model, [*newest, *(w.id for w in shapes)])
        judged = {i: cells[i] for i in newest}
        summary = query.summarize(judged)
        values = {
            "summary": summary[: query.MAX_IMPLEMENTATIONS], "implementations": len(summary),
            "cost": query.plevel_cost(judged), "judged": len(judged), "bounded": len(newest) == query.JUDGED,
            "mistakes": query.find_mistakes(connection, judged), "cells": cells, "stale": _stale(op, judged),
        }
    return render(
        "op.html", op=op, path=op_url(op), targets=targets, target=chosen, models=models,
        model=of_model, value=value, page=page,
        shapes=shapes[: query.PAGE], more=len(shapes) > query.PAGE,
        filters={"target": target, "model": model, "value": value, "workload_has": workload_has}, **values,
    )


def _stale(op: str, judged: query.Judged) -> list[str]:
    """The implementations with times of other code than is installed.

    By the declared versions alone, as the installed spaces of hundreds of shapes would take a second.
    """
    declared = installed().get(op, {})
    timed = {
        (c.implementation, code_version(c.version))
        for cells in judged.values() for c in cells.values() if c.median_s is not None
    }
    return sorted({name for name, code in timed if name in declared and str(declared[name]) != code})
