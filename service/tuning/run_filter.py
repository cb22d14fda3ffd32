"""Filter of runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import sqlalchemy as sa

from service.records.filter import OfTask
from service.store.namespace import DEFAULT
from service.store.tables import LIVE, run, run_task, task

LIVE_STATE = "live"  # in filters: any state of a live run


@dataclass(frozen=True, kw_only=True)
class OfRun(OfTask):
    """The criteria of a run: its state, or `live`; and those of a task, one of which it has."""

    state: str | None = None

    @property
    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The conditions on `run`."""
        found = [] if self.namespace is None else [run.c.namespace == self.namespace]
        if self.state is not None:
            found.append(run.c.state.in_(LIVE) if self.state == LIVE_STATE else run.c.state == self.state)
        if of_task := dataclasses.replace(self, namespace=None).of_task():
            having = sa.select(run_task.c.run_id).join(task, task.c.id == run_task.c.task_id).where(*of_task)
            found.append(run.c.id.in_(having))
        return found


ANY = OfRun()
OF_DEFAULT = OfRun(namespace=DEFAULT)
