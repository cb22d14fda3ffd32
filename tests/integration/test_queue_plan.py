"""The rows that a claim reads of a long queue, whatever PostgreSQL's statistics say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from service.queue import claim
from service.queue import lease as leasing
from service.queue.place import LeaseAsk
from service.store.db import Store
from service.store.tables import JobState, job
from tests.integration.scene import TERMS, Scene, configs, device

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
