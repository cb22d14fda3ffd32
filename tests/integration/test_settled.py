"""Readers that follow the log on PostgreSQL, whose transactions commit in another order than they take ids."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa

from plevel.direct import Direct
from service.formats import ImportedRecord
from service.queue import report as reporting
from service.records import log, settled
from service.records.batch import Batch
from service.records.importer import Importer, import_items
from service.store.db import Store
from service.store.tables import job, job_entry, record, run
from strategy.record import Reference, Report, Results
from tests.integration.scene import FAST, SLOW, TERMS, Scene, configs, timed
from tests.integration.test_import import made
from tests.integration.test_partition import SCRIPT

DOCS = SCRIPT.parents[2] / "docs/database.md"
Write = Callable[[sa.Connection], object]


@pytest.fixture(params=[False, True], ids=["one table", "partitions"])
def url(request: pytest.FixtureRequest, postgres_copy: str) -> str:
    if request.param:
        with psycopg.connect(postgres_copy) as c:
            c.execute(SCRIPT.read_text())
            c.execute("CALL plevel_partition()")
    return postgres_copy


@pytest.fixture
def stores(url: str) -> Iterator[tuple[Store, Store]]:
    one, other = Store(url), Store(url)
    yield one, other
    one.close()
    other.close()


def items(number: int, implementation: str = FAST.implementation, session: str = "") -> list[ImportedRecord]:
    """Records of one task."""
    found = [made(i % 144, (1.0 + i,), session=session) for i in range(number)]
    of = msgspec.structs.replace(found[0].task, implementation=implementation)
    return [msgspec.structs.replace(one, task=of) for one in found]


def importing(store: Store, rows: list[ImportedRecord]) -> Write:
    """The import of records in a transaction that is given."""
    batch = Batch("default")
    for row in rows:
        batch.add(row)
    return lambda c: Importer(store)._write(c, batch, None)


def ids_after(store: Store, cursor: int) -> list[int]:
    page = Direct(store).records(cursor=cursor, limit=1000)
    return [row["id"] for row in page["records"]]


@pytest.mark.parametrize("number", [1, 150], ids=["by a statement", "by COPY"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_record_that_is_committed_late_is_not_passed_over(
    stores: tuple[Store, Store], number: int, commits: bool
) -> None:
    one, other = stores
    import_items(one, [*items(1), *items(1, SLOW.implementation)])
    (*_, cursor) = ids_after(other, 0)
    late = one.engine.connect()
    with late, late.begin() as transaction:
        importing(one, items(number, session="late"))(late)
        import_items(other, items(2, SLOW.implementation, "early"))
        with other.read() as c:
            stored = c.scalars(sa.select(record.c.id).where(record.c.id > cursor)).all()
        assert len(stored) == 2, "one of them would be the reader's next cursor"
        assert ids_after(other, cursor) == []
        newest = Direct(other).records(newest=True, limit=1)["records"]
        assert newest[0]["id"] == max(stored), "nobody resumes from there"
        (transaction.commit if commits else transaction.rollback)()
    found = ids_after(other, cursor)
    assert found == sorted(found) and set(stored) < {*found, 0}
    assert len(found) == 2 + commits * number


def test_what_begins_while_a_reader_looks_is_left_to_its_next_page(stores: tuple[Store, Store]) -> None:
    one, reader = stores
    import_items(one, [*items(1), *items(1, SLOW.implementation)])
    begun: list[Any] = []

    def begin(*_: object) -> None:
        """After the first statement of its look, a transaction begins, and one behind it ends."""
        if not begun:
            begun.append(one.engine.connect())
            begun[0].begin()
            importing(one, items(1, session="late"))(begun[0])
            import_items(one, items(1, SLOW.implementation, "early"))

    with reader.read():  # a connection that is set up
        sa.event.listen(reader.engine, "after_cursor_execute", begin)
    assert ids_after(reader, 2) == []
    begun[0].commit()
    assert len(ids_after(reader, 2)) == 2
    begun[0].close()


def test_transactions_that_store_no_records_hold_nobody_up(stores: tuple[Store, Store]) -> None:
    one, other = stores
    Scene.make(one)
    idle = one.engine.connect()
    with idle, idle.begin():
        idle.execute(sa.update(run).values(message="a transaction that writes"))
        idle.execute(sa.select(sa.func.count()).select_from(record))
        import_items(other, items(3))
        assert len(ids_after(other, 0)) == 3


def test_the_first_record_of_a_database_may_be_late(stores: tuple[Store, Store]) -> None:
    one, other = stores
    late = one.engine.connect()
    with late, late.begin():
        importing(one, items(1))(late)
        assert settled.find(other) == 0
        (shown,) = re.findall(r"^    (SELECT pid, .*\n    .*);$", DOCS.read_text(), re.MULTILINE)
        with other.read() as c:
            (waited_for,) = c.exec_driver_sql(shown).all()
        assert waited_for.pid == late.scalar(sa.text("SELECT pg_backend_pid()"))
    assert settled.find(other) == 1


@pytest.fixture
def guarded(stores: tuple[Store, Store]) -> Store:
    """A store in which no id of a record can be taken by a transaction that has not announced it."""
    (store, _) = stores
    with store.write() as c:
        c.exec_driver_sql(
            "CREATE FUNCTION announced_id() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN "
            "IF NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() "
            f"AND classid::bigint >> 8 = {settled._KIND}) THEN RAISE EXCEPTION 'not announced'; END IF; "
            "RETURN nextval('record_id_seq'); END $$"
        )
        c.exec_driver_sql("ALTER TABLE record ALTER id SET DEFAULT announced_id()")
    return store


def test_all_that_stores_records_announces_them(guarded: Store) -> None:
    with pytest.raises(sa.exc.DBAPIError, match="not announced"), guarded.engine.begin() as c:
        c.execute(sa.insert(record).values(source="plevel"))
    import_items(guarded, items(1))
    import_items(guarded, items(200, session="more"))
    scene = Scene.make(guarded)
    scene.enqueue(configs(3))
    worker = scene.register()
    held = scene.leased(worker)
    first, second, third = map(timed, held.job.entries)
    assert scene.report(held, [first], done=False).accepted == 1
    sent = [Results(token=held.token, session="s", results=(second,))]
    calibration = Reference(samples_s=(1e-4, 1e-4), measured_at=1.0)
    sent.append(Results(token=held.token, session="s", results=(third,), references=(calibration,), done=True))
    for results in sent:
        with guarded.write() as c:
            reporting.report_many(c, [Report(lease_id=held.id, results=results)], TERMS)
    lost = scene.enqueue(configs(5)[4:])
    with guarded.write() as c:
        row = c.execute(sa.select(job).where(job.c.id == lost)).one()
        entries = c.execute(sa.select(job_entry).where(job_entry.c.job_id == lost)).all()
        log.append_lost(c, row, entries, "its worker was lost")
    with guarded.read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(record)) == 1 + 200 + 3 + 1 + 1


def test_a_follower_sees_each_record_once_while_several_write(
    url: str, stores: tuple[Store, Store], full: bool
) -> None:
    """Reports and imports of several tasks, some of which are rolled back."""
    reader, _ = stores
    rounds = 60 if full else 15
    names = [f"filter_{i}.cpu" for i in range(4)]
    for name in names:
        import_items(reader, items(1, name))
    seen: list[int] = []
    ended = threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = ended.is_set()
            while found := ids_after(reader, seen[-1] if seen else 0):
                seen.extend(found)

    def write(number: int) -> None:
        rng = random.Random(number)
        with closing(Store(url)) as store:
            for i in range(rounds):
                size = rng.choice((1, 3, 120))
                act = importing(store, items(size, names[number], f"{number}-{i}"))
                with store.engine.connect() as c, c.begin() as transaction:
                    act(c)
                    ended.wait(rng.uniform(0.0, 0.01))
                    if rng.random() < 0.2:
                        transaction.rollback()

    with ThreadPoolExecutor(5) as pool:
        following = pool.submit(follow)
        try:
            list(pool.map(write, range(4)))
        finally:
            ended.set()
        following.result()
    with reader.read() as c:
        stored: Any = c.scalars(sa.select(record.c.id).order_by(record.c.id)).all()
    assert seen == list(stored)
