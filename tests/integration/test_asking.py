"""Asking again and from afar: ETags, instants, runs on a miss, lock files, `plevel_database`."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from plevel import Client, UnreachableError, plevel_database
from plevel.cli.location import locate
from plevel.direct import connect
from service.context import SELECTIONS
from service.errors import DatabaseError
from service.formats import ImportedRecord, Task
from service.records.importer import import_items
from service.selection.database import RecordDatabase
from service.store.db import Store
from service.store.tables import record, task
from strategy.op_strategy import candidates
from strategy.record import to_json
from strategy.select import Reason, SelectionError, Selector, select
from strategy.select.dispatch import dispatch
from strategy.select.lock import Lock, LockDatabase, LockError
from strategy.target import Target
from strategy.workload import Workload
from tests.command import run_command
from tests.integration.process import Service, Start
from tests.limit import HANG_S
from tests.serve import serve

SPEC = "llvm -mcpu=znver4 -num-cores=2"
TARGET = Target.parse(SPEC)


def dense(m: int | str) -> Workload:
    types = {"data": f"float32[{m},64]", "weight": "float32[128,64]"}
    return Workload.make("dense", types, constants=["weight"])


def measured(m: int, place: int, median_s: float, at: float = 1.0) -> ImportedRecord:
    """A record of one of the implementations of dense, with its fallback configuration."""
    found = candidates(dense(m), TARGET)[place]
    task = Task(
        workload=dense(m), target=TARGET, implementation=found.implementation,
        version=found.version, plevel=found.plevel,
    )
    samples = tuple(median_s * (1 + 0.001 * i) for i in range(-3, 4))
    return ImportedRecord(
        source="plevel", task=task, config_key=found.fallback.key, samples_s=samples, measured_at=at
    )


def fill(url: str) -> None:
    store = Store(url)
    import_items(store, [measured(8, 0, 2e-3), measured(8, 1, 1e-3), measured(16, 0, 3e-3)])
    store.close()


@pytest.fixture(scope="module")
def database(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with two shapes on record, that is only read."""
    path = tmp_path_factory.mktemp("asking") / "plevel.db"
    shutil.copy(migrated_file, path)
    url = f"sqlite:///{path}"
    fill(url)
    return url


@pytest.fixture(scope="module")
def service(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(database, tmp_path_factory.mktemp("service"))
    yield started
    started.close()


@pytest.fixture
def lock(database: str, tmp_path: Path) -> Path:
    with plevel_database(database) as known:
        found = [select(dense(m), TARGET, known) for m in (8, 16, 24)]
    path = tmp_path / "plevel.lock"
    path.write_text(Lock.make(found).write())
    return path


Plevel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plevel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Plevel:
    """`plevel …` in this process: its exit code and what it printed."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("PLEVEL_URL", "PLEVEL_DATABASE", "PLEVEL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(*arguments), *capsys.readouterr()

    return call


def question(m: int, **values: Any) -> dict[str, Any]:
    return {"workload": to_json(dense(m)), "target": TARGET.to_json(), **values}


def test_an_answer_that_is_known_is_not_sent_again(service: Service) -> None:
    first = service.http.post("/v1/select", json=question(8))
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = service.http.post(
            "/v1/select", json=question(8), headers={"if-none-match": known}
        )
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = service.http.post("/v1/select", json=question(16), headers={"if-none-match": tag})
    assert other.status_code == 200
    assert other.headers["etag"] != tag


@pytest.mark.parametrize("kind", ["metal", "rocm", "vulkan", "opencl", "c"])
def test_a_target_that_nothing_is_built_for_is_one_clear_error(
    service: Service, plevel: Plevel, kind: str
) -> None:
    said = f"no implementation of dense can be built for {kind}/generic"
    target = {"kind": kind}
    run = {"workloads": [{"workload": to_json(dense(8))}], "target": target, "trials": 4}
    for path, body in (
        ("/v1/select", question(8, target=target)),
        ("/v1/dispatch", {"workload": to_json(dense("m")), "target": target}),
        ("/v1/runs", run),
    ):
        answer = service.http.post(path, json=body)
        assert answer.status_code == 422
        assert answer.json()["type"] == "urn:plevel:no-selection"
        assert answer.json()["detail"].startswith(said)
    with Client(service.url) as client, pytest.raises(SelectionError, match=said):
        client.select(dense(8), Target.parse(kind))
    inputs = ("-i", "data=float32[8,64]", "-i", "weight=float32[48,64]")
    for command in ("select", "tune"):
        code, out, err = plevel(command, "dense", *inputs, "-t", kind, "--url", service.url)
        assert (code, out) == (1, "")
        assert err.startswith(f"plevel: {said}")
        assert err.count("\n") == 1


def test_as_of_over_http(service: Service) -> None:
    now = service.http.post("/v1/select", json=question(8)).json()
    assert now["reason"] == "measured"
    then = service.http.post("/v1/select", json=question(8, as_of=5.0)).json()
    assert then["reason"] == "plevel"
    asked = [question(8), question(8, as_of=5.0), question(8, as_of=4e9)]
    answers = service.http.post("/v1/select:batch", json={"requests": asked}).json()["answers"]
    assert [a["selection"]["reason"] for a in answers] == ["measured", "plevel", "measured"]
    assert answers[0]["selection"]["config"] == answers[2]["selection"]["config"]


def test_a_batch_reads_each_time_s_own_workloads(sqlite_copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Counted(RecordDatabase):
        def __init__(self, connection: Any, together: Any, *rest: Any) -> None:
            read.append(len(together))
            super().__init__(connection, together, *rest)

    monkeypatch.setattr("service.api.selection.RecordDatabase", Counted)
    with serve(sqlite_copy) as place:
        asked = [question(8 * i, as_of=float(i)) for i in range(1, 9)]
        answers = httpx.post(f"{place}/v1/select:batch", json={"requests": asked}, timeout=HANG_S).json()["answers"]
    assert len(answers) == len(read) == sum(read) == 8


def test_what_was_never_measured_is_tuned_once(start: Start, sqlite_copy: str) -> None:
    fill(sqlite_copy)
    service = start(sqlite_copy)
    miss = question(40, tune_on_miss=True)
    first = service.http.post("/v1/select", json=miss)
    assert first.json()["reason"] == "plevel"
    where = first.headers["location"]
    run = service.http.get(where).json()
    assert {t["workload"] for t in run["tasks"]} == {dense(40).key}
    assert service.http.post("/v1/select", json=miss).headers["location"] == where
    service.http.post(f"{where}/cancel")
    assert service.http.post("/v1/select", json=miss).headers["location"] == where
    hit = service.http.post("/v1/select", json=question(8, tune_on_miss=True))
    assert "location" not in hit.headers
    assert len(service.http.get("/v1/runs").json()["runs"]) == 1


def test_what_was_tuned_in_another_version_alone_is_tuned_again_once(start: Start, sqlite_copy: str) -> None:
    service = start(sqlite_copy)
    miss = question(40, tune_on_miss=True)
    where = service.http.post("/v1/select", json=miss).headers["location"]
    service.http.post(f"{where}/cancel")
    store = Store(sqlite_copy)
    import_items(store, [measured(40, 0, 2e-3)])
    with store.write() as c:
        c.execute(sa.update(task).values(version="0.1"))
    store.close()
    found = service.http.post("/v1/select", json=miss)
    assert (found.json()["reason"], found.json()["partial"]) == ("stale", True)
    again = found.headers["location"]
    assert again != where
    assert service.http.post("/v1/select", json=miss).headers["location"] == again


def test_runs_on_a_miss_hold_up_no_selection(start: Start, sqlite_copy: str) -> None:
    """They wait for SQLite's one writer, for which a selection has no need."""
    fill(sqlite_copy)
    service = start(sqlite_copy)
    other = sqlite3.connect(sqlite_copy.removeprefix("sqlite:///"), isolation_level=None)

    def ask(m: int, wait_s: float = HANG_S, **more: Any) -> httpx.Response:
        return httpx.post(f"{service.url}/v1/select", json=question(m, **more), timeout=wait_s)

    with ThreadPoolExecutor() as pool, contextlib.closing(other):
        other.execute("BEGIN IMMEDIATE")
        misses = [pool.submit(ask, 40 + i, tune_on_miss=True) for i in range(SELECTIONS)]
        time.sleep(0.5)
        found = ask(8, wait_s=10.0)
        assert not any(miss.done() for miss in misses)
        other.execute("COMMIT")
        assert found.json()["reason"] == "measured"
        assert all("location" in miss.result().headers for miss in misses)


def test_every_database_gives_the_same_selection(
    service: Service, database: str, lock: Path
) -> None:
    answers = []
    for where in (service.url, database, database.removeprefix("sqlite:///"), lock):
        with plevel_database(where) as known:
            found = [select(dense(m), TARGET, known) for m in (8, 16, 24)]
            table = dispatch(dense("m"), TARGET, known)
            selector = Selector(known)
            assert [selector.select(dense(m), TARGET) for m in (8, 16, 24)] == found
            assert selector.select(dense(8), TARGET) is selector.select(dense(8), TARGET)
        answers.append(([s.implementation for s in found], [s.reason for s in found], table))
    assert all(a == answers[0] for a in answers)
    assert answers[0][1] == [Reason.MEASURED, Reason.MEASURED, Reason.PLEVEL]


def in_fork(ask: Callable[[], Any]) -> Any:
    """The answer of a function in a forked process; the test fails if that does, or hangs."""
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    child = fork.Process(target=lambda: found.put(ask()))
    child.start()
    child.join(HANG_S)
    assert child.exitcode == 0
    return found.get()


def backend_of(transaction: Callable[[], contextlib.AbstractContextManager[sa.Connection]]) -> int:
    """The process of PostgreSQL that serves a transaction."""
    with transaction() as connection:
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def test_a_forked_process_reads_over_connections_of_its_own(postgres_copy: str) -> None:
    """Over one, it and its parent would get each other's rows."""
    with contextlib.closing(Store(postgres_copy)) as store:
        first = backend_of(store.read)
        assert in_fork(lambda: backend_of(store.read)) != first
        assert backend_of(store.read) == first


def test_no_thread_of_a_forked_process_reads_over_its_parents_connection(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another drops the parent's, which takes a moment."""
    with contextlib.closing(Store(postgres_copy)) as store:

        def ask() -> set[int]:
            dispose = store.engine.dispose

            def slow(*, close: bool) -> None:
                time.sleep(0.5)
                dispose(close=close)

            monkeypatch.setattr(store.engine, "dispose", slow)
            with ThreadPoolExecutor(2) as pool:
                one = pool.submit(backend_of, store.read)
                time.sleep(0.1)
                other = pool.submit(backend_of, store.read)
                return {one.result(), other.result()}

        first = backend_of(store.read)
        assert first not in in_fork(ask)


def test_a_forked_process_writes_over_a_connection_of_its_own(postgres_copy: str) -> None:
    with contextlib.closing(Store(postgres_copy)) as store:

        def ask() -> int:
            store.close()  # which is not the child's yet
            return backend_of(store.write)

        first = backend_of(store.write)
        assert in_fork(ask) != first
        assert backend_of(store.write) == first


def test_what_a_forked_process_writes_outlasts_its_parents_connections(tmp_path: Path) -> None:
    """Of an SQLite file, whose log goes with the last connection that has locks."""
    url = f"sqlite:///{tmp_path}/plevel.db"
    store = Store(url)

    def put(number: int) -> None:
        with store.write() as connection:
            connection.exec_driver_sql("INSERT INTO written VALUES (?)", (number,))

    def write() -> None:
        put(1)
        began.set()
        assert closed.wait(HANG_S)
        put(2)

    with store.write() as connection:
        connection.exec_driver_sql("CREATE TABLE written (number INTEGER)")
    fork = multiprocessing.get_context("fork")
    began, closed = fork.Event(), fork.Event()
    child = fork.Process(target=write)
    child.start()
    assert began.wait(HANG_S)
    store.close()
    closed.set()
    child.join()
    with contextlib.closing(Store(url)) as store, store.read() as connection:
        assert connection.exec_driver_sql("SELECT number FROM written").scalars().all() == [1, 2]


def test_a_process_forked_in_the_middle_of_a_write_is_told_so(tmp_path: Path) -> None:
    with contextlib.closing(Store(f"sqlite:///{tmp_path}/plevel.db")) as store:

        def write() -> str:
            with pytest.raises(DatabaseError) as error, store.write():
                pass
            return str(error.value)

        with store.write() as connection:
            told = in_fork(write)
            connection.exec_driver_sql("CREATE TABLE written (number INTEGER)")
        assert "forked in the middle of a write" in told
        with store.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM written").scalar_one() == 0


def test_a_process_forked_while_a_thread_holds_a_lock_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of the pool, or one of SQLite, which no thread of this process releases."""
    monkeypatch.setattr("service.store.db._LEAVE_S", 0.2)
    with contextlib.closing(Store(f"sqlite:///{tmp_path}/plevel.db")) as store:

        def use(transaction: Callable[[], contextlib.AbstractContextManager[sa.Connection]]) -> str:
            with pytest.raises(DatabaseError) as error, transaction():
                pass
            return str(error.value)

        with store.read():
            pass
        pool: Any = store.engine.pool
        with pool._pool.mutex:
            told = in_fork(lambda: [use(store.read), use(store.write)])
        assert all("forked in the middle of a use of it by another thread" in text for text in told)
        with store.read():
            pass


def test_a_process_forked_while_a_thread_reads_reads_and_is_told_that_it_cannot_write(tmp_path: Path) -> None:
    """Its writes would be lost with the write-ahead log, which its parent deletes."""
    with contextlib.closing(Store(f"sqlite:///{tmp_path}/plevel.db")) as store:
        reading, done = threading.Event(), threading.Event()

        def read() -> None:
            with store.read() as connection:
                connection.exec_driver_sql("SELECT * FROM written").all()
                reading.set()
                assert done.wait(HANG_S)

        def write() -> None:
            with store.read() as connection:
                assert connection.exec_driver_sql("SELECT count(*) FROM written").scalar_one() == 0
            try:
                with store.write():
                    found.put("written")
            except DatabaseError as error:
                found.put(str(error))

        with store.write() as connection:
            connection.exec_driver_sql("CREATE TABLE written (number INTEGER)")
        fork = multiprocessing.get_context("fork")
        found = fork.SimpleQueue()
        thread = threading.Thread(target=read)
        thread.start()
        assert reading.wait(HANG_S)
        child = fork.Process(target=write)
        child.start()
        child.join(HANG_S)
        done.set()
        thread.join(HANG_S)
        assert child.exitcode == 0
        assert "forked in the middle of a read of it, and cannot write" in found.get()


def test_a_question_is_asked_once(service: Service, database: str) -> None:
    for where in (service.url, database):
        with plevel_database(where) as known:
            assert known.measured(dense(8), TARGET, None) is known.measured(dense(8), TARGET, None)


def test_no_database_yet_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("PLEVEL_URL", "PLEVEL_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    place = locate(None, None)
    with connect(place.url, place.database) as records:
        assert records.select(dense(8), TARGET).reason is Reason.PLEVEL
    assert not any(tmp_path.iterdir())
    path = tmp_path / "named.db"
    with pytest.raises(UnreachableError, match="no such file"), plevel_database(path):
        pass
    assert not path.exists()
    path.write_text("{")
    with pytest.raises(LockError, match=f"^{path}: not a lock file"), plevel_database(path):
        pass


def test_a_lock_is_sorted_and_whole(lock: Path) -> None:
    text = lock.read_text()
    read = Lock.read(text)
    assert read.write() == text
    assert Lock.make(reversed([s.selection() for s in read.selections])).write() == text
    changed = json.loads(text)
    changed["selections"][0]["implementation"] = "dense_mine.cpu"
    for bad, message in (
        (json.dumps(changed), "write it again"), ("[]", "not a lock file"), ("{", "not a lock file"),
        ('{"digest":"","selections":[],"version":2}', "update plevel"),
    ):
        with pytest.raises(LockError, match=message):
            Lock.read(bad)


def test_a_client_falls_back_to_its_lock(lock: Path, service: Service) -> None:
    read = Lock.read(lock.read_bytes())
    with Client("http://127.0.0.1:9", patience_s=0.0, lock=read) as client:
        answer = client.select(dense(8), TARGET)
        assert answer == read.select(dense(8), TARGET).selection(TARGET)
        assert answer.explanation.endswith(f"; from the lock's entry for {TARGET}")
        inside = TARGET.in_network()
        assert client.select(dense(8), inside).target == inside
        texts = (str(dense(8)), SPEC)
        assert client.select(*texts) == client.select(dense(8), TARGET)
        with pytest.raises(UnreachableError, match="not in the lock"):
            client.select(dense(9), TARGET)
        with pytest.raises(UnreachableError):
            client.select(dense(8), TARGET, policy="tvm")
    stale = LockDatabase(Lock(selections=()))
    with pytest.raises(SelectionError, match="not in the lock"):
        stale._lock.select(dense(8), TARGET)
    with Client(service.url, lock=Lock(selections=())) as client:
        assert client.select(dense(8), TARGET).reason is Reason.MEASURED
        assert client.select(*texts) == client.select_many([texts])[0] == client.select(dense(8), TARGET)
        assert client.evidence(*texts) == client.evidence(dense(8), TARGET)
        symbolic = dense("m")
        assert client.dispatch(str(symbolic), texts[1]) == client.dispatch(symbolic, TARGET)


MODEL = {
    "workloads": [
        {"op": "dense", "inputs": [f"data=float32[{m},64]", "weight=float32[128,64]:const"]}
        for m in (8, 16, 24)
    ]
}


def test_a_model_is_locked_and_compared(plevel: Plevel, sqlite_copy: str, tmp_path: Path) -> None:
    path, locked, model = (tmp_path / n for n in ("plevel.db", "plevel.lock", "model.json"))
    fill(sqlite_copy)
    model.write_text(json.dumps(MODEL))
    there = ("--database", str(path))
    code, out, _ = plevel("lock", str(model), "-o", str(locked), "--target", SPEC, *there)
    assert (code, "3 selections, 2 of them measured" in out) == (0, True)
    text = locked.read_text()
    plevel("lock", str(model), "-o", str(locked), "--target", SPEC, *there)
    assert locked.read_text() == text

    asked = ("-i", "data=float32[8,64]", "-i", "weight=float32[128,64]:const", "--target", SPEC)
    code, offline, _ = plevel("select", "dense", *asked, "--lock", str(locked), "--json")
    _, online, _ = plevel("select", "dense", *asked, *there, "--json")
    _, nowhere, _ = plevel("select", "dense", *asked, *there, "--namespace", "other", "--json")
    assert json.loads(nowhere)["reason"] == "plevel"
    for name in ("implementation", "config", "reason", "target"):
        assert json.loads(offline)[name] == json.loads(online)[name]
    entry = f"from the lock's entry for {TARGET}"
    assert json.loads(offline)["explanation"] == f"{json.loads(online)['explanation']}; {entry}"
    assert plevel("select", "dense", *asked, "--lock", str(locked))[0] == 0
    assert plevel("select", "dense", *asked, "--lock", str(locked), *there)[0] == 2
    assert plevel("select", "dense", *asked, "--lock", str(model))[0] == 2
    assert plevel("select", "dense", "-i", "data=float32[9,64]", *asked[2:], "--lock", str(locked))[0] == 1

    code, out, _ = plevel("lock", "--check", str(locked), *there)
    assert (code, "3 selections unchanged since the lock" in out) == (0, True)
    assert plevel("check", "--against", str(locked), *there)[0] == 0
    code, out, _ = plevel("check", "--against", str(locked), *there, "--namespace", "other")
    assert (code, out.count("is no longer measured")) == (1, 2)

    store = Store(str(path))
    import_items(store, [measured(16, 1, 1e-3), measured(24, 0, 5e-3)])
    _, out, _ = plevel("lock", "--check", str(locked), *there, "--json")
    changes = {c["workload"]: c["ratio"] for c in json.loads(out)["changed"]}
    assert changes == {dense(16).key: pytest.approx(1 / 3), dense(24).key: 0.0}
    assert plevel("check", "--against", str(locked), *there)[0] == 0

    import_items(store, [measured(8, 1, 4e-3, at=2.0), measured(8, 1, 4e-3, at=3.0)])
    code, out, err = plevel("check", "--against", str(locked), *there)
    # 1 ms and 4 ms of one configuration are no interval to choose by: the other one, at 2 ms, is taken.
    assert (code, "2.00× the 1.00 ms" in out, "1 of 3 selections" in err) == (1, True, True)
    assert plevel("check", "--against", str(locked), *there, "--tolerance", "350%")[0] == 0
    assert plevel("check", "--against", str(locked), *there, "--tolerance", "99.9%")[0] == 1
    with store.write() as c:
        c.execute(sa.text("DELETE FROM best"))
        c.execute(sa.delete(record))
    store.close()
    code, out, _ = plevel("check", "--against", str(locked), *there)
    assert (code, out.count("is no longer measured")) == (1, 2)


def test_lock_says_how_it_is_used(plevel: Plevel, tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_bytes(msgspec.json.encode(MODEL))
    assert plevel("lock", str(model))[0] == 2
    assert plevel("lock", str(model), "--check", "-o", str(tmp_path / "x"))[0] == 2
    assert plevel("lock", str(model), "--check")[0] == 2
    assert plevel("check", "--against", str(tmp_path / "none"))[0] == 2
    code, _, err = plevel("lock", str(model), "-o", str(tmp_path), "--target", SPEC)
    assert (code, "--out" in err) == (2, True)
