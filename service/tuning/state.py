"""State transitions of live runs and their tasks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store import event
from service.store.sql import now
from service.store.tables import run, run_task
from service.tuning.tuning_run import TuningTask
from strategy.record import RunState

_PRIORITY = sa.func.coalesce(run.c.request["priority"].as_integer(), 0).label("priority")


def read_state(connection: sa.Connection, run_id: int) -> Any:
    """Return a run's `state`, `age_s`, the seconds since it was created, `priority` and `max_jobs`.

    Requests can raise the last two.
    """
    age_s = (now() - run.c.created_at).label("age_s")
    return connection.execute(sa.select(*run.c["state", "max_jobs"], age_s, _PRIORITY).where(run.c.id == run_id)).one()


def lock_state(connection: sa.Connection, run_id: int) -> Any:
    """Return a run's `state`, `message`, `complete` and `priority`, locked until the transaction ends."""
    query = sa.select(*run.c["state", "message", "complete"], _PRIORITY).where(run.c.id == run_id)
    return connection.execute(query.with_for_update(key_share=True)).one()


def begin_finals(connection: sa.Connection, run_id: int, message: str, *, complete: bool) -> None:
    """Move a run from searching to its finals; `message` is the reason."""
    values = {"state": RunState.CONFIRMING, "message": message, "complete": complete}
    connection.execute(sa.update(run).where(run.c.id == run_id).values(**values))
    event.note(connection, "confirming", run_id=run_id, message=message)


def set_task_state(connection: sa.Connection, run_id: int, t: TuningTask) -> None:
    """Store the state of a run's task and its reason."""
    connection.execute(
        sa.update(run_task)
        .where(run_task.c.run_id == run_id, run_task.c.task_id == t.id)
        .values(state=t.state, message=t.message)
    )
    event.note(
        connection, t.state.value, run_id=run_id, task=t.id, implementation=t.implementation, message=t.message
    )
