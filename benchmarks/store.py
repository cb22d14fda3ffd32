"""The store at size: import, selection under load, start-up and memory, beside its peers.

Goals, at 10⁶ records over 10⁴ tasks: import of our own NDJSON ≥ 20,000 records/s and of AutoTVM's
lines ≥ 8,000/s; selection at 200 requests/s with p50 ≤ 3 ms and p99 ≤ 20 ms, and ≤ 50 ms while
an import runs; a batch ≥ 5,000 workloads/s; one record a request ≥ 1,000/s; start-up ≤ 2 s; resident
memory ≤ 300 MB. The peers in the same run, where they are installed (the extras `bench` and `worker`):
Optuna's RDB storage by ask and tell on SQLite, and MetaSchedule's JSONDatabase loading as many records
as it has time for.

    python benchmarks/store.py [--records 1000000 --tasks 10000] [--postgresql URL]

An empty PostgreSQL database is needed for the second; SQLite's is made in a temporary folder. It takes two minutes,
at a million records some ten and 3 GB there. The load comes from this process, on the same cores: its connections are
open and its requests written before it begins, so that what a client costs is not taken for what the service does.
Imports are those of `plevel import`, with its start: of few records that is most of it.
"""
# Over 300 lines: one database, filled and asked in every way.

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from benchmarks.fixture import make_parser, serve
from benchmarks.result import Table
from service.formats import ImportedRecord, Task, native
from service.store import migration
from strategy.record import encode, to_json
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("cuda -model=v100")
IMPLEMENTATIONS = 5
RATE = 200  # requests/s
PEER_TRIALS = 200
PEER_RECORDS = 500
Figures = dict[str, float]
Peers = dict[str, float | None]
GOALS: Figures = {
    "import of own NDJSON, records/s": 20_000,
    "import of AutoTVM lines, records/s": 8_000,
    "memory of the import, MB": 300,
    "start-up, s": 2,
    f"select at {RATE}/s, p50, ms": 3,
    f"select at {RATE}/s, p99, ms": 20,
    "select while importing, p99, ms": 50,
    "batch select, workloads/s": 5_000,
    "one record a request, records/s": 1_000,
    "memory of the service, MB": 300,
}


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
    ]
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
            )


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
        }).encode() + b"\n"


def write(path: Path, lines: Iterator[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(lines)
    return path


def percentiles(seconds: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return 1e3 * cuts[49], 1e3 * cuts[98]


def select_latency(
    url: str, tasks: int, seconds: float, during: Callable[[], bool] = lambda: True
) -> tuple[float, float]:
    """p50 and p99 in milliseconds at `RATE`, each counted from when it should have been sent.

    Args:
        during: whether what the requests are timed beside still goes on; those that it no longer does for are left out.

    Raises:
        SystemExit: it went on for less than 80 % of them.
    """
    rng = random.Random(2)
    taken: list[float] = []
    senders = 8
    bodies = [
        encode(question(rng.randrange(tasks // IMPLEMENTATIONS))) for _ in range(int(RATE * seconds))
    ]
    connections = [connect(url) for _ in range(senders)]
    begin = time.perf_counter() + 0.2

    def send(which: int) -> None:
        for n in range(which, len(bodies), senders):
            due = begin + n / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            post(connections[which], "/v1/select", bodies[n])
            if during():
                taken.append(time.perf_counter() - due)

    _in_threads(send, senders)
    if len(taken) < 0.8 * len(bodies):
        raise SystemExit(f"store: {len(taken)} of {len(bodies)} requests were in time: give less --seconds")
    return percentiles(taken)


def question(i: int) -> dict[str, Any]:
    return {"workload": to_json(workload(i)), "target": TARGET.to_json(), "foreign": True}


def connect(url: str) -> socket.socket:
    given = urlsplit(url)
    connection = socket.create_connection((given.hostname, given.port), timeout=600.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def post(connection: socket.socket, path: str, body: bytes) -> None:
    """Send a request, and read its answer by its length: `http.client` took a fifth of the time of a small one."""
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    answer, head = bytearray(), None
    while head is None or len(answer) < head.end() + int(head[1]):
        part = connection.recv(1 << 16)
        if not part:
            raise SystemExit("the service closed a connection")
        answer += part
        head = head or re.search(rb"(?is)\r\ncontent-length: (\d+).*?\r\n\r\n", bytes(answer))
    status = int(answer[9:12])
    if status >= 300:
        raise SystemExit(f"POST {path}: {status}: {answer[head.end() :][:500].decode()}")


def single_rate(url: str, tasks: int, seconds: float) -> float:
    """Records per second that eight clients send one by one."""
    clients = 8
    rows = records(int(400 * clients * seconds), tasks, seed=1000)
    bodies = [b"".join(native.write([row])) for row in rows]
    connections = [connect(url) for _ in range(clients)]
    sent = [0] * clients
    began = time.perf_counter()

    def send(which: int) -> None:
        for body in bodies[which::clients]:
            post(connections[which], "/v1/records:import", body)
            sent[which] += 1
            if time.perf_counter() - began > seconds:
                return

    _in_threads(send, clients)
    return sum(sent) / (time.perf_counter() - began)


def _in_threads(act: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(act, i) for i in range(count)]:
            done.result()


def batch_rate(url: str, tasks: int) -> float:
    asked = [question(i) for i in range(tasks // IMPLEMENTATIONS)][:5000]
    body = encode({"requests": asked})
    connection = connect(url)
    began = time.perf_counter()
    post(connection, "/v1/select:batch", body)
    return len(asked) / (time.perf_counter() - began)


def resident_mb(pid: int) -> float:
    """The most that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(x for x in status.splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def import_rate(url: str, path: Path) -> tuple[float, float]:
    """Records per second of `plevel import`, its start included, and the most memory that it took, in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "plevel", "import", str(path), "--database", url, "--json"],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        summary = json.loads(process.stdout.read())
        _, process.returncode, used = os.wait4(process.pid, 0)
    assert (process.returncode, summary["rejected"]) == (0, 0), summary
    return summary["read"] / (time.perf_counter() - began), used.ru_maxrss / 1024


def measure(name: str, url: str, files: Files, tasks: int, seconds: float) -> Figures:
    """All figures of one database, told as they come."""
    found: Figures = {}

    def tell(what: str, value: float) -> None:
        found[what] = value
        print(f"{name}: {what} {value:,.2f}", file=sys.stderr, flush=True)

    migration.upgrade(url)
    ours, memory = import_rate(url, files.own)
    tell("import of own NDJSON, records/s", ours)
    tell("import of AutoTVM lines, records/s", import_rate(url, files.autotvm)[0])
    tell("memory of the import, MB", memory)
    began = time.perf_counter()
    with serve(url) as (address, pid):
        tell("start-up, s", time.perf_counter() - began)
        p50, p99 = select_latency(address, tasks, seconds)
        tell(f"select at {RATE}/s, p50, ms", p50)
        tell(f"select at {RATE}/s, p99, ms", p99)
        with ThreadPoolExecutor(1) as pool, files.more.open("rb") as more:
            sent = pool.submit(
                httpx.post, f"{address}/v1/records:import", content=more, timeout=600.0
            )
            _, busy = select_latency(address, tasks, seconds, during=lambda: not sent.done())
            sent.result().raise_for_status()
        tell("select while importing, p99, ms", busy)
        tell("batch select, workloads/s", batch_rate(address, tasks))
        tell("one record a request, records/s", single_rate(address, tasks, seconds))
        tell("memory of the service, MB", resident_mb(pid))
    return found


class Files(NamedTuple):
    """Logs to import: of all records and tasks, of a tenth, and of more, to import while workloads are selected."""

    own: Path
    autotvm: Path
    more: Path

    @classmethod
    def make(cls, folder: Path, count: int, tasks: int, seconds: float) -> Files:
        part = max(count // 10, 1)
        while_selecting = int(1.5 * seconds * GOALS["import of own NDJSON, records/s"])
        return cls(
            write(folder / "own.ndjson", native.write(records(count, tasks))),
            write(folder / "tvm.log", autotvm_lines(part, max(tasks // 10, 1))),
            write(folder / "more.ndjson", native.write(records(while_selecting, tasks, seed=1))),
        )


def optuna_rate(folder: Path) -> float | None:
    """Trials per second by ask and tell, on SQLite."""
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


def metaschedule_rate(folder: Path) -> tuple[float, float] | None:
    """Records per second that JSONDatabase loads, of its own example repeated, and KB of memory for each."""
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
        "import resource, sys, time; from tvm.s_tir.meta_schedule.database import JSONDatabase; "
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "m = most(); b = time.perf_counter(); d = JSONDatabase(*sys.argv[1:]); "
        "n = len(d.get_all_tuning_records()); print(n / (time.perf_counter() - b), (most() - m) / n)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(workloads), str(tuning)], capture_output=True, text=True,
        check=True,
    )
    rate, memory = map(float, done.stdout.split()[-2:])
    return rate, memory


def tabulate(table: Table, found: dict[str, Figures], peers: Peers) -> None:
    """Figures beside their goals, and the import's rate over each peer's."""
    for what, goal in GOALS.items():
        table.add(what, goal, *(round(figures[what], _digits(goal)) for figures in found.values()))
    for peer, rate in peers.items():
        if rate is None:
            print(f"{peer}: not installed")
        else:
            ratios = [figures["import of own NDJSON, records/s"] / rate for figures in found.values()]
            table.add(f"import over {peer} ({rate:,.0f}/s)", None, *((ratio, "×") for ratio in ratios))


def _digits(goal: float) -> int:
    return 2 if goal <= 50 else 0


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load on selection")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database")
    given = parser.parse_args()
    if given.tasks < IMPLEMENTATIONS:
        parser.error(f"--tasks {given.tasks}: {IMPLEMENTATIONS} at least, one for each implementation of a workload")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = Files.make(folder, given.records, given.tasks, given.seconds)
        places = {"SQLite": f"sqlite:///{folder / 'plevel.db'}"}
        if given.postgresql:
            places["PostgreSQL"] = given.postgresql
        found = {
            place: measure(place, url, files, given.tasks, given.seconds)
            for place, url in places.items()
        }
        loaded = metaschedule_rate(folder)
        peers = {
            "Optuna's RDB storage on SQLite, trials by ask and tell": optuna_rate(folder),
            "MetaSchedule's JSONDatabase, records loaded": None if loaded is None else loaded[0],
        }
        scale = f"{given.records:,} records of {given.tasks:,} tasks"
        table = Table({scale: "", "goal": "", **dict.fromkeys(found, "")})
        tabulate(table, found, peers)
        if loaded is not None:
            print(f"MetaSchedule's JSONDatabase keeps {loaded[1]:,.0f} KB of memory for each record")
        there = [peer.split("'")[0] for peer, rate in peers.items() if rate is not None]
        table.save(variant=str(given.records), peer=" and ".join(there) or None)


if __name__ == "__main__":
    main()
