"""Pruning, purging, backups, and what is said of what is there; on both databases."""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.errors import DatabaseError, InvalidError
from service.formats import ImportedRecord, Source, read
from service.records import best, coverage, exporter, foreign, log_page, network, retention
from service.records.filter import Tasks, Wanted
from service.records.foreign_ranking import ForeignQuestion
from service.records.importer import import_items
from service.records.retention import Doubtful, Purged, prune
from service.selection.database import RecordDatabase
from service.store.backup import backup
from service.store.db import Store
from service.store.tables import advice, advice_tombstone, purge, record, run, tombstone
from service.store.tables import network as network_table
from service.store.tables import workload as workload_table
from service.tuning import run_status
from strategy.confirmation import Confirmation
from strategy.record import Device, ErrorKind, Phase, RunState, to_json
from strategy.select import select
from strategy.target import Target
from strategy.workload import Workload
from tests.integration.derived import assert_derived
from tests.integration.scene import FAST, SLOW, TARGET, WORKLOAD, Scene, configs, timed
from tests.integration.test_import import bests, count, expected_best, made

pytestmark = pytest.mark.in_turn("url")

DAY_S = 86_400.0
H100 = Target.parse("cuda -arch=sm_90 -model='NVIDIA H100'")


def aged(store: Store) -> list[ImportedRecord]:
    """Twenty configurations, one a day, the older the faster; some wrong, one best on its own model."""
    rows = [made(i, (1.0 + i,), measured_at=DAY_S * (i + 1), device_model="A") for i in range(20)]
    rows.append(made(19, (30.0,), measured_at=DAY_S, device_model="B"))
    rows.append(made(3, (), error=ErrorKind.WRONG_ANSWER, measured_at=DAY_S, device_model="A"))
    rows.append(made(7, (2.5,), phase=Phase.CONFIRM, measured_at=DAY_S * 2, device_model="A"))
    import_items(store, rows)
    return rows


def left(store: Store) -> set[str]:
    with store.read() as c:
        return set(c.scalars(sa.select(record.c.config_digest).distinct()))


def test_a_dry_run_says_what_pruning_then_does(store: Store) -> None:
    aged(store)
    before, total = bests(store), count(store)
    said = prune(store, 2, DAY_S * 11, dry=True)  # the instant of one of them, which stays
    assert count(store) == total
    done = prune(store, 2, DAY_S * 11, dry=False)
    assert done == said
    assert done.records == total - count(store) > 0
    assert done.kept == count(store)
    assert bests(store) == before
    # The two fastest of the search, the confirmed, the best of model B, and all that is young.
    kept = {made(i).config_digest for i in (0, 1, 7, 19, *range(10, 20))}
    assert left(store) == kept
    assert prune(store, 2, DAY_S * 11, dry=False).records == 0


def test_what_an_interrupted_pruning_has_deleted_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import_items(store, [made(i, (1.0 + i,), measured_at=DAY_S, space=f"{i % 3}") for i in range(12)])
    monkeypatch.setattr(retention, "TASKS", 1)
    total, before = count(store), retention._prune
    told: list[int] = []

    def interrupted(connection: sa.Connection, tasks: Sequence[int], *given: Any, **options: Any) -> Sequence[int]:
        left = before(connection, tasks, *given, **options)
        if count(store) < total:  # of another transaction, as this one is to be rolled back
            raise KeyboardInterrupt
        return left

    monkeypatch.setattr(retention, "_prune", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prune(store, 1, DAY_S * 2, dry=False, note=lambda _, found: told.append(found.records))
    assert told == [total - count(store)] and told[0] > 0


def test_pruning_holds_tasks_for_a_short_time_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports to them wait meanwhile."""
    import_items(store, [made(i, (1.0 + i,), measured_at=DAY_S, space=f"{i % 3}") for i in reversed(range(12))])
    said = prune(store, 1, DAY_S * 2, dry=True)
    commits: list[object] = []
    sa.event.listen(store.engine, "commit", commits.append)
    monkeypatch.setattr(best, "LOCKED_S", 0.0)
    assert prune(store, 1, DAY_S * 2, dry=False) == said
    assert (said.tasks, said.records, count(store)) == (3, 9, 3)
    writes = [c for c in commits if c.get_execution_options().get("plevel_write")]
    assert len(writes) == 3


def test_what_a_worker_with_a_wrong_clock_measured_is_as_old_as_its_record(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(12))
    held = scene.leased(scene.register())
    results = [timed(entry) for entry in held.job.entries]
    assert {result.measured_at for result in results} == {1.0}  # in 1970
    scene.report(held, results)
    with store.write() as c:
        c.execute(sa.update(run).values(state="done"))
    assert prune(store, 1, time.time() - DAY_S, dry=True).records == 0
    assert prune(store, 1, time.time() + DAY_S, dry=True).records > 0


def test_pruning_keeps_the_fastest_of_each_device_model(store: Store) -> None:
    """All times of the second model are longer than any of the first."""
    times = {"A": 1.0, "B": 100.0}
    import_items(
        store,
        [made(i, (first + i,), measured_at=1.0, device_model=m) for m, first in times.items()
         for i in (range(6) if m == "A" else (*range(7, 12), 6))],  # the newest is one of them, which SQLite keeps
    )
    prune(store, 2, DAY_S, dry=False)
    assert left(store) == {made(i).config_digest for i in (0, 1, 6, 7)}


def test_pruning_keeps_the_lowest_mean(store: Store) -> None:
    times = [(3.0, 3.0, 3.0), (0.1, 1.2, 1.2), (1.0, 1.0, 1.0)]  # the second has the lowest mean alone
    import_items(store, [made(i, t, measured_at=DAY_S, device_model="A") for i, t in enumerate(times)])
    assert prune(store, 1, DAY_S * 2, dry=False).records == 1
    assert len(left(store)) == 2


def test_records_that_are_stored_after_a_prune_come_after_those_before(store: Store) -> None:
    """SQLite gives the ids of deleted rows again if there are none above them."""
    import_items(store, [made(i, (1.0 + i,), measured_at=DAY_S) for i in range(3)])
    with store.read() as c:
        (*_, last) = log_page.page(c, Wanted()).records
    prune(store, 1, 2 * DAY_S, dry=False)
    import_items(store, [made(i, (9.0,), measured_at=DAY_S) for i in range(4, 6)])
    with store.read() as c:
        assert len(log_page.page(c, Wanted(), cursor=last.id).records) == 2


def test_pruning_leaves_the_trials_of_live_runs(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(5))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    later = time.time() + DAY_S
    assert prune(store, 1, later, dry=False).records == 0
    with store.write() as c:
        c.execute(sa.update(run).values(state=RunState.DONE))
    assert prune(store, 1, later, dry=False).records == 4


def test_pruning_needs_a_best_to_keep(store: Store) -> None:
    with pytest.raises(InvalidError, match="keep_best"):
        prune(store, 0, 1.0, dry=True)


def test_what_has_no_date_is_as_old_as_its_import(store: Store) -> None:
    import_items(store, [made(i, (1.0 + i,), measured_at=0.0) for i in range(5)])
    assert prune(store, 1, DAY_S, dry=False).records == 0


def test_a_purge_has_its_first_instant_and_not_its_last(store: Store) -> None:
    aged(store)
    with store.read() as c:
        found = retention.count_doubtful(c, Doubtful(since=DAY_S * 5, until=DAY_S * 6))
    assert found.records == 1


def test_a_purge_derives_the_best_anew_and_outlives_an_import(store: Store) -> None:
    rows = aged(store)
    with store.write() as c:
        doubtful = Doubtful(until=DAY_S * 9.5)
        said = retention.count_doubtful(c, doubtful)
        assert retention.purge_doubtful(c, doubtful, "the fan was off").records == said.records == 12
        assert retention.purge_doubtful(c, doubtful, "again").records == 0
    assert count(store) == len(rows)
    assert (count(store, tombstone), count(store, purge)) == (12, 1)
    trusted = [r for r in rows if r.measured_at >= DAY_S * 9.5]
    assert {k[1:]: v[:3] for k, v in bests(store).items()} == expected_best(trusted)
    with store.read() as c:
        assert len(log_page.page(c, Wanted()).records) == len(trusted)
        assert all(h.mean_s >= 10.0 for h in RecordDatabase(c).history(WORKLOAD))
        assert log_page.curve(c, 1)[0].median_s == 10.0
    assert import_items(store, rows).new == 0
    assert {k[1:]: v[:3] for k, v in bests(store).items()} == expected_best(trusted)


def test_a_workload_that_the_installed_operator_refuses_is_measured_and_hides_no_other(store: Store) -> None:
    """An older operator took it, before the service was updated in the middle of its run."""
    scene = Scene.make(store)
    with store.write() as c:
        body = to_json(WORKLOAD) | {"op": "dense", "attrs": {"gone": 1}}
        c.execute(sa.update(workload_table).values(body=body))
    scene.enqueue(configs(2))
    worker = scene.register()
    held = scene.leased(worker)
    assert scene.report(held, [timed(held.job.entries[0])], done=False).accepted == 1
    scene.lose(held)
    while (held := scene.lease(worker)) is not None:
        scene.lose(held)
    assert [(r.error, bool(r.samples_s)) for r in scene.records()] == [(None, True), ("lost", False)]
    with store.read() as c:
        assert [status.id for status in run_status.recent(c, 10, 60.0)] == [scene.run_id]
        covered = coverage.cover(c, Tasks()).tasks
    assert {t.implementation: (t.trials, t.stale) for t in covered}[FAST.implementation] == (2, False)


def test_times_of_the_calibration_kernel_are_no_history(store: Store) -> None:
    import_items(store, [made(i, (3.0 - i,), phase=phase) for i, phase in enumerate(Phase)])
    assert_derived(store)
    with store.write() as c:
        assert retention.purge_doubtful(c, Doubtful(since=1.0, until=2.0), "a wrong clock").records == 1
    assert_derived(store)
    with store.read() as c:
        assert {h.mean_s for h in RecordDatabase(c, as_of=time.time() + DAY_S).history(WORKLOAD)} == {3.0}


def test_a_run_whose_records_are_purged_is_no_reason_not_to_tune(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    with store.write() as c:
        c.execute(sa.update(run).values(state=RunState.DONE, complete=True))
        assert retention.purge_doubtful(c, Doubtful(device="host-a/cpu:0-1"), "a wrong clock").records == 2
        assert c.scalars(sa.select(run.c.complete)).all() == [False]


def test_a_wrong_answer_on_an_unknown_device_refutes_on_all(store: Store) -> None:
    times = [made(i, (1.0,), device_model="A") for i in range(3)]
    wrong = [made(i, (), error=ErrorKind.WRONG_ANSWER, device_model=model) for i, model in enumerate(("", "A", "B"))]
    import_items(store, times + wrong)
    with store.read() as c:
        tasks = c.scalars(sa.select(record.c.task_id).distinct()).all()
        found = {model: len(best.refuted(c, tasks, model)) for model in ("A", "B", None)}
    assert found == {"A": 2, "B": 2, None: 3}


def test_a_purged_wrong_answer_refutes_no_more(store: Store) -> None:
    import_items(
        store,
        [made(1, (1.0,)), made(2, (2.0,)), made(1, (), error=ErrorKind.WRONG_ANSWER, worker="w")],
    )
    assert [v[2] for v in bests(store).values()] == [2.0]
    with store.write() as c:
        assert retention.purge_doubtful(c, Doubtful(worker="w"), "a bad kernel").records == 1
    assert [v[2] for v in bests(store).values()] == [1.0]
    with store.write() as c:
        assert retention.purge_doubtful(c, Doubtful(since=0.0), "all").records == 2
    assert bests(store) == {}


def test_a_purge_of_a_device_or_a_worker_is_of_that_alone(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    place = Device(identity="elsewhere", slot="cpu:0", model="Model B", target=TARGET)
    import_items(store, [made(1, (1.0,), device=place)])
    with store.write() as c:
        assert retention.count_doubtful(c, Doubtful(device="elsewhere")).records == 1
        assert retention.count_doubtful(c, Doubtful(worker="worker", device="elsewhere")).records == 0
        assert retention.purge_doubtful(c, Doubtful(worker="worker"), "overheated").records == 3
        with pytest.raises(InvalidError, match="name a worker"):
            retention.purge_doubtful(c, Doubtful(), "nothing")
    assert {k[1] for k in bests(store)} == {"device", "model", "target"}
    assert {v[2] for v in bests(store).values()} == {1.0}


def advise(store: Store, key: int, **more: Any) -> None:
    """Import a winner without a time."""
    import_items(store, [made(key, (), **({"device_model": "A"} | more))])


def confirm(store: Store) -> None:
    with store.write() as c:
        given = Confirmation(key="a" * 32, graph="b" * 32, framework="torch 2", target=TARGET, parts=())
        network.put(c, given, "default")


def test_a_purge_marks_advice_and_deletes_the_verdicts_of_its_time(store: Store) -> None:
    confirm(store)
    advise(store, 1, worker="w", measured_at=DAY_S)
    advise(store, 2, worker="v", measured_at=3 * DAY_S)
    advise(store, 3, worker="v", measured_at=0.0)
    place = Device(identity="elsewhere", slot="cpu:0", model="A", target=TARGET)
    advise(store, 4, worker="v", device=place, device_model="")
    for which, gone in (
        (Doubtful(worker="w", since=2 * DAY_S), (0, 0)),
        (Doubtful(worker="w"), (1, 0)),
        (Doubtful(device="elsewhere"), (1, 0)),
        (Doubtful(until=4 * DAY_S), (1, 0)),  # what has no date is as old as its import
        (Doubtful(since=4 * DAY_S), (1, 1)),
    ):
        with store.write() as c:
            said = retention.count_doubtful(c, which)
            assert retention.purge_doubtful(c, which, "a wrong winner") == said
        assert (said.records, said.advice, said.networks) == (0, *gone), which
    assert (count(store, advice_tombstone), count(store, network_table)) == (4, 0)


def test_purged_advice_answers_nothing_and_is_not_imported_again(store: Store) -> None:
    path = next((Path(__file__).parents[1] / "data" / "foreign").glob("*.best_config"))
    asked = ForeignQuestion(workload=Workload("helion.kernel", (), {"cache_key": path.stem}))

    def answers() -> tuple[int, int, int]:
        items = read(Source(io.BytesIO(path.read_bytes()), path.name))
        import_items(store, items)
        with store.read() as c:
            kernels = foreign.list_kernels(c, "helion", "default").kernels
            found = foreign.find_best(c, "helion", asked, "default").answers
            known = RecordDatabase(c).foreign(asked.workload, H100)
            advised = RecordDatabase(c).advised(asked.workload, H100, None)
        exported = len(list(exporter.export_advice(store)))
        assert bool(known) is True
        assert len(kernels) == len(found) == len(advised)
        return len(kernels), exported, count(store, advice)

    assert answers() == (1, 1, 1)
    with store.write() as c:
        assert retention.purge_doubtful(c, Doubtful(source="triton"), "another's") == Purged()
        assert retention.purge_doubtful(c, Doubtful(source="helion"), "a bad host").advice == 1
        assert retention.purge_doubtful(c, Doubtful(source="helion"), "again") == Purged()
    assert answers() == (0, 0, 1)
    with store.write() as c:  # as it was before the purge
        c.execute(sa.update(purge).values(at=purge.c.at + DAY_S))
        then = c.scalar(sa.select(purge.c.at)) - 1
        assert len(RecordDatabase(c, as_of=then).advised(asked.workload, H100, None)) == 1


def test_pruning_keeps_the_newest_advice_of_each_task_and_device(store: Store) -> None:
    for key, model in ((1, "A"), (2, "A"), (3, "B"), (4, "A")):
        advise(store, key, device_model=model, measured_at=DAY_S * key)
    advise(store, 5, device_model="B", measured_at=0.0)
    for before, gone in ((1.5, 1), (9.0, 2), (9.0, 0)):
        said = prune(store, 1, DAY_S * before, dry=True)
        assert prune(store, 1, DAY_S * before, dry=False) == said
        assert said.advice == gone
    with store.read() as c:
        left = set(c.scalars(sa.select(advice.c.config_digest)))
    assert left == {made(i).config_digest for i in (4, 5)}


def test_what_was_purged_is_no_trial_any_more(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    with store.write() as c:
        task_id = scene.tasks[FAST.implementation]
        before = run_status.status(c, scene.run_id, 60).trials_done
        assert run_status.task_status(c, task_id).trials == 3
        assert retention.purge_doubtful(c, Doubtful(worker="worker"), "overheated").records == 3
        assert run_status.status(c, scene.run_id, 60).trials_done == before - 3
        assert run_status.task_status(c, task_id).trials == 0
        covered = {t.task_id: t for t in coverage.cover(c, Tasks()).tasks}
        assert (covered[task_id].trials, covered[task_id].measured_at) == (0, None)


def test_a_backup_is_interrupted_between_two_steps(
    sqlite_copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.store.backup.PAGES", 1)
    monkeypatch.setattr("service.store.backup._step", interrupt)
    folder = tmp_path / "copies"
    folder.mkdir()
    store = Store(sqlite_copy)
    with pytest.raises(KeyboardInterrupt):
        backup(store, folder / "copy.db")
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    long = folder / f"{'x' * 240}.db"  # almost all that a file system takes
    assert backup(store, long) > 0
    store.close()


def test_a_backup_is_whole_and_can_be_used(sqlite_copy: str, tmp_path: Path) -> None:
    store = Store(sqlite_copy)
    aged(store)
    copy = tmp_path / "copy.db"
    assert backup(store, copy) == copy.stat().st_size > 0
    with pytest.raises(InvalidError, match="exists"):
        backup(store, copy)
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    other = Store(str(copy))
    assert bests(other) == bests(store)
    store.close()
    other.close()
    with sqlite3.connect(copy) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_backup_to_a_folder_that_is_not_there(sqlite_copy: str, tmp_path: Path) -> None:
    store = Store(sqlite_copy)
    with pytest.raises(DatabaseError, match=r"none/x\.db cannot be written \(No such file or directory\): name"):
        backup(store, tmp_path / "none" / "x.db")
    store.close()


def test_a_backup_is_not_begun_again_by_commits(
    sqlite_copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(sqlite_copy)
    aged(store)
    with store.write() as connection:
        connection.exec_driver_sql("CREATE TABLE bulk AS SELECT zeroblob(20000000) AS x")
    monkeypatch.setattr("service.store.backup.PAGES", 1)
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(backup, store, tmp_path / "copy.db")
        commits = 0
        while not copying.done():
            with store.write() as connection:
                connection.execute(sa.update(run).values(message=f"{commits}"))
            commits += 1
            assert commits < 20_000, "each commit begins it again"
    assert copying.result() > 0
    store.close()


def test_postgresql_is_backed_up_by_its_own_tools(postgres_copy: str, tmp_path: Path) -> None:
    store = Store(postgres_copy)
    with pytest.raises(InvalidError, match="pg_dump"):
        backup(store, tmp_path / "copy")
    store.close()


def test_coverage_says_how_far_tasks_are(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(4))
    held = scene.leased(scene.register())
    scene.report(held, [timed(e) for e in held.job.entries])
    import_items(store, [made(1, (5.0,), measured_at=7.0)])  # an older version of it
    with store.read() as c:
        found = coverage.cover(c, Tasks(op=WORKLOAD.op, target=TARGET.key))
        by_task = {(t.implementation, t.version): t for t in found.tasks}
        fast = by_task[FAST.implementation, FAST.version]
        assert (fast.trials, fast.failed, fast.space_size) == (4, 0, 144)
        assert (fast.tuner, fast.budget, fast.confirmed) == ("model", 24, False)
        assert fast.best is not None
        slow = by_task[SLOW.implementation, SLOW.version]
        assert (slow.trials, slow.best, slow.measured_at, slow.stale) == (0, None, None, False)
        assert coverage.cover(c, Tasks(op="xyzzy")).tasks == ()
        seen: list[Any] = []
        cursor: int | None = 0
        while cursor is not None:
            part = coverage.cover(c, Tasks(limit=2, cursor=cursor))
            seen += part.tasks
            cursor = part.next
        assert seen == list(found.tasks)
        rows = coverage.list_best(c, Tasks(implementation=FAST.implementation)).best
        assert {(r.version, r.scope, r.where) for r in rows} == {
            (FAST.version, "device", "host-a/cpu:0-1"), (FAST.version, "model", "Model A"),
            (FAST.version, "target", ""), ("1.0", "target", ""),
        }
        assert [r.scope for r in coverage.list_best(c, Tasks(), "model").best] == ["model"]
        # Of two versions on record the newer task counts; the operator is installed nowhere.
        assert [t.stale for t in found.tasks if t.implementation == FAST.implementation] == [
            True, False,
        ]
        answer = select(WORKLOAD, TARGET, RecordDatabase(c), offered=(FAST, SLOW))
    assert answer.version == FAST.version
