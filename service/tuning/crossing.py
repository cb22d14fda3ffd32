"""Proposals of several services for runs of one workload at the same moment: each configuration is enqueued once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from service.queue.job import NewEntry
from service.store.sql import values_table
from service.store.tables import record
from service.tuning import other_run
from service.tuning import run as runs
from service.tuning.tuning_run import TuningRun

_LOCKS = 0x706C6576  # of this kind, among other programs' advisory locks
_SLOTS = 64  # locks for all tasks: the server's table of locks has few thousand, and a run may have more tasks
_LOCK = sa.text("SELECT pg_advisory_xact_lock(:kind, slot) FROM unnest(CAST(:slots AS INTEGER[])) AS slot")


def is_crossed(connection: sa.Connection, tuning: TuningRun, proposed: Sequence[NewEntry]) -> bool:
    """Return whether another service has enqueued what a run proposes, for another run, since the last `absorb`.

    Until the transaction ends, no service enqueues trials of these tasks.
    """
    wanted = {(e.task_id, e.config.digest) for e in proposed}
    tasks = {e.task_id for e in proposed}
    lock(connection, tasks)
    tuning.find_policy(connection)
    # Jobs first: a concurrent report is then found by both queries, not by neither.
    awaited = other_run.find_awaited(connection, tuning.id, tuning.request.force, tuning.policy_id, tasks)
    if any((task_id, config.digest) in wanted for task_id, found in awaited.items() for config in found.values()):
        return True
    cursors = {t.id: t.cursor for t in tuning.tasks}
    given = values_table(connection, list(record.c["task_id", "config_digest"]), wanted)
    same = sa.and_(given.c.task_id == record.c.task_id, given.c.config_digest == record.c.config_digest)
    counted = runs.trials_of(tuning.id, tuning.request.force, tuning.policy_id)
    reported = connection.execute(sa.select(*record.c["task_id", "id"]).join(given, same).where(counted))
    return any(r.id > cursors[r.task_id] for r in reported)


def lock(connection: sa.Connection, tasks: Collection[int]) -> None:
    """Have one transaction at a time propose configurations of a task, until it ends.

    No-op on SQLite, which has one writer.
    """
    if connection.dialect.name == "sqlite":
        return
    connection.execute(_LOCK, {"kind": _LOCKS, "slots": sorted({task_id % _SLOTS for task_id in tasks})})
