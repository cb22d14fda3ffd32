"""The log on PostgreSQL in partitions, by the script that operators run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from service.records import retention
from service.records.importer import import_items
from service.records.retention import Doubtful
from service.store import sql
from service.store.db import Store
from service.store.tables import record, tombstone
from tests.integration.scene import Scene, configs, timed
from tests.integration.test_import import bests, count, made

SCRIPT = Path(__file__).parents[2] / "deploy/postgresql/partition.sql"


@pytest.fixture
def store(postgres_copy: str) -> Iterator[Store]:
    found = Store(postgres_copy)
    yield found
    found.close()


@pytest.fixture
def admin(store: Store) -> Iterator[psycopg.Connection[Any]]:
    """A connection as of an operator's psql, which has run the script."""
    url = store.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCRIPT.read_text())
        yield connection


def partition(admin: psycopg.Connection[Any], name: str) -> None:
    admin.execute("CALL plevel_partition()")
    (made_now,) = admin.execute("SELECT 'record_' || to_char(now(), 'YYYY_MM')").fetchone() or ("",)
    admin.execute(f"ALTER TABLE {made_now} RENAME TO {name}")


def spread(store: Store) -> dict[str, int]:
    with store.read() as c:
        rows = c.execute(sa.text("SELECT tableoid::regclass::text, count(*) FROM record GROUP BY 1"))
        return {str(name): int(number) for name, number in rows}


def records(seed: int, number: int) -> list[Any]:
    rng = random.Random(seed)
    return [made(rng.randrange(144), (rng.uniform(1.0, 2.0),), session=f"{seed}-{i}") for i in range(number)]


def test_a_partitioned_log_is_the_same_log(store: Store, admin: psycopg.Connection[Any]) -> None:
    first, second = records(0, 50), records(1, 30)
    import_items(store, first)
    before = bests(store)
    partition(admin, "record_2026_01")
    assert spread(store) == {"record_2026_01": 50} and bests(store) == before
    summary = import_items(store, [*first, *second])
    assert (summary.new, summary.known) == (30, 50)
    assert spread(store) == {"record_2026_01": 50, "record_open": 30}
    scene = Scene.make(store)
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    results = [timed(entry) for entry in held.job.entries]
    assert scene.report(held, results, done=False).accepted == 3
    assert scene.report(held, results).known == 3
    partition(admin, "record_2026_02")
    import_items(store, records(2, 5))
    assert spread(store) == {"record_2026_01": 50, "record_2026_02": 33, "record_open": 5}
    with store.read() as c:
        ids = c.scalars(sa.select(record.c.id).order_by(record.c.recorded_at, record.c.id)).all()
    assert list(ids) == sorted(ids)
    with store.write() as c:
        assert retention.purge_doubtful(c, Doubtful(worker="worker"), "overheated").records == 3
    assert bests(store).keys() == before.keys()


def test_a_thin_partition_keeps_the_best(store: Store, admin: psycopg.Connection[Any]) -> None:
    import_items(store, records(0, 60))
    with store.write() as c:
        purged = retention.purge_doubtful(c, Doubtful(until=20.0), "the fan was off").records
    before = bests(store)
    partition(admin, "record_2026_01")
    import_items(store, records(1, 10))
    after = bests(store)
    with pytest.raises(psycopg.errors.RaiseException, match="takes new records"):
        admin.execute("SELECT plevel_thin('record_open')")
    (gone,) = admin.execute("SELECT plevel_thin('record_2026_01')").fetchone() or (0,)
    assert 0 < purged < gone < 60
    assert spread(store) == {"record_2026_01": 60 - gone, "record_open": 10}
    assert bests(store) == after and before and count(store, tombstone) == 0
    with store.write() as c:  # what stands is derived from what is left, too
        retention.purge_doubtful(c, Doubtful(source="plevel", since=1e9), "none")
    import_items(store, records(2, 10))
    assert spread(store)["record_open"] == 20
    tables = admin.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'record'::regclass").fetchone()
    assert tables == (2,)


def test_many_records_at_once_are_copied_into_the_partition_that_takes_them(
    store: Store, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    text_of = sql._bytea
    monkeypatch.setattr(sql, "_bytea", lambda value: (copied.append(1), text_of(value))[1])
    import_items(store, records(0, 50))
    partition(admin, "record_2026_01")
    assert not copied
    many = records(1, 300)
    assert len(many) > sql.COPIED
    summary = import_items(store, many)
    assert (summary.new, summary.known) == (300, 0) and copied
    assert spread(store) == {"record_2026_01": 50, "record_open": 300}
    summary = import_items(store, [*many, *records(2, 200)])
    assert (summary.new, summary.known) == (200, 300)
    assert spread(store) == {"record_2026_01": 50, "record_open": 500}
    with store.read() as c:
        ids = c.scalars(sa.select(record.c.id).order_by(record.c.recorded_at, record.c.id)).all()
    assert list(ids) == sorted(ids) and len(set(ids)) == 550


def test_a_month_has_one_partition(store: Store, admin: psycopg.Connection[Any]) -> None:
    admin.execute("CALL plevel_partition()")
    with pytest.raises(psycopg.errors.RaiseException, match="call again next month"):
        admin.execute("CALL plevel_partition()")
