"""Imported records beside measured ones: nothing that counts what workers here did counts them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from service.dashboard.query import device as device_query
from service.dashboard.query import overview
from service.records import coverage, log_page
from service.records.filter import Tasks, Wanted
from service.records.importer import import_items
from service.store import migration
from service.store.db import Store
from strategy.record import Device, ErrorKind
from tests.integration.scene import TARGET, TERMS, Scene, configs, failed, timed
from tests.integration.test_import import made

pytestmark = pytest.mark.in_turn("url")


def test_imported_records_count_as_nothing_that_was_measured_here(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    scene.report(held, [timed(held.job.entries[0]), failed(1), timed(held.job.entries[2])])
    elsewhere = Device(identity="far/cpu:0", slot="cpu:0", model="Model B", target=TARGET)
    rows = [
        made(i, (1.0,), device=elsewhere, measured_at=time.time(), run_s=500.0) for i in range(40)
    ]
    rows += [made(50 + i, (), error=ErrorKind.COMPILE, device_model="Model C") for i in range(5)]
    assert import_items(store, rows).new == 45
    with store.read() as c:
        pulse = overview.pulse(c)
        assert (pulse.trials_hour, pulse.failed_hour, pulse.imported_hour) == (3, 1, 45)
        assert sum(pulse.per_minute) == 3
        assert [(f.error, f.n) for f in overview.failures(c)] == [("compile", 1)]
        counted = overview.devices(c, TERMS.alive_s)
        assert counted == {"up": 1, "down": 0, "noisy": 0, "imported": 2, "paused": 0}
        own, *others = device_query.page(c, TERMS.alive_s, 0)
        assert (own.identity, bool(own.here), own.trials, own.failed) == ("host-a/cpu:0-1", True, 3, 1)
        assert [(bool(d.here), d.trials, d.busy_s, d.seen_at) for d in others] == [(False, 0, 0.0, None)] * 2
        assert [bool(device_query.head(c, d.id).here) for d in (own, *others)] == [True, False, False]
        shown = log_page.page(c, Wanted()).records
        assert [r.imported for r in shown] == [False] * 3 + [True] * 45
        tasks = coverage.cover(c, Tasks()).tasks
        assert sum(t.imported for t in tasks) == 45
        assert sum(t.trials for t in tasks) == 48


def test_the_first_import_compares_no_record_with_all_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has no statistics of a table that was empty a moment ago."""
    monkeypatch.setattr("service.store.sql._can_join", lambda dialect: False)  # SQLAlchemy tells of no pipeline
    migration.upgrade(postgres_url)
    plans: list[dict[str, Any]] = []

    def explain(connection: Any, cursor: Any, statement: str, given: Any, *_: object) -> None:
        if "anon_1" in statement or "JOIN record" in statement:
            again = cursor.connection.cursor().execute(f"EXPLAIN (FORMAT JSON) {statement}", given)
            plans.extend(found["Plan"] for found in again.fetchone()[0])

    sa.event.listen(sa.Engine, "after_cursor_execute", explain)
    try:
        with closing(Store(postgres_url)) as store:
            import_items(store, [made(i) for i in range(500)])
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", explain)
    scans = [node for plan in plans for node in nodes(plan) if node.get("Relation Name") == "record"]
    identities, measured = (scan["Index Cond"] for scan in scans)
    assert "identity" in identities and "task_id" in measured


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
