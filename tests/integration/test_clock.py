"""A database whose clock is set ahead by an hour and back again: nothing waits for the hour."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from service.errors import LeaseLostError
from service.predict import trainer
from service.queue import fleet, heartbeat, renewal, retry
from service.queue import lease as leasing
from service.queue.overdue import Overdue
from service.search.child import InlineModel
from service.settings import Settings
from service.store.db import Store
from service.store.sql import now
from service.store.tables import run
from service.store.wakeup import Wakeup
from service.tuning import plan as planning
from service.tuning import remeasure, run_status, webhook
from service.tuning import run as runs
from service.tuning.ownership import Ownership
from service.tuning.tuner import Tuner
from strategy.record import Phase, RunState
from tests import statement
from tests.integration.scene import (
    OTHER_TARGET,
    TARGET,
    TERMS,
    WORKLOAD,
    Scene,
    configs,
    device,
    drawn,
    request,
    timed,
)

pytestmark = pytest.mark.in_turn("url")

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Clock:
    """The clock of one database, which tests set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with store.write() as c:
            c.execute(sa.text("CREATE TABLE clock (ahead_s DOUBLE PRECISION)"))
            c.execute(sa.text("INSERT INTO clock VALUES (0)"))

    def move(self, by_s: float) -> None:
        with self._store.write() as c:
            c.execute(sa.text("UPDATE clock SET ahead_s = ahead_s + :by_s"), {"by_s": by_s})


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(statement, "variant", "clock")
    specs = now._compiler_dispatcher.specs
    for dialect in ("sqlite", "postgresql"):
        real = specs[dialect]
        monkeypatch.setitem(
            specs, dialect,
            lambda element, compiler, real=real, **kw: (
                f"({real(element, compiler, **kw)} + (SELECT ahead_s FROM clock))"
            ),
        )
    opened = Store(url)
    yield opened
    opened.close()


@pytest.fixture
def clock(store: Store) -> Clock:
    return Clock(store)


def expire(store: Store) -> int:
    with store.write() as c:
        return retry.expire(c, TERMS)


def test_the_clock_of_these_tests_moves(store: Store, clock: Clock) -> None:
    with store.read() as c:
        before = c.scalar(sa.select(now()))
    clock.move(HOUR_S)
    with store.read() as c:
        after = c.scalar(sa.select(now()))
    assert before is not None and after is not None
    assert HOUR_S <= after - before < 2 * HOUR_S


def test_a_job_of_a_worker_that_died_ahead_of_time_is_leased_again(
    store: Store, clock: Clock
) -> None:
    scene = Scene.make(store)
    job_id = scene.enqueue(configs(1))
    worker = scene.register()
    clock.move(HOUR_S)
    scene.leased(worker)
    clock.move(-HOUR_S)
    assert expire(store) == 0  # it may live
    clock.move(TERMS.lease_s + 1.0)
    assert expire(store) == 1
    clock.move(retry.MAX_BACKOFF_S)
    assert scene.leased(scene.register()).job.id == job_id


def test_a_worker_that_lives_keeps_the_lease_that_it_got_ahead_of_time(
    store: Store, clock: Clock
) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    clock.move(HOUR_S)
    held = scene.leased(scene.register())
    clock.move(-HOUR_S)
    assert expire(store) == 0
    with store.write() as c:
        renewal.renew(c, held.id, held.token, False, TERMS)
    clock.move(TERMS.lease_s - 1.0)
    assert expire(store) == 0
    assert scene.report(held, [timed(held.job.entries[0])]).accepted == 1


def test_leases_do_not_expire_at_once_as_the_clock_is_set_ahead(store: Store, clock: Clock) -> None:
    own_s = 0.0
    terms = retry.Terms(TERMS.lease_s, TERMS.alive_s, Overdue(TERMS.lease_s / 3, lambda: own_s))

    def sweep() -> int:
        with store.write() as c:
            return retry.expire(c, terms)

    scene = Scene.make(store)
    lives, dies = scene.enqueue(configs(1)), scene.enqueue(configs(2)[1:])
    held = {one.job.id: one for one in scene.lease_many(scene.register(), 2)}
    clock.move(HOUR_S)
    assert sweep() == 0
    with store.write() as c:
        renewal.renew(c, held[lives].id, held[lives].token, False, terms)
    own_s += TERMS.lease_s / 3
    assert sweep() == 1  # the one that nobody has renewed meanwhile
    assert scene.report(held[lives], [timed(held[lives].job.entries[0])]).accepted == 1
    with pytest.raises(LeaseLostError):
        scene.report(held[dies], [timed(held[dies].job.entries[0])])


def test_a_job_queued_or_backing_off_ahead_of_time_is_due(store: Store, clock: Clock) -> None:
    scene = Scene.make(store)
    worker = scene.register()
    clock.move(HOUR_S)
    queued = scene.enqueue(configs(1))
    backing_off = scene.enqueue(configs(2)[1:])
    for held in scene.lease_many(worker, 2):
        if held.job.id == backing_off:
            with store.write() as c:
                retry.end_lease(c, held.id, "expired")
                retry.reopen(c, backing_off, TERMS, blame="its worker was lost")
        else:
            with store.write() as c:
                leasing.release(c, held.id, held.token, TERMS)
    clock.move(-HOUR_S)
    taken = scene.leased(worker)
    assert taken.job.id == queued
    scene.report(taken, [timed(taken.job.entries[0])])
    assert scene.leased(worker).job.id == backing_off


def test_a_final_queued_ahead_of_time_waits_for_no_other_device(store: Store, clock: Clock) -> None:
    scene = Scene.make(store)
    one = scene.register()
    other = scene.register(device("host-b/cpu:0-1"))
    clock.move(HOUR_S)
    finals = {scene.enqueue(configs(1), phase=Phase.CONFIRM) for _ in range(2)}
    first = scene.leased(one)
    scene.report(first, [timed(first.job.entries[0])])
    clock.move(-HOUR_S)
    with store.write() as c:
        heartbeat.store(c, {other}, TERMS.alive_s)
    assert {first.job.id, scene.leased(one).job.id} == finals


def test_a_worker_seen_ahead_of_time_is_alive_only_if_it_is_seen_again(
    store: Store, clock: Clock
) -> None:
    scene = Scene.make(store)
    clock.move(HOUR_S)
    lives = scene.register()
    scene.register(device("host-b/cpu:0-1"))

    def count() -> int:
        with store.read() as c:
            return fleet.count_alive(c, scene.target_id, TERMS.alive_s)

    assert count() == 2
    clock.move(-HOUR_S)
    with store.write() as c:
        assert heartbeat.store(c, {lives}, TERMS.alive_s) == {lives}
    assert count() == 1


def test_a_run_held_ahead_of_time_is_taken_over_or_kept(store: Store, clock: Clock) -> None:
    scene = Scene.make(store)
    one, other = Ownership(60.0, "one"), Ownership(60.0, "other")
    clock.move(HOUR_S)
    assert one.hold(store) == [scene.run_id]
    clock.move(-HOUR_S)
    assert one.hold(store) == [scene.run_id]  # says again that it lives, by this clock
    clock.move(59.0)
    assert other.hold(store) == []
    clock.move(2.0)
    assert other.hold(store) == [scene.run_id]
    clock.move(HOUR_S)
    assert one.hold(store) == [scene.run_id]
    clock.move(-HOUR_S)
    assert other.hold(store) == [scene.run_id]  # of one that died


def test_a_webhook_due_ahead_of_time_is_sent(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene.make(store)
    clock.move(HOUR_S)
    with store.write() as c:
        webhook.subscribe(c, scene.run_id, "http://ci.lan/")
        runs.finish(c, scene.run_id, RunState.DONE, "")
    postman = webhook.Postman(store, Settings(webhook_hosts="ci.lan", webhook_retry_s=10.0))
    answers = ["it answered 503", "it answered 503", ""]
    monkeypatch.setattr(postman, "_send", lambda url, message, body: answers.pop(0))
    assert postman.send()
    clock.move(10.0)
    assert postman.send()
    clock.move(-HOUR_S)
    assert postman.send()  # a second try was due in 20 s
    assert answers == []


def test_a_run_that_ended_ahead_of_time_makes_its_target_busy_no_longer(
    store: Store, clock: Clock
) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(1), phase=Phase.CONFIRM)
    worker = scene.register()
    held = scene.leased(worker)
    scene.report(held, [timed(held.job.entries[0])])
    with store.write() as c:
        runs.finish(c, scene.run_id, RunState.DONE, "")
    clock.move(1.5 * DAY_S)
    with store.write() as c:
        heartbeat.store(c, {worker}, TERMS.alive_s)
        assert remeasure.is_due(c, DAY_S, TERMS.alive_s)
    clock.move(HOUR_S)
    with store.write() as c:
        asked = request(target=OTHER_TARGET)
        other = runs.create(c, asked, planning.plan(asked), "default")
        # On the same target, whatever it asked for.
        c.execute(sa.update(run).where(run.c.id == other).values(target_id=scene.target_id))
        runs.finish(c, other, RunState.CANCELLED, "")
    clock.move(-HOUR_S)
    with store.write() as c:
        heartbeat.store(c, {worker}, TERMS.alive_s)
        assert remeasure.is_due(c, DAY_S, TERMS.alive_s)


def test_a_run_created_ahead_of_time_times_out_when_it_should(
    store: Store, clock: Clock
) -> None:
    clock.move(HOUR_S)
    scene = Scene.make(store, drawn(timeout_s=600.0))
    clock.move(-HOUR_S)
    tuner = Tuner(store, Settings(), InlineModel(), Wakeup(), Wakeup())

    def state() -> RunState:
        tuner.step()
        with store.read() as c:
            return run_status.status(c, scene.run_id, TERMS.alive_s).state

    assert state() is RunState.RUNNING
    clock.move(480.0)  # so far from the end as a busy host may stall
    assert state() is RunState.RUNNING
    clock.move(121.0)
    assert state() is not RunState.RUNNING


def test_a_run_that_ended_after_the_clock_was_set_back_is_trained_from(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[str, str]] = []
    monkeypatch.setattr(trainer, "_is_due", lambda c, *due: looked.append(due))
    live, ended = Scene.make(store), Scene.make(store, request(target=OTHER_TARGET))
    with store.write() as c:
        runs.finish(c, ended.run_id, RunState.DONE, "")
    clock.move(HOUR_S)
    trains = trainer.Trainer(store, poll_s=60.0, quiet_s=0.0)
    clock.move(-HOUR_S)
    trains.step()
    with store.write() as c:
        runs.finish(c, live.run_id, RunState.DONE, "")
    trains.step()
    assert looked == [(WORKLOAD.op, TARGET.key)]
    made = Scene.make(store, request(trials=25, target=OTHER_TARGET))  # and ended between two looks
    with store.write() as c:
        runs.finish(c, made.run_id, RunState.DONE, "")
    trains.step()
    trains.step()
    assert looked[1:] == [(WORKLOAD.op, OTHER_TARGET.key)]
