"""The order in which the transactions of several services lock leases, tasks, devices and workers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from service.formats import Attachment, ImportedRecord, Task
from service.queue import heartbeat, renewal
from service.queue import lease as leasing
from service.queue import report as reporting
from service.records import best
from service.records.importer import Importer, import_items
from service.store import catalogue
from service.store.db import Store
from service.store.sql import now
from service.store.tables import job, lease, worker
from service.store.tables import task as task_table
from service.tuning import plan as planning
from service.tuning import run as runs
from strategy.record import (
    Lease,
    Renewed,
    Report,
    Results,
    ResultsAccepted,
    RunWorkload,
    TimingPolicy,
    encode,
)
from tests.integration.scene import (
    FAST,
    LIBRARY,
    OTHER_TARGET,
    SLOW,
    SPACE,
    TARGET,
    TERMS,
    WORKLOAD,
    Scene,
    configs,
    device,
    request,
    timed,
)
from tests.integration.test_group_commit import hosts, lease_each
from tests.integration.test_import import made
from tests.integration.test_races import await_waiting
from tests.limit import HANG_S


def partial(held: Lease, count: int, *, done: bool) -> Report:
    """A report of the first results of a lease."""
    results = tuple(timed(e) for e in held.job.entries[:count])
    return Report(lease_id=held.id, results=Results(token=held.token, session="s", results=results, done=done))


def test_a_renewal_that_ends_other_leases_waits_for_a_report_of_its_own(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal locks the tasks of what it ends, and the report the lease: neither first what the other has."""
    store, other = Store(postgres_copy), Store(postgres_copy)
    scene = Scene.make(store)
    for n in range(2):
        scene.enqueue(configs(4)[2 * n : 2 * n + 2])
    dead, held = (scene.leased(scene.register(device(name)), name) for name in ("a/cpu:0", "b/cpu:0"))
    with store.write() as c:
        c.execute(sa.update(job).where(job.c.id == dead.job.id).values(attempts=2))
        c.execute(sa.update(lease).where(lease.c.id == dead.id).values(expires_at=now() - 1.0))
    lock, touch, touching = best.ask_lock, renewal.touch, threading.Event()

    def renew() -> Renewed:
        with other.write() as c:
            return renewal.renew(c, held.id, held.token, True, TERMS)

    def touch_told(*given: Any) -> Any:
        touching.set()
        return touch(*given)

    with ThreadPoolExecutor(1) as pool:
        renewals: list[Future[Renewed]] = []

        def lock_late(*given: Any) -> None:
            if not renewals:
                renewals.append(pool.submit(renew))
                assert touching.wait(HANG_S)
                await_waiting(store, 1)
            lock(*given)

        monkeypatch.setattr(renewal, "touch", touch_told)
        monkeypatch.setattr(best, "ask_lock", lock_late)
        with store.write() as c:
            (answer,) = reporting.report_many(c, [partial(held, 1, done=False)], TERMS)
        assert isinstance(answer, ResultsAccepted)
        assert answer.accepted == 1
        assert not renewals[0].result().cancelled
    with store.read() as c:
        assert c.scalars(sa.select(lease.c.id).where(lease.c.timing)).all() == [held.id]
        assert c.scalar(sa.select(lease.c.end_reason).where(lease.c.id == dead.id)) == "expired"
    store.close()
    other.close()


def test_a_report_that_waits_for_its_task_holds_up_no_worker(postgres_copy: str) -> None:
    store, other, stranger = (Store(postgres_copy) for _ in range(3))
    scene = Scene.make(store)
    for n in range(4):
        scene.enqueue(configs(4)[n : n + 1])
    (ask,) = hosts(scene, 1)
    (first, second) = lease_each(scene, [ask])
    with store.write() as c:
        c.execute(sa.update(worker).values(seen_at=now() - 30.0))  # the next request of it is a sign of life

    def report() -> object:
        with other.write() as c:
            return reporting.report_many(c, [partial(first, 1, done=True)], TERMS)

    with ThreadPoolExecutor(1) as pool:
        with stranger.write() as c:
            best.lock(c, scene.tasks.values())
            reported = pool.submit(report)
            await_waiting(store, 1)
            with store.write() as leasing_one:
                leasing_one.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
                (leases,) = leasing.lease_many(leasing_one, [ask], TERMS)
                assert isinstance(leases, list)
                assert renewal.renew_many(leasing_one, [(second.id, second.token, True)], TERMS) != [None]
        reported.result()
    for one in (store, other, stranger):
        one.close()


def test_a_batch_locks_all_of_its_tasks_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of reports that are stored one by one, too, as another service's batch may have them in another order."""
    scene = Scene.make(store)
    for task in (LIBRARY.implementation, FAST.implementation, FAST.implementation):
        scene.enqueue(configs(2), task)
    whole, ending, twice = lease_each(scene, hosts(scene, 3))[:3]
    locked: list[set[int]] = []
    lock = best.ask_lock

    def note(connection: sa.Connection, ask: Any, tasks: Iterable[int]) -> None:
        locked.append(set(tasks))
        lock(connection, ask, locked[-1])

    monkeypatch.setattr(best, "ask_lock", note)
    sent = [
        partial(whole, 2, done=True), partial(ending, 1, done=True), partial(twice, 1, done=False),
        partial(twice, 2, done=True),
    ]
    with store.write() as c:
        answers = reporting.report_many(c, sent, TERMS)
    assert [a.accepted for a in answers if isinstance(a, ResultsAccepted)] == [2, 1, 1, 1]
    assert len(locked) > 2
    assert set().union(*locked) == locked[0]
    locked.clear()
    for task in (LIBRARY.implementation, FAST.implementation):
        scene.enqueue(configs(2), task)
    again = lease_each(scene, hosts(scene, 2))
    with store.write() as c:
        reporting.report_many(c, [partial(one, 1, done=False) for one in again] * 2, TERMS)
    assert len(locked) > 2
    assert set().union(*locked) == locked[0]


def test_an_import_and_a_report_of_one_new_environment_wait_in_turn(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both insert environments before they lock tasks: neither has a task that the other waits for meanwhile."""
    store, other = Store(postgres_copy), Store(postgres_copy)
    scene = Scene.make(store)
    worker_id = scene.register()
    for n in range(2):
        scene.enqueue(configs(2)[n : n + 1])
    first = scene.leased(worker_id)
    scene.report(first, [timed(e) for e in first.job.entries])  # inserts all else that both need
    held = scene.leased(worker_id)
    environment = {"python": "new"}
    of = Task(
        workload=WORKLOAD, target=TARGET, implementation=FAST.implementation, version=FAST.version,
        space=SPACE.digest,
    )
    row = ImportedRecord(
        source="plevel", task=of, config_key=configs(3)[2].key, samples_s=(1.0,), environment=environment
    )
    results = tuple(timed(e) for e in held.job.entries)
    sent = Results(token=held.token, session="s", results=results, done=True, environment=environment)
    lock, write, begun, tries = best.ask_lock, Importer._write, threading.Event(), []

    def count(*given: Any) -> frozenset[bytes]:
        tries.append(given)
        return write(*given)

    with ThreadPoolExecutor(1) as pool:
        imports: list[Future[Any]] = []

        def lock_late(*given: Any) -> None:
            if not begun.is_set():  # it is the report's
                begun.set()
                imports.append(pool.submit(import_items, other, [row]))
                await_waiting(store, 1)
            lock(*given)

        monkeypatch.setattr(Importer, "_write", count)
        monkeypatch.setattr(best, "ask_lock", lock_late)
        with store.write() as c:
            (answer,) = reporting.report_many(c, [Report(lease_id=held.id, results=sent)], TERMS)
        assert isinstance(answer, ResultsAccepted)
        assert imports[0].result().new == 1
    assert len(tries) == 1
    assert {row.task_id for row in scene.records()} == {scene.tasks[FAST.implementation]}
    store.close()
    other.close()


def test_a_run_changes_tasks_in_the_order_in_which_reports_lock_them(postgres_copy: str) -> None:
    """Not in that of their names, by which it would have the second when the report asks for it."""
    store, other = Store(postgres_copy), Store(postgres_copy)
    tasks = []
    for candidate in (FAST, LIBRARY):  # the first by id is the last by name, below
        named = msgspec.structs.replace(candidate, implementation=f"{'b' if candidate is FAST else 'a'}.cpu")
        tasks.append(named)
    asked = RunWorkload(workload=WORKLOAD, candidates=tuple(tasks[:1]))
    scene = Scene.make(store, request(workloads=(asked,)))
    both = RunWorkload(workload=WORKLOAD, candidates=tuple(tasks))
    scene = Scene.make(store, request(workloads=(both,)))
    with store.write() as c:
        c.execute(sa.update(task_table).values(plevel=99))  # as by another installation's of the same version
    again = request(workloads=(both,), seed=7)

    def create() -> int:
        with other.write() as c:
            return runs.create(c, again, planning.plan(again))

    first, second = sorted(scene.tasks.values())
    with ThreadPoolExecutor(1) as pool:
        with store.write() as c:
            best.lock(c, [first])
            created = pool.submit(create)
            await_waiting(store, 1)
            best.lock(c, [second])
        assert created.result() > scene.run_id
    store.close()
    other.close()


def test_an_import_changes_tasks_only_once_it_has_locked_all(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives a space to the second of them, which it would have while it waits for the first."""
    store, other = Store(postgres_copy), Store(postgres_copy)
    scene = Scene.make(store)
    first, second = sorted((scene.tasks[name], name) for name in (FAST.implementation, SLOW.implementation))
    attachment = Attachment(what="space", key=SPACE.digest, text=encode(SPACE.to_json()).decode())
    with store.write() as c:
        c.execute(sa.update(task_table).where(task_table.c.id == second[0]).values(space=sa.null()))
    rows = [
        ImportedRecord(
            source="plevel", config_key=configs(3)[2].key, samples_s=(1.0,),
            task=Task(
                workload=WORKLOAD, target=TARGET, implementation=name, version=FAST.version, space=SPACE.digest
            ),
        )
        for _, name in (first, second)
    ]
    write, tries = Importer._write, []

    def count(*given: Any) -> frozenset[bytes]:
        tries.append(given)
        return write(*given)

    monkeypatch.setattr(Importer, "_write", count)
    with ThreadPoolExecutor(1) as pool:
        with store.write() as c:
            best.lock(c, [first[0]])
            imported = pool.submit(import_items, other, [attachment, *rows])
            await_waiting(store, 1)
            best.lock(c, [second[0]])
        assert imported.result().new == 2
    assert len(tries) == 1  # after a deadlock it would store them again
    with store.read() as c:
        assert c.scalar(sa.select(task_table.c.space).where(task_table.c.id == second[0])) == SPACE.to_json()
    store.close()
    other.close()


def test_imports_insert_what_they_share_in_one_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that of tables, and of values, not in that of their records."""
    of_host = device("z/cpu:0", OTHER_TARGET)
    items = [
        made(1, environment={"python": 1}, policy=TimingPolicy(min_repeats=3), device=device("b/cpu:0")),
        made(2, environment={"python": 2}, policy=TimingPolicy(min_repeats=2), device=device("a/cpu:0")),
        made(3, environment={"python": 3}, policy=TimingPolicy(min_repeats=1), device=of_host),
        made(4, device_model="Model B"),
        made(5, device_model="Model A"),
    ]
    one = catalogue._one
    noted: list[tuple[str, list[Any]]] = []

    def note(connection: sa.Connection, table: sa.Table, identity: Mapping[str, Any], values: Any) -> int:
        noted.append((table.name, list(identity.values())))
        return one(connection, table, identity, values)

    monkeypatch.setattr(catalogue, "_one", note)
    for given, where in ((items, "first"), (items[::-1], "second")):
        import_items(store, given, namespace=where)
    first, second = noted[: len(noted) // 2], noted[len(noted) // 2 :]
    assert first == second
    assert list(dict.fromkeys(name for name, _ in first)) == [
        "environment", "target", "target_variant", "timing_policy", "device"
    ]


def test_a_transaction_sees_what_it_has_waited_for(postgres_copy: str) -> None:
    """By the default of an administrator who wants transactions serializable, it would fail instead."""
    option = "options=-c%20default_transaction_isolation%3Dserializable"
    store, other = (Store(f"{postgres_copy}&{option}") for _ in range(2))
    worker_id = Scene.make(store).register()

    def beat() -> set[int]:
        with other.write() as c:
            return heartbeat.store(c, {worker_id}, TERMS.alive_s)

    with ThreadPoolExecutor(1) as pool:
        with store.write() as c:
            c.execute(sa.update(worker).values(seen_at=now() - 30.0))
            beats = pool.submit(beat)
            await_waiting(store, 1)
        assert beats.result() == {worker_id}
    store.close()
    other.close()
