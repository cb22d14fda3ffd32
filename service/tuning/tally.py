"""Counts of a run's records, and of the trials that count for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from service.records.best import standing
from service.store import catalogue
from service.store.sql import among
from service.store.tables import record, run_task
from service.tuning.run import trials_of
from strategy.record import Phase, TimingPolicy


def tally(connection: sa.Connection, run_id: int) -> list[Any]:
    """The run's own records by task, phase and error: their number, how many count, and their time.

    `last_id` is the id of the newest that counts. They are counted by an index, `ix_record_run`.
    """
    query = (
        sa.select(
            record.c.task_id, record.c.phase, record.c.error, sa.func.count().label("n"),
            sa.func.count().filter(standing()).label("standing"),
            sa.func.max(record.c.id).filter(standing()).label("last_id"),
            sa.func.sum(record.c.run_s).label("run_s"),
        )
        .where(record.c.run_id == run_id)
        .group_by(record.c.task_id, record.c.phase, record.c.error)
    )
    return list(connection.execute(query))


def count_trials(
    connection: sa.Connection, run_id: int, forced: bool, policy: TimingPolicy, told: Iterable[Any]
) -> dict[int, Counter[str | None]]:
    """The numbers of trials that count for a run (`trials_of`), by task and error; `told` is the run's tally.

    Records are only read of tasks that have others than the run's own.
    """
    counts: dict[int, Counter[str | None]] = {}
    own: Counter[int] = Counter()
    for t in told:
        if t.phase == Phase.SEARCH.value:
            own[t.task_id] += t.n
            counts.setdefault(t.task_id, Counter())[t.error] = t.standing
    if forced:
        return counts
    tasks = sa.select(run_task.c.task_id).where(run_task.c.run_id == run_id)
    known = (
        sa.select(record.c.task_id, sa.func.count().label("n"))
        .where(record.c.phase == Phase.SEARCH.value, record.c.task_id.in_(tasks))
        .group_by(record.c.task_id)
    )
    shared = [row.task_id for row in connection.execute(known) if row.n > own[row.task_id]]
    if shared:
        policy_id = catalogue.find_policy(connection, policy)
        rows = connection.execute(
            sa.select(record.c.task_id, record.c.error, sa.func.count().label("n"))
            .where(trials_of(run_id, forced, policy_id), among(record.c.task_id))
            .group_by(record.c.task_id, record.c.error),
            {"ids": shared},
        )
        counts |= {task_id: Counter() for task_id in shared}
        for row in rows:
            counts[row.task_id][row.error] = row.n
    return counts
