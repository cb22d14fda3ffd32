"""Insertion of jobs and their entries: the only place that creates rows of the queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from service.store import event
from service.store.sql import now
from service.store.tables import EntryState, JobState, job, job_entry

# The columns that a job shares with one that it repeats or is split from.
_SAME = ("run_id", "workload_id", "target_id", "policy_id", "phase", "needs")


def insert_job(
    connection: sa.Connection, values: Mapping[str, Any], kind: str, **detail: Any
) -> int:
    """Insert a queued job without entries, and an event; return the job's id.

    Args:
        values: columns of `job`; the others get a new job's defaults.
    """
    fresh = {
        "state": JobState.QUEUED, "turn": 0.0, "attempts": 0, "available_at": now(), "created_at": now(),
        # Random: after a restore, ids of jobs and leases come again, and a lease of before would be taken for another.
        "fence": secrets.randbits(52),
    }
    job_id: int = connection.execute(
        sa.insert(job).values(**{**fresh, **values}).returning(job.c.id)
    ).scalar_one()
    event.note(connection, kind, run_id=values["run_id"], job_id=job_id, **detail)
    return job_id


def copy_columns(row: Any, *more: str) -> dict[str, Any]:
    """Return the columns that a job shares with one that it repeats or is split from, and `more`."""
    return {name: getattr(row, name) for name in (*_SAME, *more)}


def insert_entries(
    connection: sa.Connection, job_id: int, entries: Iterable[Mapping[str, Any]]
) -> None:
    """Insert pending entries; each mapping has `entry`, `task_id`, `config`, its digest and `best_s`."""
    pending = {"job_id": job_id, "state": EntryState.PENDING}
    rows: Sequence[dict[str, Any]] = [{**one, **pending} for one in entries]
    connection.execute(sa.insert(job_entry), rows)
