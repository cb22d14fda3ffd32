"""The farm's own speed: what the queue and its protocol cost where measuring costs nothing.

Goals, with 50 simulated workers on two cores: ≥ 1,500 jobs/s on SQLite and ≥ 1,000 on PostgreSQL from
lease to result in batches of 8 (batches of 1 beside), p99 of a lease ≤ 50 ms; 1,000 workers that poll
and send heartbeats at once; two worker processes whose work is sleep do ≥ 1.8× the trials of one.

    python benchmarks/farm.py [--seconds S] [--postgresql URL] [--soak MINUTES]

An empty PostgreSQL database is needed for the second; SQLite's is made in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from service import migration, queue, runs
from service.db import Store
from service.models import job, job_entry, lease, record
from strategy.op_strategy import Candidate
from strategy.record import (
    SEARCH_POLICY,
    Device,
    Lease,
    LeaseRequest,
    Leases,
    Phase,
    Registered,
    Report,
    Reports,
    ReportsAnswered,
    Result,
    Results,
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
SLEEP_S = 0.02


class Farm:
    """A service over a database that holds as many jobs of one configuration as are asked for."""

    def __init__(self, url: str, folder: Path, jobs: int, entries: int = 1) -> None:
        migration.upgrade(url)
        self.store = Store(url)
        run = RunWorkload(workload=WORKLOAD, candidates=(CANDIDATE,))
        request = RunRequest(workloads=(run,), target=TARGET, force=True)
        with self.store.write() as c:
            self.run_id = runs.create(c, request, runs.plan(request))
            self.task_id = runs.status(c, self.run_id, 60).tasks[0].task_id
            place = c.execute(sa.text("SELECT workload_id, target_id FROM task")).first()
            assert place is not None
            if jobs:
                first = [queue.NewEntry(self.task_id, Config({"x": 0, "y": 0}))]
                like = queue.enqueue(
                    c, self.run_id, place.workload_id, place.target_id, Phase.SEARCH, first,
                    SEARCH_POLICY, seed=1,
                )  # fmt: skip
                _multiply(c, like, jobs, entries)
        ready = folder / "ready"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service", "--database", url, "--port", "0", "--ready-file",
             str(ready)],
            env={**os.environ, "PLEVEL_TUNE": "false", "PLEVEL_LEASE_S": "60"},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        while not ready.exists():
            assert self.process.poll() is None, "the service did not start"
            time.sleep(0.02)
        self.url = ready.read_text().strip()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.store.close()


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
            })  # fmt: skip
    c.execute(sa.insert(job_entry), several)


async def register(http: httpx.AsyncClient, name: str) -> int:
    device = Device(identity=f"{name}/cpu:0", slot="cpu:0", model="noop", target=TARGET)
    info = WorkerInfo(name=name, host=name, pid=1, devices=(device,))
    answer = await http.post("/v1/workers", content=encode(info))
    return decode(answer.content, Registered).worker_id


def result(held: Lease) -> Report:
    results = tuple(
        Result(entry=e.index, samples_s=(1e-3, 1.01e-3, 1.02e-3), run_s=3e-3, measured_at=time.time())
        for e in held.job.entries
    )
    sent = Results(token=held.token, session=f"s{held.id}", results=results, done=True)
    return Report(lease_id=held.id, results=sent)


async def work(
    http: httpx.AsyncClient, worker_id: int, name: str, batch: int, until: float,
    leases_s: list[float],
) -> int:  # fmt: skip
    """Leases, does nothing, reports; returns how many jobs were done."""
    asked = encode(LeaseRequest(worker_id=worker_id, device=f"{name}/cpu:0", jobs=batch))
    done = 0
    while time.monotonic() < until:
        began = time.perf_counter()
        answer = await http.post("/v1/leases", content=asked)
        leases_s.append(time.perf_counter() - began)
        leases = decode(answer.content, Leases).leases
        if not leases:
            break
        reports = encode(Reports(reports=tuple(map(result, leases))))
        answer = await http.post("/v1/leases:report", content=reports)
        answers = decode(answer.content, ReportsAnswered).answers
        assert all(a.accepted is not None for a in answers), answers
        done += len(leases)
    return done


async def round_trips(url: str, batch: int, seconds: float) -> tuple[float, list[float]]:
    leases_s: list[float] = []
    limits = httpx.Limits(max_connections=WORKERS, max_keepalive_connections=WORKERS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
        names = [f"w{batch}-{i}" for i in range(WORKERS)]
        ids = [await register(http, name) for name in names]
        began = time.monotonic()
        counts = await asyncio.gather(
            *(work(http, i, name, batch, began + seconds, leases_s)
              for i, name in zip(ids, names, strict=True))
        )
        return sum(counts) / (time.monotonic() - began), leases_s


async def crowd(url: str, size: int) -> tuple[list[float], int]:
    """So many workers that wait for jobs, each with a heartbeat meanwhile: how long those take."""
    limits = httpx.Limits(max_connections=2 * size, max_keepalive_connections=2 * size)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as http:
        ids = [await register(http, f"crowd-{i}") for i in range(size)]
        beats_s: list[float] = []
        failed = 0

        async def live(i: int) -> None:
            nonlocal failed
            asked = LeaseRequest(worker_id=ids[i], device=f"crowd-{i}/cpu:0", wait_s=8)
            waiting = asyncio.create_task(http.post("/v1/leases", content=encode(asked)))
            for _ in range(2):
                await asyncio.sleep(2 + 2 * i / size)
                began = time.perf_counter()
                answer = await http.post(f"/v1/workers/{ids[i]}/heartbeat", content=b"{}")
                beats_s.append(time.perf_counter() - began)
                failed += answer.status_code != 204
            failed += (await waiting).status_code != 200

        await asyncio.gather(*(live(i) for i in range(size)))
        return beats_s, failed


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
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            worker_id = await register(http, name)
            asked = encode(LeaseRequest(worker_id=worker_id, device=f"{name}/cpu:0", jobs=1))
            began, trials = time.monotonic(), 0
            while time.monotonic() - began < seconds:
                leases = decode((await http.post("/v1/leases", content=asked)).content, Leases).leases
                for held in leases:
                    await asyncio.sleep(SLEEP_S * len(held.job.entries))
                    trials += len(held.job.entries)
                reports = encode(Reports(reports=tuple(map(result, leases))))
                await http.post("/v1/leases:report", content=reports)
            return trials / (time.monotonic() - began)

    return asyncio.run(run())


def show_trips(kind: str, url: str, folder: Path, seconds: float) -> None:
    goal = 1500 if kind == "SQLite" else 1000
    for batch in (8, 1):
        farm = Farm(url, folder, jobs=int(seconds * (3000 if batch == 8 else 1000)))
        try:
            rate, leases_s = asyncio.run(round_trips(farm.url, batch, seconds))
        finally:
            farm.close()
        p99 = statistics.quantiles(leases_s, n=100)[98]
        ratio = f", {rate / goal:.2f} of the goal of {goal}" if batch == 8 else ""
        print(
            f"{kind}, batches of {batch}: {rate:.0f} jobs/s{ratio}; a lease p50 "
            f"{statistics.median(leases_s) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms", flush=True,
        )  # fmt: skip


def soak(url: str, folder: Path, minutes: float) -> None:
    """Batches of 4 for minutes on end; then every job has one record for each entry, and none is stuck."""
    farm = Farm(url, folder, jobs=int(minutes * 60 * 600))
    try:
        rate, _ = asyncio.run(round_trips(farm.url, 4, minutes * 60))
        with farm.store.read() as c:
            left = c.scalar(sa.select(sa.func.count()).where(lease.c.ended_at.is_(None)))
            states = dict(c.execute(sa.select(job.c.state, sa.func.count()).group_by(job.c.state)).all())
            written = c.scalar(sa.select(sa.func.count()).select_from(record))
    finally:
        farm.close()
    print(f"soak of {minutes:g} min: {rate:.0f} jobs/s; jobs {states}, {written} records, {left} leases")
    assert not left
    assert written == states.get("done", 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database")
    parser.add_argument("--crowd", type=int, default=1000)
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only this")
    parser.add_argument("--sleeper", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options: Any = parse()
    if options.sleeper:
        print(sleep_and_report(options.sleeper, options.name, options.seconds))
        return
    with tempfile.TemporaryDirectory(prefix="plevel-farm-") as name:
        folder = Path(name)
        if options.soak:
            soak(options.postgresql or f"sqlite:///{folder}/soak.db", folder, options.soak)
            return
        show_trips("SQLite", f"sqlite:///{folder}/trips.db", folder, options.seconds)
        if options.postgresql:
            show_trips("PostgreSQL", options.postgresql, folder, options.seconds)
        farm = Farm(f"sqlite:///{folder}/crowd.db", folder, jobs=0)
        try:
            beats_s, failed = asyncio.run(crowd(farm.url, options.crowd))
        finally:
            farm.close()
        p99 = statistics.quantiles(beats_s, n=100)[98]
        print(f"{options.crowd} workers at once: a heartbeat p50 {statistics.median(beats_s) * 1e3:.1f} ms, "
              f"p99 {p99 * 1e3:.1f} ms; {failed} failed", flush=True)  # fmt: skip
        farm = Farm(f"sqlite:///{folder}/sleep.db", folder, jobs=2000, entries=4)
        try:
            one, two = (sleepers(farm.url, n, options.seconds) for n in (1, 2))
        finally:
            farm.close()
        print(f"trials a minute: {one * 60:.0f} by one process, {two * 60:.0f} by two: {two / one:.2f}× "
              "(goal 1.8)")  # fmt: skip


if __name__ == "__main__":
    main()
