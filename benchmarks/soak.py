"""A farm in bad weather, for minutes: random faults all along, and what must hold at the end.

A service tunes one run after the other, whose kernels are a formula, with worker processes that use the
worker's own client, spool and leases, through a proxy that loses, halves, doubles and delays requests.
Meanwhile workers and the service are killed and started again, and workers are stopped past their
leases. At the end all runs are done, every job is finished or quarantined, each entry has exactly one
record, no lease is live and no result is left in a spool.

    python benchmarks/soak.py [--seconds 600] [--seed N] [--database URL]

An empty PostgreSQL database may be named; SQLite's file is made in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy as sa

from plevel import client as user
from service.store import migration
from service.store.db import Store
from service.store.tables import JobState, job, job_entry, lease, record, run
from strategy.op_strategy import Candidate
from strategy.record import (
    Device,
    Lease,
    LeaseRequest,
    Result,
    RunRequest,
    RunState,
    RunWorkload,
    WorkerInfo,
)
from strategy.space import ConfigSpace, Knob
from strategy.target import Target
from strategy.workload import Input, Workload
from workers.client import Client, ServiceError, StoppedError, UnknownWorkerError
from workers.lease import Holdings
from workers.spool import Spool

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")
SPACE = ConfigSpace([Knob("x", range(200)), Knob("y", range(200))], fallback={"x": 0, "y": 0})
CANDIDATE = Candidate("formula.cpu", f"1.{SPACE.digest}", 10, None, SPACE)
WORKLOAD = Workload("formula", (Input("data", "float32[4]"),))
WORKERS = 4
LIVE_RUNS = 2
TRIALS = 200
LEASE_S = 2.0
PATIENCE_S = 120.0  # to finish what there is when the weather has cleared
FATES = (*["pass"] * 12, "lost", "unanswered", "half", "twice", "late")


def measure(held: Lease) -> Iterator[Result]:
    for entry in held.job.entries:
        x, y = entry.config["x"], entry.config["y"]
        median_s = 1e-3 * (1 + ((x - 80) / 60) ** 2 + ((y - 30) / 60) ** 2)  # type: ignore[operator]
        samples = tuple(median_s * (1 + 0.001 * i) for i in range(-4, 5))
        yield Result(entry=entry.index, samples_s=samples, run_s=sum(samples), measured_at=time.time())


def work(url: str, name: str, spool: Path) -> None:
    """A worker, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    client = Client(url, stop)
    kept = Spool(spool, "soak")
    holdings = Holdings(client, kept)
    device = Device(identity=f"{name}/cpu:0", slot="cpu:0", model="formula", target=TARGET)
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
            for one in leases:
                held = holdings.add(one)
                for result in measure(one):
                    holdings.report(held, result)
                holdings.finish(held, {})
    holdings.close()
    kept.close()


class Weather:
    """A proxy in a thread of its own that does to each request what a seeded generator says."""

    def __init__(self, rng: random.Random) -> None:
        self.upstream = 0
        self.met: Counter[str] = Counter()
        self.bad = True
        self._rng = rng
        self._relaying: set[asyncio.Task[None] | None] = set()  # or they were collected half-way
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def listen() -> None:
            server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()

        def serve() -> None:
            self._loop.create_task(listen())
            self._loop.run_forever()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
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
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = await _message(reader)
            fate = self._rng.choice(FATES) if self.bad else "pass"
            self.met[fate] += 1
            if fate == "late":
                await asyncio.sleep(0.05)
            if fate != "lost":
                answer = b""
                for _ in range(2 if fate == "twice" else 1):
                    answer = await self._ask(request)
                if fate != "unanswered":
                    writer.write(answer[: len(answer) // 2] if fate == "half" else answer)
                    await writer.drain()
        writer.close()
        self._relaying.discard(task)

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            writer.write(request)
            return (await _message(reader)).replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: *([0-9]+)", head)
    return head + (await reader.readexactly(int(found[1])) if found else b"")


class Farm:
    """A service and its workers as processes, and what is done to them."""

    def __init__(self, database: str, folder: Path, rng: random.Random) -> None:
        self.database = database
        self.did: Counter[str] = Counter()
        self._folder = folder
        self._rng = rng
        self.weather = Weather(rng)
        self.start_service()
        self.workers = [self._start_worker(i) for i in range(WORKERS)]

    def start_service(self) -> None:
        ready = self._folder / "ready"
        ready.unlink(missing_ok=True)
        self.service = subprocess.Popen(
            [sys.executable, "-m", "service", "--database", self.database, "--port", "0",
             "--ready-file", str(ready)],
            env={**os.environ, "PLEVEL_LEASE_S": str(LEASE_S), "PLEVEL_HEARTBEAT_S": "1"},
            stdout=subprocess.DEVNULL, stderr=(self._folder / "service.log").open("ab"),
        )  # fmt: skip
        while not ready.exists():
            assert self.service.poll() is None, "the service did not start"
            time.sleep(0.02)
        self.url = ready.read_text().strip()
        self.weather.upstream = urlsplit(self.url).port or 0

    def _start_worker(self, i: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, "--worker", self.weather.url, "--name", f"host-{i}"]
        return subprocess.Popen(
            [*command, "--spool", str(self._folder / f"spool-{i}")],
            stdout=subprocess.DEVNULL, stderr=(self._folder / f"worker-{i}.log").open("ab"),
        )  # fmt: skip

    def misfortune(self) -> None:
        """One of the things that happen, at random."""
        what = self._rng.choice(["worker killed", "worker killed", "worker stopped", "service killed"])
        self.did[what] += 1
        if what == "service killed":
            self.service.kill()
            self.service.wait()
            time.sleep(self._rng.uniform(0.0, 3.0))
            self.start_service()
            return
        i = self._rng.randrange(WORKERS)
        if what == "worker killed":
            self.workers[i].kill()
            self.workers[i].wait()
            self.workers[i] = self._start_worker(i)
            return
        self.workers[i].send_signal(signal.SIGSTOP)
        time.sleep(1.5 * LEASE_S)
        self.workers[i].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in (*self.workers, self.service):
            process.terminate()
        for process in (*self.workers, self.service):
            process.wait()
        self.weather.close()


def submit(url: str, seed: int) -> None:
    """Asks for another run, where fewer than `LIVE_RUNS` are live."""
    asked = RunRequest(
        workloads=(RunWorkload(workload=WORKLOAD, candidates=(CANDIDATE,)),), target=TARGET,
        trials=TRIALS, seed=seed, tuner="random", force=True,
    )  # fmt: skip
    with contextlib.suppress(user.ServiceError, user.UnreachableError), user.Client(url) as service:
        live = [r for r in service.runs() if r.state in (RunState.RUNNING, RunState.CONFIRMING)]
        if len(live) < LIVE_RUNS:
            service.create_run(asked)


def calm(farm: Farm) -> None:
    """Waits until all that was asked for is done."""
    farm.weather.bad = False
    store = Store(farm.database)
    give_up = time.monotonic() + PATIENCE_S
    try:
        while True:
            with store.read() as c:
                live = sa.select(sa.func.count()).where(
                    run.c.state.in_((RunState.RUNNING, RunState.CONFIRMING))
                )
                left = c.scalar(live)
            if not left:
                return
            assert time.monotonic() < give_up, f"{left} runs do not end"
            time.sleep(0.2)
    finally:
        store.close()


def check(database: str, folder: Path) -> str:
    """Raises where something was lost, doubled or is stuck; returns what there was."""
    store = Store(database)
    try:
        with store.read() as c:
            runs = Counter(c.scalars(sa.select(run.c.state)))
            jobs = Counter(c.scalars(sa.select(job.c.state)))
            live = c.scalar(sa.select(sa.func.count()).where(lease.c.ended_at.is_(None)))
            ended = Counter(c.scalars(sa.select(lease.c.end_reason)))
            entries = c.execute(sa.select(job_entry.c.job_id, job_entry.c.entry)).all()
            written = c.execute(
                sa.select(record.c.job_id, record.c.entry).where(record.c.entry >= 0)
            ).all()
    finally:
        store.close()
    assert set(runs) == {RunState.DONE}, runs
    assert set(jobs) <= {JobState.DONE, JobState.QUARANTINED}, jobs
    assert not live, f"{live} leases are live"
    assert sorted(map(tuple, entries)) == sorted(map(tuple, written))
    left = list(folder.glob("spool-*/**/*.json"))
    assert not left, left
    return (
        f"{runs.total()} runs, {dict(jobs)}, {len(written)} records, one for each entry; "
        f"leases {dict(ended)}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of bad weather")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", metavar="URL", help="an empty PostgreSQL database")
    for name in ("--worker", "--name", "--spool"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        work(options.worker, options.name, Path(options.spool))
        return
    with tempfile.TemporaryDirectory(prefix="plevel-soak-") as name:
        folder = Path(name)
        database = options.database or f"sqlite:///{folder}/soak.db"
        migration.upgrade(database)
        rng = random.Random(options.seed)
        farm = Farm(database, folder, rng)
        began, seed = time.monotonic(), 0
        try:
            while time.monotonic() - began < options.seconds:
                seed += 1
                submit(farm.url, seed)
                time.sleep(rng.uniform(0.2, 2.0))
                farm.misfortune()
            calm(farm)
        finally:
            farm.close()
        print(f"{time.monotonic() - began:.0f} s: {dict(farm.did)}; requests {dict(farm.weather.met)}")
        print(check(database, folder))


if __name__ == "__main__":
    main()
