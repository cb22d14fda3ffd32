"""A farm in bad weather, for minutes: random faults all along, and what must hold at the end.

Two services tune one run after the other, whose kernels are a formula, with worker processes that use the
worker's own client, spool and leases, through a proxy that loses, cuts, halves, doubles and delays requests.
Each run is asked for three times at once. Meanwhile workers and services are killed and started again, or
stopped past their leases; devices change; runs are cancelled; the database's clock is set ahead and back. Two
workers drive one device. At no time does a device time under two leases. At the end every run has ended,
those that are done with as many trials as they were asked for and no run twice, every job is finished,
quarantined or of a cancelled run, each entry has exactly one record, no lease is live and no result is
left in a spool.

    python benchmarks/soak.py [--seconds 600] [--seed N] [--database URL]

An empty PostgreSQL database may be named; SQLite's file is made in a temporary folder.
"""
# Over 300 lines: one farm and the misfortunes that befall it.

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import sqlalchemy as sa

from benchmarks.fixture import make_parser, natural
from service.store import migration
from service.store.db import Store
from service.store.tables import job, lease, record, run
from strategy.op_strategy import Candidate
from strategy.record import (
    Device,
    Lease,
    LeaseRequest,
    Result,
    RunRequest,
    RunWorkload,
    WorkerInfo,
    encode,
)
from strategy.space import ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload
from workers.client import Client, DeviceBusyError, ServiceError, StoppedError, UnknownWorkerError
from workers.lease import Held, Holdings
from workers.spool import Spool

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
SPACE = ConfigSpace([Knob("x", range(200)), Knob("y", range(200))], fallback={"x": 0, "y": 0})
CANDIDATE = Candidate("formula.cpu", f"1.{SPACE.digest}", 10, None, SPACE)
WORKLOAD = Workload("formula", (Input("data", "float32[4]"),))
WORKERS = 4
DEVICES = 3  # the last worker drives the first one's
SERVICES = 2
LIVE_RUNS = 2
ASKED = 3  # times for each run, at once
TRIALS = 200
LEASE_S = 2.0
PATIENCE_S = 300.0  # to finish what there is when the weather has cleared
# A service that does not reach its database at its start ends; what supervises it starts it again. A busy
# PostgreSQL may take longer for a connection than a service waits.
GIVEN_UP = "plevel service: the database does not answer"
FATES = (*["pass"] * 12, "lost", "cut", "unanswered", "half", "twice", "late")
CLOCK = """
import runpy
from service.store.sql import now

specs = now._compiler_dispatcher.specs
for dialect in ("sqlite", "postgresql"):
    specs[dialect] = lambda *a, real=specs[dialect], **kw: f"({real(*a, **kw)} + (SELECT ahead_s FROM clock))"
runpy.run_module("service", run_name="__main__")
"""
HOUR_S = 3600.0


def measure(held: Lease) -> Iterator[Result]:
    for entry in held.job.entries:
        x, y = entry.config["x"], entry.config["y"]
        median_s = 1e-3 * (1 + ((x - 80) / 60) ** 2 + ((y - 30) / 60) ** 2)
        samples = tuple(median_s * (1 + 0.001 * i) for i in range(-4, 5))
        yield Result(entry=entry.index, samples_s=samples, run_s=sum(samples), measured_at=time.time())


def work(url: str, name: str, spool: Path, firmware: int) -> None:
    """A worker, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    client = Client(url, stop)
    kept = Spool(spool, "soak")
    holdings = Holdings(client, kept)
    device = Device(
        identity=f"{name}/cpu:0", slot="cpu:0", model=f"formula {firmware % 2}", target=TARGET,
        fingerprint={"firmware": firmware},
    )
    info = WorkerInfo(name=name, host=name, pid=os.getpid(), devices=(device,))
    with contextlib.suppress(StoppedError):
        registered = client.register(info)
        keeping = threading.Thread(
            target=holdings.keep_alive, args=(lambda: registered, stop), daemon=True
        )
        keeping.start()
        while not stop.is_set():
            asked = LeaseRequest(
                worker_id=registered.worker_id, device=device.identity, wait_s=1.0, jobs=2
            )
            try:
                leases = client.lease(asked)
            except UnknownWorkerError:
                registered = client.register(info)
                continue
            except ServiceError:
                continue
            for held in [holdings.add(one) for one in leases]:
                if may_time(holdings, held):
                    for result in measure(held.lease):
                        holdings.report(held, result)
                    holdings.finish(held, {})
                else:
                    holdings.release(held)
    holdings.close()
    kept.close()


def may_time(holdings: Holdings, held: Held) -> bool:
    """Wait for the device's turn; False where the job is not wanted any more."""
    held.timing = True
    while not held.ended.is_set():
        try:
            holdings.renew(held)
            break
        except DeviceBusyError:
            held.ended.wait(0.02)
        except ServiceError:
            break  # away for now: what is timed meanwhile is kept
    return not held.ended.is_set()


class Weather:
    """A proxy in a thread of its own that does to each request what a seeded generator says."""

    def __init__(self, rng: random.Random) -> None:
        self.upstreams: list[int] = []
        self.met: Counter[str] = Counter()
        self.bad = True
        self._rng = rng
        self._relaying: set[asyncio.Task[None] | None] = set()  # or they were collected half-way
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def listen() -> asyncio.Server:
            server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            return server

        async def close(server: asyncio.Server) -> None:
            server.close()
            await server.wait_closed()
            left = [task for task in self._relaying if task is not None]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        def serve() -> None:
            server = self._loop.run_until_complete(listen())
            self._loop.run_forever()
            self._loop.run_until_complete(close(server))
            self._loop.close()

        self._thread = threading.Thread(target=serve)
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._relaying.add(task)
        try:
            request = await _message(reader)
            fate = self._rng.choice(FATES) if self.bad else "pass"
            self.met[fate] += 1
            if fate == "late":
                await asyncio.sleep(0.05)
            if fate == "cut":
                await self._ask(request[: len(request) - len(request) // 4], whole=False)
            elif fate != "lost":
                answer = b""
                for _ in range(2 if fate == "twice" else 1):
                    answer = await self._ask(request)
                if fate != "unanswered":
                    writer.write(answer[: len(answer) // 2] if fate == "half" else answer)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._relaying.discard(task)

    async def _ask(self, request: bytes, *, whole: bool = True) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._rng.choice(self.upstreams))
        try:
            writer.write(request)
            await writer.drain()
            if not whole:
                return b""
            return (await _message(reader)).replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: *([0-9]+)", head)
    return head + (await reader.readexactly(int(found[1])) if found else b"")


class Farm:
    """Services and workers as processes, and what is done to them."""

    def __init__(self, database: str, folder: Path, rng: random.Random) -> None:
        self.database = database
        self.did: Counter[str] = Counter()
        self._folder = folder
        self._rng = rng
        self._store = Store(database)
        with self._store.write() as c:
            c.execute(sa.text("CREATE TABLE clock (ahead_s DOUBLE PRECISION)"))
            c.execute(sa.text("INSERT INTO clock VALUES (0)"))
        self.weather = Weather(rng)
        self.services = [self._start_service(i) for i in range(SERVICES)]
        self._find_services()
        self._firmware = [0] * DEVICES
        self.workers = [self._start_worker(i) for i in range(WORKERS)]

    def _start_service(self, i: int) -> subprocess.Popen[bytes]:
        (self._folder / f"ready-{i}").unlink(missing_ok=True)
        command = ["-c", CLOCK, "--database", self.database, "--port", "0"]
        return self._spawn(
            f"service-{i}", *command, "--ready-file", str(self._folder / f"ready-{i}"),
            PLEVEL_LEASE_S=str(LEASE_S), PLEVEL_HEARTBEAT_S="1", PLEVEL_POLL_S="0.2",
        )

    def _spawn(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments], env={**os.environ, **environment},
                stdout=subprocess.DEVNULL, stderr=log,
            )

    def _find_services(self) -> None:
        found = []
        for i in range(SERVICES):
            ready = self._folder / f"ready-{i}"
            while not ready.exists():
                if self.services[i].poll() is not None:
                    said = (self._folder / f"service-{i}.log").read_text()
                    if not (said.splitlines() or [""])[-1].startswith(GIVEN_UP):
                        raise RuntimeError(f"service {i} did not start: {said[-2000:]}")
                    self.services[i] = self._start_service(i)
                time.sleep(0.02)
            found.append(urlsplit(ready.read_text().strip()).port or 0)
        self.weather.upstreams = found

    def _start_worker(self, i: int) -> subprocess.Popen[bytes]:
        return self._spawn(
            f"worker-{i}", __file__, "--worker", self.weather.url, "--name", f"host-{i % DEVICES}",
            "--firmware", str(self._firmware[i % DEVICES]), "--spool", str(self._folder / f"spool-{i}"),
        )

    def misfortune(self) -> None:
        """One of the things that happen, at random."""
        what = self._rng.choice([
            "worker killed", "worker killed", "worker stopped", "device changed", "service killed",
            "service stopped", "clock set", "run cancelled",
        ])
        self.did[what] += 1
        i = self._rng.randrange(WORKERS)
        match what:
            case "service killed":
                i %= SERVICES
                self.services[i].kill()
                self.services[i].wait()
                time.sleep(self._rng.uniform(0.0, LEASE_S))
                self.services[i] = self._start_service(i)
                self._find_services()
            case "service stopped":
                self._stop(self.services[i % SERVICES])
            case "worker stopped":
                self._stop(self.workers[i])
            case "clock set":
                with self._store.write() as c:
                    c.execute(
                        sa.text("UPDATE clock SET ahead_s = :ahead_s"),
                        {"ahead_s": self._rng.choice([0.0, HOUR_S, -HOUR_S, 1.5 * LEASE_S])},
                    )
            case "run cancelled":
                for run_id in self.live()[:1]:
                    ask(self.weather.url, f"/v1/runs/{run_id}/cancel", b"{}")
            case _:
                self._firmware[i % DEVICES] += what == "device changed"
                self.workers[i].kill()
                self.workers[i].wait()
                self.workers[i] = self._start_worker(i)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * LEASE_S)
        process.send_signal(signal.SIGCONT)

    def live(self) -> list[int]:
        """The runs that are under way."""
        with self._store.read() as c:
            return list(c.scalars(sa.text(f"SELECT id FROM run WHERE {LIVE} ORDER BY id")))

    def submit(self, seed: int, trials: int) -> None:
        """Ask for another run, several times at once, where fewer than `LIVE_RUNS` are live."""
        if len(self.live()) < LIVE_RUNS:
            asked = encode(RunRequest(
                workloads=(RunWorkload(workload=WORKLOAD, candidates=(CANDIDATE,)),), target=TARGET,
                trials=trials, seed=seed, tuner="random", force=True,
            ))
            with ThreadPoolExecutor(ASKED) as pool:
                list(pool.map(lambda _: ask(self.weather.url, "/v1/runs", asked), range(ASKED)))

    def watch(self, seconds: float) -> None:
        """Look on for a while: at no time does a device time under two leases."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self._store.read() as c:
                twice = c.execute(sa.text(TIMING_TWICE)).all()
            assert not twice, f"devices that time under two leases: {twice}"
            time.sleep(0.02)

    def calm(self) -> None:
        """Wait until all that was asked for has ended."""
        self.weather.bad = False
        give_up = time.monotonic() + PATIENCE_S
        while left := self.live():
            assert time.monotonic() < give_up, f"runs do not end: {left}"
            self.watch(0.2)
        while self._leases():  # a cancelled run's: its worker hears of it when it renews
            assert time.monotonic() < give_up, "leases do not end"
            self.watch(0.2)
        while left_over := spooled(self._folder):  # late results: their workers hear that they are
            assert time.monotonic() < give_up, f"results are kept: {left_over[:3]}"
            self.watch(0.2)

    def _leases(self) -> int:
        with self._store.read() as c:
            return c.scalar(sa.text("SELECT count(*) FROM lease WHERE ended_at IS NULL")) or 0

    def close(self) -> None:
        for process in (*self.workers, *self.services):
            process.terminate()
        for process in (*self.workers, *self.services):
            process.wait()
        self.weather.close()
        self._store.close()


def spooled(folder: Path) -> list[Path]:
    """Results that workers have not got rid of."""
    return list(folder.glob("spool-*/**/*.json"))


def ask(url: str, path: str, body: bytes) -> None:
    """Send a request; in this weather nobody relies on an answer."""
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url + path, content=body, timeout=30.0)


LIVE = "state IN ('running', 'confirming')"
TIMING_TWICE = """
SELECT device.identity, count(*) FROM lease JOIN device ON device.id = lease.device_id
WHERE lease.ended_at IS NULL AND lease.timing GROUP BY device.identity HAVING count(*) > 1
"""
TRIALS_DONE = """
SELECT run.id, run.state, run.request, count(record.id) FROM run
LEFT JOIN record ON record.run_id = run.id AND record.phase = 'search'
WHERE run.state IN ('done', 'cancelled') GROUP BY run.id, run.state, run.request
"""
# Queries that must find nothing once all has ended.
WRONG = {
    "runs that did not end": f"SELECT id, state FROM run WHERE state = 'failed' OR {LIVE}",
    "runs twice": "SELECT digest, count(*) FROM run GROUP BY digest HAVING count(*) > 1",
    "jobs that did not end": """
        SELECT job.id, job.state, run.state FROM job JOIN run ON run.id = job.run_id
        WHERE job.state IN ('queued', 'leased') OR job.state = 'cancelled' AND run.state <> 'cancelled'""",
    "entries without a record, or with several": """
        SELECT job_entry.job_id, job_entry.entry, job_entry.state, count(record.id)
        FROM job_entry JOIN job ON job.id = job_entry.job_id
        LEFT JOIN record ON record.job_id = job_entry.job_id AND record.entry = job_entry.entry
        GROUP BY job_entry.job_id, job_entry.entry, job_entry.state, job.state
        HAVING count(record.id) <> CASE WHEN job_entry.state = 'done' THEN 1 ELSE 0 END
            OR job_entry.state <> 'done' AND job.state <> 'cancelled'""",
    "records without an entry": """
        SELECT record.id FROM record LEFT JOIN job_entry
            ON job_entry.job_id = record.job_id AND job_entry.entry = record.entry
        WHERE record.phase <> 'reference' AND job_entry.id IS NULL""",
    "configurations that a run tried twice": """
        SELECT run_id, task_id, config_digest, count(*) FROM record WHERE phase = 'search'
        GROUP BY run_id, task_id, config_digest HAVING count(*) > 1""",
    "leases that are live": "SELECT id FROM lease WHERE ended_at IS NULL",
    "devices that are there twice": """
        SELECT identity, digest FROM device GROUP BY identity, digest HAVING count(*) > 1""",
}


def check(database: str, folder: Path) -> str:
    """Raise where something was lost, doubled or is stuck; return what there was."""
    with contextlib.closing(Store(database)) as store, store.read() as c:
        for what, query in WRONG.items():
            wrong = c.execute(sa.text(query)).all()
            assert not wrong, f"{what}: {wrong[:10]}"
        for run_id, state, request, done in c.execute(sa.text(TRIALS_DONE)):
            asked = _trials(request)
            said = f"run {run_id}, which is {state}, has {done} trials: {asked} were asked for"
            assert done == asked or (state == "cancelled" and done < asked), said
        runs = Counter(c.scalars(sa.select(run.c.state)))
        jobs = Counter(c.scalars(sa.select(job.c.state)))
        ended = Counter(c.scalars(sa.select(lease.c.end_reason)))
        written = c.scalar(sa.select(sa.func.count()).select_from(record))
    assert not (left := spooled(folder)), left
    return (
        f"runs {dict(runs)}, jobs {dict(jobs)}, {written} records, one for each entry; leases {dict(ended)}"
    )


def _trials(request: Any) -> int:
    return int((json.loads(request) if isinstance(request, str) else request)["trials"])


def soak(database: str, folder: Path, seconds: float, seed: int, trials: int = TRIALS) -> str:
    """Bad weather for a while, and calm until all has ended; returns what there was."""
    migration.upgrade(database)
    rng = random.Random(seed)
    farm = Farm(database, folder, rng)
    began = time.monotonic()
    number = 0
    try:
        while time.monotonic() - began < seconds:
            number += 1
            farm.submit(number, trials)
            farm.watch(rng.uniform(0.2, 1.0))
            farm.misfortune()
        farm.calm()
    finally:
        farm.close()
    found = check(database, folder)
    return (
        f"{time.monotonic() - began:.0f} s: {dict(farm.did)}; requests {dict(farm.weather.met)}\n{found}"
    )


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of bad weather")
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--database", metavar="URL", help="an empty PostgreSQL database")
    for name in ("--worker", "--name", "--spool", "--firmware"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        work(options.worker, options.name, Path(options.spool), int(options.firmware))
        return
    with tempfile.TemporaryDirectory(prefix="plevel-soak-") as name:
        database = options.database or f"sqlite:///{name}/soak.db"
        print(soak(database, Path(name), options.seconds, options.seed))


if __name__ == "__main__":
    main()
