"""Processes that are killed, a network that lies, a disk that is full: nothing is lost or doubled.

What is done to them is real; times come from a formula, as kernels have nothing to do with it.
docs/reliability.md says what each of these shows.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import resource
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.errors import DatabaseError, LeaseLostError
from service.queue import renewal
from service.store import migration
from service.store.db import Store
from service.store.row_cache import recall
from service.store.tables import JobState, job, job_entry, lease, record, run, webhook
from strategy.record import LeaseRequest, RunState, RunStatus
from tests.integration.process import Service, Start
from tests.integration.scene import TERMS, Scene, configs, device, drawn, info, timed
from tests.limit import HANG_S, wait_until
from tests.postgres import PostgresServer
from workers.client import Client, ServiceError, StoppedError, UnknownWorkerError
from workers.lease import Holdings
from workers.spool import Spool

TRIALS = 24


class Worker:
    """A worker with its own client, spool and holdings, whose times come from a formula."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.stop = threading.Event()
        self.client = Client(url, self.stop, rng=random.Random(name))
        self.spool = Spool(folder / "spool", url)
        self.holdings = Holdings(self.client, self.spool)
        self.device = device(f"{name}/cpu:0")
        self.registered = self.client.register(info(self.device, name=name))
        self.thread = threading.Thread(target=self._work)
        self.keeping = threading.Thread(
            target=self.holdings.keep_alive, args=(lambda: self.registered, self.stop)
        )
        self.thread.start()
        self.keeping.start()

    def _work(self) -> None:
        while not self.stop.is_set():
            asked = LeaseRequest(
                worker_id=self.registered.worker_id, device=self.device.identity, wait_s=0.2
            )
            try:
                leases = self.client.lease(asked)
            except UnknownWorkerError:
                self.registered = self.client.register(info(self.device, name="again"))
                continue
            except StoppedError:
                return
            except ServiceError:
                continue
            for one in leases:
                held = self.holdings.add(one)
                for entry in one.job.entries:
                    self.holdings.report(held, timed(entry))
                self.holdings.finish(held, {})

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.keeping.join()
        self.holdings.close()
        self.spool.close()
        self.client.close()


class Proxy:
    """Stands between a worker and a service, and does to a request what a seed tells it.

    Some never arrive, some arrive and are not answered, or in half, or arrive twice, or late.
    """

    FATES = (*["pass"] * 6, "lost", "unanswered", "half", "twice", "late")

    def __init__(self, seed: int) -> None:
        self.upstream = ""
        self.token = ""
        self.met: Counter[str] = Counter()
        rng = random.Random(seed)
        proxy = self
        headers = {"content-type": "application/json"}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def relay(self) -> None:
                fate = rng.choice(proxy.FATES)
                proxy.met[fate] += 1
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                self.close_connection = True
                if fate == "lost":
                    return
                if fate == "late":
                    time.sleep(0.05)
                for _ in range(2 if fate == "twice" else 1):
                    try:
                        status, kind, answer = self.ask(body)
                    except (OSError, http.client.HTTPException):
                        return
                if fate == "unanswered":
                    return
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(answer)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer[: len(answer) // 2] if fate == "half" else answer)

            def ask(self, body: bytes) -> tuple[int, str, bytes]:
                host = proxy.choose().removeprefix("http://")
                upstream = http.client.HTTPConnection(host, timeout=HANG_S)
                try:
                    sent = headers | {"authorization": f"Bearer {proxy.token}"}
                    upstream.request(self.command, self.path, body, sent)
                    answer = upstream.getresponse()
                    return answer.status, answer.getheader("content-type", ""), answer.read()
                finally:
                    upstream.close()

            do_GET = do_POST = do_DELETE = relay

            def log_message(self, *arguments: object) -> None:
                pass

        self.choose: Callable[[], str] = lambda: self.upstream
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of how long workers wait before they ask again: see tests/unit/test_client.py."""
    for module in ("client", "sender"):
        monkeypatch.setattr(f"workers.{module}.FIRST_PAUSE_S", 0.02)
        monkeypatch.setattr(f"workers.{module}.LONGEST_PAUSE_S", 1.0)


def ends(service: Service, run_id: int) -> RunStatus:
    wait_until(lambda: service.status(run_id).state not in (RunState.RUNNING, RunState.CONFIRMING), "the end", 0.05)
    return service.status(run_id)


def check(url: str, status: RunStatus, trials: int = TRIALS) -> None:
    """Every job ended, one record for each entry, no configuration measured twice in the search."""
    assert (status.state, status.trials_done) == (RunState.DONE, trials), status.message
    store = Store(url)
    try:
        with store.read() as c:
            states = Counter(c.scalars(sa.select(job.c.state)))
            assert set(states) <= {JobState.DONE, JobState.QUARANTINED}, states
            assert c.scalar(sa.select(sa.func.count()).where(lease.c.ended_at.is_(None))) == 0
            entries = c.execute(sa.select(job_entry.c.job_id, job_entry.c.entry)).all()
            written = c.execute(
                sa.select(record.c.job_id, record.c.entry).where(record.c.entry >= 0)
            ).all()
            assert sorted(map(tuple, entries)) == sorted(map(tuple, written))
            tried = c.execute(
                sa.select(record.c.task_id, record.c.config_digest).where(
                    record.c.phase == "search"
                )
            ).all()
            assert len(tried) == len(set(map(tuple, tried)))
    finally:
        store.close()


@pytest.mark.sample(1)
def test_a_network_that_loses_halves_and_doubles(
    start: Start, url: str, tmp_path: Path, full: bool
) -> None:
    one = start(url, PLEVEL_LEASE_S="1", PLEVEL_POLL_S="0.1")
    trials = TRIALS if full else 10
    run_id = one.call("POST", "/v1/runs", drawn(trials=trials), RunStatus).id
    proxies = [Proxy(seed) for seed in range(4 if full else 2)]
    workers = []
    try:
        for i, proxy in enumerate(proxies):
            proxy.upstream = one.url
            workers.append(Worker(proxy.url, tmp_path / str(i), f"host-{i}"))
        check(url, ends(one, run_id), trials)
        met = sum((p.met for p in proxies), Counter[str]())
        assert met["pass"] > 0 and sum(met.values()) > met["pass"], met
    finally:
        for proxy in proxies:
            proxy.FATES = ("pass",)  # they take their leave
        for worker in workers:
            worker.close()
        for proxy in proxies:
            proxy.close()


@pytest.mark.full
def test_a_service_that_is_killed_again_and_again(start: Start, url: str, tmp_path: Path) -> None:
    """Each time somewhere else in what it does: a commit, an answer, a step of the tuner."""
    rng = random.Random(0)
    proxy = Proxy(0)
    proxy.FATES = ("pass",)
    one = start(url, PLEVEL_LEASE_S="2")
    run_id = one.call("POST", "/v1/runs", drawn(trials=TRIALS), RunStatus).id
    proxy.upstream = one.url
    worker = Worker(proxy.url, tmp_path / "w", "host-0")
    try:
        for _ in range(10):
            time.sleep(rng.uniform(0.0, 0.3))
            one.kill()
            one = start(url, PLEVEL_LEASE_S="2", PLEVEL_POLL_S="0.1")
            proxy.upstream = one.url
        check(url, ends(one, run_id))
    finally:
        worker.close()
        proxy.close()


def test_postgresql_is_killed_and_comes_back(start: Start, tmp_path: Path) -> None:
    """In the middle of a run; its clients learn that it is away, and all goes on when it is back."""
    with PostgresServer() as server:
        url = f"postgresql://plevel@/postgres?host={server.home}"
        migration.upgrade(url)
        one = start(url, PLEVEL_LEASE_S="2", PLEVEL_POLL_S="0.1")
        run_id = one.call("POST", "/v1/runs", drawn(trials=TRIALS), RunStatus).id
        workers = [Worker(one.url, tmp_path / str(i), f"host-{i}") for i in range(2)]
        try:
            wait_until(lambda: one.status(run_id).trials_done > 0)
            server.kill()
            assert one.raw("GET", "/readyz").status_code == 503
            assert one.raw("GET", "/healthz").status_code == 200
            server.start()
            wait_until(lambda: one.raw("GET", "/readyz").status_code == 200)
            check(url, ends(one, run_id))
        finally:
            for worker in workers:
                worker.close()
            _, _, said = one.close()
    # A line for what failed: whoever reads them slowly would stop a service that says more.
    assert "the database does not answer" in said
    assert "Traceback" not in said


def test_a_lease_that_postgresql_has_lost_in_a_crash_costs_nothing(tmp_path: Path) -> None:
    """It was not on the disk yet: its job is leased again, and whoever holds the lost one is refused."""
    with PostgresServer() as server:
        url = f"postgresql://plevel@/postgres?host={server.home}"
        migration.upgrade(url)
        with server.connect() as admin:
            admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            admin.execute("SELECT pg_reload_conf()")
        with contextlib.closing(Store(url)) as store:
            scene = Scene.make(store)
            workers = [scene.register(device(f"host-{i}/cpu:0"), name=f"host-{i}") for i in range(2)]
            scene.enqueue(configs(4))
            lost = scene.leased(workers[0], "host-0/cpu:0")
            server.kill()
        server.start()
        with contextlib.closing(Store(url)) as store:
            scene = replace(scene, store=store)
            assert scene.states() == ["queued"]
            held = scene.leased(workers[1], "host-1/cpu:0")
            assert (held.job.id, held.token == lost.token) == (lost.job.id, False)
            with store.write() as c, pytest.raises(LeaseLostError):
                renewal.renew(c, lost.id, lost.token, True, TERMS)
            with pytest.raises(LeaseLostError):
                scene.report(lost, [timed(e) for e in lost.job.entries])
            assert scene.report(held, [timed(e) for e in held.job.entries]).accepted == 4
            assert len(scene.records()) == 4
            # What is stored waits for the disk, and with it all from before, such as its lease.
            scene.enqueue(configs(5)[4:])
            again = scene.leased(workers[1], "host-1/cpu:0")
            scene.report(again, [timed(e) for e in again.job.entries])
            server.kill()
        server.start()
        with contextlib.closing(Store(url)) as store:
            scene = replace(scene, store=store)
            assert (scene.states(), len(scene.records())) == (["done", "done"], 5)


def test_a_service_that_hangs_in_a_transaction_loses_its_locks(
    monkeypatch: pytest.MonkeyPatch, postgres_copy: str
) -> None:
    """One that stands still (SIGSTOP, a host that has gone) must not hold what all others need."""
    monkeypatch.setattr("service.store.session.HANGING_S", 1)
    hanging, other = Store(postgres_copy), Store(postgres_copy)
    try:
        scene = Scene.make(other)
        end = sa.update(run).where(run.c.id == scene.run_id).values(message="mine")

        def hang() -> None:
            with hanging.write() as c:
                c.execute(end)
                with other.write() as c2:  # waits until the server has ended the first
                    c2.execute(end.values(message="other"))
                c.execute(end)

        with pytest.raises(DatabaseError):
            hang()
        with hanging.write() as c:
            assert c.scalar(sa.select(run.c.message)) == "other"
    finally:
        hanging.close()
        other.close()


def test_a_service_whose_disk_is_full_says_so_and_goes_on(start: Start, sqlite_copy: str) -> None:
    """A limit on the size of its files stands for the disk: writing fails, reading goes on."""
    one = start(sqlite_copy)
    path = Path(sqlite_copy.removeprefix("sqlite:///"))
    first = one.call("POST", "/v1/runs", drawn(trials=TRIALS), RunStatus).id
    full = max(path.stat().st_size, Path(f"{path}-wal").stat().st_size)
    unlimited = resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (full, unlimited[1]))
    refused = None
    for seed in range(1, 200):
        answer = one.raw("POST", "/v1/runs", drawn(trials=TRIALS, seed=seed))
        if answer.status_code != 201:
            refused = answer
            break
    assert refused is not None and refused.status_code == 503, refused
    assert refused.json()["type"] == "urn:plevel:database"
    assert one.status(first).id == first
    resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, unlimited)
    again = one.call("POST", "/v1/runs", drawn(trials=TRIALS, seed=1000), RunStatus)
    assert again.state is RunState.RUNNING
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_commit_that_fails_leaves_neither_its_transaction_nor_its_cached_rows(sqlite_copy: str) -> None:
    """A foreign key that is checked at the end fails the COMMIT itself of SQLite, which leaves it open."""
    store = Store(sqlite_copy)

    def remembered(connection: sa.Connection, found: int) -> int:
        return recall(connection, "test", ["key"], lambda _, keys: dict.fromkeys(keys, found))["key"]

    def notify_of_no_run() -> None:
        with store.write() as c:
            c.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            c.execute(sa.insert(webhook).values(run_id=4711, url="u", attempts=0, due_at=0.0, error=""))
            assert remembered(c, 1) == 1

    try:
        with pytest.raises(sa.exc.IntegrityError, match="FOREIGN KEY"):
            notify_of_no_run()
        with store.write() as c:
            assert remembered(c, 2) == 2
            assert c.scalar(sa.select(sa.func.count()).select_from(webhook)) == 0
    finally:
        store.close()


@pytest.mark.full
def test_postgresql_whose_disk_is_full_says_so_and_goes_on(start: Start, tmp_path: Path) -> None:
    """Its tables are on a disk of 32 MB, in the middle of a run: what was acknowledged stays."""
    with PostgresServer() as server, small_disk(server.home / "small") as small:
        with server.connect() as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{small}'")
            connection.execute("CREATE DATABASE plevel TABLESPACE small")
        url = f"postgresql://plevel@/plevel?host={server.home}"
        migration.upgrade(url)
        one = start(url, PLEVEL_LEASE_S="2")
        run_id = one.call("POST", "/v1/runs", drawn(trials=TRIALS), RunStatus).id
        worker = Worker(one.url, tmp_path / "w", "host-0")
        try:
            wait_until(lambda: one.status(run_id).trials_done > 0)
            ballast = small / "ballast"
            with ballast.open("wb") as out, contextlib.suppress(OSError):
                while True:
                    out.write(bytes(1 << 16))
            answers = (
                one.raw("POST", "/v1/runs", drawn(trials=TRIALS, seed=n)) for n in range(1, 1000)
            )
            refused = next(answer for answer in answers if answer.status_code != 201)
            assert refused.status_code == 503
            assert "No space left on device" in refused.json()["detail"]
            assert one.status(run_id).id == run_id
            ballast.unlink()
            assert ends(one, run_id).state is RunState.DONE
        finally:
            worker.close()
            one.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 32 MB that belongs to whoever owns the folder above it."""
    folder.mkdir()
    owner = folder.parent.stat().st_uid
    options = f"size=32m,mode=700,uid={owner}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no small disk can be mounted: that needs root and CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_clock_that_is_wrong_changes_nothing(
    start: Start, sqlite_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases run by the database's clock: what a worker thinks of the date is only noted."""
    one = start(sqlite_copy)
    run_id = one.call("POST", "/v1/runs", drawn(trials=8), RunStatus).id
    worker_id = one.register()
    monkeypatch.setattr(time, "time", lambda: 1.0)
    assert one.work(worker_id, run_id).state is RunState.DONE
    written = one.raw("GET", f"/v1/records?run_id={run_id}&limit=1").json()["records"]
    assert written[0]["measured_at"] == 1.0
