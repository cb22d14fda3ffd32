"""Claims: the queued jobs that a device gets.

A claim is one UPDATE of the queued jobs that it finds, correct by itself on SQLite and PostgreSQL: of two claims
of a job, the second finds it no longer queued. Functions run in the caller's transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.queue import rule
from service.queue.place import Place
from service.store.listed import Texts
from service.store.sql import Ask, among, in_index_order, one_trip, random_step
from service.store.tables import JobState, job, worker_device

TOGETHER = 3  # requests from which a joint claim takes fewer statements
NEXT = 200  # jobs at the head of a queue whose requirements are scanned


_TARGET = sa.bindparam("target", type_=sa.BigInteger)
_ASKING = rule.Claimant(
    sa.bindparam("asking", type_=sa.BigInteger),
    sa.bindparam("device", type_=sa.BigInteger),
    _TARGET,
    sa.bindparam("alive_s", type_=sa.Double),
)
# The condition that some rule concerns the job.
_IS_SPECIAL = sa.or_(*(r.concerns for r in rule.job_rules(_ASKING) if r.concerns is not None))
_IS_NEEDED = among(job.c.needs, sa.bindparam("known_needs", type_=Texts()))
_MOST = sa.bindparam("most", type_=sa.Integer)


def _queue(column: sa.Column[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """A column of the queued jobs of a target that are not backing off, the next one first.

    The conditions are one CASE, half of whose rows PostgreSQL expects to be met. It would multiply their shares and
    expect fewer jobs than are asked for, and so read and sort the whole queue in place of the head of its index.
    """
    met = sa.case((sa.and_(rule.BACK_OFF.allows, *conditions), sa.true()), else_=sa.false())
    return (
        sa.select(column)
        .where(job.c.state == JobState.QUEUED, job.c.target_id == _TARGET, met)
        .order_by(job.c.priority, job.c.turn, job.c.id)
    )


_ANY = _queue(job.c.id).order_by(None).limit(1)


def with_jobs(connection: sa.Connection, targets: Iterable[int]) -> set[int]:
    """The targets with a queued job that is not backing off."""
    return {t for t in targets if connection.scalar(_ANY, {"target": t}) is not None}


_NEXT_NEEDS = sa.select(_queue(job.c.needs).limit(_MOST).subquery().c.needs).distinct()
_ALL_NEEDS = sa.select(_queue(job.c.needs).order_by(None).subquery().c.needs).distinct()


class Needs:
    """The distinct needs of the queued jobs of targets, as read by one transaction.

    Args:
        connection: the transaction.
        ask: asks for the needs at the heads of the queues, in a round trip with others.
        targets: the targets.
    """

    def __init__(self, connection: sa.Connection, ask: Ask, targets: Iterable[int]) -> None:
        self._connection = connection
        with in_index_order(connection):
            self._next = {t: ask(_NEXT_NEEDS, {"target": t, "most": NEXT}) for t in targets}
        self._all: dict[int, frozenset[str]] = {}

    def next(self, target_id: int) -> frozenset[str]:
        """The needs of the jobs at the head of the queue; empty if every queued job is backing off."""
        return frozenset(row.needs for row in self._next[target_id])

    def all(self, target_id: int) -> frozenset[str]:
        """The needs of all queued jobs of a target with some at the head of the queue."""
        if target_id not in self._all:
            self._all[target_id] = frozenset(self._connection.scalars(_ALL_NEEDS, {"target": target_id}))
        return self._all[target_id]


def take(
    connection: sa.Connection, place: Place, most: int, needs: Needs, alive_s: float
) -> list[Any]:
    """Claim up to `most` next jobs that a place may have; return their rows, in order.

    Args:
        connection: the transaction of the claim.
        place: the device and worker that claim.
        most: the maximum number of jobs, at least 1.
        needs: the distinct needs of the queued jobs.
        alive_s: seconds for which a worker counts as alive after a heartbeat.
    """
    wanted = needs.next(place.target_id)
    if not wanted or not place.operators:
        return _take(connection, place, most, None, alive_s) if wanted else []
    buildable = set(filter(place.can_build, wanted))
    claimed = _take(connection, place, most, buildable, alive_s) if buildable else []
    if not claimed and buildable != wanted:
        # Jobs that it cannot build stand at the head of the queue: look behind them.
        further = set(filter(place.can_build, needs.all(place.target_id))) - buildable
        claimed = _take(connection, place, most, further, alive_s) if further else []
    return claimed


def _take(
    connection: sa.Connection, place: Place, most: int, needs: Collection[str] | None, alive_s: float
) -> list[Any]:
    given = {
        "asking": place.worker_id, "device": place.device_id, "target": place.target_id,
        "alive_s": alive_s, "known_needs": sorted(needs or ()), "most": 1,
    }
    named = needs is not None
    claimed = _execute(connection, _claim(named=named, several=False), given)
    if most > 1 and claimed and not claimed[0].attempts:
        rest = _execute(connection, _claim(named=named, several=True), given | {"most": most - 1})
        claimed += sorted(rest, key=_order)
    return claimed


def _execute(
    connection: sa.Connection, statement: sa.sql.dml.ReturningUpdate[Any], given: Mapping[str, Any]
) -> list[Any]:
    with one_trip(connection) as ask, in_index_order(connection):
        return ask(statement, given)


@cache
def _claim(*, named: bool, several: bool) -> sa.sql.dml.ReturningUpdate[Any]:
    """Make the statement that claims `most` queued jobs: correct without any lock around it.

    Cached, as building it takes longer than executing it.

    Args:
        named: claim only jobs that need one of `known_needs`.
        several: claim only jobs that no rule concerns; each claim of another job must see the previous one.
    """
    conditions = [r.allows for r in rule.job_rules(_ASKING)]
    if named:
        conditions.append(_IS_NEEDED)
    if several:
        conditions.append(~_IS_SPECIAL)
    return _taking(*conditions, once=[r.allows for r in rule.claimant_rules(_ASKING)])


def _taking(
    *conditions: sa.ColumnElement[bool], once: Iterable[sa.ColumnElement[bool]] = ()
) -> sa.sql.dml.ReturningUpdate[Any]:
    """Claim `most` jobs of a queue, read by a query that is materialised, as PostgreSQL might evaluate it for each row.

    The fence rises by a random step: after a crash or a restore that has lost a lease, the next one of the job may have
    the same id, and has another token.

    Its locks let concurrent claims pass each other: of a job that another has claimed meanwhile, PostgreSQL finds that
    it is no longer queued. SQLite, which has no such clause, has one writer at a time. The update has no condition on
    the state: PostgreSQL might expect an empty queue, and compare all queued jobs with each one found.

    Args:
        conditions: on each job.
        once: conditions that hold for all jobs or for none: outside the CASE, as PostgreSQL then reads no job in vain.
    """
    first = _queue(job.c.id, *conditions).where(*once).limit(_MOST)
    found = first.with_for_update(skip_locked=True, key_share=True).cte("wanted")
    return (
        sa.update(job)
        .where(job.c.id.in_(sa.select(found.c.id)))
        .values(state=JobState.LEASED, fence=job.c.fence + random_step())
        .returning(job)
    )


_EACH = rule.Claimant(*worker_device.c["worker_id", "device_id", "target_id"])
_FREE = sa.select(_EACH.worker_id, _EACH.device_id).where(
    among(worker_device.c.worker_id), *(r.allows for r in rule.claimant_rules(_EACH))
)


def ask_free(connection: sa.Connection, ask: Ask, workers: Collection[int]) -> list[Any]:
    """The devices of workers, with these, that no rule refuses all jobs."""
    with in_index_order(connection):
        return ask(_FREE, {"ids": sorted(workers)})


def take_together(
    connection: sa.Connection, wanted: Sequence[tuple[int, Place, int]], needs: Needs, rows: Iterable[Any]
) -> dict[int, list[Any]]:
    """Claim jobs for many places in a few statements; each place has a number and a maximum of jobs.

    `rows` are those of `ask_free`.

    Returns:
        the rows for each served place, by its number. The others must call `take`: a rule refuses them
        every job, or concerns a job at the head of their queue.
    """
    free = {tuple(row) for row in rows}
    alike: dict[tuple[int, frozenset[str]], dict[int, int]] = {}
    for i, place, room in wanted:
        if (place.worker_id, place.device_id) not in free:
            continue
        buildable = frozenset(filter(place.can_build, needs.next(place.target_id)))
        alike.setdefault((place.target_id, buildable), {})[i] = room
    asked = []
    with one_trip(connection) as ask, in_index_order(connection):
        for (target_id, buildable), rooms in alike.items():
            given = {"target": target_id, "known_needs": sorted(buildable), "most": sum(rooms.values())}
            if buildable:
                asked.append((rooms, ask(_claim_plain(), given)))
    served: dict[int, list[Any]] = {}
    for rooms, found in asked:
        claimed = iter(sorted(found, key=_order))
        if found:
            served |= {i: list(itertools.islice(claimed, room)) for i, room in rooms.items()}
    return served


def _order(row: Any) -> tuple[int, float, int]:
    return row.priority, row.turn, row.id


@cache
def _claim_plain() -> sa.sql.dml.ReturningUpdate[Any]:
    """Claim jobs, or none if some rule concerns one at the head of the queue."""
    head = _queue(job.c.id, _IS_NEEDED).limit(_MOST).add_columns(_IS_SPECIAL.label("special")).subquery()
    special = sa.select(head.c.id).where(head.c.special)
    return _taking(_IS_NEEDED, ~_IS_SPECIAL, ~special.exists())
