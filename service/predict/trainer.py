"""The trainer: trains cost models while no run is live."""

from __future__ import annotations

import subprocess
import time
from collections import deque

import sqlalchemy as sa

from service.predict import process, training
from service.store.background import Background
from service.store.catalogue import code_versions
from service.store.db import Store
from service.store.namespace import DEFAULT
from service.store.sql import among
from service.store.tables import LIVE, cost_model, run, run_task, target, task, workload
from strategy.record import RunState

# Time without a live run before training begins, as it would disturb timing.
QUIET_S = 30.0
GROWTH = 1.25  # ratio of records to the newest model's, from which a new model is trained


class Trainer(Background):
    """One thread that runs one training process at a time, and stops it when a run begins.

    Models become due by runs that finish while the service lives, or by request; imported records alone
    start no training. Requested models are trained as soon as no run is live.

    Args:
        poll_s: the interval of polling.
        quiet_s: see `QUIET_S`.
    """

    def __init__(self, store: Store, poll_s: float, quiet_s: float = QUIET_S) -> None:
        super().__init__("trainer", poll_s)
        self._store = store
        self._quiet_s = quiet_s
        self._busy_at = time.monotonic()
        # By ids, not instants, as the database's clock may be set back.
        with store.read() as connection:
            self._newest, self._live = _newest_run(connection), _live_runs(connection)
        self._due: dict[tuple[str, str], bool] = {}  # True if requested
        self._asked: deque[tuple[str, str]] = deque()  # written by other threads
        self._child: tuple[subprocess.Popen[str], tuple[str, str], bool] | None = None

    def stop(self) -> None:
        """End the thread, and the training with it."""
        super().stop()
        self._end_child()

    def ask(self, op: str, target_key: str) -> None:
        """Request training, whatever the newest model was trained on. Thread-safe."""
        self._asked.append((op, target_key))

    def step(self) -> None:
        """Start due training, collect what is done, and stop training for a live run."""
        with self._store.read() as connection:
            self._note_finished(connection)
        while self._asked:
            self._due[self._asked.popleft()] = True
        if self._live:
            self._busy_at = time.monotonic()
            self._end_child()
            return
        if self._child is not None:
            if self._child[0].poll() is None:
                return
            self._child = None
        quiet = time.monotonic() - self._busy_at >= self._quiet_s
        due = next((d for d, asked in self._due.items() if asked or quiet), None)
        if due is None:
            return
        asked = self._due.pop(due)
        with self._store.read() as connection:
            wanted = asked or _is_due(connection, *due)
        if wanted:
            self._child = process.start(self._store, *due), due, asked

    def wait(self) -> None:
        """Wait for the current training to end."""
        if self._child is not None:
            self._child[0].wait()

    def _end_child(self) -> None:
        if self._child is None:
            return
        child, due, asked = self._child
        self._child = None
        if child.poll() is None:
            self._due[due] = asked
        process.stop(child)

    def _note_finished(self, connection: sa.Connection) -> None:
        newest = _newest_run(connection)  # first, so that a concurrent run is found next time
        live = _live_runs(connection)
        ended = connection.execute(
            sa.select(workload.c.op, target.c.key)
            .distinct()
            .select_from(run)
            .join(run_task, run_task.c.run_id == run.c.id)
            .join(task, task.c.id == run_task.c.task_id)
            .join(target, target.c.id == task.c.target_id)
            .join(workload, workload.c.id == task.c.workload_id)
            .where(
                sa.or_(run.c.id > self._newest, among(run.c.id)),
                run.c.state == RunState.DONE.value, run.c.namespace == DEFAULT,
            ),
            {"ids": self._live - live},
        ).all()
        self._newest, self._live = newest, live
        for row in ended:
            self._due.setdefault((row.op, row.key), False)


def _newest_run(connection: sa.Connection) -> int:
    return connection.scalar(sa.select(sa.func.max(run.c.id))) or 0


def _live_runs(connection: sa.Connection) -> set[int]:
    return set(connection.scalars(sa.select(run.c.id).where(run.c.state.in_(LIVE))))


def _is_due(connection: sa.Connection, op: str, target_key: str) -> bool:
    """Return whether there are enough records for a model, and enough new ones since the newest."""
    found, device_model = training.count(connection, op, target_key)
    last = connection.execute(
        sa.select(*cost_model.c["records", "lineage", "target_id"])
        .join(target, target.c.id == cost_model.c.target_id)
        .where(cost_model.c.op == op, target.c.key == target_key)
        .order_by(cost_model.c.version.desc())
        .limit(1)
    ).one_or_none()
    if last is None:
        seen = 0
    else:  # one whose code has changed answers nothing; one of another device model has seen no record of this one
        lineage = last.lineage or {}
        now = code_versions(connection, op, last.target_id, DEFAULT)
        changed = any(now.get(name) != code for name, code in lineage.get("versions", {}).items())
        seen = 0 if changed or lineage.get("device_model") != device_model else last.records
    enough: bool = found.workloads >= training.LEAST_WORKLOADS
    return enough and found.records >= GROWTH * seen
