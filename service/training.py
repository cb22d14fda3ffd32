"""Models of times in the database: trained from its records, versioned, with how well they rank.

`python -m service.training OP TARGET` reads a database's URL, trains one in a process of its own, and
prints what came of it as a line of JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from service.best import standing
from service.db import Store, now
from service.errors import InvalidError, NotFoundError
from service.models import cost_model, record, target, task, workload
from service.predictor import Predictor, Ranking, Trials
from service.ranker import LEAST_ACCURACY
from strategy.record import Phase, convert
from strategy.space import ConfigSpace
from strategy.workload import Workload

LEAST_WORKLOADS = 5  # of which one is held out
HELD_OUT = 0.2  # of the workloads


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the times of one operator on one target. `version` counts from 1.

    `accuracy` is the share of pairs of configurations, of workloads that were held out, that a model
    trained on the other workloads ranks as they were measured.
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

    @property
    def answers(self) -> bool:
        """Whether it may answer `predicted`."""
        return self.accuracy >= LEAST_ACCURACY


def train(store: Store, op: str, target_key: str) -> Model:
    """Trains a model in this process and stores it.

    Raises:
        NotFoundError: the target is not in the database.
        InvalidError: too few workloads of the operator are on record there.
    """
    began = time.monotonic()
    with store.read() as connection:
        target_id = connection.scalar(sa.select(target.c.id).where(target.c.key == target_key))
        if target_id is None:
            raise NotFoundError(f"target {target_key}: there are no records of it")
        trials = list(_read(connection, op, target_id))
    keys = sorted(
        {t.workload.key for t in trials}, key=lambda k: hashlib.sha256(k.encode()).digest()
    )
    if len(keys) < LEAST_WORKLOADS:
        raise InvalidError(
            f"{op} on {target_key}: {len(keys)} workloads on record, at least {LEAST_WORKLOADS} are "
            "needed: tune more shapes"
        )
    held = set(keys[: max(1, round(HELD_OUT * len(keys)))])
    known = [t for t in trials if t.workload.key not in held]
    ranking = Predictor.fit(known).rank([t for t in trials if t.workload.key in held])
    del known
    # What answers has seen all of them.
    columns, trees = Predictor.fit(trials).dump()
    values = {
        "op": op, "target_id": target_id, "created_at": now(), "train_s": time.monotonic() - began,
        "records": sum(len(t.log_s) for t in trials), "workloads": len(keys),
        **_ranked(ranking), "columns": columns, "trees": trees,
        "digest": hashlib.sha256(trees).hexdigest()[:32],
    }  # fmt: skip
    version = sa.select(sa.func.coalesce(sa.func.max(cost_model.c.version), 0) + 1).where(
        cost_model.c.op == op, cost_model.c.target_id == target_id
    )
    with store.write() as connection:
        row = sa.insert(cost_model).values(version=version.scalar_subquery(), **values)
        model_id = connection.execute(row.returning(cost_model.c.id)).scalar_one()
        return show(connection, model_id)


def _ranked(ranking: Ranking) -> dict[str, Any]:
    return {
        "held_out": ranking.workloads, "pairs": ranking.pairs, "accuracy": ranking.accuracy,
        "sigma_log": ranking.sigma_log,
    }  # fmt: skip


def _read(connection: sa.Connection, op: str, target_id: int) -> Iterator[Trials]:
    """What ran of an operator on a target, of the newest version of each implementation's code."""
    tasks = connection.execute(
        sa.select(*task.c["id", "implementation", "version", "space"], workload.c.body)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == op, task.c.target_id == target_id)
        .order_by(task.c.id)
    ).all()
    newest = {t.implementation: _code(t.version) for t in tasks}
    current = {t.id: t for t in tasks if _code(t.version) == newest[t.implementation]}
    rows = connection.execution_options(yield_per=20_000).execute(
        sa.select(record.c.task_id, record.c.config, record.c.median_s)
        .where(
            record.c.task_id.in_(sa.select(task.c.id).join(workload, workload.c.id == task.c.workload_id)
                                 .where(workload.c.op == op, task.c.target_id == target_id)),
            record.c.error.is_(None), record.c.phase != Phase.REFERENCE.value, standing(),
        )
        .order_by(record.c.task_id)
    )  # fmt: skip
    for task_id, group in groupby(rows, key=lambda r: r[0]):
        found = current.get(task_id)
        if found is None:
            continue
        asked = convert(found.body, Workload)
        if not all(i.tensor.is_constant for i in asked.inputs):
            continue
        space = None if found.space is None else convert(found.space, ConfigSpace)
        digits, log_s = _digits(space, group)
        if len(log_s):
            yield Trials(asked, found.implementation, space, digits, log_s)


def _code(version: str) -> str:
    return version.partition(".")[0]


def _digits(
    space: ConfigSpace | None, rows: Iterator[Any]
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Configurations by their digits, and their log-seconds; what is not of the space is left out."""
    knobs = () if space is None else space.knobs
    places = [(k.name, {_plain(v): i for i, v in enumerate(k.values)}) for k in knobs]
    digits: list[list[int]] = []
    seconds: list[float] = []
    for _, config, median_s in rows:
        if len(config) != len(knobs):
            continue
        try:
            digits.append([place[_plain(config[name])] for name, place in places])
        except KeyError:
            continue
        seconds.append(median_s)
    return (
        np.array(digits, dtype=np.int32).reshape(len(digits), len(knobs)),
        np.log(np.array(seconds, dtype=np.float64)),
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def find(connection: sa.Connection) -> list[Model]:
    """All models, the newest first."""
    return [_model(row) for row in connection.execute(_models().order_by(cost_model.c.id.desc()))]


def show(connection: sa.Connection, model_id: int) -> Model:
    """One model; raises `NotFoundError`."""
    row = connection.execute(_models().where(cost_model.c.id == model_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"model {model_id} does not exist")
    return _model(row)


def _models() -> sa.Select[Any]:
    columns = [c for c in cost_model.c if c.name not in ("target_id", "columns", "trees", "digest")]
    return sa.select(*columns, target.c.key.label("target")).join(
        target, target.c.id == cost_model.c.target_id
    )


def _model(row: Any) -> Model:
    return Model(**row._mapping)


def start(store: Store, op: str, target_key: str, *, piped: bool = False) -> subprocess.Popen[str]:
    """Trains in a process of its own, below what is timed beside it; it logs what is wrong."""
    kind = subprocess.PIPE if piped else None
    child = subprocess.Popen(
        [sys.executable, "-m", "service.training", op, target_key],
        stdin=subprocess.PIPE, stdout=kind or subprocess.DEVNULL, stderr=kind, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(store.url.render_as_string(hide_password=False))
    return child


def train_apart(store: Store, op: str, target_key: str) -> Model:
    """Trains in a process of its own and waits for it; raises as `train` does."""
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
