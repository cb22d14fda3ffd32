"""Group commits of workers' requests: in few round trips, each request with its own answer, and waiting for none."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa

from service.access import token
from service.errors import LeaseLostError, ServiceError
from service.queue import claim, fleet, pause, renewal
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.records import best, origin
from service.store.db import Store
from service.store.sql import now
from service.store.tables import TokenScope, event, job, lease, record, worker, worker_device
from service.tuning import run as runs
from strategy.record import Lease, Renewed, Report, Results
from tests.integration.derived import assert_derived
from tests.integration.scene import (
    OTHER_TARGET,
    TERMS,
    Scene,
    configs,
    device,
    drawn,
    info,
    lease_jobs,
    timed,
)
from tests.integration.test_one_trip import executed
from tests.integration.test_races import await_waiting

pytestmark = pytest.mark.in_turn("url")


def hosts(scene: Scene, number: int) -> list[LeaseAsk]:
    """Requests of as many workers, each for two jobs."""
    names = [f"host-{n}/cpu:0" for n in range(number)]
    return [LeaseAsk(scene.register(device(name)), name, 2) for name in names]


def lease_each(scene: Scene, asks: Sequence[LeaseAsk]) -> list[Lease]:
    with scene.store.write() as c:
        return [one for found in leasing.lease_many(c, asks, TERMS) if isinstance(found, list) for one in found]


def report_of(held: Lease) -> Report:
    results = tuple(timed(e) for e in held.job.entries)
    return Report(lease_id=held.id, results=Results(token=held.token, session="s", results=results, done=True))


def test_a_batch_takes_few_round_trips(store: Store) -> None:
    """On PostgreSQL, SQLAlchemy executes only what has no result and joins a trip, and the events of leases."""
    scene = Scene.make(store)
    asks = hosts(scene, 4)
    for n in range(16):
        scene.enqueue(configs(16)[n : n + 1])
    held = lease_each(scene, asks[:3])
    with store.write() as c:
        reporting.report_many(c, [report_of(one) for one in held], TERMS)  # fills the row caches
    told = executed(store)
    held = lease_each(scene, asks[:3])
    assert len(held) == 6
    if not store.is_sqlite:
        assert {" ".join(one.split()[:2]) for one in told} == {"UPDATE worker", "INSERT INTO", "SET LOCAL"}
    told.clear()
    with store.write() as c:
        answers = reporting.report_many(c, [report_of(one) for one in held], TERMS)
    assert [a.accepted for a in answers if not isinstance(a, Exception)] == [1] * 6
    if not store.is_sqlite:
        assert [one for one in told if one.startswith(("SELECT", "WITH"))] == []
    assert scene.states().count("done") == 12


def test_a_report_holds_its_task_from_the_insertion_on_only(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of one task to several services wait for each other no longer than that."""
    store, other = Store(postgres_copy), Store(postgres_copy, lock_s=5.0)
    scene = Scene.make(store)
    for n in range(6):
        scene.enqueue(configs(6)[n : n + 1])
    known, first, *rest = lease_each(scene, hosts(scene, 3))
    with store.write() as c:
        reporting.report_many(c, [report_of(known)], TERMS)  # what all records share is there
    lock, left = best.ask_lock, rest[:1]

    def lock_late(*given: Any) -> None:
        while left:
            sent = [report_of(left.pop())]
            with other.write() as c:
                (answer,) = reporting.report_many(c, sent, TERMS)
            assert not isinstance(answer, ServiceError)
            assert answer.accepted == 1
        lock(*given)

    monkeypatch.setattr(best, "ask_lock", lock_late)
    with store.write() as c:
        reporting.report_many(c, [report_of(one) for one in (first, *rest[1:])], TERMS)
    assert [r.lease_id for r in scene.records()] == [one.id for one in (known, rest[0], first, *rest[1:])]
    assert_derived(store)
    store.close()
    other.close()


def slow_report_of(held: Lease) -> Report:
    one = report_of(held)
    results = tuple(msgspec.structs.replace(r, samples_s=(1.0, 1.0)) for r in one.results.results)
    return msgspec.structs.replace(one, results=msgspec.structs.replace(one.results, results=results))


def trips(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The round trips to PostgreSQL from now on, but for commits: joined ones, and the statements of the others."""
    told: list[str] = []
    pipeline = psycopg.Connection.pipeline

    def join(connection: Any) -> Any:
        told.append("joined")
        return pipeline(connection)

    def note(connection: sa.Connection, _cursor: Any, text: str, *_: Any) -> None:
        driver: Any = connection.connection.driver_connection
        if driver.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF:
            told.append(text)

    monkeypatch.setattr(psycopg.Connection, "pipeline", join)
    sa.event.listen(store.engine, "before_cursor_execute", note)
    return told


def test_reports_wait_for_their_task_in_one_round_trip(postgres_copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One before it, and the commit, where neither the best nor a heartbeat changes."""
    store = Store(postgres_copy)
    scene = Scene.make(store)
    for n in range(12):
        scene.enqueue(configs(12)[n : n + 1])
    asks = hosts(scene, 3)
    for one in lease_each(scene, asks):
        with store.write() as c:
            reporting.report_many(c, [report_of(one)], TERMS)
    slow = [slow_report_of(one) for one in lease_each(scene, asks)]
    with store.write() as c:
        c.execute(sa.update(worker).values(seen_at=now()))
    told = trips(store, monkeypatch)
    with store.write() as c:
        answers = reporting.report_many(c, slow, TERMS)
    assert [a.accepted for a in answers if not isinstance(a, Exception)] == [1] * 6
    assert told == ["joined"] * 2
    assert_derived(store)
    store.close()


def test_attempts_of_equal_content_are_all_kept(store: Store) -> None:
    """Of one batch, and of one on record: a worker may send the same times for the same configuration twice."""
    scene = Scene.make(store)
    for _ in range(6):
        scene.enqueue(configs(1))
    held = lease_each(scene, hosts(scene, 3))
    for few in (held[:1], held[1:]):
        with store.write() as c:
            answers = reporting.report_many(c, [report_of(one) for one in few], TERMS)
        assert [a.accepted for a in answers if not isinstance(a, Exception)] == [1] * len(few)
    assert sorted(r.lease_id for r in scene.records()) == sorted(one.id for one in held)
    assert_derived(store)


@pytest.mark.parametrize(
    "statement", [claim._claim_plain(), claim._claim(named=True, several=True)], ids=["together", "alone"]
)
def test_a_claim_reads_the_head_of_a_long_queue_only(postgres_copy: str, statement: Any) -> None:
    """By its index: where it expected fewer jobs than are asked for, PostgreSQL sorted the whole queue."""
    store = Store(postgres_copy)
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    executed: list[tuple[str, Any]] = []
    with store.write() as c:
        (one,) = c.execute(sa.select(job))
        names = [column.name for column in job.c if column.name != "id"]
        values = ["random()" if name == "turn" else name for name in names]
        copied = f"SELECT {', '.join(values)} FROM job, generate_series(1, 10000)"
        c.execute(sa.text(f"INSERT INTO job ({', '.join(names)}) {copied}"))
        c.execute(sa.text("ANALYZE job, run"))
        sa.event.listen(store.engine, "before_cursor_execute", lambda *given: executed.append(given[2:4]))
        given = {"target": one.target_id, "known_needs": [one.needs], "most": 100}
        claimed = c.execute(statement, {**given, "asking": 1, "device": 1, "alive_s": 1.0}).all()
        text, parameters = executed[-1]
        plan = "\n".join(c.exec_driver_sql(f"EXPLAIN {text}", parameters).scalars())
    store.close()
    assert len(claimed) == 100
    assert "Index Scan using ix_job_queued" in plan
    assert "Sort" not in plan, plan


def test_a_device_that_gets_no_job_reads_none(postgres_copy: str) -> None:
    """Those that are paused poll all the time, however long their queue is."""
    store = Store(postgres_copy)
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    worker_id = scene.register()
    with store.write() as c:
        pause.create(c, pause.PauseRequest(reason="a fan", device="host-a/cpu:0-1"))
        (place,) = c.execute(sa.select(worker_device))
        executed: list[tuple[str, Any]] = []
        sa.event.listen(store.engine, "before_cursor_execute", lambda *given: executed.append(given[2:4]))
        given = {"asking": worker_id, "device": place.device_id, "target": place.target_id, "alive_s": 1.0, "most": 1}
        assert not c.execute(claim._claim(named=False, several=False), given).all()
        text, parameters = executed[-1]
        plan = "\n".join(c.exec_driver_sql(f"EXPLAIN ANALYZE {text}", parameters).scalars())
    store.close()
    read = next(line for line in plan.partition("LockRows")[2].splitlines() if "ix_job_queued" in line)
    assert "never executed" in read, plan


def test_identities_are_looked_up_by_their_index_without_statistics(postgres_copy: str) -> None:
    """A plan that was made while there was no record is kept until there are statistics."""
    store = Store(postgres_copy)
    listed = ",".join(rf"\\x{n:032x}" for n in range(48))
    with store.read() as c:
        compiled = origin._IDENTITIES[record].compile(dialect=c.dialect)
        told = {**compiled.params, "listed": f"{{{listed}}}"}
        plan = "\n".join(c.exec_driver_sql(f"EXPLAIN {compiled.string}", told).scalars())
    store.close()
    assert "using uq_record_identity on record" in plan
    assert "Seq Scan" not in plan, plan


def test_a_report_holds_up_no_lease_of_its_worker(postgres_copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat that it stores is the last it does: the worker's next lease does not wait for the derived rows."""
    store, other = Store(postgres_copy), Store(postgres_copy, lock_s=2.0)
    scene = Scene.make(store)
    for n in range(4):
        scene.enqueue(configs(4)[n : n + 1])
    (ask,) = hosts(scene, 1)
    held = lease_each(scene, [ask])
    with store.write() as c:
        c.execute(sa.update(worker).values(seen_at=now() - 50.0))
    settle = best.settle

    def lease_before(*given: Any) -> None:
        with other.write() as c:
            (leased,) = leasing.lease_many(c, [replace(ask, most=4)], TERMS)
        assert not isinstance(leased, ServiceError)
        settle(*given)

    monkeypatch.setattr(best, "settle", lease_before)
    with store.write() as c:
        reporting.report_many(c, [report_of(one) for one in held], TERMS)
    assert scene.states() == ["done", "done", "leased", "leased"]
    assert_derived(store)
    store.close()
    other.close()


def test_a_late_report_of_a_batch_stores_nothing(store: Store) -> None:
    scene = Scene.make(store)
    for n in range(2):
        scene.enqueue(configs(2)[n : n + 1])
    late, good = lease_each(scene, hosts(scene, 1))
    scene.lose(late)
    with store.write() as c:
        refused, accepted = reporting.report_many(c, [report_of(late), report_of(good)], TERMS)
    assert isinstance(refused, LeaseLostError)
    assert not isinstance(accepted, ServiceError)
    assert accepted.accepted == 1
    with store.read() as c:
        assert c.scalars(sa.select(record.c.lease_id)).all() == [good.id]
    assert sorted(scene.states()) == ["done", "queued"]


def test_a_report_of_a_batch_with_another_token_stores_nothing_and_is_no_repetition(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    (held,) = lease_each(scene, hosts(scene, 1))
    strange = report_of(msgspec.structs.replace(held, token=held.token + 1))
    for own, state in ((report_of(held), "leased"), (None, "done")):
        with store.write() as c:
            (refused,) = reporting.report_many(c, [strange], TERMS)
        assert isinstance(refused, LeaseLostError)
        assert scene.states() == [state]
        if own is not None:
            with store.write() as c:
                reporting.report_many(c, [own], TERMS)


def test_renewals_are_each_answered(store: Store) -> None:
    scene = Scene.make(store)
    for n in range(4):
        scene.enqueue(configs(4)[n : n + 1])
    first, second, third, fourth = lease_each(scene, hosts(scene, 2))
    with store.write() as c:
        renewal.renew(c, first.id, first.token, True, TERMS)
        c.execute(sa.update(lease).values(expires_at=now() + 5.0))
        c.execute(sa.update(lease).where(lease.c.id == fourth.id).values(ended_at=now(), end_reason="released"))
        c.execute(sa.update(worker).values(seen_at=now() - 50.0))
        asked = [
            (first.id, first.token, True), (second.id, second.token, False), (second.id, second.token, True),
            (third.id, third.token + 1, False), (fourth.id, fourth.token, False),
        ]
        answers = renewal.renew_many(c, asked, TERMS)
    kept = Renewed(expires_in_s=TERMS.lease_s), False
    assert answers == [kept, kept, None, None, None]
    with store.write() as c:
        renewed = c.scalars(sa.select(lease.c.id).where(lease.c.expires_at > now() + 10.0)).all()
        seen = c.scalars(sa.select(worker.c.id).where(worker.c.seen_at > now() - 10.0)).all()
        runs.cancel(c, scene.run_id)
        (told,) = renewal.renew_many(c, asked[1:2], TERMS)
    assert (sorted(renewed), len(seen)) == ([first.id, second.id], 1)
    assert told is not None
    assert told.answer.cancelled


def test_one_lease_of_each_device_begins_timing(store: Store) -> None:
    scene = Scene.make(store)
    for n in range(4):
        scene.enqueue(configs(4)[n : n + 1])
    first, second, third, _ = lease_each(scene, hosts(scene, 2))
    asked = [(one.id, one.token, True) for one in (first, second, third)]
    with store.write() as c:
        c.execute(sa.update(lease).values(expires_at=now() + 5.0))
        assert [a and a.began for a in renewal.renew_many(c, asked, TERMS)] == [True, None, True]
    with store.write() as c:
        assert [a and a.began for a in renewal.renew_many(c, asked, TERMS)] == [False, None, False]
        timing = sa.select(lease.c.id).where(lease.c.timing, lease.c.expires_at > now() + 10.0)
        assert sorted(c.scalars(timing)) == [first.id, third.id]
        noted = c.scalars(sa.select(event.c.job_id).where(event.c.kind == "timing"))
        assert sorted(noted) == [first.job.id, third.job.id]


def test_a_device_that_is_locked_begins_timing_later(postgres_copy: str) -> None:
    store, other = Store(postgres_copy), Store(postgres_copy)
    scene = Scene.make(store)
    for n in range(4):
        scene.enqueue(configs(4)[n : n + 1])
    held = lease_each(scene, hosts(scene, 2))[::2]
    asked = [(one.id, one.token, True) for one in held]
    with other.write() as stranger:
        fleet.lock_device(stranger, stranger.scalar(sa.select(lease.c.device_id).where(lease.c.id == held[0].id)))
        with store.write() as c:
            c.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
            assert [a and a.began for a in renewal.renew_many(c, asked, TERMS)] == [None, True]
    store.close()
    other.close()


def test_a_lease_that_is_locked_holds_up_no_other_renewal(postgres_copy: str) -> None:
    store, other = Store(postgres_copy), Store(postgres_copy)
    scene = Scene.make(store)
    for n in range(2):
        scene.enqueue(configs(2)[n : n + 1])
    first, second = lease_each(scene, hosts(scene, 1))
    asked = [(one.id, one.token, False) for one in (first, second)]
    with other.write() as stranger:
        stranger.execute(sa.select(lease.c.id).where(lease.c.id == first.id).with_for_update())
        with store.write() as c:
            c.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
            assert [answer is None for answer in renewal.renew_many(c, asked, TERMS)] == [True, False]
    store.close()
    other.close()


def test_leases_belong_to_the_tokens_of_their_workers(store: Store) -> None:
    scene = Scene.make(store)
    with store.write() as c:
        mine, other = (token.create(c, name, [TokenScope.WORKER]).id for name in ("mine", "other"))
        workers = [
            fleet.register(c, info(device(f"host-{n}/cpu:0")), owner) for n, owner in enumerate((mine, other, None))
        ]
    for n in range(3):
        scene.enqueue(configs(3)[n : n + 1])
    with store.write() as c:
        first, second, third = (
            lease_jobs(c, worker_id, f"host-{n}/cpu:0")[0].id for n, worker_id in enumerate(workers)
        )
    asked = [
        ({first}, "mine"), ({second}, "other"), ({first, second}, "mine"), ({third}, "mine"), ({first, 4711}, "mine"),
        ({first, second, third}, None), (set(), "mine"),
    ]
    with store.read() as c:
        errors = fleet.find_strange(c, asked)
        with pytest.raises(LeaseLostError, match=f"lease {first} belongs to a worker of another token"):
            fleet.check_leases(c, {first}, "other")
    assert [error is None for error in errors] == [True, True, False, False, False, True, True]
    assert str(errors[2]).startswith(f"lease {second} belongs")


def test_a_run_with_a_maximum_holds_up_its_own_target_only(postgres_copy: str) -> None:
    stores = [Store(postgres_copy) for _ in range(4)]
    scene = Scene.make(stores[0], drawn(max_jobs=1))
    Scene.make(stores[0], drawn(target=OTHER_TARGET))
    scene.enqueue(configs(1))
    first, second = (LeaseAsk(scene.register(device(name)), name) for name in ("a/cpu:0", "b/cpu:0"))
    third = LeaseAsk(scene.register(device("c/cpu:0", OTHER_TARGET)), "c/cpu:0")

    def claim(store: Store, ask: LeaseAsk) -> int:
        with store.write() as c:
            (found,) = leasing.lease_many(c, [ask], TERMS)
            assert isinstance(found, list)
            return len(found)

    with ThreadPoolExecutor(1) as pool:
        with stores[1].write() as c:
            (held,) = leasing.lease_many(c, [first], TERMS)
            assert isinstance(held, list)
            assert len(held) == 1
            assert claim(stores[2], third) == 0  # at once
            waits = pool.submit(claim, stores[2], second)
            await_waiting(stores[3], 1)
        assert waits.result() == 0
    for store in stores:
        store.close()
