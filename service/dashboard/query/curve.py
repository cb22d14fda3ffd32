"""Best-so-far curves, reduced to improvements in the database."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import sqlalchemy as sa

from service.records.best import standing
from service.records.log_page import improvements
from service.store.tables import record
from strategy.record import Phase

MAX_POINTS = 400  # of one curve; a search rarely has more improvements
MAX_CURVES = 12


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The best so far of a group of trials over time; failures count as trials."""

    name: str
    trials: int
    elapsed_s: float
    points: list[tuple[int, float, float]]  # trial, seconds since the first, best median in seconds
    device_model: str = ""  # curves of different ones do not compare


def best_so_far(
    connection: sa.Connection, where: sa.ColumnElement[bool], group: sa.ColumnElement[Any],
    names: dict[Any, str], models: Mapping[Any, str] = MappingProxyType({}),
) -> list[Curve]:
    """One curve for each value of `group` in `names`, over the search records that satisfy `where`.

    `models` has their device models, if they differ.
    """
    searched = sa.and_(
        where, record.c.phase == Phase.SEARCH.value, group.in_(list(names)), standing()
    )
    ends = connection.execute(
        sa.select(
            group.label("which"), sa.func.count().label("trials"),
            sa.func.min(record.c.recorded_at).label("first_at"),
            sa.func.max(record.c.recorded_at).label("last_at"),
        ).where(searched).group_by(group)
    ).all()
    first = {e.which: e.first_at for e in ends}
    points: dict[Any, list[tuple[int, float, float]]] = {e.which: [] for e in ends}
    for p in connection.execute(improvements(group, searched)):
        points[p.which].append((p.trial, round(p.recorded_at - first[p.which], 3), p.median_s))
    return [
        Curve(
            name=names[e.which], trials=e.trials, elapsed_s=round(e.last_at - e.first_at, 3),
            points=_thin(points[e.which]), device_model=models.get(e.which, ""),
        )
        for e in sorted(ends, key=lambda e: list(names).index(e.which))
    ]


def _thin(points: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    step = -(-len(points) // MAX_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]
