"""Explanations: the reasons for a job's state (`plevel why`), and for which jobs of a run wait."""
# Over 300 lines: both give the reasons of the same rules, by statements that are built once.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.queue import fleet, pause, rule
from service.queue.place import Lack, Operators, can_build, lacking
from service.store.row_cache import by_id, recall
from service.store.sql import among, is_given, now
from service.store.tables import JobState, device, job, lease, run, target, worker, worker_device
from service.store.text import read_json
from strategy.table import show_number

REST_S = 5.0  # without a lease, after which a job that is queued is told to wait: workers ask within seconds
_NAMED = 3  # implementations that an explanation names, and workers
_NEWEST = 500  # leases, among which those of idle devices are looked for


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A job's state and the reasons for it, the one to remove first at the head."""

    job: int
    run: int
    state: str
    reasons: tuple[str, ...]


def explain(
    connection: sa.Connection, job_id: int, alive_s: float, namespace: str | None = None
) -> Explanation:
    """Explain a job, of any namespace if none is given; raise `NotFoundError`."""
    query = _JOBS.where(job.c.id == job_id, is_given(run.c.namespace, namespace))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(
            f"job {job_id} does not exist: the logs of workers name jobs, and `plevel runs` says what a run waits for"
        )
    if row.state == JobState.LEASED:
        reasons = _explain_lease(connection, row)
    elif row.state == JobState.QUEUED:
        reasons = _explain_wait(connection, row, alive_s)
    else:
        reasons = [row.reason or "all of its configurations have a result"]
    return Explanation(job=job_id, run=row.run_id, state=row.state, reasons=tuple(reasons))


# Statements are built once: with all rules, building one takes longer than executing it.
# Jobs, with what explanations say of them.
_JOBS = (
    sa.select(
        job, run.c.max_jobs, target.c.key, rule.leased_of_run().label("running"),
        (job.c.available_at - now()).label("back_off_s"),
        (job.c.available_at + rule.SPREAD_S - now()).label("spread_s"),
    )
    .join(run, run.c.id == job.c.run_id)
    .join(target, target.c.id == job.c.target_id)
)


def _explain_lease(connection: sa.Connection, row: Any) -> list[str]:
    held = connection.execute(
        sa.select(lease, worker.c.name, device.c.identity, now().label("now"))
        .join(worker, worker.c.id == lease.c.worker_id)
        .join(device, device.c.id == lease.c.device_id)
        .where(lease.c.job_id == row.id, lease.c.ended_at.is_(None))
    ).one_or_none()
    if held is None:  # it ended after the job was read
        return ["its lease has just ended: ask again"]
    doing = "timing" if held.timing else "building"
    since_s, left_s = held.now - held.created_at, held.expires_at - held.now
    who = f"worker {held.worker_id} ({held.name}) has been {doing} it on {held.identity}"
    until = f"expires in {left_s:.0f} s" if left_s >= 0 else f"expired {-left_s:.0f} s ago and ends soon"
    return [f"{who} for {since_s:.0f} s; its lease {until} unless it is renewed"]


def _explain_wait(connection: sa.Connection, row: Any, alive_s: float) -> list[str]:
    reasons, free = _explain_refusals(connection, row, alive_s)
    if free:
        turn = _find_turn(connection, row, free)
        devices = show_number(turn.devices, "device")
        if turn.before:
            reasons.append(f"{show_number(turn.before, 'job')} ahead of it in the queue of {devices}")
        elif not turn.idle:
            reasons.append(f"{devices} for it: each is building another job")
        else:
            idle = show_number(turn.idle, "device")
            reasons.append(f"nothing holds it up: {idle} can take it at the next poll, within seconds")
    return reasons


def _explain_refusals(connection: sa.Connection, row: Any, alive_s: float) -> tuple[list[str], list[_Place]]:
    """The reasons for which devices may not have a queued job, and those that may."""
    reasons = []
    if row.attempts:
        reasons.append(f"its worker was lost {show_number(row.attempts, 'time')} ({row.reason})")
    places = _places(connection, row, alive_s)
    known = [p for p in places if p.name]
    able = [p for p in known if can_build(row.needs, p.operators)]
    facts = {
        **row._mapping,
        "at_work": show_number(row.running, "job"),
        "pauses": "; ".join(
            f"{p.device or p.target} is paused: {p.reason}"
            for p in pause.current(connection)
            if p.target == row.key or p.device in {place.identity for place in able}
        ),
    }
    refusals = dict.fromkeys(text for p in able or places for text in p.refusals)
    reasons += [text.format(**facts) for text in refusals]
    if not known:
        reasons.append(f"no worker for target {row.key} is alive: start one with `plevel worker`")
    elif not able:
        names = ", ".join(sorted({str(p.name) for p in known}))
        lacks = _explain_lacks(lacking(row.needs, [p.operators for p in known]), row.run_id)
        reasons.append(f"no live worker for its target ({names}) has what it needs: {lacks}")
    return reasons, [p for p in able if not p.refusals]


def _explain_lacks(lacks: Sequence[Lack], run_id: int) -> str:
    """The needs of jobs of a run that live workers lack, and what to do."""
    shown = [
        f"{one.implementation} of version {one.version} for {one.op} (they {_show_versions(one.had)})"
        if one.implementation
        else f"{one.op} (they do not have it)"
        for one in lacks[:_NAMED]
    ]
    if len(lacks) > _NAMED:
        shown.append(f"and {len(lacks) - _NAMED} more")
    versions = [(one.version, had) for one in lacks if one.version.isdecimal() for had in one.had]
    if versions and all(had and int(had) > int(version) for version, had in versions):
        remedy = f"run {run_id} is of an older plevel: cancel it (`plevel cancel {run_id}`), and ask again"
    elif versions:
        remedy = (
            "upgrade plevel there, or the package that has it (in a checkout of plevel, run `make operators`, too), "
            "and start them again"
        )
    else:
        remedy = "install the package that has it there, and start them again"
    return f"{', '.join(shown)}: {remedy}"


def _show_versions(had: Sequence[str]) -> str:
    versions = [version for version in had if version]
    return f"have version {' or '.join(versions)}" if versions else "do not have it"


# Conditions on jobs, for `explain_rest`: those of a run, and those of the parameter `ids`.
OF_RUN = job.c.run_id == sa.bindparam("run_id")
GIVEN = among(job.c.id)
_RESTS = now() - sa.bindparam("rest_s", type_=sa.Double())


@cache
def _rest(waiting: sa.ColumnElement[bool]) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """The queued and leased ones of jobs, by state and needs, and the first queued one."""
    alike = job.c["state", "needs", "target_id"]
    counted = (
        sa.select(
            *alike, sa.func.count().label("n"), sa.func.min(job.c.run_id).label("run_id"),
            (sa.func.max(job.c.available_at) < _RESTS).label("rests"),
        )
        .where(waiting, job.c.state.in_([JobState.QUEUED, JobState.LEASED]))
        .group_by(*alike)
        .order_by(job.c.needs)
    )
    order = job.c["priority", "turn", "id"]
    return counted, _JOBS.where(waiting, job.c.state == JobState.QUEUED).order_by(*order).limit(1)


def explain_rest(
    connection: sa.Connection, waiting: sa.ColumnElement[bool], given: Mapping[str, Any], alive_s: float
) -> str:
    """The reason why none of the live workers takes queued jobs, and what to do; empty if they do, or may soon.

    Jobs that none of them can build are a reason beside others that go on.

    Args:
        connection: the transaction.
        waiting: `OF_RUN` or `GIVEN`; those that are queued or leased count.
        given: its parameters.
        alive_s: the time without a heartbeat for which a worker counts as alive.
    """
    counted, head = _rest(waiting)
    rows = connection.execute(counted, {**given, "rest_s": REST_S}).all()
    queued = [row for row in rows if row.state == JobState.QUEUED]
    at_rest = [row for row in queued if row.rests]
    if not at_rest:
        return ""
    alive = _live_operators(connection, at_rest[0].target_id, alive_s)
    stuck = [row for row in at_rest if alive and not any(can_build(row.needs, operators) for operators in alive)]
    if stuck:
        number, of = sum(row.n for row in stuck), sum(row.n for row in queued)
        which = show_number(number, "queued job") if number == of else f"{number} of {of} queued jobs"
        lacks = dict.fromkeys(one for row in stuck for one in lacking(row.needs, alive))
        told = _explain_lacks(list(lacks), stuck[0].run_id)
        return f"waiting for a worker that can build {which}: the live ones for the target lack {told}"
    if len(rows) > len(queued) or len(at_rest) < len(queued):
        return ""
    first = connection.execute(head, given).one_or_none()
    if first is None:  # in a transaction that writes, and so sees what others do meanwhile
        return ""
    reasons, free = _explain_refusals(connection, first, alive_s)
    if not free:
        return f"waiting: {'; '.join(reasons)}"
    turn = _find_turn(connection, first, free)
    if turn.before or not turn.idle:  # without numbers, each of which would be news
        return "waiting for its turn: the devices for it are at work for other runs"
    if _are_active(connection, [p.device_id for p in free]):
        return ""
    names = ", ".join(sorted({str(p.name) for p in free})[:_NAMED])
    return f"waiting for a worker to ask for its jobs: see the log of {names}"


_ALIVE_S: sa.BindParameter[float] = sa.bindparam("alive_s", type_=sa.Double())
_TARGET = worker_device.c.target_id == sa.bindparam("target_id")
_LIVE = fleet.of_live(_ALIVE_S, worker_device.c.worker_id).where(_TARGET).distinct()


def _live_operators(connection: sa.Connection, target_id: int, alive_s: float) -> Collection[Operators]:
    """The operators of the live workers of a target; those that are alike once, as most are."""
    ids = connection.scalars(_LIVE, {"target_id": target_id, "alive_s": alive_s}).all()
    known = _recall_operators(connection, ids)
    return {id(operators): operators for operators in known.values()}.values()


def _recall_operators(connection: sa.Connection, ids: Collection[int]) -> Mapping[int, Operators]:
    """The operators of workers, by their ids."""
    known = recall(connection, "operators", ids, _find_operators)
    return {worker_id: known[worker_id] for worker_id in ids}


@lru_cache(maxsize=64)
def _read_operators(text: str) -> Operators:
    """One object for all workers that have registered alike: it takes more memory than its text, and that kilobytes."""
    operators: Operators = read_json(text)
    return operators


_find_operators = by_id(
    lambda row: _read_operators(row.operators),
    sa.select(worker.c.id, sa.cast(worker.c.operators, sa.Text()).label("operators")),
)


_newest = sa.select(*lease.c["device_id", "ended_at"]).order_by(lease.c.id.desc()).limit(_NEWEST).subquery()
_ACTIVE = (
    sa.select(_newest.c.device_id)
    .where(among(_newest.c.device_id), sa.or_(_newest.c.ended_at.is_(None), _newest.c.ended_at > _RESTS))
    .limit(1)
)


def _are_active(connection: sa.Connection, devices: Collection[int | None]) -> bool:
    """Return whether a device is at work, or has just been, by the newest leases: it is about to take the next job."""
    return connection.scalar(_ACTIVE, {"ids": list(devices), "rest_s": REST_S}) is not None


class _Place(NamedTuple):
    """A device of a live worker, and the explanations of the rules that refuse it the job."""

    name: str | None
    operators: Any
    device_id: int | None
    identity: str | None
    refusals: tuple[str, ...]


@cache
def _read_places() -> tuple[sa.Select[Any], tuple[str, ...]]:
    """The live devices of a target with whether each rule allows them a job, and the refusals of these rules."""
    live = (
        fleet.of_live(
            _ALIVE_S, worker.c.name, device.c.identity, *worker_device.c["worker_id", "device_id"]
        )
        .join(device, device.c.id == worker_device.c.device_id)
        .where(_TARGET)
        .subquery("live")
    )
    claimant = rule.Claimant(live.c.worker_id, live.c.device_id, job.c.target_id, _ALIVE_S)
    rules = rule.rules_of(claimant)
    query = (
        sa.select(
            *live.c["name", "worker_id", "device_id", "identity"],
            *(r.allows.label(f"rule_{i}") for i, r in enumerate(rules)),
        )
        .select_from(job.outerjoin(live, sa.true()))
        .where(job.c.id == sa.bindparam("job_id"))
    )
    return query, tuple(one.refusal for one in rules)


def _places(connection: sa.Connection, row: Any, alive_s: float) -> list[_Place]:
    """The live devices of a job's target; if none, one without a name, for the rules of all devices."""
    query, refusals = _read_places()
    rows = connection.execute(query, {"job_id": row.id, "target_id": row.target_id, "alive_s": alive_s}).all()
    operators = _recall_operators(connection, [r.worker_id for r in rows if r.worker_id is not None])
    return [
        _Place(
            r.name, operators.get(r.worker_id), r.device_id, r.identity,
            tuple(refusal for refusal, allows in zip(refusals, r[4:], strict=True) if not allows),
        )
        for r in rows
    ]


class _Turn(NamedTuple):
    """The jobs before one in the queue of the devices that may have it, these devices, and those that can take one."""

    before: int
    devices: int
    idle: int


_BEFORE = sa.select(sa.func.count()).where(
    job.c.state == JobState.QUEUED, job.c.target_id == sa.bindparam("target_id"),
    sa.tuple_(*job.c["priority", "turn", "id"])
    < sa.tuple_(*(sa.bindparam(c.name, type_=c.type) for c in job.c["priority", "turn", "id"])),
)
_BUILDING = sa.select(sa.func.count(lease.c.device_id.distinct())).where(
    lease.c.ended_at.is_(None), lease.c.timing.is_(sa.false()), among(lease.c.device_id)
)


def _find_turn(connection: sa.Connection, row: Any, free: list[_Place]) -> _Turn:
    place = {name: getattr(row, name) for name in ("target_id", "priority", "turn", "id")}
    before = connection.execute(_BEFORE, place).scalar_one()
    devices = {p.device_id for p in free}
    building = connection.execute(_BUILDING, {"ids": list(devices)}).scalar_one()
    return _Turn(before, len(devices), len(devices) - building)
