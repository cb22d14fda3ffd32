"""The store at size: import, selection under load, start-up and memory, beside its peers.

Goals, at 10⁶ records over 10⁴ tasks: import of our own NDJSON ≥ 20,000 records/s and of AutoTVM's
lines ≥ 8,000/s; selection at 200 requests/s with p50 ≤ 3 ms and p99 ≤ 20 ms, and ≤ 50 ms while
an import runs; a batch ≥ 5,000 workloads/s; one record a request ≥ 1,000/s; start-up ≤ 2 s; resident
memory ≤ 300 MB. The peers in the same run, where they are installed: Optuna's RDB storage by ask and
tell on SQLite, and MetaSchedule's JSONDatabase loading as many records as it has time for.

    python benchmarks/store.py [--records N] [--tasks N] [--postgresql URL]

An empty PostgreSQL database is needed for the second; SQLite's is made in a temporary folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from service import migration
from service.db import Store
from service.formats import ImportedRecord, Source, Task, native, read
from service.importer import import_items
from strategy.record import to_json
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("cuda -model=v100")
IMPLEMENTATIONS = 5
RATE = 200  # requests/s
PEER_TRIALS = 200
PEER_RECORDS = 500


def workload(i: int) -> Workload:
    return Workload("bench.matmul", (Input("a", f"float32[{i + 1},64]"), Input("b", "float32[64,64]")))


def records(count: int, tasks: int, seed: int = 0) -> Iterator[ImportedRecord]:
    """In the order in which a fleet would send them: tasks mixed, batches of eight."""
    rng = random.Random(seed)
    known = [
        Task(
            workload=workload(i // IMPLEMENTATIONS), target=TARGET,
            implementation=f"bench:{i % IMPLEMENTATIONS}.cuda", version="1.0",
        )
        for i in range(tasks)
    ]  # fmt: skip
    for n in itertools.count():
        task = known[rng.randrange(tasks)]
        for k in range(8):
            if 8 * n + k >= count:
                return
            median_s = rng.lognormvariate(-8, 0.5)
            yield ImportedRecord(
                source="plevel", task=task, session=f"s{n}", device_model="v100",
                config_key=Config({"x": rng.randrange(4096), "y": [8, k], "z": "a"}).key,
                samples_s=tuple(median_s * rng.uniform(0.99, 1.02) for _ in range(6)),
                measured_at=1.7e9 + 8 * n + k,
            )  # fmt: skip


def autotvm_lines(count: int, tasks: int) -> Iterator[bytes]:
    rng = random.Random(1)
    for n in range(count):
        i = rng.randrange(tasks)
        args = [["TENSOR", [i + 1, 64], "float32"], ["TENSOR", [64, 64], "float32"], None, "float32"]
        entity = [["tile_x", "sp", [-1, rng.randrange(64), 8]], ["unroll", "ot", rng.randrange(512)]]
        yield json.dumps({
            "input": ["cuda -model=v100", "dense.cuda", args, {}],
            "config": {"index": n, "code_hash": None, "entity": entity},
            "result": [[rng.lognormvariate(-8, 0.5)], 0, 1.0, 1.7e9 + n],
            "version": 0.2, "tvm_version": "0.7",
        }).encode() + b"\n"  # fmt: skip


def write(path: Path, lines: Iterator[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(lines)
    return path


def import_rate(store: Store, path: Path) -> float:
    began = time.perf_counter()
    with path.open("rb") as file:
        summary = import_items(store, read(Source(file, path.name)))
    assert summary.rejected == 0, summary.to_json()
    return summary.read / (time.perf_counter() - began)


def percentiles(seconds: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return 1e3 * cuts[49], 1e3 * cuts[98]


def select_latency(url: str, tasks: int, seconds: float) -> tuple[float, float]:
    """p50 and p99 in milliseconds at `RATE`, each counted from when it should have been sent."""
    rng = random.Random(2)
    taken: list[float] = []
    senders = 8
    begin = time.perf_counter() + 0.2

    def send(which: int) -> None:
        with httpx.Client(base_url=url, timeout=30.0) as client:
            for n in range(which, int(RATE * seconds), senders):
                due = begin + n / RATE
                body = question(rng.randrange(tasks // IMPLEMENTATIONS))
                time.sleep(max(0.0, due - time.perf_counter()))
                client.post("/v1/select", json=body).raise_for_status()
                taken.append(time.perf_counter() - due)

    threads = [threading.Thread(target=send, args=(i,)) for i in range(senders)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return percentiles(taken)


def question(i: int) -> dict[str, Any]:
    return {"workload": to_json(workload(i)), "target": TARGET.to_json(), "foreign": True}


def single_rate(url: str, tasks: int, seconds: float) -> float:
    """Records per second that eight clients send one by one."""
    sent = [0] * 8
    end = time.perf_counter() + seconds

    def send(which: int) -> None:
        rows = records(1_000_000, tasks, seed=1000 + which)
        with httpx.Client(base_url=url, timeout=30.0) as client:
            while time.perf_counter() < end:
                body = b"".join(native.write([next(rows)]))
                client.post("/v1/records:import", content=body).raise_for_status()
                sent[which] += 1

    threads = [threading.Thread(target=send, args=(i,)) for i in range(len(sent))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(sent) / seconds


def batch_rate(url: str, tasks: int) -> float:
    asked = [question(i) for i in range(tasks // IMPLEMENTATIONS)][:5000]
    with httpx.Client(base_url=url, timeout=600.0) as client:
        began = time.perf_counter()
        client.post("/v1/select:batch", json={"requests": asked}).raise_for_status()
        return len(asked) / (time.perf_counter() - began)


def serve(database: str, folder: Path) -> tuple[subprocess.Popen[bytes], str, float]:
    """A service process, its address, and how long its start took."""
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "--database", database, "--port", "0",
         "--ready-file", str(ready)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not ready.exists():
        if process.poll() is not None:
            raise SystemExit("the service did not start")
        time.sleep(0.01)
    return process, ready.read_text().strip(), time.perf_counter() - began


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(x for x in status.splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(name: str, url: str, folder: Path, count: int, tasks: int, seconds: float) -> float:
    migration.upgrade(url)
    store = Store(url)
    ours = import_rate(store, write(folder / "own.ndjson", native.write(records(count, tasks))))
    part = max(count // 10, 1)
    theirs = import_rate(store, write(folder / "tvm.log", autotvm_lines(part, max(tasks // 10, 1))))
    store.close()
    print(f"{name}: import of own NDJSON {ours:,.0f} records/s (goal 20,000)")
    print(f"{name}: import of AutoTVM lines {theirs:,.0f} records/s (goal 8,000)")
    process, address, start_s = serve(url, folder)
    try:
        print(f"{name}: start-up {start_s:.2f} s (goal 2)")
        p50, p99 = select_latency(address, tasks, seconds)
        print(f"{name}: select p50 {p50:.2f} ms, p99 {p99:.2f} ms at {RATE}/s (goals 3, 20)")
        more = b"".join(native.write(itertools.islice(records(2 * part, tasks), part, None)))
        sender = threading.Thread(
            target=lambda: httpx.post(
                f"{address}/v1/records:import", content=io.BytesIO(more), timeout=600.0
            ).raise_for_status()
        )
        sender.start()
        _, busy = select_latency(address, tasks, seconds)
        sender.join()
        print(f"{name}: select p99 {busy:.2f} ms while importing (goal 50)")
        print(f"{name}: batch select {batch_rate(address, tasks):,.0f} workloads/s (goal 5,000)")
        rate = single_rate(address, tasks, seconds)
        print(f"{name}: one record a request {rate:,.0f} records/s (goal 1,000)")
        print(f"{name}: resident memory at most {resident_mb(process.pid):.0f} MB (goal 300)")
    finally:
        process.terminate()
        process.wait(30)
    return ours


def optuna_rate(folder: Path) -> float | None:
    if importlib.util.find_spec("optuna") is None:
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=f"sqlite:///{folder / 'optuna.db'}", sampler=optuna.samplers.RandomSampler(0)
    )
    began = time.perf_counter()
    for _ in range(PEER_TRIALS):
        trial = study.ask()
        trial.suggest_int("x", 0, 4095)
        study.tell(trial, 1.0)
    return PEER_TRIALS / (time.perf_counter() - began)


def metaschedule_rate(folder: Path) -> float | None:
    """How many records per second JSONDatabase loads: those of its own example, repeated."""
    example = Path(__file__).parents[1] / "tests" / "data" / "formats"
    if importlib.util.find_spec("tvm") is None:
        return None
    lines = (example / "database_tuning_record.json").read_bytes().splitlines(keepends=True)
    workloads = folder / "database_workload.json"
    workloads.write_bytes((example / "database_workload.json").read_bytes())
    tuning = write(
        folder / "database_tuning_record.json",
        itertools.islice(itertools.cycle(lines), PEER_RECORDS),
    )
    code = (
        "import sys, time; from tvm.s_tir.meta_schedule.database import JSONDatabase; "
        "b = time.perf_counter(); d = JSONDatabase(*sys.argv[1:]); "
        "print(len(d.get_all_tuning_records()) / (time.perf_counter() - b))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(workloads), str(tuning)], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load on selection")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"SQLite": f"sqlite:///{folder / 'plevel.db'}"}
        if given.postgresql:
            places["PostgreSQL"] = given.postgresql
        rates = {
            place: measure(place, url, folder, given.records, given.tasks, given.seconds)
            for place, url in places.items()
        }
        for peer, rate in (
            ("Optuna's RDB storage, trials by ask and tell", optuna_rate(folder)),
            ("MetaSchedule's JSONDatabase, records loaded", metaschedule_rate(folder)),
        ):
            if rate is None:
                print(f"{peer}: not installed")
                continue
            shown = ", ".join(f"{place} {r / rate:,.0f}×" for place, r in rates.items())
            print(f"{peer}: {rate:,.0f}/s; import here: {shown}")


if __name__ == "__main__":
    main()
