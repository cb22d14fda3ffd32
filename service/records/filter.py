"""Filters of records and of tasks."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from service.errors import InvalidError
from service.records.known import check_names
from service.store.namespace import DEFAULT
from service.store.sql import is_given
from service.store.tables import advice, device, record, target, task, worker, workload
from strategy.record import Phase

MAX_TEXT = 4000  # characters of a filter by words, which may be a whole workload
MAX_WORDS = 50


def has_words(column: sa.ColumnElement[str], text: str | None) -> list[sa.ColumnElement[bool]]:
    """The conditions that a column has each word of a text, in either case and anywhere.

    Raises:
        InvalidError: more than `MAX_WORDS`.
    """
    words = dict.fromkeys((text or "").split())
    if len(words) > MAX_WORDS:
        raise InvalidError(f"a filter by {len(words)} words: at most {MAX_WORDS} are looked for, leave some out")
    return [column.icontains(word, autoescape=True) for word in words]


def of_target(text: str | None) -> list[sa.ColumnElement[bool]]:
    """The conditions on `target` that its key has each word of a text, or is that text if there is such a key.

    The latter finds a key that is the beginning of others.
    """
    words = has_words(target.c.key, text)
    if text is None or not words:
        return []
    other = target.alias()
    exact = target.c.key == text.strip()
    return [sa.or_(exact, sa.and_(~sa.exists().where(other.c.key == text.strip()), *words))]


def of_error(error: str | None) -> list[sa.ColumnElement[bool]]:
    """The condition on `record` of a kind of failure, of `any` of them, or of `none`; empty for None."""
    if error is None:
        return []
    column = record.c.error
    return [{"any": column.is_not(None), "none": column.is_(None)}.get(error, column == str(error))]


@dataclass(frozen=True, kw_only=True)
class OfTask:
    """The criteria of a task; `target` is a key, `workload` a digest, and both `has` are words (`has_words`)."""

    namespace: str | None = None
    op: str | None = None
    implementation: str | None = None
    target: str | None = None
    workload: str | None = None
    workload_has: str | None = None
    target_has: str | None = None

    def of_task(self, of_op: sa.ColumnElement[int] = task.c.workload_id) -> list[sa.ColumnElement[bool]]:
        """The conditions on `task`; `of_op` is the workload's id, by which several workloads are found."""
        equal = [(self.namespace, task.c.namespace), (self.implementation, task.c.implementation)]
        found = [column == value for value, column in equal if value is not None]
        named = [] if self.op is None else [workload.c.op == self.op]
        if several := named + has_words(workload.c.key, self.workload_has):
            found.append(of_op.in_(sa.select(workload.c.id).where(*several)))
        if self.workload is not None:
            of_shape = sa.select(workload.c.id).where(workload.c.digest == self.workload)
            found.append(task.c.workload_id.in_(of_shape))
        if self.target is not None:
            of_key = sa.select(target.c.id).where(target.c.key == self.target)
            found.append(task.c.target_id.in_(of_key))
        if words := of_target(self.target_has):
            found.append(task.c.target_id.in_(sa.select(target.c.id).where(*words)))
        return found

    def check_names(self, connection: sa.Connection) -> None:
        """Raise `InvalidError` if a name is mistyped, where nothing matches."""
        check_names(connection, op=self.op, implementation=self.implementation, namespace=self.namespace)


ANY = OfTask()


@dataclass(frozen=True, kw_only=True)
class Wanted(OfTask):
    """A conjunction of criteria of records; instants are Unix times.

    `error` is a kind, `any` for all failures, or `none` for successes; `device` is an identity, `worker` a name.
    """

    source: str | None = None
    run_id: int | None = None
    task_id: int | None = None
    device: str | None = None
    worker: str | None = None
    phase: Phase | None = None
    error: str | None = None
    since: float | None = None  # measured at it or later
    until: float | None = None  # measured before it

    @property
    def is_indexed(self) -> bool:
        """Return whether an index serves the filter; otherwise records are scanned in the order of ids."""
        return self.run_id is not None or self.task_id is not None

    @property
    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The conditions, for a query that joins `task` to `record`."""
        phase = None if self.phase is None else str(self.phase)
        found = [is_given(record.c.run_id, self.run_id), is_given(record.c.phase, phase)]
        return found + of_error(self.error) + self.of(record)

    @property
    def of_advice(self) -> list[sa.ColumnElement[bool]]:
        """The conditions, for a query that joins `task` to `advice`, which has no runs, phases or errors."""
        if (self.run_id, self.phase, self.error) != (None, None, None):
            return [sa.false()]
        return self.of(advice)

    def of(self, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        """The conditions on what both tables have, for a query that joins `task`."""
        # The + prevents an index, by which all records of the operator would be sorted for one page.
        found = self.of_task(task.c.workload_id + 0)
        found += [is_given(table.c.source, self.source), is_given(table.c.task_id, self.task_id)]
        if self.device is not None:
            named = sa.select(device.c.id).where(device.c.identity == self.device, device.c.slot != "")
            found.append(table.c.device_id.in_(named))
        if self.worker is not None:
            by = table.c.origin_worker == self.worker
            if table is record:
                named = sa.select(worker.c.id).where(worker.c.name == self.worker)
                by = sa.or_(record.c.worker_id.in_(named), by)
            found.append(by)
        if self.since is not None:
            found.append(table.c.measured_at >= self.since)
        if self.until is not None:
            found.append(table.c.measured_at < self.until)
        return found


@dataclass(frozen=True, kw_only=True)
class Tasks(OfTask):
    """A page of the tasks that all of these hold for: `limit` at most, after the one that `cursor` names."""

    namespace: str = DEFAULT
    limit: int = 100
    cursor: int = 0

    def find(self, connection: sa.Connection) -> tuple[list[int], int | None]:
        """The ids of the tasks, and the cursor of the following page, if there is one.

        Raises:
            InvalidError: none matches, and a name of the filter is mistyped.
        """
        query = sa.select(task.c.id).where(task.c.id > self.cursor, *self.of_task())
        ids = list(connection.scalars(query.order_by(task.c.id).limit(self.limit + 1)))
        if not ids:
            self.check_names(connection)
        return ids[: self.limit], ids[self.limit - 1] if len(ids) > self.limit else None
