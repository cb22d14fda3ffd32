"""Training of a cost model on a million records, and scoring with it.

Goals: 10⁶ records within 2 minutes and 2 GB on two cores, reading them from SQLite included; at least
300,000 configurations scored per second, features included. The peer, in the same run: XGBoost's
bare `predict` on the finished matrix, which is the most that any scoring could reach.

    python benchmarks/model_training.py [--records 1000000]

Times come from a formula over dense's own spaces: this is about speed. How well a model ranks is in
docs/search.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.result import save
from service.predict import training
from service.search.pool import Candidates
from service.search.predictor import Predictor
from service.store import catalogue, migration
from service.store.db import Store
from service.store.tables import cost_model
from strategy.op_strategy import Candidate, candidates
from strategy.target import Target
from strategy.workload import Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
SHAPES = [
    (m, n, k) for m in (16, 64, 128, 197, 256) for n in (384, 768, 1000, 3072) for k in (384, 768)
]
SCORED = 200_000
COLUMNS = (
    "identity", "source", "task_id", "variant_id", "phase", "session", "config", "config_digest",
    "message", "samples_s", "median_s", "mean_s", "build_s", "check_s", "run_s", "code_digest",
    "measured_at", "recorded_at",
)  # fmt: skip


def workload(m: int, n: int, k: int) -> Workload:
    types = {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}
    return Workload.make("dense", types, constants=["weight"])


def fill(store: Store, records: int) -> tuple[Workload, Candidate]:
    """Records of random configurations, evenly over all tasks; one of the tasks."""
    tasks = []
    with store.write() as c:
        target_id = catalogue.put_target(c, TARGET)
        variant_id = catalogue.put_variant(c, target_id, TARGET.keys, TARGET.to_json())
        for one in (workload(*s) for s in SHAPES):
            workload_id = catalogue.put_workload(c, one)
            for found in candidates(one, TARGET):
                if found.space is not None and found.implementation != "dense_gemv.cpu":
                    task_id = catalogue.put_task(c, workload_id, target_id, found, None)
                    tasks.append((task_id, one, found))
    rng = np.random.default_rng(0)
    database = sqlite3.connect(str(store.url.database))
    sql = f"INSERT INTO record ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    number = 0
    for i, (task_id, _, found) in enumerate(tasks):
        assert found.space is not None
        knobs = found.space.knobs
        known = Candidates(found.space, rng).draw(10_000)
        n = records * (i + 1) // len(tasks) - records * i // len(tasks)
        rows = []
        for digits in known[rng.integers(len(known), size=n)].tolist():
            number += 1
            config = {k.name: k.values[d] for k, d in zip(knobs, digits, strict=True)}
            time_s = 1e-3 * (1 + sum(digits) / 10) * float(rng.lognormal(0, 0.05))
            rows.append(
                (number.to_bytes(16, "big"), "benchmark", task_id, variant_id, "search", "s", json.dumps(config),
                 "", "", json.dumps([time_s]), time_s, time_s, 0.1, 0.0, time_s, "", 0.0, 0.0)
            )  # fmt: skip
        database.executemany(sql, rows)
    database.commit()
    database.close()
    return tasks[0][1], tasks[0][2]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/plevel.db"
        migration.upgrade(url)
        store = Store(url)
        one, found = fill(store, given.records)
        began = time.monotonic()
        model = training.train_apart(store, "dense", TARGET.key)
        took = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(
            f"training on {model.records} records of {model.workloads} workloads: {took:.1f} s "
            f"(goal 120), at most {peak:.2f} GiB (goal 2)"
        )
        with store.read() as connection:
            row = connection.execute(cost_model.select()).one()
        store.close()
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
    print(
        f"scoring: {rate:,.0f} configurations/s with features (goal 300,000), "
        f"{rate / bare:.2f} of XGBoost's bare predict ({bare:,.0f}/s)"
    )
    save(
        {"": "", "found": "", "goal": ""},
        [
            (f"training on {model.records:,} records of {model.workloads} workloads", (took, "s"), "≤ 120 s"),
            ("memory of training", (peak, "GiB"), "≤ 2 GiB"),
            ("scoring with features", (round(rate), "configurations/s"), "≥ 300,000/s"),
            ("the same over XGBoost's bare `predict`", (rate / bare, "×"), None),
        ],
        peer="XGBoost's bare `predict`",
    )  # fmt: skip


if __name__ == "__main__":
    main()
