"""Claims: which queued jobs a device gets, and what goes to its worker of them.

A claim is one conditional UPDATE, correct by itself on SQLite and PostgreSQL: of two that claim
one job, the second finds it no longer queued. Functions run in the caller's transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import orjson
import sqlalchemy as sa

from service.errors import InvalidError
from service.queue import fleet, pause, retry
from service.store.db import among, is_due
from service.store.row_cache import recall
from service.store.tables import (
    EntryState,
    JobState,
    device,
    job,
    job_entry,
    lease,
    run,
    task,
    timing_policy,
    worker,
    worker_device,
    workload,
)
from strategy.record import ALL, Job, JobEntry, Phase, TimingPolicy, convert
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

Operators = Mapping[str, Mapping[str, int]]
# How long a final waits for another device than had the other final: who is idle asks all the time.
ELSEWHERE_S = 2.0
TOGETHER = 3  # places from which on claiming for all at once takes fewer statements
NEXT = 200  # jobs at the head of a queue, of which a look for what they need is quick


@dataclass(frozen=True)
class Ask:
    """A request for jobs, for a worker's device: afterwards it builds at most `most`.

    A worker that was registered with a token is asked for with that token only.
    """

    worker_id: int
    device: str
    most: int = 1
    token_id: int | None = None


@dataclass(frozen=True)
class Place:
    """A device as its worker drives it: what it said when it registered."""

    worker_id: int
    device_id: int
    identity: str
    target_id: int
    operators: Operators
    token_id: int | None

    def can_build(self, needs: str) -> bool:
        """Whether the worker has all that a job needs; one that has not said so has everything."""
        return not self.operators or can_build(needs, self.operators)


def find_place(connection: sa.Connection, ask: Ask) -> Place:
    """Where an ask comes from.

    Raises:
        NotFoundError: the worker is another token's.
        InvalidError: the device is not the worker's.
    """
    key = ask.worker_id, ask.device
    place = recall(connection, "place", [key], _find_places).get(key)
    if place is None:
        raise InvalidError(
            f"device {ask.device!r:.100} is not one that worker {ask.worker_id} registered"
        )
    if ask.token_id is not None and place.token_id != ask.token_id:
        raise fleet.unknown_worker(ask.worker_id)
    return place


_PLACES = (
    sa.select(worker_device, device.c.identity, worker.c.operators, worker.c.token_id)
    .join(device, device.c.id == worker_device.c.device_id)
    .join(worker, worker.c.id == worker_device.c.worker_id)
    .where(among(worker.c.id))
)


def _find_places(
    connection: sa.Connection, keys: Collection[tuple[int, str]]
) -> dict[tuple[int, str], Place]:
    rows = connection.execute(_PLACES, {"ids": {worker_id for worker_id, _ in keys}})
    return {
        (r.worker_id, r.identity): Place(
            r.worker_id, r.device_id, r.identity, r.target_id, r.operators, r.token_id
        )
        for r in rows
    }


def can_build(needs: str, operators: Operators) -> bool:
    """Whether a worker with these operators and versions can build what a job needs."""
    op, versions = _read_needs(needs)
    known = operators.get(op)
    if known is None or ALL in known:
        return known is not None
    return all(str(known.get(name)) == version for name, version in versions)


@lru_cache(maxsize=4096)
def _read_needs(needs: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    wanted = orjson.loads(needs)
    return wanted["op"], tuple(wanted["versions"].items())


_AVAILABLE = sa.and_(
    job.c.state == JobState.QUEUED, is_due(job.c.available_at, retry.MAX_BACKOFF_S)
)
_TARGET = sa.bindparam("target", type_=sa.BigInteger)
_ANY = sa.select(job.c.id).where(_AVAILABLE, job.c.target_id == _TARGET).limit(1)


def with_jobs(connection: sa.Connection, targets: Iterable[int]) -> set[int]:
    """The targets that have a queued job which does not rest."""
    return {t for t in targets if connection.scalar(_ANY, {"target": t}) is not None}


_QUEUE = (
    sa.select(job.c.needs)
    .where(_AVAILABLE, job.c.target_id == _TARGET)
    .order_by(job.c.priority, job.c.turn, job.c.id)
)
_HEAD = _QUEUE.limit(sa.bindparam("most", type_=sa.Integer)).subquery()
_NEXT_NEEDS = sa.select(_HEAD.c.needs).distinct()
_ALL_NEEDS = sa.select(_QUEUE.order_by(None).subquery().c.needs).distinct()


class Needs:
    """What the queued jobs of targets need, each once, as one transaction finds it."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[int, bool], frozenset[str]] = {}

    def next(self, target_id: int) -> frozenset[str]:
        """Of those that are next; none where no job is queued that does not rest."""
        return self._find(target_id, _NEXT_NEEDS, whole=False)

    def all(self, target_id: int) -> frozenset[str]:
        """Of all, however many there are."""
        if not self.next(target_id):
            return frozenset()
        return self._find(target_id, _ALL_NEEDS, whole=True)

    def _find(self, target_id: int, query: Any, *, whole: bool) -> frozenset[str]:
        key = target_id, whole
        if key not in self._known:
            given = {"target": target_id} if whole else {"target": target_id, "most": NEXT}
            self._known[key] = frozenset(self._connection.scalars(query, given))
        return self._known[key]


def take(
    connection: sa.Connection, place: Place, most: int, needs: Needs, alive_s: float
) -> list[Any]:
    """Claims the next `most` jobs, at least one, that a place can have; their rows, in their order.

    Args:
        connection: in whose transaction they are taken.
        place: whose target they have, and whose worker can build them.
        most: how many, at least 1.
        needs: of the queued jobs.
        alive_s: how long after its last sign a worker counts as alive.
    """
    wanted = needs.next(place.target_id)
    if not wanted or not place.operators:
        return _take(connection, place, most, None, alive_s) if wanted else []
    buildable = set(filter(place.can_build, wanted))
    claimed = _take(connection, place, most, buildable, alive_s) if buildable else []
    if not claimed and buildable != wanted:
        # What it cannot build stands before what it can.
        further = set(filter(place.can_build, needs.all(place.target_id))) - buildable
        claimed = _take(connection, place, most, further, alive_s) if further else []
    return claimed


def _take(
    connection: sa.Connection, place: Place, most: int, needs: Collection[str] | None, alive_s: float
) -> list[Any]:
    given = {
        "asking": place.worker_id, "device": place.device_id, "target": place.target_id,
        "alive_s": alive_s, "known_needs": sorted(needs or ()), "most": 1,
    }  # fmt: skip
    named = needs is not None
    claimed = list(connection.execute(_claim(named=named, several=False), given))
    if most > 1 and claimed and not claimed[0].attempts:
        rest = connection.execute(_claim(named=named, several=True), given | {"most": most - 1})
        claimed += sorted(rest, key=_order)
    return claimed


@cache
def _claim(*, named: bool, several: bool) -> sa.sql.dml.ReturningUpdate[Any]:
    """The one statement that takes queued jobs, `most` of them: correct without any lock around it.

    It is made once, as that takes longer than running it.

    Args:
        named: only those that need one of `known_needs`.
        several: only those that were never lost, are no finals and whose runs have no limit: of the
            others each claim must see the one before.
    """
    worker_id, device_id = (sa.bindparam(n, type_=sa.BigInteger) for n in ("asking", "device"))
    held = sa.select(lease.c.id).where(lease.c.ended_at.is_(None))
    of_run = job.alias("of_run")
    running = (
        sa.select(sa.func.count())
        .where(of_run.c.run_id == job.c.run_id, of_run.c.state == JobState.LEASED)
        .scalar_subquery()
    )
    limit = sa.select(run.c.max_jobs).where(run.c.id == job.c.run_id).scalar_subquery()
    other_job = job.alias("other_job")
    # A job that this device has lost twice waits for one that has not, where there is one.
    lost_here = _lost_on(device_id).correlate(job).exists()
    elsewhere = (
        sa.select(worker_device.c.device_id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(
            worker_device.c.target_id == _TARGET,
            fleet.is_alive(sa.bindparam("alive_s", type_=sa.Double)),
            ~_lost_on(worker_device.c.device_id).correlate(job, worker_device).exists(),
        )
        .correlate(job)
        .exists()
    )
    # The finals of a workload go to two devices, where there are two.
    final = job.alias("final")
    final_here = (
        sa.select(lease.c.id)
        .join(final, final.c.id == lease.c.job_id)
        .where(
            lease.c.device_id == device_id, final.c.run_id == job.c.run_id,
            final.c.workload_id == job.c.workload_id, final.c.phase == Phase.CONFIRM.value,
            final.c.id != job.c.id,
            sa.or_(lease.c.ended_at.is_(None), lease.c.end_reason == "done"),
        )
        .correlate(job)
        .exists()
    )  # fmt: skip
    another = (
        sa.select(worker_device.c.device_id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(
            worker_device.c.target_id == _TARGET, worker_device.c.device_id != device_id,
            fleet.is_alive(sa.bindparam("alive_s", type_=sa.Double)),
        )
        .exists()
    )  # fmt: skip
    wanted = (
        sa.select(job.c.id)
        .where(
            _AVAILABLE,
            job.c.target_id == _TARGET,
            sa.or_(limit.is_(None), running < limit),
            ~pause.is_paused(device_id, _TARGET),
            # A suspect runs alone on its worker.
            ~held.join(other_job, other_job.c.id == lease.c.job_id)
            .where(lease.c.worker_id == worker_id, other_job.c.attempts > 0)
            .exists(),
            sa.or_(job.c.attempts == 0, ~held.where(lease.c.worker_id == worker_id).exists()),
            sa.or_(job.c.attempts < retry.SPLIT_ATTEMPTS, ~lost_here, ~elsewhere),
            sa.or_(
                job.c.phase != Phase.CONFIRM.value, job.c.attempts > 0,
                is_due(job.c.available_at + ELSEWHERE_S, retry.MAX_BACKOFF_S + ELSEWHERE_S),
                ~final_here, ~another,
            ),
        )
        .order_by(job.c.priority, job.c.turn, job.c.id)
        .limit(sa.bindparam("most", type_=sa.Integer))
        # Only so that claims do not queue up behind each other; SQLite has no such clause.
        .with_for_update(skip_locked=True, key_share=True)
    )
    if named:
        wanted = wanted.where(job.c.needs.in_(sa.bindparam("known_needs", expanding=True)))
    if several:
        wanted = wanted.where(
            job.c.attempts == 0, limit.is_(None), job.c.phase != Phase.CONFIRM.value
        )
    return _taking(wanted)


def _taking(wanted: sa.Select[Any]) -> sa.sql.dml.ReturningUpdate[Any]:
    """The rows of a query, found once and then taken: PostgreSQL could look again for each otherwise."""
    found = wanted.cte("wanted")
    return (
        sa.update(job)
        .where(job.c.id.in_(sa.select(found.c.id)), job.c.state == JobState.QUEUED)
        .values(state=JobState.LEASED, fence=job.c.fence + 1)
        .returning(job)
    )


# Those of which a claim must look at more than their place in the queue.
_IS_SPECIAL = sa.or_(
    job.c.attempts > 0,
    job.c.phase == Phase.CONFIRM.value,
    sa.exists().where(run.c.id == job.c.run_id, run.c.max_jobs.is_not(None)),
)
_SUSPECTS = (
    sa.select(lease.c.worker_id)
    .join(job, job.c.id == lease.c.job_id)
    .where(among(lease.c.worker_id), lease.c.ended_at.is_(None), job.c.attempts > 0)
)


def take_together(
    connection: sa.Connection, wanted: Sequence[tuple[int, Place, int]], needs: Needs
) -> dict[int, list[Any]]:
    """Claims jobs for many places in a few statements; of each its number, and how many it wants.

    Returns:
        the rows for each place that was served, by its number. The others are for `take`: those whose
        queue has something at its head that needs a closer look, that hold a suspect, or are paused.
    """
    suspects = set(connection.scalars(_SUSPECTS, {"ids": {p.worker_id for _, p, _ in wanted}}))
    paused = pause.paused_now(connection)
    alike: dict[tuple[int, frozenset[str]], dict[int, int]] = {}
    for i, place, room in wanted:
        if place.worker_id in suspects or paused & {(place.device_id, None), (None, place.target_id)}:
            continue
        buildable = frozenset(filter(place.can_build, needs.next(place.target_id)))
        alike.setdefault((place.target_id, buildable), {})[i] = room
    served: dict[int, list[Any]] = {}
    for (target_id, buildable), rooms in alike.items():
        given = {
            "target": target_id, "known_needs": sorted(buildable),
            "most": sum(rooms.values()),
        }  # fmt: skip
        if not buildable or connection.scalar(_special(), given):
            continue
        rows = iter(sorted(connection.execute(_claim_plain(), given), key=_order))
        for i, room in rooms.items():
            served[i] = list(itertools.islice(rows, room))
    return served


def _order(row: Any) -> tuple[int, float, int]:
    return row.priority, row.turn, row.id


def _head() -> sa.Select[Any]:
    """The first `most` queued jobs of a target that need one of `known_needs`."""
    return (
        sa.select(job.c.id)
        .where(
            _AVAILABLE, job.c.target_id == _TARGET,
            job.c.needs.in_(sa.bindparam("known_needs", expanding=True)),
        )
        .order_by(job.c.priority, job.c.turn, job.c.id)
        .limit(sa.bindparam("most", type_=sa.Integer))
    )  # fmt: skip


@cache
def _special() -> sa.Select[Any]:
    head = _head().add_columns(_IS_SPECIAL.label("special")).subquery()
    return sa.select(head.c.id).where(head.c.special).limit(1)


@cache
def _claim_plain() -> sa.sql.dml.ReturningUpdate[Any]:
    return _taking(_head().where(~_IS_SPECIAL).with_for_update(skip_locked=True, key_share=True))


def _lost_on(device_id: Any) -> sa.Select[Any]:
    """Leases of a device that count against the job of the enclosing query, or its parent."""
    lost = lease.alias()
    return sa.select(lost.c.id).where(
        lost.c.device_id == device_id,
        lost.c.end_reason.in_(retry.LOST),
        sa.or_(lost.c.job_id == job.c.id, lost.c.job_id == job.c.parent_id),
    )


_ENTRIES = (
    sa.select(*job_entry.c["job_id", "entry", "task_id", "config", "best_s"])
    .where(among(job_entry.c.job_id), job_entry.c.state == EntryState.PENDING)
    .order_by(job_entry.c.job_id, job_entry.c.entry)
)


def wire_jobs(connection: sa.Connection, claimed: Sequence[Any]) -> dict[int, Job]:
    """The jobs of rows of `job` with their open entries, as they go to a worker, by their ids."""
    rows = connection.execute(_ENTRIES, {"ids": [c.id for c in claimed]}).all()
    tasks = recall(connection, "implementation", {r.task_id for r in rows}, _find_implementations)
    workloads = recall(connection, "workload", {c.workload_id for c in claimed}, _find_workloads)
    targets = recall(connection, "run target", {c.run_id for c in claimed}, _find_targets)
    policies = recall(connection, "policy", {c.policy_id for c in claimed}, _find_policies)
    entries: dict[int, list[JobEntry]] = {}
    for r in rows:
        implementation, version = tasks[r.task_id]
        entries.setdefault(r.job_id, []).append(
            JobEntry(
                index=r.entry, task_id=r.task_id, implementation=implementation, version=version,
                config=Config(r.config), best_s=r.best_s,
            )
        )  # fmt: skip
    return {
        c.id: Job(
            id=c.id, run_id=c.run_id, workload=workloads[c.workload_id], target=targets[c.run_id],
            phase=Phase(c.phase), policy=policies[c.policy_id], seed=c.seed, attempt=c.attempts + 1,
            entries=tuple(entries.get(c.id, ())),
        )
        for c in claimed
    }  # fmt: skip


def _find_implementations(
    connection: sa.Connection, ids: Collection[int]
) -> dict[int, tuple[str, str]]:
    query = sa.select(task.c.id, task.c.implementation, task.c.version).where(among(task.c.id))
    return {r.id: (r.implementation, r.version) for r in connection.execute(query, {"ids": ids})}


def _find_workloads(connection: sa.Connection, ids: Collection[int]) -> dict[int, Workload]:
    query = sa.select(workload.c.id, workload.c.body).where(among(workload.c.id))
    return {r.id: convert(r.body, Workload) for r in connection.execute(query, {"ids": ids})}


def _find_targets(connection: sa.Connection, ids: Collection[int]) -> dict[int, Target]:
    """The runs' own targets: libraries and cache sizes are not part of a target's key."""
    query = sa.select(run.c.id, run.c.request["target"].label("target")).where(among(run.c.id))
    return {r.id: Target.parse(r.target) for r in connection.execute(query, {"ids": ids})}


def _find_policies(connection: sa.Connection, ids: Collection[int]) -> dict[int, TimingPolicy]:
    query = sa.select(timing_policy.c.id, timing_policy.c.body).where(among(timing_policy.c.id))
    return {r.id: convert(r.body, TimingPolicy) for r in connection.execute(query, {"ids": ids})}
