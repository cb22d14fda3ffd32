"""Finals: the sessions at the end of a run that time the best of all implementations interleaved."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

import sqlalchemy as sa

from service.queue.job import NewEntry
from service.records.best import find_champions, rank_configs, read_configs
from service.store.sql import is_given
from service.store.tables import Scope, TaskState, best, device, job, record, task
from service.tuning.tuning_run import TuningRun, TuningTask
from strategy.record import Estimate, Phase
from strategy.space import Config

FINALISTS = 3
CONFIRM_SESSIONS = 2
MORE_SESSIONS = 3  # maximum of finals, for estimates that two have left unbounded


def find_finalists(connection: sa.Connection, tuning: TuningRun, t: TuningTask) -> list[NewEntry]:
    """The best configurations of an implementation, its fallback, and the best of earlier runs."""
    models = find_models(connection, t.id)
    # Times of different device models do not compare: each of this run has finalists of its own.
    here = (find_models(connection, t.id, tuning.id) or models) if len(models) > 1 else []
    places = [(Scope.MODEL, m) for m in here] or [(Scope.TARGET, "")]
    by_place = [rank_configs(connection, t.id, *place, Phase.SEARCH) for place in places]
    # Dropped ones are confirmed too, so that all are compared in the same way.
    most = 1 if t.state is TaskState.DROPPED else FINALISTS
    chosen = {digest: ranked[digest] for ranked in by_place for digest in islice(ranked, most)}
    if t.search is not None and t.state is not TaskState.DROPPED:
        # The fallback too, so that the answer is never slower than without tuning.
        fallback = t.search.space.fallback.digest
        for ranked in by_place:
            if fallback in ranked:
                chosen[fallback] = ranked[fallback]
    read = read_configs(connection, set(chosen.values()))
    configs = {digest: read[record_id] for digest, record_id in chosen.items()}
    # The best of earlier runs on these device models, too.
    for champion in find_champions(connection, t.id, here or models):
        configs.setdefault(champion.config_digest, champion.config)
    return [NewEntry(t.id, Config(c)) for c in configs.values()]


def count(connection: sa.Connection, run_id: int, workload_id: int) -> int:
    """The finals of one workload that a run has enqueued, in any state."""
    query = sa.select(sa.func.count()).where(
        job.c.run_id == run_id, job.c.workload_id == workload_id,
        job.c.phase == Phase.CONFIRM.value, job.c.parent_id.is_(None),
    )
    return int(connection.execute(query).scalar_one())


def find_models(connection: sa.Connection, task_id: int, run_id: int | None = None) -> list[str]:
    """The device models that timed a task's candidates, or those that did in one run."""
    query = (
        sa.select(device.c.model)
        .distinct()
        .join(record, record.c.device_id == device.c.id)
        .where(
            record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, record.c.error.is_(None),
            is_given(record.c.run_id, run_id),
        )
        .order_by(device.c.model)
    )
    return list(connection.scalars(query))


def find_estimates(
    connection: sa.Connection, run_id: int, tasks: Sequence[int]
) -> Collection[dict[str, Estimate]]:
    """The confirmed time of each implementation of one workload, by each device model of the run's finals.

    Times of different device models are not comparable.
    """
    models = (
        sa.select(device.c.model)
        .join(record, record.c.device_id == device.c.id)
        .where(record.c.run_id == run_id, record.c.phase == Phase.CONFIRM.value)
    )
    of_model: dict[str, dict[str, Estimate]] = {}
    for row in connection.execute(
        sa.select(best, task.c.implementation)
        .join(task, task.c.id == best.c.task_id)
        .where(task.c.id.in_(tasks), best.c.scope == Scope.MODEL.value,
               best.c.phase == Phase.CONFIRM.value, best.c.scope_value.in_(models))
    ):
        found = Estimate(row.median_s, row.low_s, row.high_s, row.samples)
        of_model.setdefault(row.scope_value, {})[row.implementation] = found
    return of_model.values()
