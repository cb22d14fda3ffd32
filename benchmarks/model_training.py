"""Training of a cost model, and scoring with it.

Goals: 10⁶ records within 2 minutes and 2 GB on two cores, reading them from SQLite included; at least
300,000 configurations scored per second, features included. The peer, in the same run: XGBoost's
bare `predict` on the finished matrix, which is the most that any scoring could reach.

    python benchmarks/model_training.py [--records 1000000]
    python benchmarks/model_training.py --stream 1000000 3000000 10000000 [--workloads 25000]
    python benchmarks/model_training.py --cluster 300000 [--workloads 1000]
    python benchmarks/model_training.py --update 1000000 [--workloads 2000]

`--stream` shows that memory does not grow with the records: the same database is trained from as it grows. The goal is
10⁷ records of 10⁵ tasks within 2 GB, and the accuracy of training in memory, which is the peer at the first size.
`--cluster` trains on two Dask workers of this host, with the host alone as the peer. `--update` has a model brought up
to date with a quarter more records; the peer is training from nothing.

Times come from a formula over dense's own spaces: this is about speed. How well a model ranks is in
docs/search.md. A million records take five minutes, the stream to ten million an hour.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import sqlalchemy as sa

from benchmarks.fixture import dense, make_parser, need, new_store
from benchmarks.result import Table
from service.predict import training
from service.search.features import Digits
from service.search.pool import Candidates
from service.search.predictor import Floats, Predictor
from service.store import catalogue
from service.store.db import Store
from service.store.tables import cost_model, task
from strategy.op_strategy import Candidate, candidates
from strategy.target import Target
from strategy.workload import Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
SHAPES = [
    (m, n, k) for m in (16, 64, 128, 197, 256) for n in (384, 768, 1000, 3072) for k in (384, 768)
]
SCORED = 200_000
GEMV = "dense_gemv.cpu"  # of one row only
COLUMNS = (
    "identity", "source", "task_id", "variant_id", "phase", "session", "config", "config_digest",
    "message", "samples_s", "median_s", "mean_s", "build_s", "check_s", "run_s", "code_digest",
    "measured_at", "recorded_at",
)


def draw_shapes(count: int) -> list[tuple[int, int, int]]:
    """Distinct shapes, in no order."""
    rng = np.random.default_rng(0)
    drawn = zip(*(2 ** rng.uniform(low, 12, 4 * count) for low in (2, 5, 5)), strict=True)
    return list(dict.fromkeys((int(m), 8 * int(n / 8), 8 * int(k / 8)) for m, n, k in drawn))[:count]


def fill(
    store: Store, records: int, shapes: Sequence[tuple[int, int, int]], seed: int = 0
) -> tuple[Workload, Candidate]:
    """Records of random configurations, evenly over the tasks of all shapes; one of the tasks."""
    with store.write() as c:
        target_id = catalogue.put_target(c, TARGET)
        variant_id = catalogue.put_variant(c, target_id, TARGET.keys, TARGET.to_json())
    rng = np.random.default_rng(seed)
    database = sqlite3.connect(str(store.url.database))
    database.execute("PRAGMA synchronous=off")
    sql = f"INSERT INTO record ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    number = database.execute("SELECT coalesce(max(id), 0) FROM record").fetchone()[0]
    # Spaces are those of a few shapes: enumerating them for each would take longer than training.
    offered = {}
    for shape in SHAPES:
        spaces = [f for f in candidates(dense(*shape), TARGET) if f.space is not None and f.implementation != GEMV]
        offered[shape] = [(f, Candidates(f.space, rng).draw(10_000)) for f in spaces if f.space is not None]
    done = 0
    for start in range(0, len(shapes), 200):
        tasks = []
        with store.write() as c:
            for i, shape in enumerate(shapes[start : start + 200]):
                one = dense(*shape)
                workload_id = catalogue.put_workload(c, one)
                for found, known in offered.get(shape) or offered[SHAPES[i % len(SHAPES)]]:
                    tasks.append((catalogue.put_task(c, workload_id, target_id, found, None), one, found, known))
        upto = records * min(start + 200, len(shapes)) // len(shapes)
        for i, (task_id, one, found, known) in enumerate(tasks):
            assert found.space is not None
            knobs = found.space.knobs
            n = (upto - done) * (i + 1) // len(tasks) - (upto - done) * i // len(tasks)
            drawn = known[rng.integers(len(known), size=n)]
            times = seconds(one, found, drawn) * rng.lognormal(0, 0.05, n)
            rows = []
            for digits, time_s in zip(drawn.tolist(), times.tolist(), strict=True):
                number += 1
                config = {k.name: k.values[d] for k, d in zip(knobs, digits, strict=True)}
                rows.append(
                    (number.to_bytes(16, "big"), "benchmark", task_id, variant_id, "search", "s", json.dumps(config),
                     "", "", json.dumps([time_s]), time_s, time_s, 0.1, 0.0, time_s, "", 0.0, 0.0)
                )
            database.executemany(sql, rows)
        done = upto
        database.commit()
    database.close()
    return one, found


def seconds(one: Workload, found: Candidate, digits: Digits) -> Floats:
    """A formula: time by volume, with a factor for each knob whose best value depends on the shape."""
    shape = np.array(one.inputs[0].tensor.concrete_shape + one.inputs[1].tensor.concrete_shape)
    assert found.space is not None
    sizes = np.array([len(k.values) for k in found.space.knobs])
    best = (np.log2(np.resize(shape, len(sizes))) - 2) / 10 * (sizes - 1)
    return 1e-10 * float(np.prod(shape[:3])) * np.exp(np.abs(digits - best).sum(axis=1) / 10)


def train(store: Store, *options: str) -> tuple[training.Model, float, float]:
    """A model trained in a process of its own, with its seconds and its largest resident memory in GiB."""
    command = [sys.executable, __file__, "--child", str(store.url), *options]
    began = time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    took = time.monotonic() - began
    if done.returncode:
        raise SystemExit("the training failed: it says above why")
    model, peak = done.stdout.splitlines()[-1].split("\t")
    return msgspec.json.decode(model, type=training.Model), took, float(peak)


def train_here(url: str, options: Sequence[str]) -> None:
    from service.predict import forest, learner

    if "memory" in options:
        forest.IN_MEMORY = 2**62
    if "disk" in options:
        forest.IN_MEMORY = 0
    store = Store(url)
    model = learner.train(store, "dense", TARGET.key, afresh="afresh" in options)
    store.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(msgspec.json.encode(model).decode(), peak, sep="\t")


def stream(sizes: Sequence[int], shapes: Sequence[tuple[int, int, int]]) -> None:
    """Training on a database as it grows."""
    table = Table({"records": "", "tasks": "", "binned form": "", "training": "", "memory": "", "accuracy": ""})
    with new_store() as store, table.saved(variant="stream", peer="training in memory"):
        stored = 0
        for i, size in enumerate(sorted(sizes)):
            fill(store, size - stored, shapes, seed=i)
            stored = size
            with store.read() as connection:
                tasks = connection.scalar(sa.select(sa.func.count()).select_from(task))
            for kind in ("memory", "disk") if i == 0 else ("",):
                model, took, peak = train(store, "afresh", *([kind] if kind else []))
                form = {"memory": "in memory", "disk": "on disk"}.get(kind, "as it comes")
                table.add(f"{size:,}", tasks, form, (took, "s"), (peak, "GiB"), model.accuracy)


def update(records: int, shapes: Sequence[tuple[int, int, int]]) -> None:
    """A quarter more records, of known and of new workloads."""
    table = Table({"training": "", "records": "", "takes": "", "accuracy": "", "lineage": ""})

    def add(name: str, model: training.Model, took: float, _: float) -> None:
        table.add(name, model.records, (took, "s"), model.accuracy, model.lineage)

    with new_store() as store, table.saved(variant="update", peer="training from nothing"):
        known = len(shapes) * 9 // 10
        fill(store, records, shapes[:known])
        add("from nothing, before", *train(store))
        fill(store, records // 4, shapes[known // 2 :], seed=1)
        add("brought up to date", *train(store))
        add("from nothing", *train(store, "afresh"))


def cluster(records: int, shapes: Sequence[tuple[int, int, int]]) -> None:
    """Training on two workers of one thread each."""
    from distributed import Client, LocalCluster

    from service.predict import learner
    from service.predict.cluster import Cluster

    table = Table({"": "", "records": "", "training": "", "accuracy": ""})
    with new_store() as store, table.saved(variant="cluster", peer="one host"):
        fill(store, records, shapes)
        model, took, _ = train(store, "afresh")
        table.add("one host", model.records, (took, "s"), model.accuracy)
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as farm,
            Client(farm, set_as_default=False) as client,
        ):
            place = Cluster(client, print)
            began = time.monotonic()
            model = learner.train(store, "dense", TARGET.key, afresh=True, cluster=place)
            took = time.monotonic() - began
            place.clear()
        table.add("two Dask workers", model.records, (took, "s"), model.accuracy)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--stream", type=int, nargs="+", help="numbers of records")
    parser.add_argument("--cluster", type=int, help="the number of records")
    parser.add_argument("--update", type=int, help="the number of records")
    parser.add_argument("--workloads", type=int, default=25_000)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        train_here(given.child[0], given.child[1:])
    elif given.stream:
        stream(given.stream, draw_shapes(given.workloads))
    elif given.cluster:
        need("distributed")
        cluster(given.cluster, draw_shapes(given.workloads))
    elif given.update:
        update(given.update, draw_shapes(given.workloads))
    else:
        train_and_score(given.records)


def train_and_score(records: int) -> None:
    table = Table({"": "", "found": "", "goal": ""})
    with new_store() as store:
        one, found = fill(store, records, SHAPES)
        model, took, peak = train(store)
        table.add(f"training on {model.records:,} records of {model.workloads} workloads", (took, "s"), "≤ 120 s")
        table.add("memory of training", (peak, "GiB"), "≤ 2 GiB")
        with store.read() as connection:
            row = connection.execute(cost_model.select()).one()
    predictor = Predictor.load(row.columns, row.trees)
    assert found.space is not None
    known = Candidates(found.space, np.random.default_rng(1)).draw(20_000)
    digits = known[np.random.default_rng(2).integers(len(known), size=SCORED)]
    began = time.perf_counter()
    predictor.predict(one, found.implementation, found.space, digits)
    rate = SCORED / (time.perf_counter() - began)
    matrix = np.random.default_rng(3).random((SCORED, len(predictor.columns)), dtype=np.float32)
    began = time.perf_counter()
    predictor._booster.inplace_predict(matrix)
    bare = SCORED / (time.perf_counter() - began)
    table.add("scoring with features", (round(rate), "configurations/s"), "≥ 300,000/s")
    table.add("the same over XGBoost's bare `predict`", (rate / bare, "×"), None)
    table.save(peer="XGBoost's bare `predict`")


if __name__ == "__main__":
    main()
