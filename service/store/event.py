"""Events: one row for each change of state, written in the transaction that makes the change, and logged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from service.store.sql import put_rows
from service.store.tables import event
from service.store.text import json_text

log = logging.getLogger(__name__)


def note(
    connection: sa.Connection,
    kind: str,
    *,
    run_id: int | None = None,
    job_id: int | None = None,
    worker_id: int | None = None,
    **detail: Any,
) -> None:
    """Append an event and log it."""
    note_all(
        connection, kind,
        [{"run_id": run_id, "job_id": job_id, "worker_id": worker_id, "detail": detail}],
    )


_COLUMNS = tuple(event.c["kind", "run_id", "job_id", "worker_id", "detail"])


def note_all(connection: sa.Connection, kind: str, events: Sequence[dict[str, Any]]) -> None:
    """Append events of one kind, each with `run_id`, `job_id`, `worker_id` and `detail`."""
    if not events:
        return
    rows = [(kind, one["run_id"], one["job_id"], one["worker_id"], json_text(one["detail"])) for one in events]
    put_rows(connection, _COLUMNS, rows, None, event.c.at)
    for one in events if log.isEnabledFor(logging.INFO) else ():
        ids = {"run": one["run_id"], "job": one["job_id"], "worker": one["worker_id"]}
        log.info("%s %s", kind, one["detail"], extra=ids)
