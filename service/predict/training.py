"""Cost models in the database: trained from its records, versioned, with their accuracy.

`python -m service.predict.training OP TARGET` reads a database's URL from standard input, trains a model, and
prints the result as a line of JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import InvalidError, NotFoundError
from service.predict.evaluation import evaluate
from service.predict.evidence import find_tasks, read_trials, read_with_doubt
from service.predict.ranker import LEAST_ACCURACY
from service.records.best import standing
from service.search.predictor import Predictor, Ranking
from service.store.db import Store
from service.store.sql import insert, now
from service.store.tables import cost_model, record, target, task, workload
from strategy.record import to_json

LEAST_WORKLOADS = 5  # at least one of which is held out
HELD_OUT = 0.2  # share of the workloads


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model of one operator on one target. `version` counts from 1.

    `accuracy` is the share of pairs of configurations of held-out workloads that a model trained on the
    other workloads ranks as measured; the model answers `predicted` if that is at least `bar`.
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
    bar: float = LEAST_ACCURACY


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of training data on record for an operator on a target."""

    op: str
    target: str
    records: int
    workloads: int


def count(connection: sa.Connection, op: str, target_key: str) -> Known:
    """Count the successful records of an operator on a target, and their workloads."""
    found = connection.execute(
        sa.select(
            sa.func.count().label("records"),
            sa.func.count(task.c.workload_id.distinct()).label("workloads"),
        )
        .select_from(record)
        .join(task, task.c.id == record.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target, target.c.id == task.c.target_id)
        .where(
            workload.c.op == op, target.c.key == target_key, record.c.error.is_(None), standing()
        )
    ).one()
    return Known(op=op, target=target_key, records=found.records, workloads=found.workloads)


def known(connection: sa.Connection, op: str, target_key: str) -> Known:
    """Count the training data of a model; raise as `train` does if there is too little."""
    if connection.scalar(sa.select(target.c.id).where(target.c.key == target_key)) is None:
        raise NotFoundError(f"target {target_key}: no records: tune the operator on it first")
    found = count(connection, op, target_key)
    _check(op, target_key, found.workloads)
    return found


def _check(op: str, target_key: str, workloads: int) -> None:
    if workloads < LEAST_WORKLOADS:
        raise InvalidError(
            f"{op} on {target_key}: {workloads} workloads on record, at least {LEAST_WORKLOADS} are "
            "needed: tune more shapes"
        )


def train(store: Store, op: str, target_key: str) -> Model:
    """Train a model in this process and store it.

    Raises:
        NotFoundError: the target is not in the database.
        InvalidError: too few workloads of the operator are on record on it.
    """
    began = time.monotonic()
    with store.read() as connection:
        target_id = connection.scalar(sa.select(target.c.id).where(target.c.key == target_key))
        if target_id is None:
            raise NotFoundError(f"target {target_key}: no records: tune the operator on it first")
        tasks = find_tasks(connection, op, target_id)
        found = dict(read_trials(connection, op, target_id, tasks))
        trials = list(found.values())
        keys = sorted(
            {t.workload.key for t in trials}, key=lambda k: hashlib.sha256(k.encode()).digest()
        )
        _check(op, target_key, len(keys))
        held = set(keys[: max(1, round(HELD_OUT * len(keys)))])
        held_out = [
            read_with_doubt(connection, tasks[i]) for i, t in found.items() if t.workload.key in held
        ]
    tested = Predictor.fit([t for t in trials if t.workload.key not in held])
    ranking, evaluation = tested.rank(held_out), evaluate(tested, held_out)
    # The stored model is trained on all workloads.
    columns, trees = Predictor.fit(trials).dump()
    values = {
        "op": op, "target_id": target_id, "created_at": now(), "train_s": time.monotonic() - began,
        "records": sum(len(t.log_s) for t in trials), "workloads": len(keys),
        **_ranked(ranking), "columns": columns, "trees": trees,
        "digest": hashlib.sha256(trees).hexdigest()[:32], "evaluation": to_json(evaluation),
    }  # fmt: skip
    with store.write() as connection:
        return show(connection, _put(connection, values))


def _put(connection: sa.Connection, values: Mapping[str, Any]) -> int:
    """Store a model as the next version of its operator and target; return its id."""
    version = sa.select(sa.func.coalesce(sa.func.max(cost_model.c.version), 0) + 1).where(
        cost_model.c.op == values["op"], cost_model.c.target_id == values["target_id"]
    )
    row = insert(connection, cost_model).values(version=version.scalar_subquery(), **values)
    statement = row.on_conflict_do_nothing().returning(cost_model.c.id)
    while (model_id := connection.scalar(statement)) is None:
        pass  # another service has just used this version
    return int(model_id)


def _ranked(ranking: Ranking) -> dict[str, Any]:
    return {
        "held_out": ranking.workloads, "pairs": ranking.pairs, "accuracy": ranking.accuracy,
        "sigma_log": ranking.sigma_log,
    }  # fmt: skip


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
    large = ("target_id", "columns", "trees", "digest", "evaluation")
    columns = [c for c in cost_model.c if c.name not in large]
    return sa.select(*columns, target.c.key.label("target")).join(
        target, target.c.id == cost_model.c.target_id
    )


def _model(row: Any) -> Model:
    return Model(answers=row.accuracy >= LEAST_ACCURACY, **row._mapping)


def start(store: Store, op: str, target_key: str, *, piped: bool = False) -> subprocess.Popen[str]:
    """Train in a process of its own, at a lower priority than timing; errors are logged."""
    kind = subprocess.PIPE if piped else None
    child = subprocess.Popen(
        [sys.executable, "-m", "service.predict.training", op, target_key],
        stdin=subprocess.PIPE, stdout=kind or subprocess.DEVNULL, stderr=kind, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(store.url.render_as_string(hide_password=False))
    return child


def train_apart(store: Store, op: str, target_key: str) -> Model:
    """Train in a process of its own and wait for it; raise as `train` does."""
    with start(store, op, target_key, piped=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        found, said = child.stdout.read(), child.stderr.read()
    if child.returncode:
        raise InvalidError((said.strip().splitlines() or ["the training process died"])[-1])
    return msgspec.json.decode(found, type=Model)


def main(arguments: Sequence[str]) -> int:
    from service.errors import ServiceError

    op, target_key = arguments
    url = sys.stdin.read()  # not an argument: it may hold a password
    with contextlib.suppress(OSError):
        os.nice(10)
    store = Store(url)
    try:
        print(json.dumps(msgspec.to_builtins(train(store, op, target_key))))
    except ServiceError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
