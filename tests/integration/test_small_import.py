"""Small imports that come at the same time: stored together, counted and failing apart."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from service.access import audit
from service.access.auth import Actor
from service.errors import DatabaseError, InvalidError
from service.formats import ImportedRecord, Reason, native
from service.records import small_import
from service.records.reading import Readers
from service.records.reading_message import Order
from service.records.small_import import Arrived, SmallImports, Upload
from service.store.db import Store
from service.store.tables import record
from strategy.record import Phase
from tests.integration.test_import import bests, count, expected_best, made
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")

LOCAL = Actor("test", frozenset())


def upload_of(rows: Sequence[ImportedRecord], rest: bytes = b"", shown: int = 0) -> Upload:
    return Upload(data=b"".join(native.write(rows)) + rest, actor=LOCAL, shown=shown)


def together(imports: SmallImports, *uploads: Upload) -> list[Any]:
    """The result or error of each `put`; all are queued before the first is served."""

    async def put() -> list[Any]:
        return await asyncio.gather(*map(imports.put, uploads), return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:  # a browser's loop may run in this one
        return thread.submit(asyncio.run, put()).result()


def noted(store: Store) -> list[Any]:
    with store.read() as connection:
        return [entry.detail["new"] for entry in audit.page(connection, 100)][::-1]


def test_each_knows_what_became_of_its_own(store: Store, readers: Readers) -> None:
    imports = SmallImports(store, readers)
    (first,) = together(imports, upload_of([made(1), made(2)], b"{\n", shown=1))
    assert first.summary.to_json() == {
        "read": 3, "new": 2, "known": 0, "rejected": 1, "reasons": {"json": 1},
    }
    assert [(r.line, r.reason) for r in first.rejects] == [(4, Reason.JSON)]
    (again,) = together(imports, upload_of([made(2), made(3)], b"{\n"))
    assert (again.summary.new, again.summary.known, again.rejects) == (1, 1, [])
    assert noted(store) == [2, 1]
    nothing, empty = together(imports, Upload(data=b"no log", actor=LOCAL), upload_of([]))
    assert isinstance(nothing, InvalidError)
    assert empty.summary.read == 0


def test_what_comes_together_is_one_transaction(store: Store, readers: Readers) -> None:
    imports = SmallImports(store, readers)
    commits: list[object] = []
    sa.event.listen(store.engine, "commit", commits.append)
    rows = [made(i % 20, (1.0 + i,), measured_at=float(i)) for i in range(40)]
    # The last brings what the first does: new for one of them.
    uploads = [rows[i : i + 5] for i in range(0, 40, 5)] + [rows[:5]]
    results = [r.summary for r in together(imports, *map(upload_of, uploads))]
    assert [r.new for r in results] == [5] * 8 + [0]
    assert [r.known for r in results] == [0] * 8 + [5]
    assert noted(store) == [5] * 8 + [0]
    assert count(store) == 40
    writes = [c for c in commits if c.get_execution_options().get("plevel_write")]
    assert len(writes) == 1
    assert {k[1:]: v[:3] for k, v in bests(store).items()} == expected_best(rows)


def test_nobody_pays_for_another_s_fault(store: Store, readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = SmallImports(store, readers)
    write = imports._importer._write

    def refuse(connection: sa.Connection, pending: Any, also: Any) -> frozenset[bytes]:
        new = write(connection, pending, also)
        if any(item.phase is Phase.CONFIRM for item, _ in pending.rows.values()):
            raise DatabaseError("the database does not answer: gone")
        return new

    monkeypatch.setattr(imports._importer, "_write", refuse)
    rows = [[made(1)], [made(2, phase=Phase.CONFIRM)], [made(3)]]
    results = together(imports, *map(upload_of, rows))
    assert [type(r) for r in results] == [Arrived, DatabaseError, Arrived]
    with store.read() as c:
        assert c.scalars(sa.select(record.c.phase)).all() == ["search", "search"]


def test_a_database_that_is_away_fails_all_in_bounded_time(
    store: Store, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try may take as long as a connection or a lock is waited for."""
    imports = SmallImports(store, readers)
    tries: list[object] = []

    def refuse(*given: Any) -> frozenset[bytes]:
        tries.append(given)
        raise DatabaseError("the database does not answer: gone")

    monkeypatch.setattr(imports._importer, "store", refuse)
    results = together(imports, *(upload_of([made(n)]) for n in range(6)))
    assert [type(r) for r in results] == [DatabaseError] * 6
    assert len(tries) == 3  # together, and twice alone


def test_a_log_that_is_not_read_at_once_delays_no_other(
    store: Store, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the first hangs; its log is read again while the others are stored."""
    imports = SmallImports(store, readers)
    together(imports, upload_of([made(0)]))
    (child,) = readers._all
    os.kill(child._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(small_import, "SOON_S", 0.2)
    others_are_stored = threading.Event()
    read_alone: list[bytes] = []
    read = readers.read

    def late(stream: Any, order: Order) -> Any:
        if stream.getvalue() == first.data:
            read_alone.append(first.data)
            assert others_are_stored.wait(HANG_S)
        return read(stream, order)

    monkeypatch.setattr(readers, "read", late)
    first, *others = (upload_of([made(n)]) for n in (1, 2, 3))

    async def put() -> list[Arrived]:
        hung = asyncio.create_task(imports.put(first))
        await asyncio.sleep(0)  # it is the first in the queue
        stored = [await imports.put(other) for other in others]
        assert not hung.done()
        others_are_stored.set()
        return [await hung, *stored]

    with ThreadPoolExecutor(1) as thread:
        arrived = thread.submit(asyncio.run, put()).result()
    assert [a.summary.new for a in arrived] == [1, 1, 1]
    assert read_alone == [first.data]
    assert count(store) == 4
