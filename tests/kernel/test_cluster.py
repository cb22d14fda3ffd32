"""Builds on a Dask cluster of real processes, over TLS; and whatever may go wrong there."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")

from distributed.batched import BatchedSend

from strategy.op_strategy import candidates
from strategy.record import ErrorKind, Job, JobEntry, Phase, TimingPolicy, encode
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload
from tests.certificate import make_certificates
from tests.limit import HANG_S
from workers.builder import Build, Built
from workers.builder_pool import BuilderPool, _Slot
from workers.cluster import artefact, builder, site
from workers.cluster.artefact import Artefact, Order, RefusedOrderError, Store
from workers.cluster.client import Cluster, SecurityError, reach, secure
from workers.cpu import assign, parse_cores
from workers.fork import Limits
from workers.sandbox import ForkServer, Interrupt, SandboxError
from workers.timing_runner import TimingRunner
from workers.turn import Turn

TARGET = Target.parse("cpu").with_threads(1)
DENSE = Workload.make("dense", {"data": "float32[16,32]", "weight": "float32[64,32]"}, constants=["weight"])
CORES = assign(parse_cores("cpu"), 1)
POLICY = TimingPolicy(budget_s=0.02, build_timeout_s=HANG_S, run_timeout_s=HANG_S)
NEVER = threading.Event()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def farm(certificates: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A scheduler and two workers, each a process that loads nothing of plevel until its first order."""
    name, key = str(certificates["certificate"]), str(certificates["key"])
    security = distributed.Security(
        tls_ca_file=str(certificates["ca"]), require_encryption=True,
        tls_client_cert=name, tls_client_key=key, tls_scheduler_cert=name, tls_scheduler_key=key,
        tls_worker_cert=name, tls_worker_key=key,
    )
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, protocol="tls://", security=security, dashboard_address=":0",
        host="127.0.0.1", silence_logs=False,  # it would silence the handlers of the root logger
        env={site.ARTEFACTS: str(tmp_path_factory.mktemp("artefacts"))},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("logs")) as found:
        yield found


Open = Callable[..., BuilderPool]


@pytest.fixture
def open_pool(
    farm: Any, certificates: dict[str, Path], server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    pools = []

    def make(children: int = 0, address: str = "", ready: bool = True, **options: Any) -> BuilderPool:
        tls = certificates["ca"], certificates["certificate"], certificates["key"]
        address = address or farm.scheduler_address
        cluster = Cluster(address, secure(address, *options.pop("tls", tls)))
        pool = BuilderPool(
            server, CORES.building, tmp_path_factory.mktemp("pool"), children=children, cluster=cluster, **options
        )
        pools.append(pool)
        if ready:
            wait_for(lambda: cluster.room)
        return pool

    yield make
    for pool in pools:
        pool.close()


def wait_for(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.02)


def build(pool: BuilderPool, job: Job, *given: Any) -> list[Built]:
    """All entries of a job, or a failure: a pool without children waits for its cluster for ever."""
    with ThreadPoolExecutor(1) as thread:
        built = thread.submit(pool.build, job, NEVER, *given)
        try:
            return built.result(HANG_S)
        finally:
            if not built.done():
                pool.close()


_shapes = iter(range(17, 10_000))


def a_job(count: int, *, seed: int = 0) -> Job:
    """A job of configurations of a workload that no other test builds."""
    types = {"data": f"float32[{next(_shapes)},32]", "weight": "float32[64,32]"}
    workload = Workload.make("dense", types, constants=["weight"])
    (found,) = [c for c in candidates(workload, TARGET) if c.implementation == "dense_nopack.cpu"]
    assert found.space is not None
    return Job(
        id=1, run_id=1, workload=workload, target=TARGET, phase=Phase.SEARCH, policy=POLICY, seed=7,
        entries=tuple(
            JobEntry(index=i, task_id=1, implementation=found.implementation, version=found.version, config=config)
            for i, config in zip(range(count), found.space, strict=False)
        ),
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("workers.cluster") and r.levelname == "WARNING"]


def test_what_a_cluster_builds_is_timed_here_and_built_once_for_all_devices(
    open_pool: Open, server: ForkServer
) -> None:
    job = a_job(3)
    wrong = msgspec.structs.replace(job.entries[2], config=Config({"tile_m": 10**9}))
    job = msgspec.structs.replace(job, entries=(*job.entries[:2], wrong))
    built = build(open_pool(), job)
    assert [b.error for b in built] == [None, None, ErrorKind.INVALID]
    assert all(b.build_s > 0 for b in built)
    again = build(open_pool(), job)
    assert [b.code_digest for b in again] == [b.code_digest for b in built]
    assert [b.build_s for b in again[:2]] == [0.0, 0.0] and again[0].path != built[0].path
    runner = TimingRunner(server, CORES.timing, 2**30)
    results: list[Any] = []
    runner.run(job, again[:2], NEVER, results.append)
    runner.close()
    assert [r.error for r in results] == [None, None], results


def test_orders_are_sent_at_once(open_pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = partial(BatchedSend, interval="1h")
    monkeypatch.setattr("distributed.client.BatchedSend", lambda *_, loop, **__: hour(loop=loop))
    monkeypatch.setattr("workers.cluster.client._RELEASE_S", HANG_S)
    released: list[str] = []
    monkeypatch.setattr("distributed.client.Client._release_key", lambda _, key: released.append(key))
    pool = open_pool()
    for _ in range(3):
        assert [b.error for b in build(pool, a_job(1))] == [None]
    assert not released


def test_a_killed_builder_loses_nothing(open_pool: Open, farm: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool, job = open_pool(), a_job(12)
    killed: list[int] = []

    def kill_first(_: Any) -> None:
        if not killed:
            killed.append(farm.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    assert [b.error for b in build(pool, job, kill_first)] == [None] * 12
    wait_for(lambda: farm.workers[0].pid not in (None, *killed))  # the nanny has started another
    assert not said(caplog)


@pytest.mark.full
def test_a_slow_cluster_is_helped_out_and_named_once(
    open_pool: Open, farm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.builder_pool._LATE_S", 0.2)
    pool = open_pool(1)
    stopped = [worker.pid for worker in farm.workers.values()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert [b.error for b in build(pool, a_job(3))] == [None] * 3
        # After a second one that is late it gets no orders for a while, which is another message.
        first, *more = said(caplog)
        assert "has not built" in first
        assert len(more) <= 1 and all("has answered no order" in text for text in more)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


class Silent:
    """A cluster that takes one order at a time, and answers none."""

    room = 1

    def start(self, changed: Callable[[], None]) -> None: ...
    def note_late(self, waited_s: float) -> None: ...
    def close(self) -> None: ...
    def submit(self, job: Job, entry: JobEntry) -> Future[Artefact]:
        return Future()


def test_no_order_is_waited_for_longer_than_a_build_may_take(server: ForkServer, tmp_path: Path) -> None:
    pool = BuilderPool(server, CORES.building, tmp_path, children=0, cluster=Silent())
    pool._usual_s = math.inf  # as after many that were late
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(pool.build, a_job(1), NEVER)
        wait_for(lambda: pool._sent)
        slot = _Slot(Limits(module="workers.builder"), shared=True)
        assert pool._next(slot) is None
        pool._sent[0].sent_at -= POLICY.build_timeout_s
        assert pool._next(slot) is pool._sent[0]
        pool.close()
        assert asked.result(HANG_S) == []


def test_a_cluster_that_answers_nothing_is_left_alone_for_ever_longer(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("tcp://127.0.0.1:9", secure("tcp://127.0.0.1:9", None, None, None))
    pauses = []
    for _ in range(4):
        cluster._set_room(4)
        cluster.note_late(5.0)
        pauses.append(round(cluster._rest_until - cluster._loop.time()) if not cluster.room else 0)
        cluster._rest_until = 0.0
    assert pauses == [0, 2, 4, 8]
    assert [line.split(": ")[0] for line in said(caplog)] == [
        "tcp://127.0.0.1:9 has not built a configuration in 5.0 s",
        "tcp://127.0.0.1:9 has answered no order for 5.0 s; this host builds meanwhile",
    ]
    cluster._loop.close()


def test_a_builder_that_ends_leaves_what_it_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(site.ARTEFACTS, str(tmp_path))
    begun = threading.Event()

    def hang(pool: BuilderPool, slot: _Slot, request: Build, timeout_s: float, interrupt: Interrupt) -> None:
        begun.set()
        wait_for(interrupt.is_set)

    monkeypatch.setattr(BuilderPool, "_ask", hang)
    job = a_job(1)
    opened = site.Site.get(1)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(opened.build, Order.of(job, job.entries[0]), job.entries[0])
        assert begun.wait(HANG_S)
        site.Site.close()
        with pytest.raises(SandboxError, match="the builder ends"):
            asked.result(HANG_S)


def test_a_builder_whose_fork_server_was_killed_starts_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(site.ARTEFACTS, str(tmp_path))
    job = a_job(1)
    asked = Order.of(job, job.entries[0]), job.entries[0]
    first = site.Site.get(1)
    try:
        first._server._process.kill()
        with pytest.raises(SandboxError, match="the fork server has died"):
            first.build(*asked)
        assert site.Site.get(1).build(*asked).library
    finally:
        site.Site.close()


def test_a_builder_is_made_anew_where_its_worker_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    class Idle:
        """A nanny that goes on without its worker."""

        process = None

        def __init__(self, *given: Any, **options: Any) -> None:
            made.append(self)

        async def start(self) -> None:
            if len(made) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        async def finished(self) -> None:
            await asyncio.Event().wait()

        async def close(self, **options: float) -> None: ...

    monkeypatch.setattr(builder, "Nanny", Idle)
    monkeypatch.setattr(builder, "reach", lambda *given: asyncio.sleep(0))
    for name, seconds in {"_LOOK_S": 0.01, "_RESTART_S": 0.05, "_FIRST_PAUSE_S": 0.0}.items():
        monkeypatch.setattr(builder, name, seconds)
    asyncio.run(builder.serve("tcp://127.0.0.1:9", distributed.Security(), 1))
    assert len(made) == 2
    assert "tcp://127.0.0.1:9: its Dask worker did not start again: trying again in 0 s" in caplog.text


@pytest.mark.parametrize("listens", [False, True])
def test_it_is_said_soon_that_there_is_no_scheduler(
    listens: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may take the connection, and never answer."""
    soon = partial(reach, timeout_s=0.1 if listens else 1.0)  # a refusal takes no time, but a busy machine does
    monkeypatch.setattr("workers.cluster.client.reach", soon)
    monkeypatch.setattr(builder, "reach", soon)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "tcp://{}:{}".format(*silent.getsockname())
        if not listens:
            silent.close()
        words = "nothing answers as a Dask scheduler" if listens else "Connection refused"
        with pytest.raises(builder.StartError, match=words):
            asyncio.run(builder.serve(address, distributed.Security(), 1))
        cluster = Cluster(address, secure(address, None, None, None))
        cluster.start(lambda: None)
        wait_for(lambda: said(caplog))
        cluster.close()
    assert said(caplog)[0].startswith(f"{address} is not reachable: ")


def test_it_is_said_why_there_is_no_scheduler_where_dasks_last_attempt_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(*given: Any, **options: Any) -> None:
        raise OSError("Timed out trying to connect") from TimeoutError()

    monkeypatch.setattr("workers.cluster.client.connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "tcp://{}:{}".format(*silent.getsockname())
        with pytest.raises(OSError, match="Timed out"):  # something listens there
            asyncio.run(reach(address, distributed.Security()))
    with pytest.raises(OSError, match="Connection refused"):
        asyncio.run(reach(address, distributed.Security()))


@pytest.mark.full
def test_shared_cores_leave_builds_to_the_cluster(open_pool: Open) -> None:
    turn = Turn(CORES.timing)
    pool = open_pool(shared=CORES.timing, turn=turn)
    with turn.time(NEVER.is_set):
        assert [b.error for b in build(pool, a_job(3))] == [None] * 3


def test_an_interrupt_withdraws_what_the_cluster_has(open_pool: Open, farm: Any) -> None:
    pool, stop = open_pool(), threading.Event()
    stop.set()
    assert pool.build(a_job(3), stop) == []


def test_local_builds_go_on_without_a_scheduler(
    open_pool: Open, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    file = tmp_path / "scheduler.json"
    with subprocess.Popen(
        [*command, "--no-dashboard", "--scheduler-file", str(file)], stderr=subprocess.DEVNULL
    ) as scheduler:
        try:
            wait_for(lambda: file.exists() and file.read_text().endswith("}"))
            pool = open_pool(1, msgspec.json.decode(file.read_bytes())["address"], ready=False, tls=(None,) * 3)
            wait_for(lambda: "has no builders" in "".join(said(caplog)))
            assert [b.error for b in build(pool, a_job(2))] == [None] * 2
        finally:
            scheduler.kill()
    wait_for(lambda: len(said(caplog)) == 2)
    for _ in range(2):
        assert [b.error for b in build(pool, a_job(2))] == [None] * 2
    assert "is not reachable" in said(caplog)[1] and len(said(caplog)) == 2


def test_a_certificate_of_another_authority_is_not_accepted(
    open_pool: Open, caplog: pytest.LogCaptureFixture, tmp_path: Path, certificates: dict[str, Path]
) -> None:
    other = make_certificates(tmp_path)
    stranger = (certificates["ca"], other["certificate"], other["key"])
    open_pool(1, ready=False, tls=stranger)
    wait_for(lambda: said(caplog))
    trusting_another = (other["ca"], certificates["certificate"], certificates["key"])
    open_pool(1, ready=False, tls=trusting_another)
    wait_for(lambda: len(said(caplog)) == 2)
    assert all("is not reachable" in line for line in said(caplog))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tvm": "0.1"}, "TVM 0.1"),
        ({"libc": "musl 1.2"}, "libc musl 1.2"),
        ({"version": "99.dead"}, "version 99.dead is requested"),
        ({"implementation": "dense_lost.cpu"}, "no implementation 'dense_lost.cpu'"),
    ],
)
def test_an_order_for_another_installation_is_refused(change: dict[str, str], words: str) -> None:
    job = a_job(1)
    order = Order.of(job, job.entries[0])
    tools = {k: v for k, v in change.items() if k in ("tvm", "libc")}
    rest = {k: v for k, v in change.items() if k not in tools}
    order = msgspec.structs.replace(order, toolchain=msgspec.structs.replace(order.toolchain, **tools), **rest)
    with pytest.raises(RefusedOrderError, match=words) as caught:
        Artefact.unpack(site.build(encode(order)), order)
    assert "\n" not in str(caught.value)


def test_a_cluster_of_another_tvm_is_named_once_and_not_used(
    open_pool: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgspec.structs.replace(artefact.toolchain(), tvm="0.1")
    monkeypatch.setattr(artefact, "toolchain", lambda: other)
    pool = open_pool(1)
    for _ in range(2):
        assert [b.error for b in build(pool, a_job(3))] == [None] * 3
    (line,) = said(caplog)
    assert "TVM 0.1" in line and artefact.environment()["tvm"] in line


def an_artefact() -> tuple[Order, Artefact]:
    job = a_job(1)
    order = Order.of(job, job.entries[0])
    return order, Artefact(order=order.digest, toolchain=order.toolchain, library=b"code", signature=b"{}")


def test_an_altered_or_another_artefact_is_refused(tmp_path: Path) -> None:
    order, right = an_artefact()
    data = right.pack()
    assert Artefact.unpack(data, order) == right
    altered = [data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:], data.replace(b"code", b"c0de"), b"", None, 7]
    for given in altered:
        with pytest.raises(RefusedOrderError, match="altered"):
            Artefact.unpack(given, order)
    other, _ = an_artefact()
    with pytest.raises(RefusedOrderError, match="does not belong"):
        Artefact.unpack(data, other)
    for wrong in ({"build_s": math.nan}, {"build_s": -1.0}, {"message": "x" * 10**6}):
        built = msgspec.structs.replace(right.built, **wrong)
        with pytest.raises(RefusedOrderError, match=f"no artefact .*{next(iter(wrong))}"):
            Artefact.unpack(msgspec.structs.replace(right, built=built).pack(), order)
    store = Store(tmp_path)
    store.put(order, right)
    assert store.find(order) == right and store.find(other) is None
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert store.find(order) is None


def test_a_builder_whose_files_are_replaced_stores_under_the_code_that_it_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, built = an_artefact()
    store = Store(tmp_path)
    monkeypatch.setattr(artefact, "_code", lambda: "of an upgrade")
    store.put(order, built)
    assert store.find(order) == built
    assert Store(tmp_path).find(order) is None


def test_a_store_goes_on_beside_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "_STORE_BYTES", 0)
    (tmp_path / "folder").mkdir()
    order, built = an_artefact()
    store = Store(tmp_path)
    store.put(order, built)
    assert store.find(order) == built


def test_artefacts_of_another_user_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or on a disk that is read-only: when they were used last cannot be noted there."""
    order, built = an_artefact()
    store = Store(tmp_path)
    store.put(order, built)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(artefact.os, "utime", refuse)
    assert store.find(order) == built


def test_a_folder_that_cannot_be_written_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(Path("/proc/artefacts"))
    for _ in range(2):
        order, built = an_artefact()
        store.put(order, built)
        assert store.find(order) is None
    assert len(said(caplog)) == 1 and "artefacts are not stored in /proc/artefacts" in said(caplog)[0]


def test_a_scheduler_that_is_away_for_days_is_tried_again() -> None:
    cluster = Cluster("tcp://127.0.0.1:9", secure("tcp://127.0.0.1:9", None, None, None))
    pauses = []
    for _ in range(1100):
        cluster._rest("away", "is not reachable")
        pauses.append(cluster._rest_until - cluster._loop.time())
        cluster._rest_until = 0.0
    assert [round(pause) for pause in pauses[:7]] == [2, 4, 8, 16, 32, 64, 120] and round(pauses[-1]) == 120
    cluster._loop.close()


@pytest.mark.parametrize(
    ("address", "files", "words"),
    [
        ("head:8786", (), "write tls://"),
        ("tls://[", (), "write tls://"),
        ("tls://head:87860", (), "write tls://"),
        ("tcp://head:8786", (), "whoever reaches it"),
        ("tls://head:8786", (), "needs --tls-ca"),
        ("tls://head:8786", ("missing", "missing", "missing"), "No such file"),
        ("tls://head:8786", ("ca_key", "certificate", "key"), "PEM"),
    ],
)
def test_an_address_without_security_is_refused(
    address: str, files: tuple[str, ...], words: str, certificates: dict[str, Path], tmp_path: Path
) -> None:
    given = [certificates.get(name, tmp_path / name) for name in files] or [None] * 3
    with pytest.raises(SecurityError, match=words) as caught:
        secure(address, *given)
    assert "\n" not in str(caught.value)
