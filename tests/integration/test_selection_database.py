"""The queries of selection: few statements, current or as-of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from service.formats import ImportedRecord, Task
from service.records import retention, tvm_history
from service.records.importer import import_items
from service.records.retention import Doubtful, prune
from service.selection import database as evidence
from service.selection.database import RecordDatabase
from service.store.db import Store
from service.store.sql import now, one_trip
from service.store.tables import history as history_table
from service.store.tables import purge, record
from strategy.op_strategy import Candidate
from strategy.record import Device, ErrorKind, Phase, convert
from strategy.select import Evidence, Failed, History, Level, Reason, select
from strategy.workload import Input, Workload
from tests.integration.scene import (
    FAST,
    OTHER_TARGET,
    SLOW,
    TARGET,
    WORKLOAD,
    Scene,
    configs,
    device,
    timed,
)
from tests.integration.test_import import made

pytestmark = pytest.mark.in_turn("url")

Row = tuple[int, int, str, float, str]


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """The statements that the store executes meanwhile."""
    seen: list[str] = []

    def see(*args: object) -> None:
        seen.append(str(args[2]))

    sa.event.listen(store.engine, "before_cursor_execute", see)
    try:
        yield seen
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", see)


def ours(i: int, samples: tuple[float, ...], **values: object) -> ImportedRecord:
    """As `made`, of the implementation's current version."""
    row = made(i, samples, **values)
    return replace(row, task=replace(row.task, version=FAST.version))


def wider(i: int) -> Workload:
    return Workload("filter", (Input("data", f"float32[64,{i + 65}]"),))


def lowest(store: Store) -> list[Row]:
    names = ("task_id", "variant_id", "model", "mean_s", "config_digest")
    with store.read() as c:
        rows = c.execute(sa.select(*history_table.c[names])).all()
    return sorted(tuple(row) for row in rows)


def derived(store: Store) -> list[Row]:
    """The same, made anew from all records."""
    with store.write() as c:
        tvm_history.derive(c, c.scalars(sa.select(record.c.task_id)).all())
    return lowest(store)


def set_clock(store: Store, at: float, *, after: int = 0) -> None:
    with store.write() as c:
        c.execute(sa.update(record).where(record.c.id > after).values(recorded_at=at))


def test_the_lowest_means_are_kept_with_every_record(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(6))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    other = Device(identity="b", slot="s", model="Model B", target=TARGET)
    rows = [
        made(1, (3.0,), device=other), made(2, (2.0,), device=other), made(3, (2.5,), seed=1),
        made(4, (), error=ErrorKind.COMPILE, device=other), made(5, (1.0,), device_model="Model B"),
    ]
    import_items(store, rows, batch=2)
    kept = lowest(store)
    assert len(kept) == 3
    assert derived(store) == kept


def test_a_purge_and_a_prune_leave_the_lowest_means_right(store: Store) -> None:
    rows = [made(i, (1.0 + i,), worker="w" if i < 3 else "v", measured_at=float(i + 1))
            for i in range(9)]
    import_items(store, rows)
    with store.write() as c:
        retention.purge_doubtful(c, Doubtful(worker="w"), "it was too hot")
    assert [row[3] for row in lowest(store)] == [4.0]
    kept = lowest(store)
    assert derived(store) == kept
    # By mean the lowest, though not by median: pruning leaves it.
    import_items(store, [made(20, (5.0, 5.0, 0.1), measured_at=1.0)])
    before = lowest(store)
    prune(store, 1, 1e12, dry=False)
    assert lowest(store) == before
    assert derived(store) == before


def test_an_old_log_that_is_imported_is_no_newer_version(store: Store) -> None:
    """A configuration of that version may be none of the space of today."""
    of = ours(1, (2.0,)).task
    old = replace(made(2, (1.0,)), task=replace(of, version=f"0.{of.version}"))
    for some in ([ours(1, (2.0,))], [old]):
        import_items(store, some)
    for as_of in (None, now() + 60.0):
        with store.read() as c:
            (found,) = RecordDatabase(c, as_of=as_of).history(WORKLOAD)
            assert found.mean_s == 2.0


def test_versions_of_another_tool_are_as_old_in_an_import_of_an_export(store: Store) -> None:
    """Their names have no order: the one whose records came first is the oldest, though they come in one batch."""
    versions = [("1.b", OTHER_TARGET), ("1.a", TARGET), ("1.c", OTHER_TARGET)]
    tool = replace(made(1).task, implementation="tool:kernel")
    items = [replace(made(i, (1.0,)), task=replace(tool, version=v, target=t)) for i, (v, t) in enumerate(versions)]
    import_items(store, items)
    with store.read() as c:
        (found,) = RecordDatabase(c).foreign(WORKLOAD, TARGET)
    assert found.version == "1.c"
    import_items(store, items[::-1], namespace="other")
    with store.read() as c:
        (found,) = RecordDatabase(c, namespace="other").foreign(WORKLOAD, TARGET)
    assert found.version == "1.b"


def test_implementations_of_other_tools_are_in_the_order_of_their_names(store: Store) -> None:
    """Of equal ones the first is selected, whichever was imported first."""
    for name in ("tool:b", "tool:a"):
        import_items(store, [replace(made(1), task=replace(made(1).task, implementation=name))])
    with store.read() as c:
        assert [one.implementation for one in RecordDatabase(c).foreign(WORKLOAD, TARGET)] == ["tool:a", "tool:b"]


def test_many_workloads_are_read_in_as_many_statements_as_one(store: Store) -> None:
    import_items(store, [made(i, (1.0 + i,)) for i in range(3)])
    asked = [WORKLOAD, *(wider(i) for i in range(20))]
    counts = []
    for some in (asked[:1], asked):
        with store.read() as c, counted(store) as seen:
            database = RecordDatabase(c, some)
            for w in some:
                database.measured(w, TARGET, None)
                database.history(w)
                database.foreign(w, TARGET)
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_what_failed_of_the_shapes_of_a_symbolic_workload_is_read_at_once(store: Store) -> None:
    shapes = [wider(i) for i in range(20)]
    old = replace(made(0).task, version="0.1")
    import_items(store, [
        one
        for i, w in enumerate(shapes)
        for one in (
            made(i, (1.0,), task=replace(old, workload=w)),
            made(i, (), task=replace(old, workload=w, version=FAST.version), error=ErrorKind.COMPILE),
        )
    ])
    symbolic = Workload("filter", (Input("data", "float32[64,n]"),))
    with store.read() as c, counted(store) as seen:
        found = Evidence.read(RecordDatabase(c), symbolic, TARGET, None)
    assert {i.workload for i in found.instances} == set(shapes)
    wanted = Failed(implementation=old.implementation, version=FAST.version)
    assert all(i.failed == (wanted,) for i in found.instances)
    assert len([s for s in seen if "SELECT" in s]) <= 3  # workloads, their best, and what failed


def test_a_selection_reads_in_one_trip(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL; on SQLite, where a trip costs nothing, what is not needed is not read."""
    import_items(store, [made(i, (1.0 + i,)) for i in range(3)])
    asked = [WORKLOAD, *(wider(i) for i in range(20))]
    trips: list[sa.Connection] = []
    monkeypatch.setattr(evidence, "one_trip", lambda c: (trips.append(c), one_trip(c))[1])
    for some in (asked[:1], asked):
        trips.clear()
        with store.read() as c:
            database, later = RecordDatabase(c, some), RecordDatabase(c, some)
            for w in some:
                database.foreign(w, TARGET)
                database.advised(w, TARGET, None)
                assert database.measured(w, TARGET, None) == later.measured(w, TARGET, None)
            assert len(trips) == (4 if store.is_sqlite else 2)
            later.foreign(WORKLOAD, TARGET)
            later.advised(WORKLOAD, TARGET, None)
            assert len(trips) == (6 if store.is_sqlite else 3)


@pytest.mark.parametrize("statistics", ["none", "of now"])
def test_a_selection_reads_the_rows_of_its_tasks_alone(postgres_copy: str, statistics: str) -> None:
    """Also by the plan that PostgreSQL keeps once a statement has been prepared, which is of no known workload."""
    store = Store(postgres_copy)
    rows = [made(i) for i in range(300)]
    import_items(store, [replace(r, task=replace(r.task, workload=wider(i))) for i, r in enumerate(rows)])
    if statistics == "of now":
        with store.write() as c:
            c.execute(sa.text("ANALYZE"))
    tables = "('best', 'task', 'workload', 'target', 'advice')"
    query = f"SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE relname IN {tables}"
    read = []
    with store.read() as c:
        for i in range(12):
            before = c.scalar(sa.text(query)) or 0
            database = RecordDatabase(c)
            database.foreign(wider(i), TARGET)
            assert database.measured(wider(i), TARGET, None)
            read.append(int((c.scalar(sa.text(query)) or 0) - before))
    store.close()
    assert max(read) < 50, read


def test_together_and_alone_are_the_same(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(4))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    identity = device().identity
    with store.read() as c:
        alone, together = RecordDatabase(c), RecordDatabase(c, [WORKLOAD, wider(1)])
        for w in (wider(1), WORKLOAD):
            assert together.measured(w, TARGET, identity) == alone.measured(w, TARGET, identity)
            assert together.history(w) == alone.history(w)
        levels = {m.level for m in alone.measured(WORKLOAD, TARGET, identity)}
        assert levels == {Level.DEVICE, Level.MODEL}


@pytest.mark.sample(2)
@pytest.mark.parametrize("policy", ["plevel", "tvm"])
def test_as_of_answers_from_the_records_of_then(store: Store, policy: str) -> None:
    import_items(store, [ours(1, (3.0,)), ours(2, (4.0,))])
    set_clock(store, 100.0)
    import_items(store, [ours(3, (2.0,)), ours(4, (1.0,), phase=Phase.CONFIRM)])
    set_clock(store, 200.0, after=2)
    with store.write() as c:
        c.execute(sa.text("UPDATE task SET created_at = 50"))
        retention.purge_doubtful(c, Doubtful(since=0.0), "all of it")
        c.execute(sa.update(purge).values(at=300.0))

    def asked(as_of: float | None):
        with store.read() as c:
            database = RecordDatabase(c, as_of=as_of)
            return select(WORKLOAD, TARGET, database, offered=(FAST, SLOW), policy=policy)

    assert asked(40.0).reason == "plevel"
    assert asked(100.0).config == made(1).config
    assert asked(250.0).config == made(4).config
    assert asked(300.0).reason == asked(None).reason == "plevel"


@pytest.mark.sample(2)
@pytest.mark.parametrize("refuted", [(), (0.5,)], ids=["none", "refuted"])
def test_a_version_that_only_fails_is_not_selected_by_the_one_before(
    store: Store, refuted: tuple[float, ...]
) -> None:
    """A time does not count where a check of its configuration has found a wrong answer."""
    one, two, newer = ours(1, (1.0,)), ours(2, (3.0,)), replace(FAST, version=f"77.{FAST.version.partition('.')[2]}")

    def of(row: ImportedRecord, candidate: Candidate) -> ImportedRecord:
        named = {"implementation": candidate.implementation, "version": candidate.version}
        return replace(row, task=replace(row.task, **named))

    def asked(as_of: float | None = None) -> tuple[str, str]:
        with store.read() as c:
            database = RecordDatabase(c, as_of=as_of)
            seen = Evidence.read(database, WORKLOAD, TARGET, None).failed
            found = select(WORKLOAD, TARGET, database, offered=(newer, SLOW))
            assert bool(seen) == (newer.version in {f.version for f in seen})
            return found.implementation, found.reason

    import_items(store, [of(one, FAST), of(two, SLOW)])
    set_clock(store, 100.0)
    assert asked() == (FAST.implementation, Reason.STALE)
    wrong = [of(made(3, (), error=ErrorKind.WRONG_ANSWER), newer), *(of(ours(3, (s,)), newer) for s in refuted)]
    import_items(store, wrong)
    set_clock(store, 200.0, after=2)
    with store.write() as c:
        c.execute(sa.text("UPDATE task SET created_at = 50"))
    assert asked() == asked(250.0) == (SLOW.implementation, Reason.MEASURED)
    assert asked(150.0) == (FAST.implementation, Reason.STALE)
    # A time of the installed version, though longer, is what counts.
    import_items(store, [of(ours(4, (9.0,)), newer)])
    set_clock(store, 300.0, after=2 + len(wrong))
    with store.write() as c:
        c.execute(sa.text("UPDATE task SET created_at = 50"))
    assert asked() == asked(350.0) == (SLOW.implementation, Reason.MEASURED)


@pytest.mark.sample(2)
def test_a_purged_failure_does_not_count(store: Store) -> None:
    import_items(store, [made(1, (), error=ErrorKind.CRASH, worker="w")])
    with store.read() as c:
        assert RecordDatabase(c).failed(WORKLOAD, TARGET, None)
        assert not RecordDatabase(c).failed(WORKLOAD, OTHER_TARGET, None)
    with store.write() as c:
        retention.purge_doubtful(c, Doubtful(worker="w"), "its memory was full")
    with store.read() as c:
        assert not RecordDatabase(c).failed(WORKLOAD, TARGET, None)


def test_as_of_now_is_what_is_derived_with_the_records(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(5))
    held = scene.leased(scene.register(device(), device("host-b/cpu:0-1", model="Model B")))
    scene.report(held, [timed(e) for e in held.job.entries])
    import_items(store, [made(i, (1.0 + i, 1.5 + i), phase=p)
                         for i in range(3) for p in (Phase.SEARCH, Phase.CONFIRM)])
    with store.read() as c:
        clock = c.scalar(sa.select(now()))
        current, then = RecordDatabase(c), RecordDatabase(c, as_of=clock + 1)
        for identity in (None, device().identity):
            a = current.measured(WORKLOAD, TARGET, identity)
            b = then.measured(WORKLOAD, TARGET, identity)
            assert sorted(a, key=str) == sorted(b, key=str)
        assert current.history(WORKLOAD) == then.history(WORKLOAD)
        assert all(isinstance(h, History) for h in then.history(WORKLOAD))


def test_only_what_a_symbolic_workload_may_cover_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(op: str, name: str, kind: str, **attrs: int) -> Workload:
        return Workload(op, (Input(name, kind), Input("w", "float32[4,4]", True)), attrs)

    same = [of("f_1%!", "a_b", "float32[8,4]", k=1), of("f_1%!", "a_b", "float32[16,4]", k=1)]
    others = [
        of("f_1%!", "a_b", "float32[8,5]", k=1), of("f_1%!", "a_b", "float16[8,4]", k=1),
        of("f_1%!", "acb", "float32[8,4]", k=1), of("fx1%!", "a_b", "float32[8,4]", k=1),
        of("f_1%!", "a_b", "float32[8,4,4]", k=1), of("f_1%!", "a_b", "float32[8,4]", k=2),
    ]
    import_items(store, [
        ImportedRecord(
            source="plevel", config_key="{}", samples_s=(1.0,),
            task=Task(workload=w, target=TARGET, implementation="x", version="1.0"),
        ) for w in [*others, *same]
    ])
    read: list[Workload] = []

    def see(body: Any, kind: Any) -> Any:
        read.append(convert(body, kind))
        return read[-1]

    monkeypatch.setattr(evidence, "convert", see)
    with store.read() as c:
        symbolic = of("f_1%!", "a_b", "float32[n,4]", k=1)
        found = RecordDatabase(c).instances(symbolic, TARGET, None)
    assert {w.key for w, _ in found} == {w.key for w in same}
    # Ranks and attributes are compared as values.
    assert {w.key for w in read} == {w.key for w in [*same, *others[-2:]]}
