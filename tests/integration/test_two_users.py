"""Two users tune at once, by clients of one service on PostgreSQL: nothing is measured twice needlessly, or lost."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import sqlalchemy as sa

from plevel.client import FINISHED, Client
from service.store.db import Store
from service.store.tables import job, record
from strategy.record import Phase, RunRequest, RunState, RunStatus
from tests.integration.process import Service, Start
from tests.integration.scene import drawn


def tune(service: Service, requests: list[RunRequest]) -> list[RunStatus]:
    """Each request by a client of its own, all at the same moment, until all runs have ended."""
    together = threading.Barrier(len(requests))

    def ask(request: RunRequest) -> RunStatus:
        with Client(service.url) as client:
            together.wait()
            run = client.create_run(request)
            *_, last = client.follow(run.id)
            return last

    with ThreadPoolExecutor(len(requests) + 1) as pool:
        users = [pool.submit(ask, r) for r in requests]
        worker_id = service.register()
        with Client(service.url) as client:
            while not all(u.done() for u in users):
                live = [r.id for r in client.runs() if r.state not in FINISHED]
                for run_id in live:
                    service.work(worker_id, run_id)
        return [u.result() for u in users]


def searched(database: str) -> Counter[tuple[int, str]]:
    """The numbers of trials of each configuration of a task; assert that each entry has its record."""
    store = Store(database)
    with store.read() as c:
        entries = c.scalar(sa.text("SELECT count(*) FROM job_entry WHERE state <> 'done'"))
        lost = c.scalar(sa.select(sa.func.count()).where(record.c.error.is_not(None)))
        ended = c.scalars(sa.select(job.c.state).distinct()).all()
        rows = c.execute(
            sa.select(record.c.task_id, record.c.config_digest).where(record.c.phase == Phase.SEARCH.value)
        ).all()
    store.close()
    assert (entries, lost, ended) == (0, 0, ["done"])
    return Counter((r.task_id, r.config_digest) for r in rows)


@pytest.mark.sample(1)
@pytest.mark.parametrize("users", ["alike", "of other budgets", "of another policy"])
def test_two_users_of_one_workload(users: str, postgres_copy: str, start: Start) -> None:
    first = second = drawn(trials=40)
    if users == "of other budgets":
        second = drawn(trials=60, timeout_s=3000.0)
    elif users == "of another policy":
        policy = msgspec.structs.replace(first.search_policy, max_repeats=59)
        second = drawn(trials=40, search_policy=policy)
    one, other = tune(start(postgres_copy, PLEVEL_AUTH="open"), [first, second])
    assert one.state is other.state is RunState.DONE
    assert (one.id == other.id) == (users == "alike")
    assert (one.trials_done, other.trials_done) == (first.trials, second.trials)
    tried = searched(postgres_copy)
    if users == "of another policy":  # whose times do not count for the first
        assert set(tried.values()) <= {1, 2}
        assert tried.total() == 2 * 41
        return
    assert set(tried.values()) == {1}
    most = max(first.trials, second.trials)
    assert most + 1 <= tried.total() <= most + 1 + 2 * 8
