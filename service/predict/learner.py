"""Training of a cost model, on this host or on a cluster.

`python -m service.predict.learner OP TARGET` reads a database's URL from standard input, trains a model, and
prints what it does and, as a line of JSON, the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
import xgboost

from service.errors import InvalidError
from service.predict import training
from service.predict.evaluation import evaluate
from service.predict.evidence import Counted, count_most, count_trials, read_held_out, read_trials
from service.predict.forest import MOVE, LocalForest, load
from service.predict.lineage import LEAST_OLD, TOLERANCE, UPDATE_ROUNDS, Base, Lineage
from service.predict.ranker import digest_of_trees
from service.predict.spool import Spool, split
from service.predict.training import (
    OWNER,
    PROGRESS_MARK,
    Model,
    Progress,
    check,
    put,
    show,
    temporary_root,
)
from service.records import settled
from service.search.booster import ROUNDS
from service.search.predictor import Predictor, Ranking
from service.store.catalogue import code_versions
from service.store.db import Store
from service.store.namespace import DEFAULT
from service.store.sql import now
from service.store.tables import cost_model, record
from strategy.folder import scratch
from strategy.record import convert, to_json

if TYPE_CHECKING:
    from service.predict.cluster import Cluster

HELD_OUT = 0.2  # share of the workloads
MOST_HELD_OUT = 250  # workloads
NEGLIGIBLE = 0.02  # share of the records, without which the stored model is as good: it is the one that was tested


def train(
    store: Store,
    op: str,
    target_key: str,
    *,
    afresh: bool = False,
    progress: Progress = lambda text: None,
    cluster: Cluster | None = None,
) -> Model:
    """Train a model and store it: the newest brought up to date, or one from nothing where that is better.

    Args:
        afresh: train from nothing in any case.
        progress: called with a line at each step.
        cluster: where trees are grown; None for this process.

    Raises:
        NotFoundError: the target is not in the database.
        InvalidError: too few workloads of the operator are on record on it, or the disk is full.
    """
    began = time.monotonic()
    with store.read() as connection:
        target_id = training.find_target(connection, target_key)
        base = None if afresh else _find_base(connection, op, target_id)
    with _scratch() as folder:
        one = _Training(store, op, target_key, target_id, folder, progress, cluster)
        values = one.train(base)
    values |= {
        "op": op, "target_id": target_id, "created_at": now(), "train_s": time.monotonic() - began,
        "digest": digest_of_trees(values["trees"]),
    }
    with store.write() as connection:
        return show(connection, put(connection, values))


class _Training:
    """One training: the columns of its row of `cost_model`."""

    def __init__(
        self, store: Store, op: str, target_key: str, target_id: int, folder: Path, progress: Progress,
        cluster: Cluster | None,
    ) -> None:
        self._store = store
        self._records = op, target_id
        with store.read() as connection:
            self._device_model, _, _ = count_most(connection, op, target_id)
        self._wanted = [self._device_model.condition]
        self._name = op, target_key
        self._folder = folder
        self._progress = progress
        self._grower = cluster.forest if cluster else LocalForest

    def train(self, base: Base | None) -> dict[str, Any]:
        """Bring the base up to date, or train from nothing."""
        said = "trained from nothing"
        if base is not None:
            with self._store.read() as connection:
                counted = count_trials(connection, *self._records, base.lineage.newest, self._wanted)
                versions = code_versions(connection, *self._records, DEFAULT)
            reason = base.refuse(counted, versions, self._device_model.name)
            found = self._update(base, counted) if reason is None else reason
            if isinstance(found, dict):
                return found
            said = f"{said}: {found}" if found else said
        return self._train(said)

    def _train(self, said: str) -> dict[str, Any]:
        newest = settled.find(self._store)
        with self._store.read() as connection:
            versions = code_versions(connection, *self._records, DEFAULT)
            spool = self._spool(connection)
        check(*self._name, len(spool.places))
        places = sorted(spool.places)
        held_below = places[max(1, min(round(HELD_OUT * len(places)), MOST_HELD_OUT))]
        forest = self._grower(self._folder, spool.parts, spool.layout, held_below, self._progress)
        columns = json.dumps(spool.layout.columns)
        tested = forest.grow("testing", everything=False, start=None, rounds=ROUNDS)
        evaluated = self._evaluate(columns, tested, held_below)
        trees = tested
        if forest.held_share > NEGLIGIBLE:
            trees = forest.grow("training", everything=True, start=None, rounds=ROUNDS)
        lineage = Lineage(
            held_below=held_below, newest=newest, records=spool.rows, full_records=spool.rows,
            full_accuracy=evaluated["accuracy"], updates=0, said=said + self._said_of,
            versions=versions, device_model=self._device_model.name,
        )
        return {
            "records": spool.rows, "workloads": len(places), "columns": columns, "trees": trees,
            "tested": tested, "lineage": to_json(lineage), **evaluated,
        }

    def _update(self, base: Base, counted: Counted) -> dict[str, Any] | str:
        """Add trees to a model; the reason if that is not as good as training from nothing."""
        if digest_of_trees(base.trees) != base.digest:  # XGBoost may read them for ever, or end the process
            return f"the trees of version {base.version} are damaged"
        try:
            for each in (base.tested, base.trees):
                load(each)
        except xgboost.core.XGBoostError:
            return f"XGBoost {xgboost.__version__} cannot read version {base.version}"
        known = base.lineage
        step = max(1, counted.before // max(counted.after, LEAST_OLD))
        newest = settled.find(self._store)
        with self._store.read() as connection:
            versions = code_versions(connection, *self._records, DEFAULT)
            old = sa.or_(record.c.id > known.newest, record.c.id % step == 0)
            spool = self._spool(connection, old)
        lacking = base.lacks(spool.layout)
        if lacking is not None:
            return f"version {base.version} does not know '{lacking}'"
        forest = self._grower(self._folder, spool.parts, base.layout, known.held_below, self._progress)
        columns = json.dumps(base.columns)
        tested = forest.grow("testing", everything=False, start=base.tested, rounds=UPDATE_ROUNDS)
        evaluated = self._evaluate(columns, tested, known.held_below)
        accuracy = evaluated["accuracy"]
        if accuracy < known.full_accuracy - TOLERANCE:
            return (
                f"an update of version {base.version} ranked {accuracy:.3f} of the held-out pairs as measured, its "
                f"last training from nothing {known.full_accuracy:.3f}"
            )
        trees = forest.grow("updating", everything=True, start=base.trees, rounds=UPDATE_ROUNDS)
        total = counted.before + counted.after
        lineage = msgspec.structs.replace(
            known, newest=newest, records=total, updates=known.updates + 1,
            said=f"version {base.version}, updated with {counted.after:,} new records{self._said_of}",
            versions=versions,
        )
        return {
            "records": total, "workloads": counted.workloads, "columns": columns, "trees": trees,
            "tested": tested, "lineage": to_json(lineage), **evaluated,
        }

    @property
    def _said_of(self) -> str:
        name, of = self._device_model
        return f"; on records of {name or 'an unknown device'}, the most of {of} device models" if of > 1 else ""

    def _spool(self, connection: sa.Connection, *wanted: sa.ColumnElement[bool]) -> Spool:
        spool = Spool(self._folder)
        for task_id, trials in read_trials(connection, *self._records, [*self._wanted, *wanted]):
            spool.add(task_id, trials)
            self._progress(f"reading: {spool.rows:,} records")
        spool.flush()
        return spool

    def _evaluate(self, columns: str, tested: bytes, held_below: float) -> dict[str, Any]:
        self._progress("ranking the held-out workloads")
        with self._store.read() as connection:
            held = read_held_out(connection, *self._records, self._wanted, lambda w: split(w) < held_below)
        model = Predictor.load(columns, tested)
        return {**_ranked(model.rank(held)), "evaluation": to_json(evaluate(model, held))}


def _find_base(connection: sa.Connection, op: str, target_id: int) -> Base | None:
    """The newest model, if it has what an update needs."""
    row = connection.execute(
        sa.select(*cost_model.c["version", "columns", "trees", "tested", "digest", "lineage"])
        .where(cost_model.c.op == op, cost_model.c.target_id == target_id)
        .order_by(cost_model.c.version.desc())
        .limit(1)
    ).one_or_none()
    if row is None or row.lineage is None:
        return None
    return Base(
        version=row.version, columns=tuple(json.loads(row.columns)), trees=row.trees, tested=row.tested,
        digest=row.digest, lineage=convert(row.lineage, Lineage),
    )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for temporary files; a full disk becomes an error that says so."""
    root = temporary_root()
    try:
        with scratch(OWNER, root) as folder:
            yield folder
    except OSError as error:
        raise InvalidError(f"training: {root}: {error.strerror or error}: {MOVE}") from error
    except xgboost.core.XGBoostError as error:
        (said, *_) = str(error).strip().splitlines() or ["XGBoost failed"]
        raise InvalidError(f"training in {root}: {said}") from error


def _ranked(ranking: Ranking) -> dict[str, Any]:
    return {
        "held_out": ranking.workloads, "pairs": ranking.pairs, "accuracy": ranking.accuracy,
        "sigma_log": ranking.sigma_log,
    }


def main(arguments: Sequence[str]) -> int:
    from service.errors import ServiceError

    op, target_key, *options = arguments
    url = sys.stdin.read()  # not an argument: it may hold a password
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        with contextlib.closing(Store(url)) as store:
            model = train(
                store, op, target_key, afresh="--afresh" in options,
                progress=lambda text: print(PROGRESS_MARK + text, flush=True),
            )
        print(json.dumps(msgspec.to_builtins(model)))
    except ServiceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
