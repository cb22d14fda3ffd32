"""A database of every past schema, with records in it: upgraded, whole, and of use."""

from __future__ import annotations

import json
import sqlite3
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.access import token as token_module
from service.errors import ForbiddenError, SchemaError
from service.formats import ImportedRecord, Source, read
from service.queue import fleet
from service.records import exporter, retention, tvm_history
from service.records import network as networks
from service.records.filter import Wanted
from service.records.importer import import_items
from service.selection.database import RecordDatabase
from service.store import migration
from service.store.db import Store
from service.store.tables import (
    TokenScope,
    advice,
    attachment,
    best,
    device,
    device_owner,
    job,
    network,
    record,
    run,
    target_variant,
    task,
    token,
    tombstone,
)
from service.store.tables import history as history_table
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status
from strategy.select import select
from strategy.space import Config
from tests.browser.seed import confirmation
from tests.integration.derived import assert_derived
from tests.integration.scene import CANDIDATES, FAST, TARGET, WORKLOAD, drawn, info
from tests.integration.scene import device as describe

# By way of all later schemas, so that each is upgraded to on both.
pytestmark = pytest.mark.in_turn("url", *(f"url_{number:04}" for number in range(2, 10)))

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of schema 0001 with what the frozen one has."""
    return _thaw("0001", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0002(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0002, with a log of AutoTVM's, of which a record was purged."""
    return _thaw("0002", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0003(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0003, with a token."""
    return _thaw("0003", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0004(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0004."""
    return _thaw("0004", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0005(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0005, with equal live runs and a device that got another model."""
    return _thaw("0005", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0006(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0006, with MetaSchedule's log in three namespaces.

    The same records are in `other` with a module of their own, and one is in `bare` without any.
    """
    return _thaw("0006", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0007(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0007."""
    return _thaw("0007", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0008(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0008."""
    return _thaw("0008", request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url_0009(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same after its upgrade to 0009."""
    return _thaw("0009", request, tmp_path)


def _thaw(revision: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "frozen.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((DATA / f"schema_{revision}.sql").read_text())
    connection.close()
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    found: str = request.getfixturevalue("postgres_url")
    _copy(f"sqlite:///{path}", found, revision)
    return found


def _copy(source: str, url: str, revision: str) -> None:
    from alembic import command

    with migration._moving(url) as (_, connection):
        command.upgrade(migration._config(connection), revision)
        meta = sa.MetaData()
        meta.reflect(connection)
        origin = sa.create_engine(source)
        with origin.connect() as old:
            theirs = sa.MetaData()
            theirs.reflect(old)
            for table in meta.sorted_tables:
                if table.name == "alembic_version":
                    continue
                rows = [dict(r._mapping) for r in old.execute(sa.select(theirs.tables[table.name]))]
                if rows:
                    connection.execute(sa.insert(table), rows)
                if "id" in table.c:
                    connection.exec_driver_sql(
                        f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "
                        f"(SELECT coalesce(max(id), 0) + 1 FROM {table.name}), false)"
                    )
        origin.dispose()


def _rows(store: Store, table: sa.Table) -> list[dict[str, Any]]:
    with store.read() as c:
        return [dict(r._mapping) for r in c.execute(sa.select(table))]


def test_schema_0001_is_carried_forward(url: str) -> None:
    assert migration.current(url) == "0001"
    assert migration.upgrade(url) == migration.head()
    store = Store(url)
    try:
        records = _rows(store, record)
        assert len(records) == 17
        assert {r["source"] for r in records} == {"plevel"}
        assert len({r["identity"] for r in records}) == 17
        spaces = {t["implementation"]: t["space_digest"] for t in _rows(store, task)}
        assert spaces[FAST.implementation] == FAST.version.partition(".")[2]
        assert [v["body"] for v in _rows(store, target_variant)] == [TARGET.to_json()]
        with store.read() as c:
            answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES)
            assert (answer.implementation, answer.config) == (
                FAST.implementation, Config({"x": 2, "y": 0}),
            )
            assert run_status.recent(c, 10, 60.0)[0].tasks
    finally:
        store.close()


def test_what_was_carried_forward_is_known_when_it_comes_back(url: str, tmp_path: Path) -> None:
    migration.upgrade(url)
    store = Store(url)
    try:
        items = list(exporter.export_items(store))
        summary = import_items(store, items)
        assert (summary.new, summary.known) == (0, 17)
    finally:
        store.close()
    other = f"sqlite:///{tmp_path / 'other.db'}"
    migration.upgrade(other)
    store = Store(other)
    try:
        # Two that were lost are alike in everything: one record, read twice.
        assert import_items(store, items).new == 16
        assert len(_rows(store, best)) > 0
    finally:
        store.close()


@pytest.mark.full
def test_schema_0002_goes_back_unless_that_loses_something(url: str) -> None:
    migration.upgrade(url)
    migration.downgrade(url, "0001")
    assert migration.current(url) == "0001"
    migration.upgrade(url)
    store = Store(url)
    try:
        with store.write() as c:
            c.execute(sa.update(record).values(run_id=None, job_id=None, entry=None))
    finally:
        store.close()
    with pytest.raises(SchemaError, match=r"cannot hold .*\(\d+ imported records"):
        migration.downgrade(url, "0001")
    assert migration.current(url) == migration.head()


@pytest.mark.full
def test_schema_0002_is_carried_forward(url_0002: str) -> None:
    assert migration.current(url_0002) == "0002"
    assert migration.upgrade(url_0002) == migration.head()
    store = Store(url_0002)
    try:
        purged = {t["record_id"] for t in _rows(store, tombstone)}
        records = _rows(store, record)
        assert (len(records), len(purged)) == (37, 1)
        # The columns of TVM's rule are filled in, with the values they would have now.
        kept = _rows(store, history_table)
        lowest: dict[tuple[int, int], float] = {}
        for r in records:
            if r["mean_s"] is not None and r["id"] not in purged:
                key = r["task_id"], r["variant_id"]
                lowest[key] = min(r["mean_s"], lowest.get(key, r["mean_s"]))
        assert {(h["task_id"], h["variant_id"]) for h in kept} == lowest.keys()
        assert min(h["mean_s"] for h in kept) == min(lowest.values())
        with store.write() as c:
            tvm_history.derive(c, {r["task_id"] for r in records})
        order = "task_id", "variant_id", "model"
        assert sorted(_rows(store, history_table), key=lambda h: [h[n] for n in order]) == sorted(
            kept, key=lambda h: [h[n] for n in order]
        )
        with (DATA / "formats" / "autotvm_0_2.log").open("rb") as file:
            again = import_items(store, read(Source(file, "autotvm_0_2.log")))
        assert (again.new, again.known) == (0, 20)
        with store.read() as c:
            answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES)
        assert answer.implementation == FAST.implementation
    finally:
        store.close()


@pytest.mark.full
def test_schema_0002_is_gone_back_to(url_0002: str) -> None:
    migration.upgrade(url_0002)
    migration.downgrade(url_0002, "0002")
    assert migration.current(url_0002) == "0002"
    assert migration.upgrade(url_0002) == migration.head()


def test_schema_0003_is_carried_forward_and_gone_back_to(url_0003: str) -> None:
    assert migration.current(url_0003) == "0003"
    assert migration.upgrade(url_0003) == migration.head()
    store = Store(url_0003)
    try:
        assert {t["namespace"] for t in _rows(store, task)} == {"default"}
        assert [t["namespace"] for t in _rows(store, token)] == [None]
        with store.read() as c:
            assert run_status.recent(c, 10, 60.0)
            answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=CANDIDATES)
        assert answer.implementation == FAST.implementation
        migration.downgrade(url_0003, "0003")
        assert migration.upgrade(url_0003) == migration.head()
        with (DATA / "formats" / "autotvm_0_2.log").open("rb") as file:
            items = list(read(Source(file, "autotvm_0_2.log")))
        assert import_items(store, items).new == 0
        assert import_items(store, items, namespace="other").new == 20
    finally:
        store.close()
    with pytest.raises(SchemaError, match=r"cannot hold .*\(\d+ tasks of other namespaces"):
        migration.downgrade(url_0003, "0003")


@pytest.mark.full
def test_schema_0004_is_carried_forward_and_gone_back_to(url_0004: str) -> None:
    def put(error: str) -> None:
        store = Store(url_0004)
        try:
            with store.write() as c:
                failed = sa.select(sa.func.min(record.c.id)).where(record.c.error.is_not(None))
                c.execute(
                    sa.update(record)
                    .where(record.c.id == failed.scalar_subquery())
                    .values(error=error)
                )
        finally:
            store.close()

    assert migration.current(url_0004) == "0004"
    with pytest.raises(sa.exc.IntegrityError):
        put("out_of_bounds")
    assert migration.upgrade(url_0004) == migration.head()
    put("implausible")
    put("out_of_bounds")
    with pytest.raises(sa.exc.IntegrityError):
        put("bad_luck")
    with pytest.raises(SchemaError, match="1 errors of kind out_of_bounds"):
        migration.downgrade(url_0004, "0004")
    assert migration.current(url_0004) == migration.head()
    put("wrong_answer")
    migration.downgrade(url_0004, "0004")
    with pytest.raises(sa.exc.IntegrityError):
        put("out_of_bounds")
    assert migration.upgrade(url_0004) == migration.head()


@pytest.mark.full
def test_schema_0005_is_carried_forward(url_0005: str) -> None:
    """Of equal live runs the oldest goes on; what a device was renamed from is the best of nothing."""
    assert migration.current(url_0005) == "0005"
    assert migration.upgrade(url_0005) == migration.head()
    store = Store(url_0005)
    try:
        states = {r["id"]: (r["state"], r["forced"]) for r in _rows(store, run)}
        assert states == {
            1: ("running", False), 2: ("running", False), 3: ("cancelled", False),
            4: ("running", True), 5: ("cancelled", True),
        }
        with store.write() as c:
            assert run_status.status(c, 3, 60.0).message == "cancelled: the equal run 2 was under way, and goes on"
            assert not c.scalars(
                sa.select(job.c.id).where(job.c.run_id == 3, job.c.state == "queued")
            ).all()
            asked = drawn(seed=77)
            planned = planning.plan(asked)
            # Finals have had another policy since, so that no request by default is equal to one of then.
            c.execute(sa.update(run).where(run.c.id == 2).values(digest=runs._digest(asked, planned)))
            assert runs.create(c, asked, planned) == 2
        owners = {r["identity"]: r["owner"] for r in _rows(store, device_owner)}
        assert owners == {"host-a/cpu:0-1": None, "host-b/cpu:0-1": None, "host-c/cpu:0": "lab-7"}
        assert_derived(store)
        # A device that is described as it was goes on with its history.
        with store.write() as c:
            before = set(c.scalars(sa.select(device.c.id)))
            token_id = c.scalar(sa.select(token.c.id).where(token.c.name == "lab-7"))
            fleet.register(c, info(describe("host-c/cpu:0", model="Model D")), token_id)
            assert set(c.scalars(sa.select(device.c.id))) == before
            with pytest.raises(ForbiddenError, match="belongs to token 'lab-7'"):
                fleet.register(c, info(describe("host-c/cpu:0")), other_token(c))
    finally:
        store.close()


def other_token(c: sa.Connection) -> int:
    return token_module.create(c, "other", [TokenScope.WORKER]).id


@pytest.mark.full
def test_schema_0005_is_gone_back_to_unless_a_device_has_changed(url_0005: str) -> None:
    migration.upgrade(url_0005)
    migration.downgrade(url_0005, "0005", lose=True)
    assert migration.current(url_0005) == "0005"
    migration.upgrade(url_0005)
    store = Store(url_0005)
    try:
        with store.write() as c:
            fleet.register(c, info(describe("host-c/cpu:0", model="Model E")))
    finally:
        store.close()
    with pytest.raises(SchemaError, match="1 devices with several histories"):
        migration.downgrade(url_0005, "0005")


def test_schema_0006_is_carried_forward(url_0006: str) -> None:
    """Modules get the key of their content; exports are as they were, and nothing is new twice."""
    pair = [DATA / "formats" / f"database_{n}.json" for n in ("workload", "tuning_record")]
    lines = [p.read_bytes() for p in pair]
    theirs = [json.dumps([json.loads(lines[0])[0], "dGhlaXJz"], separators=(",", ":")).encode() + b"\n"]
    theirs.append(lines[1])
    assert migration.current(url_0006) == "0006"
    assert migration.upgrade(url_0006) == migration.head()
    store = Store(url_0006)
    try:
        for namespace, files in {"default": lines, "other": theirs}.items():
            wanted = Wanted(namespace=namespace)
            assert b"".join(exporter.export(store, "metaschedule", wanted)) == b"".join(files)
            with BytesIO(b"".join(files)) as file:
                again = import_items(store, read(Source(file), "metaschedule"), namespace=namespace)
            assert (again.new, again.known) == (0, len(files[1].splitlines()))
            native = b"".join(exporter.export(store, "native", wanted))
            assert import_items(store, read(Source(BytesIO(native))), namespace=namespace).new == 0
        # A record without a module is as it was.
        (bare,) = exporter.export_items(store, Wanted(namespace="bare"))
        assert isinstance(bare, ImportedRecord)
        assert "module" not in bare.task.workload.attrs
        assert import_items(store, [bare], namespace="bare").known == 1
        with store.read() as c:
            modules = sa.select(attachment.c.key).where(attachment.c.what == "module")
            assert len(c.scalars(modules).all()) == 2
        assert_derived(store)
    finally:
        store.close()
    with pytest.raises(SchemaError, match="modules of MetaSchedule by their content"):
        migration.downgrade(url_0006, "0006")


@pytest.mark.full
def test_schema_0006_is_gone_back_to_without_modules(url_0005: str) -> None:
    migration.upgrade(url_0005)
    migration.downgrade(url_0005, "0006")
    assert migration.current(url_0005) == "0006"
    assert migration.upgrade(url_0005) == migration.head()


@pytest.mark.full
def test_schema_0007_is_carried_forward_and_gone_back_to_without_advice(url_0007: str) -> None:
    sample = DATA / "foreign" / "E=128,N=384,device_name=NVIDIA_H20-3e.json"
    assert migration.current(url_0007) == "0007"
    assert migration.upgrade(url_0007) == migration.head()
    store = Store(url_0007)
    try:
        before = len(_rows(store, record))
        with sample.open("rb") as file:
            assert import_items(store, read(Source(file, sample.name))).new == 3
        assert len(_rows(store, advice)) == 3
        assert len(_rows(store, record)) == before
        assert_derived(store)
    finally:
        store.close()
    with pytest.raises(SchemaError, match="3 winners without a time"):
        migration.downgrade(url_0007, "0007")
    migration.downgrade(url_0007, "0007", lose=True)
    assert migration.upgrade(url_0007) == migration.head()


def test_schema_0008_is_carried_forward_and_gone_back_to_without_networks(url_0008: str) -> None:
    assert migration.current(url_0008) == "0008"
    assert migration.upgrade(url_0008) == migration.head()
    store = Store(url_0008)
    try:
        with store.write() as c:
            networks.put(c, confirmation(), "default")
        assert len(_rows(store, network)) == 1
        assert_derived(store)
    finally:
        store.close()
    with pytest.raises(SchemaError, match="1 confirmations of networks"):
        migration.downgrade(url_0008, "0008")
    migration.downgrade(url_0008, "0008", lose=True)
    assert migration.upgrade(url_0008) == migration.head()


def test_schema_0009_is_carried_forward_and_gone_back_to_without_purged_advice(url_0009: str) -> None:
    assert migration.current(url_0009) == "0009"
    assert migration.upgrade(url_0009) == migration.head()
    (sample,) = (DATA / "foreign").glob("*.best_config")
    store = Store(url_0009)
    try:
        import_items(store, read(Source(BytesIO(sample.read_bytes()), sample.name)))
        with store.write() as c:
            which = retention.Doubtful(source="helion")
            assert retention.purge_doubtful(c, which, "a bad host").advice == 1
        assert_derived(store)
    finally:
        store.close()
    with pytest.raises(SchemaError, match="1 purged winners"):
        migration.downgrade(url_0009, "0009")
    migration.downgrade(url_0009, "0009", lose=True)
    assert migration.upgrade(url_0009) == migration.head()
    store = Store(url_0009)
    try:
        assert _rows(store, advice) == []  # nothing answers again
    finally:
        store.close()
