"""Requests of the same thing at the same moment, each over a connection of its own, on both databases.

Each race is run many times behind a barrier. docs/database.md lists them, with what decides each.
"""

# ruff: noqa: B023 - what is done at once ends within its round
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import settings

from service.access import token
from service.errors import (
    DeviceBusyError,
    ForbiddenError,
    LeaseLostError,
    NotFoundError,
    ServiceError,
)
from service.predict import training
from service.queue import fleet, heartbeat, pause, renewal, retry
from service.queue import job as jobs
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.records import retention
from service.records.importer import import_items
from service.settings import Settings
from service.store import catalogue
from service.store.db import Store
from service.store.sql import now
from service.store.tables import (
    JobState,
    TokenScope,
    cost_model,
    device_owner,
    job,
    lease,
    record,
    run,
    target,
    tombstone,
    worker,
)
from service.store.tables import device as device_table
from service.store.tables import pause as pause_table
from service.store.tables import webhook as webhook_table
from service.tuning import intake, other_run, remeasure, tuning_run, webhook
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning.ownership import Ownership
from strategy.record import Lease, Phase, Report, Results, RunState, RunWorkload, TimingPolicy
from strategy.target import Target
from strategy.workload import Input, Workload
from tests.integration.derived import assert_derived
from tests.integration.scene import (
    CANDIDATES,
    TARGET,
    TERMS,
    Scene,
    configs,
    device,
    drawn,
    info,
    timed,
)
from tests.integration.test_import import made
from tests.limit import wait_until

T = TypeVar("T")
ROUNDS = min(20, settings.default.max_examples * 2 // 3)


class Crowd:
    """Clients of one database, each with a connection of its own, that act at the same moment."""

    def __init__(self, url: str, size: int = 3) -> None:
        self.stores = [Store(url) for _ in range(size)]
        for store in self.stores:
            with store.read() as c:  # so that nobody connects while others begin
                c.execute(sa.select(1))

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def at_once(self, *acts: Callable[[sa.Connection], T]) -> list[T | ServiceError]:
        """Each act in a transaction of its own, one that is given alone by all; refusals are answers."""

        def within(act: Callable[[sa.Connection], T]) -> Callable[[Store], T]:
            def go(store: Store) -> T:
                with store.write() as c:
                    return act(c)

            return go

        return self.each(*map(within, acts))

    def each(self, *acts: Callable[[Store], T]) -> list[T | ServiceError]:
        """The same with a store for each act."""
        listed = acts if len(acts) > 1 else acts * len(self.stores)
        barrier = threading.Barrier(len(listed))

        def go(store: Store, act: Callable[[Store], T]) -> T | ServiceError:
            barrier.wait()
            try:
                return act(store)
            except _REFUSALS as refusal:
                return refusal

        with ThreadPoolExecutor(len(listed)) as pool:
            return list(pool.map(go, self.stores, listed))


_REFUSALS = (DeviceBusyError, ForbiddenError, LeaseLostError, NotFoundError)


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.full), "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database; of SQLite, where one writes at a time, in larger samples."""
    found: str = request.getfixturevalue("sqlite_copy" if request.param == "sqlite" else "postgres_copy")
    return found


@pytest.fixture
def crowd(url: str) -> Iterator[Crowd]:
    made = Crowd(url)
    yield made
    made.close()


def kinds(answers: Sequence[object]) -> Counter[type]:
    return Counter(type(a) for a in answers if isinstance(a, Exception))


# Runs


@pytest.mark.sample(1)
@pytest.mark.parametrize("force", [False, True])
def test_equal_requests_make_one_run(crowd: Crowd, force: bool) -> None:
    for seed in range(ROUNDS):
        asked = drawn(seed=seed, force=force)
        planned = planning.plan(asked)
        ids = crowd.at_once(lambda c: runs.create(c, asked, planned))
        assert len(set(ids)) == 1, seed
        with crowd.stores[0].write() as c:
            assert runs.create(c, asked, planned) == ids[0]
            runs.cancel(c, ids[0])
            assert runs.create(c, asked, planned) != ids[0], "the next begins another"


def test_a_request_joins_a_forced_run_and_not_the_other_way(store: Store) -> None:
    with store.write() as c:
        forced = drawn(force=True)
        first = runs.create(c, forced, planning.plan(forced))
        assert runs.create(c, drawn(), planning.plan(drawn())) == first
        runs.cancel(c, first)
        plain = runs.create(c, drawn(), planning.plan(drawn()))
        assert runs.create(c, forced, planning.plan(forced)) != plain


def test_requests_of_the_same_workloads_in_another_order_do_not_stop_each_other(crowd: Crowd) -> None:
    for n in range(ROUNDS):
        workloads = [
            RunWorkload(
                workload=Workload("filter", (Input("data", f"float32[{n + 1},{m}]"),)), candidates=given
            )
            for m, given in ((1, CANDIDATES), (2, CANDIDATES[::-1]), (3, CANDIDATES))
        ]
        asked = [
            drawn(workloads=tuple(given), seed=seed)
            for seed, given in enumerate((workloads, workloads[::-1], workloads[1:] + workloads[:1]))
        ]
        planned = [planning.plan(a) for a in asked]
        ids = crowd.at_once(*(
            lambda c, a=a, p=p: runs.create(c, a, p) for a, p in zip(asked, planned, strict=True)
        ))
        assert len(set(ids)) == 3


def test_runs_are_created_while_workers_report_times_of_the_same_tasks(crowd: Crowd) -> None:
    """For two installations, which describe the tasks in different ways: each run changes them."""
    shapes = [Workload("filter", (Input("data", f"float32[{m}]"),)) for m in (1, 2)]
    for one in shapes:  # the order of their ids is that of their names in reverse
        for candidate in sorted(CANDIDATES, key=lambda c: c.implementation, reverse=True):
            Scene.make(
                crowd.stores[0], drawn(workloads=(RunWorkload(workload=one, candidates=(candidate,)),))
            )
    scenes = [Scene.make(crowd.stores[0], drawn(workload=one)) for one in shapes]
    worker_id = scenes[0].register()

    def creation(plevel: int, seed: int) -> Callable[[sa.Connection], int]:
        given = tuple(msgspec.structs.replace(c, plevel=plevel) for c in CANDIDATES)
        asked = drawn(workloads=tuple(RunWorkload(workload=one, candidates=given) for one in shapes), seed=seed)
        planned = planning.plan(asked)
        return lambda c: runs.create(c, asked, planned)

    def answer(held: Lease) -> Report:
        results = tuple(timed(e) for e in held.job.entries)
        return Report(lease_id=held.id, results=Results(token=held.token, session="s", results=results, done=True))

    for n in range(ROUNDS):
        for scene in scenes:
            for name in scene.tasks:
                scene.enqueue(configs(n + 1)[n:], name)
        held = scenes[0].lease_many(worker_id, 2 * len(CANDIDATES))
        reports = [answer(one) for one in reversed(held)]
        first, second, answers = crowd.at_once(
            creation(0, 2 * n + 1), creation(1, 2 * n + 2), lambda c: reporting.report_many(c, reports, TERMS),
        )
        assert first != second
        assert [one.accepted for one in answers] == [1] * len(reports)


def test_a_run_ends_once(crowd: Crowd) -> None:
    for seed in range(ROUNDS):
        scene = Scene.make(crowd.stores[0], drawn(seed=seed))
        ends: list[Callable[[sa.Connection], None]] = [
            lambda c: runs.cancel(c, scene.run_id),
            lambda c: runs.finish(c, scene.run_id, RunState.DONE, "24 trials"),
            lambda c: runs.finish(c, scene.run_id, RunState.FAILED, "the tuner failed"),
        ]
        crowd.at_once(*ends)
        with crowd.stores[0].read() as c:
            said = c.scalars(
                sa.text("SELECT kind FROM event WHERE run_id = :id AND kind IN ('cancelled', 'done', 'failed')"),
                {"id": scene.run_id},
            ).all()
            assert said == [c.scalar(sa.select(run.c.state).where(run.c.id == scene.run_id))]


def test_a_cancelled_run_leaves_nothing_in_the_queue(crowd: Crowd) -> None:
    """While a worker gives a job back, and another is taken for lost."""
    for seed in range(ROUNDS):
        scene = Scene.make(crowd.stores[0], drawn(seed=seed))
        for n in range(2):
            scene.enqueue(configs(4)[2 * n : 2 * n + 2])
        worker_id = scene.register()
        given, lost = scene.lease_many(worker_id, 2)
        with crowd.stores[0].write() as c:
            c.execute(sa.update(lease).where(lease.c.id == lost.id).values(expires_at=now() - 1.0))
        crowd.at_once(
            lambda c: runs.cancel(c, scene.run_id),
            lambda c: leasing.release(c, given.id, given.token, TERMS),
            lambda c: retry.expire(c, TERMS),
        )
        with crowd.stores[0].read() as c:
            states = c.scalars(sa.select(job.c.state).where(job.c.run_id == scene.run_id)).all()
        assert set(states) == {JobState.CANCELLED}, states


def test_a_run_has_one_tuner(crowd: Crowd) -> None:
    for seed in range(ROUNDS):
        scene = Scene.make(crowd.stores[0], drawn(seed=seed))
        names = [f"tuner {i}" for i in range(3)]
        held = crowd.each(*(lambda s, n=n: Ownership(60.0, n).hold(s) for n in names))
        assert sum(scene.run_id in mine for mine in held) == 1


@pytest.mark.full
def test_lost_jobs_of_several_runs_do_not_stop_their_tuners(crowd: Crowd) -> None:
    """A deadlock otherwise: the one holds the runs in the order of their jobs, the other in its own."""
    first, second = (Scene.make(crowd.stores[0], drawn(seed=seed)) for seed in range(2))
    worker_id = first.register()
    for n in range(ROUNDS):
        for scene in (second, first):
            scene.enqueue(configs(1))
        assert len(first.lease_many(worker_id, 2)) == 2
        with crowd.stores[0].write() as c:
            live = lease.c.ended_at.is_(None)
            c.execute(sa.update(lease).where(live).values(expires_at=now() - 1.0))
        crowd.each(
            lambda s: Ownership(60.0, f"{n} one").hold(s),
            expire,
            lambda s: Ownership(60.0, f"{n} other").hold(s),
        )
        with crowd.stores[0].write() as c:
            for scene in (first, second):
                jobs.cancel(c, scene.run_id)
            c.execute(sa.update(run).values(tuner=None, tuner_until=None))


def expire(store: Store) -> int:
    with store.write() as c:
        return retry.expire(c, TERMS)


def test_a_lost_trial_counts_though_others_are_stored_meanwhile(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuner reads on from the last record that it has seen: none may come in behind it."""
    monkeypatch.setattr(retry, "_is_guilty", lambda *_: True)
    scene = Scene.make(crowd.stores[0], drawn())
    worker_id = scene.register()
    for config in configs(3):
        scene.enqueue([config])
    first, lost, good = scene.lease_many(worker_id, 3)
    scene.report(first, [timed(e) for e in first.job.entries])  # what all records share is there
    with crowd.stores[0].write() as c:
        c.execute(sa.update(job).where(job.c.id == lost.job.id).values(attempts=retry.MAX_ATTEMPTS - 1))
        c.execute(sa.update(lease).where(lease.c.id == lost.id).values(expires_at=now() - 1.0))
    with crowd.stores[0].read() as c:
        tuning = tuning_run.load(c, scene.run_id, None)
    written, reported = threading.Event(), threading.Event()

    def lose(store: Store) -> None:
        with store.write() as c:
            assert retry.expire(c, TERMS) == 1
            written.set()
            reported.wait(1.0)  # in vain, where the other waits for this

    def tell(store: Store) -> None:
        written.wait()
        with store.write() as c:
            report(c, scene, good, [timed(e) for e in good.job.entries])
        with store.read() as c:
            intake.absorb(c, tuning)
        reported.set()

    crowd.each(lose, tell)
    with crowd.stores[0].read() as c:
        intake.absorb(c, tuning)
    assert sum(t.told for t in tuning.tasks) == len(scene.records()) == 3


# The queue


def test_a_device_times_under_one_lease(crowd: Crowd) -> None:
    scene = Scene.make(crowd.stores[0])

    def begin(c: sa.Connection, held: Lease) -> object:
        """As the service does: by a batch, and by a transaction that waits where that does not serve it."""
        (kept,) = renewal.renew_many(c, [(held.id, held.token, True)], TERMS)
        return kept or renewal.renew(c, held.id, held.token, True, TERMS)

    for n in range(ROUNDS):
        place = f"host-{n}/cpu:0"
        # Twice as it was, and once as it is since its firmware is another.
        workers = [scene.register(device(place)) for _ in range(2)]
        changed = msgspec.structs.replace(device(place), fingerprint={"microcode": n})
        workers.append(scene.register(changed))
        for _ in workers:
            scene.enqueue(configs(1))
        # One to each: of a device that is described alike, those that are built count together.
        held = [
            scene.lease_many(worker_id, 1 + workers.index(worker_id) % 2, place)[0] for worker_id in workers
        ]
        answers = crowd.at_once(*(lambda c, h=h: begin(c, h) for h in held))
        assert kinds(answers) == {DeviceBusyError: 2}, answers
        with crowd.stores[0].write() as c:
            ids = [h.id for h in held]
            timing = sa.select(lease.c.id).where(lease.c.id.in_(ids), lease.c.timing)
            assert len(c.scalars(timing).all()) == 1
            for worker_id in workers:
                leasing.release_worker(c, worker_id, TERMS)
            jobs.cancel(c, scene.run_id)


def test_a_device_that_is_renamed_meanwhile_times_under_one_lease(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another name once the renewal gets the lock of the one that it had."""
    store = Store(postgres_copy)
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    scene.enqueue(configs(2)[1:])
    first, second = scene.lease_many(scene.register(), 2)
    with store.write() as c:
        renewal.renew(c, first.id, first.token, True, TERMS)
    lock, names = fleet._lock, [device().identity]

    def lock_late(connection: sa.Connection, identity: str) -> str | None:
        if names:
            with store.write() as other:
                fleet.rename(other, names.pop(), "new")
        return lock(connection, identity)

    monkeypatch.setattr(fleet, "_lock", lock_late)
    with pytest.raises(DeviceBusyError, match=f"lease {first.id}"), store.write() as c:
        renewal.renew(c, second.id, second.token, True, TERMS)
    store.close()


def test_a_run_waits_for_no_job_that_it_brings_forward(postgres_copy: str) -> None:
    """A claim or a cancellation may hold it, and wait for the run."""
    store = Store(postgres_copy)
    scene = Scene.make(store)
    held, free = scene.enqueue(configs(1)), scene.enqueue(configs(2)[1:])
    with store.write() as other:
        other.execute(sa.select(job.c.id).where(job.c.id == held).with_for_update())
        with store.write() as c:
            c.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
            other_run.bring_forward(c, [held, free], 1)
    with store.read() as c:
        found = dict(c.execute(sa.select(*job.c["id", "priority"])).all())
    store.close()
    assert found == {held: jobs.NORMAL, free: jobs.NORMAL - jobs.RUN_PRIORITY}


def test_results_that_come_twice_are_stored_once(crowd: Crowd) -> None:
    scene = Scene.make(crowd.stores[0])
    worker_id = scene.register()
    for n in range(ROUNDS):
        scene.enqueue(configs(48)[2 * n : 2 * n + 2])
        held = scene.leased(worker_id)
        results = [timed(e) for e in held.job.entries]
        reporters = [Scene(s, scene.run_id, 0, 0, {}) for s in crowd.stores]
        answers = crowd.at_once(*(
            lambda c, s=s: report(c, s, held, results) for s in reporters
        ))
        assert not kinds(answers), answers
        assert sum(a.accepted for a in answers) == 2
        assert sum(a.known for a in answers) == 4
    assert len(scene.records()) == 2 * ROUNDS
    assert set(scene.states()) == {JobState.DONE}


def report(c: sa.Connection, scene: Scene, held: Any, results: Any) -> Any:
    from strategy.record import Report, Results

    sent = Results(token=held.token, session=f"s{held.id}", results=tuple(results), done=True)
    (answer,) = reporting.report_many(c, [Report(lease_id=held.id, results=sent)], TERMS)
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_a_job_ends_in_one_way(crowd: Crowd) -> None:
    """Its results come, it is given back, and its lease is over."""
    scene = Scene.make(crowd.stores[0])
    worker_id = scene.register()
    for n in range(ROUNDS):
        job_id = scene.enqueue(configs(48)[2 * n : 2 * n + 2])
        held = scene.leased(worker_id)
        results = [timed(e) for e in held.job.entries]
        if n % 2:
            with crowd.stores[0].write() as c:
                c.execute(sa.update(lease).where(lease.c.id == held.id).values(expires_at=now() + 0.002))
        crowd.at_once(
            lambda c: report(c, scene, held, results),
            lambda c: leasing.release(c, held.id, held.token, TERMS),
            lambda c: retry.expire(c, TERMS),
        )
        with crowd.stores[0].write() as c:
            retry.expire(c, TERMS)  # where it was not over yet for the one, and was for the others
            row = c.execute(sa.select(job).where(job.c.id == job_id)).one()
            written = c.scalar(sa.select(sa.func.count()).where(record.c.job_id == job_id))
            live = c.scalar(
                sa.select(sa.func.count()).where(lease.c.job_id == job_id, lease.c.ended_at.is_(None))
            )
            assert (row.state, written, live) in ((JobState.DONE, 2, 0), (JobState.QUEUED, 0, 0))
            jobs.cancel(c, scene.run_id)


def test_jobs_are_leased_once(crowd: Crowd) -> None:
    scene = Scene.make(crowd.stores[0])
    places = [f"host-{i}/cpu:0" for i in range(3)]
    workers = [scene.register(device(p)) for p in places]
    for _ in range(ROUNDS):
        for _ in range(2):
            scene.enqueue(configs(1))
        answers = crowd.at_once(*(
            lambda c, w=w, p=p: leasing.lease_many(c, [LeaseAsk(w, p)], TERMS)[0]
            for w, p in zip(workers, places, strict=True)
        ))
        leased = [one.job.id for found in answers for one in found]
        assert len(leased) == len(set(leased))
        with crowd.stores[0].write() as c:
            for worker_id in workers:
                leasing.release_worker(c, worker_id, TERMS)
            jobs.cancel(c, scene.run_id)


def test_a_worker_that_leaves_keeps_no_job(crowd: Crowd) -> None:
    """Though its last request for one is still on its way."""
    scene = Scene.make(crowd.stores[0])
    for n in range(ROUNDS):
        place = f"host-{n}/cpu:0"
        worker_id = scene.register(device(place))
        scene.enqueue(configs(1))
        crowd.at_once(
            lambda c: leasing.leave(c, worker_id, TERMS),
            lambda c: leasing.lease_many(c, [LeaseAsk(worker_id, place)], TERMS)[0],
        )
        with crowd.stores[0].write() as c:
            live = sa.select(lease.c.id).where(lease.c.ended_at.is_(None))
            assert c.scalars(live).all() == []
            jobs.cancel(c, scene.run_id)


@pytest.mark.full
def test_finals_are_looked_at_again_once(crowd: Crowd) -> None:
    for seed in range(ROUNDS):
        scene = Scene.make(crowd.stores[0], drawn(seed=seed))
        scene.enqueue(configs(1), phase=Phase.CONFIRM)
        worker_id = scene.register()
        held = scene.leased(worker_id)
        scene.report(held, [timed(held.job.entries[0])])
        with crowd.stores[0].write() as c:
            runs.finish(c, scene.run_id, RunState.DONE, "")
            c.execute(
                sa.update(run).where(run.c.id == scene.run_id).values(finished_at=now() - 100.0)
            )
            of_run = sa.update(job).where(job.c.run_id == scene.run_id)
            c.execute(of_run.values(created_at=now() - 200.0))
        made = crowd.at_once(lambda c: remeasure.enqueue_due(c, 80.0, TERMS.alive_s))
        assert sum(len(found) for found in made) == 1, made
        with crowd.stores[0].write() as c:
            jobs.cancel(c, scene.run_id)


@pytest.mark.full
def test_services_together_keep_the_maximum_of_a_run(crowd: Crowd) -> None:
    for seed in range(ROUNDS):
        scene = Scene.make(crowd.stores[0], drawn(seed=seed, max_jobs=1))
        for n in range(3):
            scene.enqueue(configs(3)[n : n + 1])
        asks = [LeaseAsk(scene.register(device(f"host-{n}/cpu:0")), f"host-{n}/cpu:0") for n in range(3)]
        answers = crowd.at_once(*(lambda c, a=a: leasing.lease_many(c, [a], TERMS)[0] for a in asks))
        assert sum(len(found) for found in answers if isinstance(found, list)) == 1
        with crowd.stores[0].write() as c:
            runs.cancel(c, scene.run_id)
            c.execute(sa.update(lease).where(lease.c.ended_at.is_(None)).values(ended_at=now(), end_reason="done"))


# The fleet


def test_a_device_is_registered_once_and_has_one_owner(crowd: Crowd) -> None:
    with crowd.stores[0].write() as c:
        tokens = [token.create(c, f"lab-{i}", [TokenScope.WORKER]).id for i in range(3)]
    for n in range(ROUNDS):
        one = device(f"host-{n}/cpu:0")
        answers = crowd.at_once(*(lambda c, t=t: fleet.register(c, info(one), t) for t in tokens))
        assert kinds(answers) == {ForbiddenError: 2}, answers
        with crowd.stores[0].read() as c:
            rows = c.scalars(sa.select(device_table.c.id).where(device_table.c.identity == one.identity))
            assert len(rows.all()) == 1
            owner = c.scalar(
                sa.select(device_owner.c.owner).where(device_owner.c.identity == one.identity)
            )
            winner = next(i for i, a in enumerate(answers) if isinstance(a, int))
            assert owner == f"lab-{winner}"


@pytest.mark.full
def test_devices_in_another_order_do_not_stop_each_other(crowd: Crowd) -> None:
    for n in range(ROUNDS):
        targets = [Target.parse(f"llvm -mcpu=z{n} -num-cores={k}") for k in (1, 2, 3)]
        devices = [device(f"host-{n}/cpu:{k}", t) for k, t in enumerate(targets)]
        turned = [devices, devices[::-1], devices[1:] + devices[:1]]
        answers = crowd.at_once(*(lambda c, d=d: fleet.register(c, info(*d)) for d in turned))
        assert not kinds(answers)


@pytest.mark.full
def test_renamings_take_turns(crowd: Crowd) -> None:
    names = ["a/cpu:0", "b/cpu:0", "c/cpu:0"]
    with crowd.stores[0].write() as c:
        fleet.register(c, info(*(device(n) for n in names)))
    moves = [("a/cpu:0", "b/cpu:0"), ("b/cpu:0", "c/cpu:0"), ("b/cpu:0", "a/cpu:0")]
    for _ in range(ROUNDS):
        crowd.at_once(*(lambda c, o=o, n=n: fleet.rename(c, o, n) for o, n in moves))
        with crowd.stores[0].read() as c:
            assert sorted(c.scalars(sa.select(device_table.c.identity))) == names


def test_heartbeats_and_a_renaming_take_workers_in_one_order(postgres_copy: str) -> None:
    """The renaming holds one worker when heartbeats come, and then needs others of theirs."""
    stores = [Store(postgres_copy) for _ in range(4)]
    with stores[0].write() as c:
        first, second, held, last = (fleet.register(c, info(device(), name=f"w{n}")) for n in range(4))
        for worker_id in (second, held, last, first):  # the order in which a scan finds them now; all are due
            c.execute(sa.update(worker).where(worker.c.id == worker_id).values(seen_at=0.0))

    def rename() -> None:
        with stores[1].write() as c:
            fleet.rename(c, device().identity, "new")

    def see() -> set[int]:
        with stores[2].write() as c:
            return heartbeat.store(c, {first, second, last}, TERMS.alive_s)

    with ThreadPoolExecutor(2) as pool:
        with stores[0].write() as c:
            c.execute(sa.select(worker.c.id).where(worker.c.id == held).with_for_update())
            renamed = pool.submit(rename)
            await_waiting(stores[3], 1)
            seen = pool.submit(see)
            await_waiting(stores[3], 2)
        renamed.result()
        assert seen.result() == set()
    for store in stores:
        store.close()


def await_waiting(store: Store, number: int) -> None:
    """Return when so many transactions wait for locks."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def waits() -> bool:
        with store.read() as c:
            return c.scalar(waiting) >= number

    wait_until(waits, "a wait for a lock")


def test_two_take_the_same_free_name(crowd: Crowd) -> None:
    for n in range(ROUNDS):
        with crowd.stores[0].write() as c:
            fleet.register(c, info(device(f"a{n}"), device(f"b{n}")))
        crowd.at_once(
            lambda c: fleet.rename(c, f"a{n}", f"new{n}"), lambda c: fleet.rename(c, f"b{n}", f"new{n}")
        )
        with crowd.stores[0].read() as c:
            names = c.scalars(sa.select(device_table.c.identity)).all()
            assert names.count(f"new{n}") == 1 and len(names) == 2 * (n + 1)


def test_a_pause_ends_once(crowd: Crowd) -> None:
    with crowd.stores[0].write() as c:
        fleet.register(c, info())
    for _ in range(ROUNDS):
        with crowd.stores[0].write() as c:
            paused = pause.create(c, pause.PauseRequest(reason="r", device=device().identity))
        answers = crowd.at_once(lambda c: pause.end(c, paused.id))
        assert kinds(answers) == {NotFoundError: 2}
    with crowd.stores[0].read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(pause_table)) == ROUNDS


# Values, and what is derived


def test_a_value_has_one_row(crowd: Crowd) -> None:
    candidate = CANDIDATES[0]

    def put(n: int) -> Callable[[sa.Connection], tuple[int, ...]]:
        value = Workload("filter", (Input("data", f"float32[{n + 1}]"),))
        written = Target.parse(f"llvm -mcpu=z{n}")

        def act(c: sa.Connection) -> tuple[int, ...]:
            workload_id = catalogue.put_workload(c, value)
            target_id = catalogue.put_target(c, written)
            return (
                workload_id, target_id,
                catalogue.put_task(c, workload_id, target_id, candidate, None),
                catalogue.put_variant(c, target_id, written.keys, written.to_json()),
                catalogue.put_policy(c, TimingPolicy(min_repeats=n + 1)),
                catalogue.put_environment(c, {"python": n}),
                catalogue.put_device(c, f"d{n}", "cpu:0", "A", target_id, written.to_json(), {}),
            )

        return act

    for n in range(ROUNDS):
        assert len(set(crowd.at_once(put(n)))) == 1


def test_a_target_has_the_libraries_of_a_later_variant(crowd: Crowd) -> None:
    """A model's run comes before its worker, and asks for the host's target without."""
    written = Target.parse("llvm -mcpu=later -num-cores=2 -libs=cblas")
    for value in (written.in_network().host, written, written.in_network().host):
        with crowd.stores[0].write() as c:
            body = c.scalar(sa.select(target.c.body).where(target.c.id == catalogue.put_target(c, value)))
    assert Target.parse(body) == written


def test_a_target_gets_all_keys_that_came_at_once(crowd: Crowd) -> None:
    def keyed(n: int, key: str) -> Target:
        return Target.parse({"kind": "llvm", "mcpu": f"z{n}", "keys": ["cpu", key]})

    for n in range(ROUNDS):
        with crowd.stores[0].write() as c:
            first = catalogue.put_target(c, Target.parse(f"llvm -mcpu=z{n}"))
        crowd.at_once(*(
            lambda c, k=k: catalogue.put_target(c, keyed(n, k)) for k in ("one", "two", "three")
        ))
        with crowd.stores[0].read() as c:
            keys = c.scalar(sa.select(target.c["keys"]).where(target.c.id == first))
        assert {"cpu", "one", "two", "three"} <= set(keys)


def test_a_file_that_is_imported_at_once_is_there_once(crowd: Crowd) -> None:
    for n in range(ROUNDS // 2):
        rows = [made(i % 5, (1.0 + i,), measured_at=1.0 + n) for i in range(20)]
        found: Any = crowd.each(
            lambda s: import_items(s, rows, batch=7),
            lambda s: import_items(s, rows[::-1], batch=7),
            lambda s: import_items(s, rows[10:] + rows[:10], batch=7),
        )
        assert sum(s.new for s in found) == 20
        assert sum(s.known for s in found) == 40


def test_a_purge_marks_once(crowd: Crowd) -> None:
    store = crowd.stores[0]
    for n in range(1, ROUNDS // 2 + 1):
        import_items(store, [made(i % 5, (1.0 + i,), measured_at=100.0 * n + i) for i in range(10)])
        which = retention.Doubtful(since=100.0 * n, until=100.0 * n + 50)
        counts = crowd.at_once(lambda c: retention.purge_doubtful(c, which, "hot").records)
        assert sorted(counts) == [0, 0, 10]
    with store.read() as c:
        marked = c.scalars(sa.select(tombstone.c.record_id)).all()
        assert len(marked) == len(set(marked)) == 10 * (ROUNDS // 2)


@pytest.mark.parametrize("other", ["import", "purge"])
def test_what_two_prunings_delete_at_once_is_counted_once(crowd: Crowd, other: str) -> None:
    """Beside an import of the same tasks, or a purge of the same records."""
    store = crowd.stores[0]
    for n in range(ROUNDS // 2):
        old, new = (
            [made(i % 7, (1.0 + i,), measured_at=1000.0 * n + 100 * late + i, session=f"{n} {late}") for i in range(14)]
            for late in (0, 1)
        )
        import_items(store, old)
        before = records_of(store)
        which = retention.Doubtful(since=1000.0 * n + 3, until=1000.0 * n + 9)
        beside: Callable[[Store], Any] = lambda s: purge(s, which)
        if other == "import":
            beside = lambda s: import_items(s, new, batch=5).new
        first, second, added = crowd.each(prune_all, prune_all, beside)
        added = added if other == "import" else 0
        assert first.records + second.records == before + added - records_of(store)
        assert_derived(store)


def prune_all(store: Store) -> Any:
    return retention.prune(store, 1, 1e12, dry=False)


def purge(store: Store, which: retention.Doubtful) -> Any:
    with store.write() as c:
        return retention.purge_doubtful(c, which, "hot")


def records_of(store: Store) -> int:
    with store.read() as c:
        return c.scalar(sa.select(sa.func.count()).select_from(record)) or 0


def test_what_is_read_in_one_transaction_is_of_one_moment(crowd: Crowd) -> None:
    reader, writer = crowd.stores[:2]
    import_items(writer, [made(i, (1.0 + i,), measured_at=1.0) for i in reversed(range(10))])
    records = sa.select(sa.func.count()).select_from(record)
    with reader.read() as c:
        ranked = c.scalar(records)
        retention.prune(writer, 1, 1e12, dry=False)
        assert (ranked, c.scalar(records)) == (10, 10)
    with reader.read() as c:
        assert c.scalar(records) == 1


def test_models_that_are_trained_at_once_have_versions_of_their_own(crowd: Crowd) -> None:
    with crowd.stores[0].write() as c:
        target_id = catalogue.put_target(c, TARGET)
    values = {
        "op": "filter", "target_id": target_id, "created_at": now(), "train_s": 1.0, "records": 1,
        "workloads": 5, "held_out": 1, "pairs": 1, "accuracy": 0.9, "sigma_log": 0.1,
        "columns": "[]", "trees": b"", "digest": "x", "evaluation": None,
    }
    for _ in range(ROUNDS):
        crowd.at_once(lambda c: training.put(c, values))
    with crowd.stores[0].read() as c:
        versions = c.scalars(sa.select(cost_model.c.version).order_by(cost_model.c.version)).all()
    assert versions == list(range(1, 3 * ROUNDS + 1))


def test_an_end_is_told_by_one_service(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    told: Counter[str] = Counter()
    monkeypatch.setattr(
        webhook.Postman, "_send", lambda self, url, message, body: told.update([url]) or ""
    )
    settings = Settings(webhook_hosts="127.0.0.1")
    for n in range(ROUNDS):
        with crowd.stores[0].write() as c:
            asked = drawn(seed=n)
            run_id = runs.create(c, asked, planning.plan(asked))
            webhook.subscribe(c, run_id, f"http://127.0.0.1/{n}")
            runs.cancel(c, run_id)
        crowd.each(lambda s: webhook.Postman(s, settings).send())
    assert told == {f"http://127.0.0.1/{n}": 1 for n in range(ROUNDS)}


def test_a_subscription_is_made_once(crowd: Crowd) -> None:
    for n in range(ROUNDS):
        with crowd.stores[0].write() as c:
            asked = drawn(seed=n)
            run_id = runs.create(c, asked, planning.plan(asked))
        crowd.at_once(lambda c: webhook.subscribe(c, run_id, "http://127.0.0.1/"))
    with crowd.stores[0].read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(webhook_table)) == ROUNDS
