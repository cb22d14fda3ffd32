"""Small imports that come at the same time: stored together, counted and failing apart."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from service.db import Store
from service.errors import DatabaseError
from service.formats import ImportedRecord, Reason, Rejected, Summary
from service.intake import Intake
from service.models import record
from strategy.record import Phase
from tests.integration.test_import import bests, count, expected_best, made


def nothing(*_: object) -> None:
    pass


def test_each_knows_what_became_of_its_own(store: Store) -> None:
    intake = Intake(store)
    noted: list[int] = []
    bad = Rejected(line=3, reason=Reason.JSON, detail="no", text=b"x")
    aside: list[Rejected] = []
    first = intake.put([made(1), made(2), bad], aside.append, lambda _, s: noted.append(s.new))
    assert first.to_json() == {
        "read": 3, "new": 2, "known": 0, "rejected": 1, "reasons": {"json": 1},
    }  # fmt: skip
    assert aside == [bad]
    again = intake.put([made(2), made(3)], nothing, lambda _, s: noted.append(s.new))
    assert (again.new, again.known) == (1, 1)
    assert noted == [2, 1]
    assert intake.put([], nothing, nothing).read == 0


def together(store: Store, intake: Intake, parcels: list[list[ImportedRecord]]) -> list[Any]:
    """What each `put` gave or raised, all of them gathered while one holds the pen."""
    arrived = threading.Semaphore(0)
    results: list[Any] = [None] * len(parcels)

    def put(i: int) -> None:
        try:
            results[i] = intake.put(parcels[i], nothing, nothing)
        except Exception as error:
            results[i] = error

    with intake._writing, ThreadPoolExecutor(len(parcels)) as pool:
        futures = [pool.submit(put, i) for i in range(len(parcels))]
        while len(intake._waiting) < len(parcels):  # until all have come
            arrived.acquire(timeout=0.001)
        intake._writing.release()
        for future in futures:
            future.result()
        intake._writing.acquire()
    return results


def test_what_comes_together_is_one_transaction(store: Store) -> None:
    intake = Intake(store)
    commits: list[object] = []
    sa.event.listen(store.engine, "commit", commits.append)
    rows = [made(i % 20, (1.0 + i,), measured_at=float(i)) for i in range(40)]
    # The last brings what the first does: new for one of them.
    parcels = [rows[i : i + 5] for i in range(0, 40, 5)] + [rows[:5]]
    results = together(store, intake, parcels)
    assert all(isinstance(r, Summary) for r in results)
    assert sum(r.new for r in results) == count(store) == 40
    assert sum(r.known for r in results) == 5
    writes = [c for c in commits if c.get_execution_options().get("plevel_write")]
    assert len(writes) == 1
    assert {k[1:]: v[:3] for k, v in bests(store).items()} == expected_best(rows)


def test_nobody_pays_for_another_s_fault(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    intake = Intake(store)
    write = intake._importer._write

    def refuse(connection: sa.Connection, pending: Any) -> frozenset[bytes]:
        new = write(connection, pending)
        if any(item.phase is Phase.CONFIRM for item, _ in pending.rows.values()):
            raise DatabaseError("the database does not answer: gone")
        return new

    monkeypatch.setattr(intake._importer, "_write", refuse)
    good, bad = [made(1)], [made(2, phase=Phase.CONFIRM)]
    results = together(store, intake, [good, bad, [made(3)]])
    assert [type(r) for r in results] == [Summary, DatabaseError, Summary]
    with store.read() as c:
        assert c.scalars(sa.select(record.c.phase)).all() == ["search", "search"]
