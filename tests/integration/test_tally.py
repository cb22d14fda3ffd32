"""The counts of a run's records, by an index, are those of the records themselves."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from service.records import retention
from service.records.importer import import_items
from service.records.retention import Doubtful
from service.store import catalogue
from service.store.db import Store
from service.store.tables import record, run_task
from service.tuning import run_status
from service.tuning.run import trials_of
from service.tuning.tally import count_trials, tally
from strategy.record import SEARCH_POLICY
from tests.integration.scene import TERMS, Scene, configs, drawn, failed, timed
from tests.integration.test_import import made

pytestmark = pytest.mark.in_turn("url")


def check(c: sa.Connection, run_id: int) -> int:
    """Compare the counts of a run with those of all records; return the number of its trials."""
    told = tally(c, run_id)
    own = c.execute(sa.select(sa.func.count(), sa.func.sum(record.c.run_s)).where(record.c.run_id == run_id)).one()
    assert (sum(t.n for t in told), sum(t.run_s for t in told)) == pytest.approx((own[0], own[1] or 0.0))
    tasks = sa.select(run_task.c.task_id).where(run_task.c.run_id == run_id)
    policy_id = catalogue.find_policy(c, SEARCH_POLICY)
    for forced in (True, False):
        expected: dict[Any, int] = {
            (r.task_id, r.error): r.n
            for r in c.execute(
                sa.select(record.c.task_id, record.c.error, sa.func.count().label("n"))
                .where(trials_of(run_id, forced, policy_id), record.c.task_id.in_(tasks))
                .group_by(record.c.task_id, record.c.error)
            )
        }
        counts = count_trials(c, run_id, forced, SEARCH_POLICY, told)
        assert {(task, error): n for task, of in counts.items() for error, n in of.items() if n} == expected
    status = run_status.status(c, run_id, TERMS.alive_s)
    assert status.timing_s == pytest.approx(own[1] or 0.0)
    assert sum(t.trials for t in status.tasks) == sum(expected.values())
    assert sum(sum(t.failures.values()) for t in status.tasks) == sum(n for (_, e), n in expected.items() if e)
    return sum(expected.values())


def test_trials_are_counted_as_records_say(store: Store) -> None:
    first, second = (Scene.make(store, drawn(seed=seed)) for seed in (1, 2))
    worker = first.register()

    def measure(scene: Scene, count: int) -> None:
        scene.enqueue(configs(count))
        held = scene.leased(worker)
        scene.report(held, [failed(0), *map(timed, held.job.entries[1:])])

    def counted() -> list[int]:
        with store.read() as c:
            return [check(c, scene.run_id) for scene in (first, second)]

    assert counted() == [0, 0]
    measure(first, 4)
    assert counted() == [4, 4]
    measure(second, 3)
    assert counted() == [7, 7]
    import_items(store, [made(i, (1.0,)) for i in range(5)])
    assert counted() == [7, 7]
    with store.write() as c:
        assert retention.purge_doubtful(c, Doubtful(worker="worker"), "overheated").records == 7
    assert counted() == [0, 0]
    measure(second, 2)
    assert counted() == [2, 2]


def test_a_run_is_counted_by_the_index_alone(sqlite_copy: str) -> None:
    plans: list[str] = []

    def explain(_connection: Any, cursor: Any, statement: str, given: Any, *_: Any) -> None:
        again = cursor.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", given)
        plans.extend(line[3] for line in again.fetchall())

    with closing(Store(sqlite_copy)) as store:
        scene = Scene.make(store)
        with store.read() as c:
            sa.event.listen(c, "before_cursor_execute", explain)
            tally(c, scene.run_id)
    (plan,) = (line for line in plans if " record " in line)
    assert plan.startswith("SEARCH record USING COVERING INDEX ix_record_run ")
