"""Locks that another program holds on PostgreSQL: requests are refused in bounded time, and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import sqlalchemy as sa

from service.errors import UnansweredError
from service.queue.worker_batches import WorkerBatches
from service.store.db import Store
from service.store.tables import record
from strategy.record import Lease, LeaseRequest, Report, Results, encode
from tests.integration.scene import TERMS, Scene, configs, device, timed
from tests.limit import HANG_S
from tests.serve import serve

NAMES = [f"host-{n}/cpu:0" for n in range(3)]


@contextmanager
def held(url: str, statement: str) -> Iterator[None]:
    """Hold a lock, as a person at psql does."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as stranger:
        stranger.exec_driver_sql(statement)
        yield
    engine.dispose()


def make(store: Store) -> tuple[Scene, list[int], list[Lease]]:
    """A run with free jobs, and three workers of which two have a job."""
    scene = Scene.make(store)
    workers = [scene.register(device(name)) for name in NAMES]
    for n in range(6):
        scene.enqueue(configs(6)[n : n + 1])
    return scene, workers, [scene.leased(i, name) for i, name in zip(workers, NAMES[:2], strict=False)]


def results_of(one: Lease) -> Results:
    results = tuple(timed(e) for e in one.job.entries)
    return Results(token=one.token, session=f"s{one.id}", results=results, done=True)


def test_requests_are_refused_and_can_be_sent_again(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.app.LOCK_S", 0.1)
    store = Store(postgres_copy)
    scene, workers, leases = make(store)
    asked = LeaseRequest(worker_id=workers[2], device=NAMES[2])
    posts = [("/v1/leases", encode(asked)), *((f"/v1/leases/{i.id}/results", encode(results_of(i))) for i in leases)]

    with (
        serve(postgres_copy) as url, httpx.Client(base_url=url, timeout=HANG_S) as client,
        ThreadPoolExecutor(4) as pool,
    ):

        def send() -> Sequence[httpx.Response]:
            sent = [pool.submit(client.post, path, content=body) for path, body in posts]
            return [one.result() for one in (*sent, pool.submit(client.get, f"/v1/runs/{scene.run_id}"))]

        with held(postgres_copy, "LOCK TABLE job"):
            refused = send()
        answers = send()
    assert [r.status_code for r in refused] == [503] * 4
    assert {r.headers.get("retry-after") for r in refused} == {"1"}
    assert {r.json()["type"] for r in refused} == {"urn:plevel:database"}
    assert all("another transaction holds" in r.json()["detail"] for r in refused)
    assert [r.status_code for r in answers] == [200] * 4
    assert len(answers[0].json()["leases"]) == 1
    assert [a.json()["accepted"] for a in answers[1:3]] == [1, 1]
    assert len(scene.records()) == 2
    assert sorted(scene.states()) == ["done", "done", "leased", "queued", "queued", "queued"]
    store.close()


def test_the_lock_of_a_row_refuses_what_needs_it_only(postgres_copy: str) -> None:
    store = Store(postgres_copy, lock_s=0.1)
    scene, _, leases = make(store)

    async def report() -> list[object]:
        batches = WorkerBatches(store, TERMS)
        reports = [Report(lease_id=one.id, results=results_of(one)) for one in leases]
        return await asyncio.gather(*(batches.report([one], None) for one in reports), return_exceptions=True)

    with held(postgres_copy, f"SELECT FROM job WHERE id = {leases[0].job.id} FOR UPDATE"):
        first, second = asyncio.run(report())
    assert isinstance(first, UnansweredError)
    assert isinstance(second, list)
    with store.read() as c:
        assert c.scalars(sa.select(record.c.lease_id)).all() == [leases[1].id]
    asyncio.run(report())
    assert sorted(r.lease_id for r in scene.records()) == [one.id for one in leases]
    store.close()
