"""The best of each task within one device model, as times of different ones are not compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from service.store.tables import Scope, best, device, record, task
from strategy.record import Estimate, ModelBest, Phase
from strategy.space import Config


@dataclass(frozen=True)
class Ranked:
    """The best of a task on the device model by which the workload's tasks are ranked.

    `models` has the best of each device model, that one first; if no device model is known, `best` is of
    all records. The names are those of a task's status.
    """

    best: Estimate | None = None
    best_config: Config | None = None
    confirmed: bool = False
    device_model: str = ""
    models: tuple[ModelBest, ...] = ()


def rank(connection: sa.Connection, ids: Collection[int]) -> dict[int, Ranked]:
    """The best of each task; tasks of one workload, target and namespace are ranked by one device model.

    It is the one on which most of their implementations were measured, the first by name on a tie.
    """
    chosen = choose(connection, ids)
    rows: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(
        sa.select(best, *task.c["workload_id", "target_id", "namespace"])
        .join(task, task.c.id == best.c.task_id)
        .where(best.c.task_id.in_(ids), best.c.scope.in_(("model", "target")))
        .order_by(best.c.scope_value)
    ):
        rows[row.task_id].append(row)
    found = {}
    for task_id, of in rows.items():
        model = chosen.get((of[0].workload_id, of[0].target_id, of[0].namespace))
        pooled = [_best(r) for r in of if r.scope == "target"]
        models = [_best(r) for r in of if r.scope == "model"]
        models.sort(key=lambda m: m.device_model != model)
        ranked = pooled if model is None else [m for m in models if m.device_model == model]
        chief = msgspec.structs.asdict(ranked[0]) if ranked else {}
        found[task_id] = Ranked(**chief, models=tuple(models))
    return found


def choose(connection: sa.Connection, ids: Collection[int]) -> dict[tuple[int, int, str], str]:
    """The device models by which tasks are ranked, by workload, target and namespace."""
    place = task.c["workload_id", "target_id", "namespace"]
    counts: dict[tuple[int, int, str], Counter[str]] = defaultdict(Counter)
    for *of, model, number in connection.execute(
        sa.select(*place, best.c.scope_value, sa.func.count(task.c.implementation.distinct()))
        .join(best, best.c.task_id == task.c.id)
        .where(
            best.c.scope == "model",
            task.c.workload_id.in_(sa.select(task.c.workload_id).where(task.c.id.in_(ids))),
        )
        .group_by(*place, best.c.scope_value)
    ):
        counts[of[0], of[1], of[2]][model] = number
    return {of: min((-n, model) for model, n in by.items())[1] for of, by in counts.items()}


def of_one_model() -> sa.ColumnElement[bool]:
    """The condition on `best` that a row is of one device model, or of none that is known."""
    other = best.alias()
    modelled = sa.exists().where(
        other.c.task_id == best.c.task_id, other.c.scope == Scope.MODEL.value
    )
    return sa.or_(
        best.c.scope == Scope.MODEL.value, sa.and_(best.c.scope == Scope.TARGET.value, ~modelled)
    )


def best_on(model: str | sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """The condition under which a row of `best`, of a device model, is joined to its task."""
    return sa.and_(best.c.task_id == task.c.id, best.c.scope_value == model, of_one_model())


def measured_on(model: str) -> sa.ColumnElement[bool]:
    """The condition on `record` that it is of a device model; all are of the empty name, which is of none."""
    if not model:
        return sa.true()
    return record.c.device_id.in_(sa.select(device.c.id).where(device.c.model == model))


def _best(r: Any) -> ModelBest:
    return ModelBest(
        device_model=r.scope_value if r.scope == "model" else "",
        best=Estimate(r.median_s, r.low_s, r.high_s, r.samples), best_config=Config(r.config),
        confirmed=r.phase == Phase.CONFIRM.value,
    )
