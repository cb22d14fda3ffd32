"""`/models`: cost models, their held-out accuracy and the importance of their features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Response

from service.context import Ctx
from service.dashboard.listing import Words, read_choice
from service.dashboard.query import model as query
from service.dashboard.query import selection as known
from service.dashboard.view import MAX_ID, render
from service.predict.evaluation import Evaluation
from service.predict.ranker import LEAST_ACCURACY
from service.predict.training import LEAST_WORKLOADS
from strategy.record import convert

router = APIRouter(prefix="/models", include_in_schema=False)
SIDE = 400.0  # of the chart


@router.get("")
def list_models(
    context: Ctx, op: Words = "", target: Words = "", answers: str = "",
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> Response:
    does = {None: None, "yes": True, "no": False}[read_choice("answers", answers, ("yes", "no"))]
    with context.store.read() as connection:
        found = query.page(connection, (page - 1) * query.PAGE, op, target, does)
        targets = known.targets(connection)
    filters = {"op": op, "target": target, "answers": answers}
    return render(
        "models.html", models=found[: query.PAGE], more=len(found) > query.PAGE, page=page,
        bar=LEAST_ACCURACY, least=LEAST_WORKLOADS, filters=filters, filtered=any(filters.values()), targets=targets,
    )


@router.get("/{model_id}")
def show(context: Ctx, model_id: Annotated[int, Path(ge=1, le=MAX_ID)]) -> Response:
    with context.store.read() as connection:
        row = query.head(connection, model_id)
        versions = query.versions(connection, row)
    found = None if row.evaluation is None else convert(row.evaluation, Evaluation)
    return render(
        "model.html", model=row, versions=versions, bar=LEAST_ACCURACY,
        importance=found.importance if found else (),
        picture=_draw(found.points) if found and found.points else None,
    )


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted against measured times, both logarithmic, in a square of `SIDE`.

    `ticks` are powers of ten with their position, the same on both axes.
    """

    places: list[tuple[float, float]]
    ticks: list[tuple[float, float]]
    off: float  # the geometric mean error of predictions, a factor


def _draw(points: Sequence[tuple[float, float]]) -> Picture:
    low, high = min(map(min, points)), max(map(max, points))
    span = math.log(high / low) or 1.0

    def place(seconds: float) -> float:
        return SIDE * (0.03 + 0.94 * math.log(seconds / low) / span)

    decades = [10.0**e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    ticks = decades if len(decades) > 1 else [low, high]
    return Picture(
        places=[(place(m), SIDE - place(p)) for m, p in points],
        ticks=[(t, place(t)) for t in ticks],
        off=math.exp(sum(abs(math.log(p / m)) for m, p in points) / len(points)),
    )
