"""Records and open jobs taken into the state of a live run."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.records import best
from service.store.tables import EntryState, JobState, device, job, job_entry, record
from service.tuning import other_run
from service.tuning import run as runs
from service.tuning.tuning_run import TuningRun, TuningTask
from strategy.record import BY_CHANCE, UNBUILDABLE, ErrorKind, Phase
from strategy.space import Config


def absorb(connection: sa.Connection, tuning: TuningRun) -> None:
    """Feed the searches the records since the last call.

    Those of other device models are not told, but for failures that hold for the target.
    """
    tuning.find_policy(connection)
    # Open jobs first: a concurrent report is then found by both queries, not by neither.
    under_way = connection.execute(_UNDER_WAY, {"run_id": tuning.id}).all()
    awaited = other_run.find_awaited(
        connection, tuning.id, tuning.request.force, tuning.policy_id, [t.id for t in tuning.tasks]
    )
    for t in tuning.tasks:
        for gone in t.awaited.keys() - awaited.get(t.id, {}).keys():
            if t.search is not None:
                t.search.release(t.awaited[gone])  # until its record is told
    reported = _take_new(connection, tuning)
    by_id = {t.id: t for t in tuning.tasks}
    for t in tuning.tasks:
        t.pending = 0
        t.awaited = {e: config for e, config in awaited.get(t.id, {}).items() if e not in reported}
        if t.search is not None:
            t.search.avoid(t.awaited.values())
    for e in under_way:
        if (e.job_id, e.entry) not in reported:
            t = by_id[e.task_id]
            t.pending += 1
            if t.search is not None:
                t.search.avoid([Config(e.config)])


_UNDER_WAY = (
    sa.select(*job_entry.c["job_id", "entry", "task_id", "config"])
    .join(job, job.c.id == job_entry.c.job_id)
    .where(
        job.c.run_id == sa.bindparam("run_id"), job.c.phase == Phase.SEARCH.value,
        job.c.state.in_((JobState.QUEUED, JobState.LEASED)), job_entry.c.state == EntryState.PENDING,
    )
)


def _take_new(connection: sa.Connection, tuning: TuningRun) -> set[other_run.Entry]:
    """Take in the records since the last call; return their entries."""
    counted = runs.trials_of(tuning.id, tuning.request.force, tuning.policy_id)
    reported: set[other_run.Entry] = set()
    # The finals of an earlier run may have found a wrong answer, where its search had a time.
    fresh = [t.id for t in tuning.tasks if not t.cursor]
    wrong = best.refuted(connection, fresh, tuning.device_model) if fresh else set()
    for t in tuning.tasks:
        rows = connection.execute(
            sa.select(
                *record.c["id", "run_id", "job_id", "entry", "config", "error", "median_s", "config_digest"],
                sa.func.coalesce(device.c.model, "").label("model"),
            )
            .outerjoin(device, device.c.id == record.c.device_id)
            .where(counted, record.c.task_id == t.id, record.c.id > t.cursor)
            .order_by(record.c.id)
        ).all()
        for r in rows:
            reported.add((r.job_id, r.entry))
            t.cursor = r.id
            t.told += 1
            t.earlier += r.run_id != tuning.id
            tuning.timed[r.model] += r.error is None
            tuning.tried[r.model] += r.error != ErrorKind.LOST  # of which no device is known
            elsewhere = r.model != tuning.device_model and r.error != ErrorKind.LOST
            _take(t, r, refuted=(t.id, r.config_digest) in wrong, elsewhere=elsewhere)
    return reported


def _take(t: TuningTask, r: Any, *, refuted: bool, elsewhere: bool) -> None:
    """Take in one record of a task: tell its search, or have it skip what says nothing of the run's device model."""
    if r.error in BY_CHANCE:
        t.chance += 1
    elif elsewhere and r.error is None:
        t.elsewhere += 1
    elif elsewhere and r.error not in UNBUILDABLE:
        t.failed_elsewhere += 1
        t.ran_elsewhere += 1
    else:
        t.failed_elsewhere += elsewhere
        median_s = None if refuted else r.median_s
        if median_s is not None:
            t.best_s = min(median_s, t.best_s or median_s)
        t.bests_s.append(t.best_s)
        if t.search is not None:
            t.search.tell(Config(r.config), median_s)
        return
    if t.search is not None:
        t.search.skip(Config(r.config))
