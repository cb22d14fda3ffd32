"""Retention of the log: pruning of old and slow records, and purging of wrong measurements.

Pruning deletes records and advice. A purge marks both, and derives the best again in the same transaction; verdicts on
networks, which are not imported, it deletes.
"""
# Over 300 lines: two ways of deletion, which share what they count, mark and derive again.

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import DatabaseError, InvalidError
from service.records import best, tvm_history
from service.records.filter import Wanted
from service.store.db import Store
from service.store.sql import among, now
from service.store.tables import (
    LIVE,
    Scope,
    advice,
    advice_tombstone,
    network,
    purge,
    record,
    run,
    run_task,
    task,
    tombstone,
)
from service.store.tables import best as best_table
from service.store.tables import history as history_table
from strategy.record import Phase, RunState

TASKS = 200  # in one transaction at most
ROWS = 500  # ids in one statement


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of deleted records, or of those that would be."""

    records: int = 0
    configs: int = 0
    tasks: int = 0
    kept: int = 0  # records of the same tasks
    advice: int = 0


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of marked records and advice and of deleted verdicts, or of those that would be."""

    records: int = 0
    advice: int = 0
    networks: int = 0


def prune(
    store: Store, keep_best: int, before: float, *, dry: bool,
    note: Callable[[sa.Connection, Pruned], object] | None = None,
) -> Pruned:
    """Delete the records of configurations that were last measured before an instant; workers' by the database's clock.

    For each task its `keep_best` fastest configurations of each device model and of all are kept, by search and by
    confirmation, and those that are the best on a device, a device model or the target, or the lowest mean of TVM's
    rule, with all of their records; on SQLite that of the newest record, too. Of the advice for each task and device
    the newest is kept. Records and advice imported without a date count from their import. Tasks of live runs are left
    out, as their records are trials that count, up to the last that a tuner has seen.

    Args:
        keep_best: the number of configurations of each task, at least 1.
        before: a Unix time.
        dry: count only.
        note: called in a last transaction with what was deleted, also if it is interrupted or fails in the middle.
    """
    if keep_best < 1:
        raise InvalidError("keep_best: must be at least 1, to keep the best: raise it")
    total = {"records": 0, "configs": 0, "tasks": 0, "kept": 0, "advice": 0}  # of what is committed

    def write_note() -> None:
        if note is not None and not dry:
            with store.write() as connection:
                note(connection, Pruned(**total))

    try:
        for page in _task_pages(store):
            tasks = page
            while tasks:
                found = dict(total)
                with store.read() if dry else store.write() as connection:
                    tasks = _prune(connection, tasks, keep_best, before, found, dry=dry)
                total = found
    except BaseException:
        with contextlib.suppress(DatabaseError):
            write_note()
        raise
    write_note()
    return Pruned(**total)


def _prune(
    connection: sa.Connection, tasks: Sequence[int], keep_best: int, before: float, total: dict[str, int], *, dry: bool
) -> Sequence[int]:
    """Prune tasks, and add to the counts; return those that are left for another transaction."""
    if not dry:
        best.lock(connection, tasks)
    until = time.monotonic() + best.LOCKED_S
    stale = _stale(tasks, before)
    total["advice"] += _count(connection, advice, stale)
    if not dry:
        ids = sa.select(advice.c.id).where(*stale)
        marks = sa.delete(advice_tombstone).where(advice_tombstone.c.advice_id.in_(ids))
        connection.execute(marks)
        connection.execute(sa.delete(advice).where(*stale))
    live = set(connection.scalars(_LIVE_TASKS, {"ids": tasks}))
    for done, task_id in enumerate(tasks):
        if done and not dry and time.monotonic() > until:
            return tasks[done:]
        old, kept = _old(connection, task_id, keep_best, before)
        if task_id in live:
            kept += sum(old.values())
            old = {}
        total["kept"] += kept
        if not old:
            continue
        total["tasks"] += 1
        total["configs"] += len(old)
        total["records"] += sum(old.values())
        if not dry:
            _delete(connection, task_id, list(old))
    return ()


_LIVE_TASKS = (
    sa.select(run_task.c.task_id)
    .join(run, run.c.id == run_task.c.run_id)
    .where(among(run_task.c.task_id), run.c.state.in_(LIVE))
)


def _task_pages(store: Store) -> Iterator[Sequence[int]]:
    last = 0
    while True:
        with store.read() as connection:
            query = sa.select(task.c.id).where(task.c.id > last).order_by(task.c.id).limit(TASKS)
            found = connection.scalars(query).all()
        if not found:
            return
        yield found
        last = found[-1]


def _old(
    connection: sa.Connection, task_id: int, keep_best: int, before: float
) -> tuple[dict[str, int], int]:
    """The configurations to delete with their numbers of records, and the number of records kept."""
    # A worker's clock may be wrong by years, and its records are pruned for good.
    when = sa.case((record.c.lease_id.is_not(None), record.c.recorded_at), else_=_instant(record))
    rows = connection.execute(
        sa.select(
            record.c.config_digest, sa.func.count().label("n"), sa.func.max(when).label("last")
        )
        .where(record.c.task_id == task_id)
        .group_by(record.c.config_digest)
    ).all()
    if all(row.last >= before for row in rows):
        return {}, sum(row.n for row in rows)
    kept = {
        digest
        for table in (best_table, history_table)
        for digest in connection.scalars(
            sa.select(table.c.config_digest).where(table.c.task_id == task_id)
        )
    }
    if connection.dialect.name == "sqlite":  # whose next id is one above the highest: followers would pass it over
        newest = sa.select(sa.func.max(record.c.id)).scalar_subquery()
        of_newest = sa.select(record.c.config_digest).where(record.c.task_id == task_id, record.c.id == newest)
        kept.update(connection.scalars(of_newest))
    models = connection.scalars(
        sa.select(best_table.c.scope_value).where(
            best_table.c.task_id == task_id, best_table.c.scope == Scope.MODEL.value
        )
    )
    for place in [(Scope.TARGET, ""), *((Scope.MODEL, model) for model in models)]:
        for phase in (Phase.CONFIRM, Phase.SEARCH):
            kept.update(islice(best.rank_configs(connection, task_id, *place, phase), keep_best))
    old = {r.config_digest: r.n for r in rows if r.last < before and r.config_digest not in kept}
    return old, sum(r.n for r in rows) - sum(old.values())


def _delete(connection: sa.Connection, task_id: int, digests: Sequence[str]) -> None:
    for at in range(0, len(digests), ROWS):
        gone = sa.and_(record.c.task_id == task_id, record.c.config_digest.in_(digests[at : at + ROWS]))
        ids = sa.select(record.c.id).where(gone)
        connection.execute(sa.delete(tombstone).where(tombstone.c.record_id.in_(ids)))
        connection.execute(sa.delete(record).where(gone))


def _stale(tasks: Sequence[int], before: float) -> list[sa.ColumnElement[bool]]:
    """The conditions on `advice` that it is old and not the newest of its task and device."""
    of = advice.c.task_id.in_(tasks)
    newest = sa.select(sa.func.max(advice.c.id)).where(of, best.standing(advice))
    newest = newest.group_by(advice.c.task_id, advice.c.device_id)
    return [of, _instant(advice) < before, advice.c.id.not_in(newest)]


def _instant(of: sa.Table) -> sa.ColumnElement[float]:
    """The time of a measurement, or of its import where it has no date."""
    return sa.case((of.c.measured_at > 0, of.c.measured_at), else_=of.c.recorded_at)


def _count(
    connection: sa.Connection, of: sa.Table, which: Sequence[sa.ColumnElement[bool]]
) -> int:
    query = sa.select(sa.func.count()).select_from(of)
    return int(connection.execute(query.where(*which)).scalar_one())


@dataclass(frozen=True, kw_only=True)
class Doubtful:
    """Criteria of a purge: a conjunction of at least one."""

    worker: str | None = None  # its name
    device: str | None = None  # its identity
    since: float | None = None  # measured then or later
    until: float | None = None  # measured before then
    source: str | None = None  # the tool, or the format of the first import

    @property
    def of_networks(self) -> list[sa.ColumnElement[bool]]:
        """The conditions on `network`: a worker, a device or a source matches none, as it names none of them."""
        if (self.worker, self.device, self.source) != (None, None, None):
            return [sa.false()]
        return self._within(network.c.recorded_at)

    def of(self, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        """The conditions on `record`, or on `advice`."""
        if self == Doubtful():
            raise InvalidError("purge: no criterion: name a worker, a device, a source or a time")
        named = Wanted(worker=self.worker, device=self.device, source=self.source)
        return [*named.of(table), *self._within(_instant(table)), best.standing(table)]

    def _within(self, instant: sa.ColumnElement[float]) -> list[sa.ColumnElement[bool]]:
        since = [] if self.since is None else [instant >= self.since]
        return since if self.until is None else [*since, instant < self.until]


def count_doubtful(connection: sa.Connection, which: Doubtful) -> Purged:
    """Count what a purge would mark and delete."""
    return Purged(
        records=_count(connection, record, which.of(record)),
        advice=_count(connection, advice, which.of(advice)),
        networks=_count(connection, network, which.of_networks),
    )


def purge_doubtful(connection: sa.Connection, which: Doubtful, reason: str) -> Purged:
    """Mark records and advice as not to be trusted, derive the best without them, and delete such verdicts.

    What is marked stays, and is not imported again.
    """
    matching, advising = sa.and_(*which.of(record)), sa.and_(*which.of(advice))
    tasks = connection.scalars(sa.select(record.c.task_id).distinct().where(matching)).all()
    of_advice = connection.scalars(sa.select(advice.c.task_id).distinct().where(advising)).all()
    best.lock(connection, {*tasks, *of_advice})
    # Only of the locked tasks: newer records of others are not considered.
    rows: Sequence[Any] = connection.execute(
        sa.select(record.c.id, record.c.task_id, record.c.device_id, record.c.config_digest).where(
            matching, among(record.c.task_id)
        ),
        {"ids": tasks},
    ).all()
    advised = connection.scalars(
        sa.select(advice.c.id).where(advising, among(advice.c.task_id)), {"ids": of_advice}
    ).all()
    if rows or advised:
        criteria = {k: v for k, v in vars(which).items() if v is not None}
        purge_id = connection.execute(
            sa.insert(purge)
            .values(at=now(), reason=reason, criteria=criteria, records=len(rows))
            .returning(purge.c.id)
        ).scalar_one()
        _mark(connection, tombstone, "record_id", [r.id for r in rows], purge_id)
        _mark(connection, advice_tombstone, "advice_id", advised, purge_id)
    if rows:
        best.refresh(
            connection, {best.Change(r.task_id, r.device_id, r.config_digest) for r in rows}
        )
        tvm_history.derive(connection, tasks)
        connection.execute(_UNTUNE, {"ids": tasks})
    gone = connection.execute(sa.delete(network).where(*which.of_networks)).rowcount
    return Purged(records=len(rows), advice=len(advised), networks=gone)


# Ended runs that tuned tasks of purged records are no reason to leave these untuned, even if those are pruned later.
_UNTUNE = (
    sa.update(run)
    .where(
        run.c.complete, run.c.state == RunState.DONE.value,
        run.c.id.in_(sa.select(run_task.c.run_id).where(among(run_task.c.task_id))),
    )
    .values(complete=False)
)


def _mark(
    connection: sa.Connection, of: sa.Table, name: str, ids: Sequence[int], purge_id: int
) -> None:
    if ids:
        connection.execute(sa.insert(of), [{name: i, "purge_id": purge_id} for i in ids])
