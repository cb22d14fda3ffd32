"""Two services on one PostgreSQL, each of which does in random order what clients ask and tuners do, at the same time.

`test_races.py` has each race alone, and `test_queue_machine.py` every order of steps. Here they overlap by chance.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest
import sqlalchemy as sa

from service.errors import DeviceBusyError, LeaseLostError, NotFoundError, ServiceError
from service.queue import heartbeat, pause, renewal, retry
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.records import log_page, settled
from service.records.best import standing
from service.records.filter import Wanted
from service.records.importer import import_items
from service.records.retention import Doubtful, prune, purge_doubtful
from service.search.child import CostModel
from service.settings import Settings
from service.store.db import Store
from service.store.sql import now
from service.store.tables import (
    LIVE,
    EntryState,
    JobState,
    job,
    job_entry,
    lease,
    record,
    run,
    tombstone,
)
from service.store.wakeup import Wakeup
from service.tuning import plan as planning
from service.tuning import run as runs
from service.tuning import run_status
from service.tuning.ownership import Ownership
from service.tuning.tally import tally
from service.tuning.tuner import Tuner
from strategy.record import Lease, Phase, Reference, Report, Results
from tests.integration.derived import assert_derived
from tests.integration.scene import TERMS, Scene, device, drawn, failed, timed
from tests.integration.test_import import made

DEVICES = 3
LOCK_S = 30.0  # from which a wait for a lock counts as a deadlock that PostgreSQL does not see


class World:
    """Leases that there ever were, runs, and the number of accepted results of each lease."""

    def __init__(self, url: str, model: CostModel) -> None:
        self.url = url
        self.model = model
        self.leases: list[Lease] = []
        self.runs: list[int] = []
        self.accepted: Counter[int] = Counter()
        self.ended = threading.Event()


class Client:
    """A service with its connections and its tuner, and what is asked of it."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.world = world
        self.rng = random.Random(f"{name} {seed}")
        self.name = name
        self.store = Store(world.url, lock_s=LOCK_S)
        # So that more transactions overlap.
        sa.event.listen(self.store.engine, "commit", lambda _: time.sleep(self.rng.uniform(0.0, 0.005)))
        settings = Settings(database=world.url, tune=False, batch=3)
        self.tuner = Tuner(self.store, settings, world.model, Wakeup(), Wakeup())
        self.tuner._ownership = Ownership(settings.lease_s, name)
        self.names = [f"host-{i}/cpu:0" for i in range(DEVICES)]  # of both clients
        self.scene = Scene.make(self.store, drawn(seed=seed))
        world.runs.append(self.scene.run_id)
        self.workers = [self._register(i) for i in range(DEVICES)]
        self.imported = 0

    def _register(self, i: int) -> int:
        return self.scene.register(device(self.names[i]), name=f"{self.name}-{i}")

    def act(self) -> None:
        acts = {
            self.ask: 8, self.report: 10, self.renew: 4, self.step: 6, self.release: 1, self.lose: 1, self.restart: 1,
            self.create: 1, self.cancel: 0.5, self.store_log: 2, self.prune: 0.5, self.purge: 0.5, self.beat: 2,
            self.pause: 0.5, self.look: 1,
        }
        (act,) = self.rng.choices(list(acts), list(acts.values()))
        with suppress(LeaseLostError, DeviceBusyError, NotFoundError):
            act()

    def some_lease(self) -> Lease | None:
        """One of the newest, with which most is left to do, of either client."""
        return self.rng.choice(self.world.leases[-12:]) if self.world.leases else None

    def ask(self) -> None:
        places = self.rng.sample(range(DEVICES), self.rng.randint(1, DEVICES))
        asks = [LeaseAsk(self.workers[i], self.names[i], self.rng.randint(1, 2)) for i in places]
        with self.store.write() as c:
            answers = leasing.lease_many(c, asks, TERMS)
        self.world.leases += [held for answer in answers if isinstance(answer, list) for held in answer]

    def report(self) -> None:
        """Results of some leases, perhaps again, perhaps late, perhaps not all, in one transaction."""
        chosen = {held.id: held for _ in range(self.rng.randint(1, 3)) if (held := self.some_lease())}
        sent = []
        for held in chosen.values():
            whole = self.rng.random() < 0.7
            entries = held.job.entries if whole else self.rng.sample(held.job.entries, len(held.job.entries) // 2)
            results = tuple(timed(e) if self.rng.random() < 0.9 else failed(e.index) for e in entries)
            times = (Reference(samples_s=(1e-4, 1.1e-4), measured_at=1.0),) if whole else ()
            sent.append(Report(lease_id=held.id, results=Results(
                token=held.token, session=f"s{held.id}", results=results, done=whole, references=times,
            )))
        with self.store.write() as c:
            answers = reporting.report_many(c, sent, TERMS)
        for one, answer in zip(sent, answers, strict=True):
            if isinstance(answer, ServiceError):
                assert isinstance(answer, LeaseLostError), answer
            else:
                self.world.accepted[one.lease_id] += answer.accepted

    def renew(self) -> None:
        held, timing = self.some_lease(), self.rng.random() < 0.5
        if held is not None:
            with self.store.write() as c:
                (answer,) = renewal.renew_many(c, [(held.id, held.token, timing)], TERMS)
            if answer is None:
                with self.store.write() as c:
                    renewal.renew(c, held.id, held.token, timing, TERMS)

    def release(self) -> None:
        if held := self.some_lease():
            with self.store.write() as c:
                leasing.release(c, held.id, held.token, TERMS)

    def lose(self) -> None:
        if held := self.some_lease():
            with self.store.write() as c:
                c.execute(sa.update(lease).where(lease.c.id == held.id).values(expires_at=now() - 1.0))
            with self.store.write() as c:
                retry.expire(c, TERMS)
            with self.store.write() as c:
                c.execute(sa.update(job).where(job.c.id == held.job.id).values(available_at=now() - 1.0))

    def restart(self) -> None:
        i = self.rng.randrange(DEVICES)
        with self.store.write() as c:
            leasing.leave(c, self.workers[i], TERMS)
        self.workers[i] = self._register(i)

    def create(self) -> None:
        asked = drawn(
            seed=self.rng.randint(0, 3), trials=self.rng.choice((6, 24)), force=self.rng.random() < 0.3,
            max_jobs=self.rng.choice((None, 1, 3)), priority=self.rng.randint(0, 1),
        )
        with self.store.write() as c:
            self.world.runs.append(runs.create(c, asked, planning.plan(asked)))

    def cancel(self) -> None:
        with self.store.write() as c:
            runs.cancel(c, self.rng.choice(self.world.runs))

    def step(self) -> None:
        self.tuner.step()

    def store_log(self) -> None:
        """Records of which the other client stores some, too."""
        size = self.rng.choice((1, 5, 130))
        first = self.rng.randrange(144)
        name = f"other_{self.rng.randint(0, 1)}.cpu"
        rows = [made((first + i) % 144, (1.0 + (first + i) % 7,), worker=name) for i in range(size)]
        import_items(self.store, rows, ahead=False)

    def prune(self) -> None:
        prune(self.store, 1, self.rng.randint(0, 100), dry=False)

    def purge(self) -> None:
        with self.store.write() as c:
            purge_doubtful(c, Doubtful(worker=f"other_{self.rng.randint(0, 1)}.cpu"), "by chance")

    def beat(self) -> None:
        with self.store.write() as c:
            heartbeat.store(c, self.workers, TERMS.alive_s)

    def pause(self) -> None:
        with self.store.write() as c:
            made_now = pause.create(c, pause.PauseRequest(device=self.rng.choice(self.names), reason="by chance"))
        with self.store.write() as c:
            pause.end(c, made_now.id)

    def look(self) -> None:
        with self.store.read() as c:
            status = run_status.status(c, self.rng.choice(self.world.runs), TERMS.alive_s)
        assert status.trials_done <= status.trials


def follow(world: World) -> list[int]:
    """The ids of all records, as a reader sees them that asks for those after its last."""
    seen: list[int] = []
    with closing(Store(world.url)) as store:
        last = False
        while not last:
            last = world.ended.is_set()
            while True:
                until = settled.find(store)
                with store.read() as c:
                    page = log_page.page(c, Wanted(), cursor=seen[-1] if seen else 0, last=until, limit=1000)
                if not page.records:
                    break
                seen += [r.id for r in page.records]
            world.ended.wait(0.01)
    return seen


def finish(client: Client) -> None:
    """One good worker finishes what is left: nothing is stuck."""
    with client.store.write() as c:
        c.execute(sa.update(lease).where(lease.c.ended_at.is_(None)).values(expires_at=now() - 1.0))
        c.execute(sa.update(run).values(tuner=None))
        retry.expire(c, TERMS)
    for _ in range(2000):
        with client.store.write() as c:
            c.execute(sa.update(job).values(available_at=now() - 1.0))
        client.tuner.step()
        worked = False
        for i in range(DEVICES):
            held = client.scene.lease(client.workers[i], client.names[i])
            if held is not None:
                answer = client.scene.report(held, [timed(e) for e in held.job.entries])
                client.world.accepted[held.id] += answer.accepted
                worked = True
        with client.store.read() as c:
            live = c.scalar(sa.select(sa.func.count()).where(run.c.state.in_(LIVE)))
            is_open = job.c.state.in_((JobState.QUEUED, JobState.LEASED))
            left = c.scalar(sa.select(sa.func.count()).where(is_open))
        if not (worked or live or left):
            return
    pytest.fail(f"{live} runs and {left} jobs do not end")


def check(world: World, store: Store, seen: list[int]) -> None:
    with store.read() as c:
        states: dict[int, str] = {r.id: r.state for r in c.execute(sa.select(job.c.id, job.c.state))}
        entries = c.execute(sa.select(job_entry)).all()
        own = sa.and_(record.c.job_id.is_not(None), record.c.phase != Phase.REFERENCE.value)
        written = c.execute(sa.select(*record.c["job_id", "entry", "lease_id", "run_id", "task_id"]).where(own)).all()
        live = c.scalars(sa.select(lease.c.id).where(lease.c.ended_at.is_(None))).all()
        # Records that are purged before the reader's next look are not shown.
        stored = c.scalars(sa.select(record.c.id).where(standing())).all()
        told = {run_id: tally(c, run_id) for run_id in set(world.runs)}
        rows = c.execute(
            sa.select(record.c.run_id, sa.func.count().label("n"), sa.func.count(tombstone.c.record_id).label("purged"))
            .outerjoin(tombstone, tombstone.c.record_id == record.c.id)
            .where(record.c.run_id.is_not(None))
            .group_by(record.c.run_id)
        ).all()
    assert not live
    assert set(states.values()) <= {JobState.DONE, JobState.QUARANTINED, JobState.CANCELLED}
    assert len({(r.job_id, r.entry) for r in written}) == len(written)
    done = {(e.job_id, e.entry) for e in entries if e.state == EntryState.DONE}
    # Entries of a job that was split are those of other jobs, under their numbers.
    assert sorted((r.job_id, r.entry) for r in written) == sorted(done)
    waiting = {states[e.job_id] for e in entries if e.state == EntryState.PENDING}
    assert waiting <= {JobState.CANCELLED}, "open entries of a job that counts as done"
    by_lease = Counter(r.lease_id for r in written if r.lease_id is not None)
    assert by_lease == +world.accepted
    for row in rows:
        assert (sum(t.n for t in told[row.run_id]), sum(t.standing for t in told[row.run_id])) == (
            row.n, row.n - row.purged,
        )
    assert seen == sorted(set(seen)) and set(stored) <= set(seen)
    assert_derived(store)


class NoModel:
    """Runs whose configurations are drawn ask for none."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.fixture
def world(postgres_copy: str) -> Iterator[World]:
    made_now = World(postgres_copy, NoModel())
    yield made_now
    made_now.ended.set()


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.full) for i in range(1, 20))])
def test_two_services_lose_and_double_nothing(world: World, seed: int, full: bool) -> None:
    clients = [Client(world, name, seed) for name in ("one", "other")]

    def live(client: Client) -> None:
        for _ in range(250 if full else 100):
            client.act()

    with ThreadPoolExecutor(3) as pool:
        reader = pool.submit(follow, world)
        try:
            list(pool.map(live, clients))
            assert_derived(clients[0].store)  # before better times replace wrong ones
            finish(clients[0])
        finally:
            world.ended.set()
        check(world, clients[0].store, reader.result())
    for client in clients:
        client.store.close()
