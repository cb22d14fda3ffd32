"""Imports into a database that is full or goes away, of a file that grows: nothing lost or half-done."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psycopg
import pytest
import sqlalchemy as sa

from service.access import audit
from service.access.auth import LOCAL
from service.api import selection, transfer
from service.api.wire import QUESTION
from service.errors import DatabaseError, InvalidError, TooSlowError, UnansweredError
from service.formats import ImportedRecord, Source, native, read
from service.records.importer import import_items
from service.records.reading_message import Order
from service.store import catalogue, db
from service.store.db import Store
from service.store.tables import best, environment, workload
from strategy.record import decode, encode
from tests.integration.test_import import bests, count, expected_best, made

pytestmark = pytest.mark.in_turn("url")

ROWS = [made(i % 30, (1.0 + i,), measured_at=float(i)) for i in range(60)]


def assert_whole(store: Store) -> None:
    """Batches of ten are there or not, each with what follows from it."""
    assert count(store) % 10 == 0
    stored = ROWS[: count(store)]
    assert {k[1:]: v[:3] for k, v in bests(store).items()} == (
        expected_best(stored) if stored else {}
    )


def assert_goes_on(store: Store) -> None:
    before = count(store)
    summary = import_items(store, ROWS, batch=10)
    assert (summary.new, summary.known) == (60 - before, before)
    assert_whole(store)


def test_a_full_disk_is_said_and_leaves_whole_batches(sqlite_copy: str) -> None:
    full = Store(sqlite_copy)

    def limit(connection: object, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}").close()

    sa.event.listen(full.engine, "connect", limit)
    rows = [made(i % 30, (1.0 + i,) * 400, measured_at=float(i)) for i in range(60)]
    with pytest.raises(DatabaseError, match="disk is full: free space on the disk of /") as caught:
        import_items(full, rows, batch=10)
    assert "\n" not in str(caught.value)
    assert caught.value.told.endswith("disk is full: free space on the disk of its file")
    assert count(full) % 10 == 0
    assert count(full) < 60
    full.close()
    store = Store(sqlite_copy)
    before = count(store)
    summary = import_items(store, rows, batch=10)
    assert (summary.new, summary.known) == (60 - before, before)
    store.close()


def test_a_locked_file_is_named_with_what_to_look_for(sqlite_copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.db._PRAGMAS", (*db._PRAGMAS, "busy_timeout = 1"))
    path = sqlite_copy.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as other, contextlib.closing(Store(sqlite_copy)) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseError, match=f"is locked: see which program holds {path}"), store.write():
            pass


def test_a_batch_of_selections_is_refused_as_a_whole_once_its_database_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(*_: object) -> NoReturn:
        raise sa.exc.OperationalError("SELECT", {}, sqlite3.OperationalError("gone"))

    monkeypatch.setattr(selection, "_select", ask)
    context: Any = SimpleNamespace(store=store)
    body = decode(encode({"requests": [QUESTION] * 3}), selection.BatchRequest)
    with pytest.raises(UnansweredError, match="does not answer: gone"):
        selection._choose_many(context, "default", body)
    assert not caplog.records  # of which there would be a trace for each


def test_an_import_that_ends_in_the_middle_is_in_the_audit_log(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.records.importer.BATCH", 10)

    def cut(*_: object) -> Iterator[ImportedRecord]:
        yield from ROWS[:25]
        raise TooSlowError("other uploads wait")

    context: Any = SimpleNamespace(store=store, readers=SimpleNamespace(read=cut))
    with pytest.raises(TooSlowError):
        transfer._store(context, io.BytesIO(), LOCAL, Order("slow.ndjson", None, None, ""), "default", 0)
    assert count(store) == 20
    with store.read() as c:
        (entry,) = audit.page(c, 10)
    assert (entry.action, entry.detail) == ("import", {"name": "slow.ndjson", "new": 20, "namespace": "default"})


def test_a_database_that_goes_away_leaves_whole_batches(
    postgres_copy: str, postgres_server: str
) -> None:
    store = Store(postgres_copy)
    name = store.url.database

    def interrupted() -> Iterator[ImportedRecord]:
        for i, row in enumerate(ROWS):
            if i == 35:  # two batches are committed, and the third is on its way
                with psycopg.connect(
                    f"host={postgres_server} user=plevel dbname=postgres", autocommit=True
                ) as admin:
                    admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                        (name,),
                    )
            yield row

    try:
        with pytest.raises(DatabaseError, match="does not answer"):
            import_items(store, interrupted(), batch=10)
    finally:
        with psycopg.connect(
            f"host={postgres_server} user=plevel dbname=postgres", autocommit=True
        ) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert count(store) in (20, 30)
    assert_whole(store)
    assert_goes_on(store)
    store.close()


class Growing:
    """A file that somebody writes while it is read: each read finds a little more."""

    def __init__(self, path: Path, more: list[bytes]) -> None:
        self._more = more
        self._path = path
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        if self._more:
            with self._path.open("ab") as file:
                file.write(self._more.pop(0))
        found = self._path.read_bytes()[self._at :]
        found = found if size < 0 else found[:size]
        self._at += len(found)
        return found


def test_a_file_that_grows_is_read_as_far_as_it_is_written(store: Store, tmp_path: Path) -> None:
    data = b"".join(native.write(ROWS))
    path = tmp_path / "growing.ndjson"
    path.write_bytes(data[:1000])
    half = len(data) - 200  # within the last line
    stream = Growing(path, [data[1000:5000], data[5000:half]])
    aside: list[object] = []
    summary = import_items(store, read(Source(stream, path.name)), aside.append)
    assert (summary.new, summary.reasons) == (59, {"truncated": 1})
    assert len(aside) == 1
    with path.open("ab") as file:
        file.write(data[half:])
    with path.open("rb") as file:
        again = import_items(store, read(Source(file, path.name)))
    assert (again.new, again.known, again.rejected) == (1, 59, 0)
    assert_whole(store)


def test_what_the_database_cannot_hold_is_the_asker_s_fault(store: Store) -> None:
    asked = best.c.task_id == 2**70 if store.is_sqlite else workload.c.op == "a\0b"
    with pytest.raises(InvalidError, match="cannot be stored"), store.read() as c:
        c.execute(sa.select(sa.literal(1)).where(asked))


def test_what_json_cannot_hold_is_the_asker_s_fault_and_a_defect_is_not(store: Store) -> None:
    with pytest.raises(InvalidError, match="cannot be stored: Integer exceeds 64-bit range"), store.write() as c:
        catalogue.put_environment(c, {"x": 2**70})
    with pytest.raises(InvalidError, match="cannot be stored: Integer exceeds 64-bit range"), store.write() as c:
        c.execute(sa.insert(environment).values(digest="x", body={"x": 2**70}, created_at=0.0))
    with pytest.raises(TypeError, match="a defect"), store.read():
        raise TypeError("a defect")
