"""Cost models in the database: versioned, with their accuracy; and the place of a training's temporary files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from platformdirs import user_cache_path

from service.errors import InvalidError, NotFoundError
from service.predict.ranker import LEAST_ACCURACY
from service.store.sql import insert
from service.store.tables import cost_model, target
from strategy.table import show_number

LEAST_WORKLOADS = 5  # at least one of which is held out
OWNER = "training"  # of temporary files
Progress = Callable[[str], None]  # takes a line for people
PROGRESS_MARK = "# "  # before such a line in what the training process prints


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model of one operator on one target. `version` counts from 1.

    `accuracy` is the share of pairs of configurations of held-out workloads that a model trained on the
    other workloads ranks as measured; the model answers `predicted` if that is at least `bar`. `lineage`
    says how it was trained.
    """

    id: int
    op: str
    target: str
    version: int
    records: int
    workloads: int
    held_out: int
    pairs: int
    accuracy: float
    sigma_log: float
    train_s: float
    created_at: float
    answers: bool
    lineage: str
    bar: float = LEAST_ACCURACY


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The training data on record for an operator on a target, of one device model.

    Workloads that differ in their epilogues count as one.
    """

    op: str
    target: str
    records: int
    workloads: int


def count(connection: sa.Connection, op: str, target_key: str) -> tuple[Known, str]:
    """Count the records that a model of an operator on a target would be trained on, and name their device model."""
    from service.predict.evidence import count_most  # which needs NumPy

    device_model, records, workloads = count_most(connection, op, find_target(connection, target_key))
    return Known(op=op, target=target_key, records=records, workloads=workloads), device_model.name


def find_target(connection: sa.Connection, key: str) -> int:
    """The id of a target; raise `NotFoundError`."""
    target_id = connection.scalar(sa.select(target.c.id).where(target.c.key == key))
    if target_id is None:
        raise NotFoundError(f"target {key}: no records: tune the operator on it first")
    return int(target_id)


def known(connection: sa.Connection, op: str, target_key: str) -> Known:
    """Count the training data of a model; raise as `train` does if there is too little."""
    found, _ = count(connection, op, target_key)
    check(op, target_key, found.workloads)
    return found


def check(op: str, target_key: str, workloads: int) -> None:
    """Raise `InvalidError` if there are too few workloads for a model."""
    if workloads < LEAST_WORKLOADS:
        raise InvalidError(
            f"{op} on {target_key}: {show_number(workloads, 'workload')} on record, not counting epilogues, at least "
            f"{LEAST_WORKLOADS} are needed: tune more shapes"
        )


def put(connection: sa.Connection, values: Mapping[str, Any]) -> int:
    """Store a model as the next version of its operator and target; return its id."""
    version = sa.select(sa.func.coalesce(sa.func.max(cost_model.c.version), 0) + 1).where(
        cost_model.c.op == values["op"], cost_model.c.target_id == values["target_id"]
    )
    row = insert(connection, cost_model).values(version=version.scalar_subquery(), **values)
    statement = row.on_conflict_do_nothing().returning(cost_model.c.id)
    while (model_id := connection.scalar(statement)) is None:
        pass  # another service has just used this version
    return int(model_id)


def find(
    connection: sa.Connection, *, op: str | None = None, target_key: str | None = None
) -> list[Model]:
    """All models, or those of an operator or a target, the newest first."""
    query = _models().order_by(cost_model.c.id.desc())
    if op is not None:
        query = query.where(cost_model.c.op == op)
    if target_key is not None:
        query = query.where(target.c.key == target_key)
    return [_model(row) for row in connection.execute(query)]


def show(connection: sa.Connection, model_id: int) -> Model:
    """One model; raise `NotFoundError`."""
    row = connection.execute(_models().where(cost_model.c.id == model_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"model {model_id} does not exist: `plevel model list` lists the cost models")
    return _model(row)


def _models() -> sa.Select[Any]:
    large = ("target_id", "columns", "trees", "tested", "digest", "evaluation")
    columns = [c for c in cost_model.c if c.name not in large]
    return sa.select(*columns, target.c.key.label("target")).join(
        target, target.c.id == cost_model.c.target_id
    )


def _model(row: Any) -> Model:
    said = row.lineage["said"] if row.lineage else ""
    return Model(answers=row.accuracy >= LEAST_ACCURACY, **{**row._mapping, "lineage": said})


def temporary_root() -> Path:
    """The folder of trainings' temporary files: the user's cache, else the system's."""
    root = user_cache_path("plevel", appauthor=False) / OWNER
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return root if os.access(root, os.W_OK) else Path(tempfile.gettempdir())
