"""The rows that a claim reads of a long queue, whatever PostgreSQL's statistics say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from service.queue import claim, renewal
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.store.db import Store
from service.store.sql import one_trip
from service.store.tables import JobState, job
from tests.integration.scene import TERMS, Scene, configs, device
from tests.integration.test_group_commit import report_of

JOBS = 6000
LEASED = 30
_COPIED = [c for c in job.c if c.name not in ("id", "state", "turn")]
_HEAD = sa.select(job.c.id).where(job.c.state == JobState.QUEUED).order_by(job.c.priority, job.c.turn, job.c.id)
_READ = sa.text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'job'")


def add(c: sa.Connection, like: int, state: JobState) -> None:
    """Add `JOBS` jobs like one, in a state, whose turns are not in the order of their rows."""
    several = sa.func.generate_series(1, JOBS).table_valued(sa.column("i", sa.Integer)).render_derived()
    turn = several.c.i * 7919 % JOBS
    rows = sa.select(*_COPIED, sa.literal(state.value), turn).select_from(job).join(several, sa.true())
    c.execute(sa.insert(job).from_select([*_COPIED, job.c.state, job.c.turn], rows.where(job.c.id == like)))


@pytest.fixture
def store(postgres_copy: str) -> Iterator[Store]:
    with closing(Store(postgres_copy)) as opened:
        yield opened


@pytest.mark.parametrize("workers", [1, claim.TOGETHER])
@pytest.mark.parametrize("statistics", ["none", "of an empty queue", "of now"])
def test_a_claim_reads_the_head_of_the_queue_alone(store: Store, statistics: str, workers: int) -> None:
    scene = Scene.make(store)
    places = [f"host-{i}/cpu:0" for i in range(workers)]
    asks = [LeaseAsk(scene.register(device(place), name=place), place, LEASED // workers) for place in places]
    like = scene.enqueue(configs(1))
    with store.write() as c:
        add(c, like, JobState.CANCELLED)
        if statistics == "of an empty queue":
            c.execute(sa.update(job).where(job.c.id == like).values(state=JobState.CANCELLED))
            c.execute(sa.text("ANALYZE job"))
        add(c, like, JobState.QUEUED)
        if statistics == "of now":
            c.execute(sa.text("ANALYZE job"))
    with store.write() as c:
        head = c.scalars(_HEAD.limit(LEASED)).all()
    with store.write() as c:
        c.execute(sa.text("SET LOCAL effective_cache_size = '80kB'"))  # as for a table of more than the memory
        before = c.scalar(_READ)
        answers = leasing.lease_many(c, asks, TERMS)
        read = c.scalar(_READ) - before
    assert [one.job.id for found in answers if isinstance(found, list) for one in found] == head
    assert read < JOBS / 2


def test_a_report_and_a_renewal_read_no_other_jobs(store: Store) -> None:
    """By statistics of a time when leases were of the first jobs, PostgreSQL would read all jobs up to theirs."""
    scene = Scene.make(store)
    asks = [LeaseAsk(scene.register(device(name)), name, LEASED) for name in ("a/cpu:0", "b/cpu:0")]
    like = scene.enqueue(configs(1))
    for _ in range(LEASED):
        scene.enqueue(configs(1))
    with store.write() as c:
        leasing.lease_many(c, asks[:1], TERMS)
    with store.write() as c:
        add(c, like, JobState.DONE)
        c.execute(sa.text("ANALYZE"))
    for _ in range(LEASED):
        scene.enqueue(configs(1))
    with store.write() as c:
        held = leasing.lease_many(c, asks[1:], TERMS)[0]
    assert isinstance(held, list)
    for act in (
        lambda c: renewal.renew_many(c, [(one.id, one.token, False) for one in held], TERMS),
        lambda c: reporting.report_many(c, [report_of(one) for one in held], TERMS),
    ):
        with store.write() as c:
            before = c.scalar(_READ)
            act(c)
            assert c.scalar(_READ) - before < JOBS / 2
    assert scene.states().count("done") == JOBS + len(held)


def test_a_claim_reads_no_earlier_lease_of_its_worker(sqlite_copy: str) -> None:
    """Of which there are more each day."""
    with closing(Store(sqlite_copy)) as store:
        scene = Scene.make(store)
        scene.enqueue(configs(1))
        executed: list[tuple[str, object]] = []
        sa.event.listen(store.engine, "before_cursor_execute", lambda *given: executed.append(given[2:4]))
        assert scene.leased(scene.register())
        (claimed,) = (one for one in executed if one[0].startswith("WITH wanted"))
        with store.read() as c:
            plan = [row.detail for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {claimed[0]}", claimed[1])]
    of_worker = [line for line in plan if line.startswith("SEARCH lease") and "worker_id=?" in line]
    assert set(of_worker) == {"SEARCH lease USING INDEX ix_lease_live_worker (worker_id=?)"}


def test_workers_that_ask_together_read_their_own_leases(store: Store) -> None:
    """Not those of the whole farm, for each batch of requests; by statistics of a time when no job was leased."""
    scene = Scene.make(store)
    like = scene.enqueue(configs(1))
    ids = [scene.register(device(f"host-{i}/cpu:0"), name=f"host-{i}/cpu:0") for i in range(claim.TOGETHER + 1)]
    put = sa.text(
        "INSERT INTO lease (job_id, worker_id, device_id, token, timing, created_at, expires_at, ended_at) "
        "SELECT id, :worker, (SELECT min(id) FROM device), 1, false, 0, 1e12, finished_at FROM job WHERE state = :state"
    )
    with store.write() as c:
        add(c, like, JobState.DONE)
        c.execute(sa.update(job).where(job.c.state == JobState.DONE).values(finished_at=1.0))
        c.execute(put, {"worker": ids[0], "state": "done"})
        c.execute(sa.text("ANALYZE"))
        add(c, like, JobState.LEASED)
        c.execute(put, {"worker": ids[0], "state": "leased"})
    read = sa.text(
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE relname IN ('job', 'lease')"
    )
    with store.write() as c:
        before = c.scalar(read) or 0
        with one_trip(c) as ask:
            free = claim.ask_free(c, ask, ids[1:])
        assert len(free) == claim.TOGETHER
        assert (c.scalar(read) or 0) - before < JOBS / 10
