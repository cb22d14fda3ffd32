"""Cost models: the newest of each operator and target, and the evaluation of one."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.errors import NotFoundError
from service.predict.ranker import LEAST_ACCURACY
from service.records.filter import has_words, of_target
from service.store.sql import now
from service.store.tables import cost_model, target

PAGE = 50
VERSIONS = 20

_SMALL = [c for c in cost_model.c if c.name not in ("columns", "trees", "digest", "evaluation")]


def page(
    connection: sa.Connection, offset: int, op_has: str = "", target_has: str = "", answers: bool | None = None
) -> list[Any]:
    """The newest model of each operator and target; one more than a page if there are more.

    Of operators whose name has these words, of targets as `of_target` finds them, and of those that answer or do not.
    """
    wanted = has_words(cost_model.c.op, op_has) + of_target(target_has)
    if answers is not None:
        does = cost_model.c.accuracy >= LEAST_ACCURACY
        wanted.append(does if answers else ~does)
    newest = sa.select(
        cost_model.c.id,
        sa.func.row_number()
        .over(partition_by=(cost_model.c.op, cost_model.c.target_id),
              order_by=cost_model.c.version.desc())
        .label("age"),
    ).subquery()
    query = (
        sa.select(*_SMALL, target.c.key.label("target"), now().label("now"))
        .join(target, target.c.id == cost_model.c.target_id)
        .where(cost_model.c.id.in_(sa.select(newest.c.id).where(newest.c.age == 1)), *wanted)
        .order_by(cost_model.c.op, target.c.key)
        .offset(offset)
        .limit(PAGE + 1)
    )
    return list(connection.execute(query))


def head(connection: sa.Connection, model_id: int) -> Any:
    """A model with its evaluation, without its trees; raises `NotFoundError`."""
    row = connection.execute(
        sa.select(
            *_SMALL, cost_model.c.evaluation, target.c.key.label("target"),
            target.c.body.label("target_body"), now().label("now"),
        )
        .join(target, target.c.id == cost_model.c.target_id)
        .where(cost_model.c.id == model_id)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"model {model_id} does not exist: /models lists the cost models")
    return row


def versions(connection: sa.Connection, row: Any) -> list[Any]:
    """The newest models of the same operator and target, the newest first."""
    return list(
        connection.execute(
            sa.select(*_SMALL)
            .where(cost_model.c.op == row.op, cost_model.c.target_id == row.target_id)
            .order_by(cost_model.c.version.desc())
            .limit(VERSIONS)
        )
    )
