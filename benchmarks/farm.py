"""The farm's own speed: what the queue and its protocol cost where measuring costs nothing.

Goals, with 50 simulated workers on two cores: ≥ 1,500 jobs/s on SQLite and ≥ 1,000 on PostgreSQL from
lease to result in batches of 8, p99 of a lease ≤ 50 ms. Beside them batches of 1, and all requests that a worker
sends of a job of 4 entries: it begins timing, reports a failure at once, and the rest with calibration times.
Further 1,000 workers that poll and send heartbeats at once; two worker processes whose work is sleep
do ≥ 1.8× the trials of one.

    python benchmarks/farm.py [--seconds S] [--postgresql URL]

An empty PostgreSQL database is needed for the second; SQLite's is made in a temporary folder. The
workers' side is as thin as it can be: they have hosts of their own elsewhere.

It takes a minute, and half a minute more with PostgreSQL.
"""
# Over 300 lines: one farm, set up, loaded and measured.

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa
import uvloop

from benchmarks.fixture import make_parser, serve
from benchmarks.result import Table
from service.queue import job as queue
from service.store import migration
from service.store.db import Store
from service.store.tables import job, job_entry
from service.tuning import plan as planning
from service.tuning import run as runs
from strategy.op_strategy import Candidate
from strategy.record import (
    SEARCH_POLICY,
    Device,
    LeaseRequest,
    Phase,
    Registered,
    RunRequest,
    RunWorkload,
    WorkerInfo,
    decode,
    encode,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
SPACE = ConfigSpace([Knob("x", range(100)), Knob("y", range(1000))], fallback={"x": 0, "y": 0})
CANDIDATE = Candidate("noop.cpu", f"1.{SPACE.digest}", 10, None, SPACE)
WORKLOAD = Workload("noop", (Input("data", "float32[4]"),))
WORKERS = 50
WARM_UP_S = 1.0
SLEEP_S = 0.02


# All of the simulated workers have one address.
SETTINGS = {"PLEVEL_TUNE": "false", "PLEVEL_LEASE_S": "60", "PLEVEL_MAX_CONNECTIONS_PER_ADDRESS": "0"}


@contextmanager
def farm(database: str, jobs: int, entries: int = 1) -> Iterator[str]:
    """The address of a service over a database that holds as many jobs of one configuration as are asked for."""
    fill(database, jobs, entries)
    with serve(database, **SETTINGS) as (url, _):
        yield url


def fill(database: str, jobs: int, entries: int = 1) -> None:
    """Queue as many jobs in a database as are asked for, in place of those of an earlier call."""
    migration.upgrade(database)
    store = Store(database)
    run = RunWorkload(workload=WORKLOAD, candidates=(CANDIDATE,))
    request = RunRequest(workloads=(run,), target=TARGET, force=True)
    with store.write() as c:
        c.execute(sa.update(job).where(job.c.state == "queued").values(state="cancelled"))  # those of an earlier farm
        run_id = runs.create(c, request, planning.plan(request))
        if jobs:
            task_id, *place = c.execute(sa.text("SELECT id, workload_id, target_id FROM task")).one()
            first = [queue.NewEntry(task_id, Config({"x": 0, "y": 0}))]
            like = queue.enqueue(c, run_id, *place, Phase.SEARCH, first, SEARCH_POLICY, seed=1)
            _multiply(c, like, jobs, entries)
    store.close()


def _multiply(c: sa.Connection, like: int, jobs: int, entries: int) -> None:
    """So many jobs like one, each with its own configurations: what the tuner would take minutes for."""
    one = c.execute(sa.select(job).where(job.c.id == like)).one()._asdict()
    entry = c.execute(sa.select(job_entry).where(job_entry.c.job_id == like)).one()._asdict()
    del one["id"], entry["id"]
    c.execute(sa.delete(job_entry).where(job_entry.c.job_id == like))
    c.execute(sa.update(job).where(job.c.id == like).values(state="done", finished_at=0.0))
    c.execute(sa.insert(job), [one] * jobs)
    several = []
    for n, job_id in enumerate(c.scalars(sa.select(job.c.id).where(job.c.id > like)).all()):
        for k in range(entries):
            config = Config({"x": (n + k) % 100, "y": n // 100 % 1000})
            several.append({
                **entry, "job_id": job_id, "entry": k, "config": config.to_json(),
                "config_digest": config.digest,
            })
    c.execute(sa.insert(job_entry), several)


class Wire:
    """A connection to the service that stays open, as thin as can be: what is measured is the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> Wire:
        place = urlsplit(url)
        return cls(*await asyncio.open_connection(place.hostname, place.port))

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer; anything but a success is a failure of the benchmark."""
        head = b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
        self._writer.write(head % (path.encode(), len(body)) + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        found = re.search(rb"(?i)content-length: *([0-9]+)", answer)
        content = await self._reader.readexactly(int(found[1])) if found else b""
        if not 200 <= status < 300:
            raise RuntimeError(f"{path}: {status} {content[:300]!r}")
        return content

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


class Entry(msgspec.Struct):
    index: int


class Work(msgspec.Struct):
    entries: list[Entry]


class Held(msgspec.Struct):
    """Of a lease, what a worker that does nothing needs of it."""

    id: int
    token: int
    job: Work


class HeldMany(msgspec.Struct):
    leases: list[Held]


class Answer(msgspec.Struct):
    problem: str


class Answers(msgspec.Struct):
    answers: list[Answer]


read_leases = msgspec.json.Decoder(HeldMany).decode
read_answers = msgspec.json.Decoder(Answers).decode
write = msgspec.json.Encoder().encode


async def register(wire: Wire, name: str) -> int:
    device = Device(identity=f"{name}/cpu:0", slot="cpu:0", model="noop", target=TARGET)
    can = {WORKLOAD.op: {CANDIDATE.implementation: 1}}
    info = WorkerInfo(name=name, host=name, pid=1, devices=(device,), operators=can)
    return decode(await wire.post("/v1/workers", encode(info)), Registered).worker_id


def report_of(leases: list[Held]) -> bytes:
    """Results of no-op measurements: three samples for each entry."""
    at = time.time()
    return write({
        "reports": [
            {
                "lease_id": held.id,
                "results": {
                    "token": held.token, "session": f"s{held.id}", "done": True,
                    "results": [
                        {"entry": e.index, "samples_s": (1e-3, 1.01e-3, 1.02e-3), "run_s": 3e-3,
                         "measured_at": at}
                        for e in held.job.entries
                    ],
                },
            }
            for held in leases
        ]
    })


class Trips:
    """Observations of simulated workers between two moments, since they do not all begin at once.

    Jobs count where they end, trips where they begin: else the rate would lack those under way at either end,
    and slow ones from the latencies.
    """

    def __init__(self, since: float, until: float) -> None:
        self.since = since
        self.until = until
        self.jobs = 0
        self.leases_s: list[float] = []
        self.reports_s: list[float] = []

    def add(self, began: float, leased: float, jobs: int) -> None:
        ended = time.perf_counter()
        if self.since <= ended <= self.until:
            self.jobs += jobs
        if self.since <= began < self.until:
            self.leases_s.append(leased - began)
            self.reports_s.append(ended - leased)


async def work(wire: Wire, worker_id: int, name: str, batch: int, seen: Trips) -> None:
    """Leases, does nothing, reports, until the time is over."""
    asked = encode(LeaseRequest(worker_id=worker_id, device=f"{name}/cpu:0", jobs=batch))
    while (began := time.perf_counter()) < seen.until:
        leases = read_leases(await wire.post("/v1/leases", asked)).leases
        leased = time.perf_counter()
        if not leases:
            raise RuntimeError("there were fewer jobs than the service could hand out: add some")
        answers = read_answers(await wire.post("/v1/leases:report", report_of(leases))).answers
        problems = [a.problem for a in answers if a.problem]
        if problems:
            raise RuntimeError(problems[0])
        seen.add(began, leased, len(leases))


async def tune(wire: Wire, worker_id: int, name: str, batch: int, seen: Trips) -> None:
    """As `work`, with all requests of a job whose first entry fails."""
    asked = encode(LeaseRequest(worker_id=worker_id, device=f"{name}/cpu:0", jobs=batch))
    while (began := time.perf_counter()) < seen.until:
        (held,) = read_leases(await wire.post("/v1/leases", asked)).leases
        leased = time.perf_counter()
        await wire.post(f"/v1/leases/{held.id}/renew", write({"token": held.token, "timing": True}))
        first, *rest = held.job.entries
        failure = {"entry": first.index, "error": "compile", "message": "no registers are left"}
        at = time.time()
        times = [{"entry": e.index, "samples_s": (1e-3, 1.01e-3), "run_s": 2e-3, "measured_at": at} for e in rest]
        calibration = [{"samples_s": (1e-4, 1.01e-4), "measured_at": at + i} for i in range(2)]
        for results, references in (([failure], []), (times, calibration)):
            sent = {
                "token": held.token, "session": f"s{held.id}", "results": results, "references": references,
                "done": results is times,
            }
            body = write({"reports": [{"lease_id": held.id, "results": sent}]})
            (answer,) = read_answers(await wire.post("/v1/leases:report", body)).answers
            if answer.problem:
                raise RuntimeError(answer.problem)
        seen.add(began, leased, 1)


async def round_trips(
    url: str, batch: int, seconds: float, work: Any = work, name: str = ""
) -> tuple[float, Trips]:
    """The jobs a second of workers, whose names begin with `name`, and their trips."""
    wires = [await Wire.open(url) for _ in range(WORKERS)]
    names = [f"{name}{work.__name__}{batch}-{i}" for i in range(WORKERS)]
    ids = await asyncio.gather(*map(register, wires, names))
    since = time.perf_counter() + WARM_UP_S
    seen = Trips(since, since + seconds)
    await asyncio.gather(
        *(work(wire, i, name, batch, seen) for wire, i, name in zip(wires, ids, names, strict=True))
    )
    for wire in wires:
        await wire.close()
    return seen.jobs / seconds, seen


async def crowd(url: str, size: int) -> list[float]:
    """So many workers that wait for jobs, each with a heartbeat meanwhile: how long those take."""
    waiting = [await Wire.open(url) for _ in range(size)]
    beating = [await Wire.open(url) for _ in range(size)]
    ids = [await register(wire, f"crowd-{i}") for i, wire in enumerate(waiting)]
    beats_s: list[float] = []

    async def live(i: int) -> None:
        asked = LeaseRequest(worker_id=ids[i], device=f"crowd-{i}/cpu:0", wait_s=8)
        leased = asyncio.create_task(waiting[i].post("/v1/leases", encode(asked)))
        for _ in range(2):
            await asyncio.sleep(2 + 2 * i / size)
            began = time.perf_counter()
            await beating[i].post(f"/v1/workers/{ids[i]}/heartbeat", b"{}")
            beats_s.append(time.perf_counter() - began)
        await leased

    await asyncio.gather(*(live(i) for i in range(size)))
    for wire in (*waiting, *beating):
        await wire.close()
    return beats_s


def sleepers(url: str, count: int, seconds: float) -> float:
    """Trials per second of so many processes whose kernels sleep."""
    command = [sys.executable, __file__, "--sleeper", url, "--seconds", str(seconds)]
    processes = [
        subprocess.Popen([*command, "--name", f"sleeper-{count}-{i}"], stdout=subprocess.PIPE, text=True)
        for i in range(count)
    ]
    return sum(float(p.communicate()[0]) for p in processes)


def sleep_and_report(url: str, name: str, seconds: float) -> float:
    async def run() -> float:
        wire = await Wire.open(url)
        worker_id = await register(wire, name)
        asked = encode(LeaseRequest(worker_id=worker_id, device=f"{name}/cpu:0", jobs=1))
        began, trials = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            leases = read_leases(await wire.post("/v1/leases", asked)).leases
            for held in leases:
                await asyncio.sleep(SLEEP_S * len(held.job.entries))
                trials += len(held.job.entries)
            await wire.post("/v1/leases:report", report_of(leases))
        return trials / (time.monotonic() - began)

    return uvloop.run(run())


def add_trips(table: Table, kind: str, database: str, seconds: float) -> None:
    goal = 1500 if kind == "SQLite" else 1000
    for batch in (8, 1):
        with farm(database, jobs=int((seconds + WARM_UP_S) * (8000 if batch == 8 else 4000))) as url:
            rate, seen = uvloop.run(round_trips(url, batch, seconds))
        goals = f"≥ {goal:,} jobs/s; p99 ≤ 50 ms" if batch == 8 else None
        table.add(f"{kind}, batches of {batch}: leases", (round(rate), "jobs/s"), *spread(seen.leases_s), goals)
        table.add(f"{kind}, batches of {batch}: reports", None, *spread(seen.reports_s), None)
    with farm(database, jobs=int((seconds + WARM_UP_S) * 2000), entries=4) as url:
        rate, seen = uvloop.run(round_trips(url, 1, seconds, tune))
    table.add(f"{kind}, all requests of a job: leases", (round(rate), "jobs/s"), *spread(seen.leases_s), None)
    table.add(f"{kind}, all requests of a job: timing and reports", None, *spread(seen.reports_s), None)


def spread(times_s: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    return statistics.median(times_s), statistics.quantiles(times_s, n=100)[98]


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database")
    parser.add_argument("--crowd", type=int, default=1000)
    parser.add_argument("--sleeper", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options: Any = parse()
    if options.sleeper:
        print(sleep_and_report(options.sleeper, options.name, options.seconds))
        return
    table = Table({"": "", "rate": "", "p50": "s", "p99": "s", "goal": ""})
    with tempfile.TemporaryDirectory(prefix="plevel-farm-") as folder, table.saved():
        add_trips(table, "SQLite", f"sqlite:///{folder}/trips.db", options.seconds)
        if options.postgresql:
            add_trips(table, "PostgreSQL", options.postgresql, options.seconds)
        with farm(f"sqlite:///{folder}/crowd.db", jobs=0) as url:
            beat_s = spread(uvloop.run(crowd(url, options.crowd)))
        table.add(f"a heartbeat of {options.crowd:,} workers that wait for a job", None, *beat_s, None)
        with farm(f"sqlite:///{folder}/sleep.db", jobs=2000, entries=4) as url:
            one, two = (sleepers(url, n, options.seconds) for n in (1, 2))
        table.add("trials of two processes that sleep, against one", (two / one, "×"), None, None, "≥ 1.8×")


if __name__ == "__main__":
    main()
