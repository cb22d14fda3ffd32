"""Explanations: the reasons for a job's state (`plevel why`), and for which jobs of a run wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.queue import fleet, pause, rule
from service.queue.place import Lack, Operators, can_build, lacking
from service.store.row_cache import by_id, recall
from service.store.sql import is_given, now
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
    query = _jobs().where(job.c.id == job_id, is_given(run.c.namespace, namespace))
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


def _jobs() -> sa.Select[Any]:
    """Jobs, with what explanations say of them."""
    return (
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


def explain_rest(connection: sa.Connection, waiting: sa.ColumnElement[bool], alive_s: float) -> str:
    """The reason why none of the live workers takes queued jobs, and what to do; empty if they do, or may soon.

    Jobs that none of them can build are a reason beside others that go on.

    Args:
        waiting: the condition on `job`; those that are queued or leased count.
    """
    rows = connection.execute(
        sa.select(
            *job.c["state", "needs", "target_id"], sa.func.count().label("n"),
            sa.func.min(job.c.run_id).label("run_id"),
            (sa.func.max(job.c.available_at) < now() - REST_S).label("rests"),
        )
        .where(waiting, job.c.state.in_([JobState.QUEUED, JobState.LEASED]))
        .group_by(*job.c["state", "needs", "target_id"])
        .order_by(job.c.needs)
    ).all()
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
    order = job.c["priority", "turn", "id"]
    query = _jobs().where(waiting, job.c.state == JobState.QUEUED).order_by(*order).limit(1)
    first = connection.execute(query).one_or_none()
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


def _live_operators(connection: sa.Connection, target_id: int, alive_s: float) -> Collection[Operators]:
    """The operators of the live workers of a target; those that are alike once, as most are."""
    query = fleet.of_live(alive_s, worker_device.c.worker_id).where(worker_device.c.target_id == target_id).distinct()
    known = _recall_operators(connection, connection.scalars(query).all())
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


def _are_active(connection: sa.Connection, devices: Collection[int | None]) -> bool:
    """Return whether a device is at work, or has just been, by the newest leases: it is about to take the next job."""
    newest = sa.select(*lease.c["device_id", "ended_at"]).order_by(lease.c.id.desc()).limit(_NEWEST).subquery()
    of_late = sa.or_(newest.c.ended_at.is_(None), newest.c.ended_at > now() - REST_S)
    query = sa.select(newest.c.device_id).where(newest.c.device_id.in_(devices), of_late)
    return connection.scalar(query.limit(1)) is not None


class _Place(NamedTuple):
    """A device of a live worker, and the explanations of the rules that refuse it the job."""

    name: str | None
    operators: Any
    device_id: int | None
    identity: str | None
    refusals: tuple[str, ...]


def _places(connection: sa.Connection, row: Any, alive_s: float) -> list[_Place]:
    """The live devices of a job's target; if none, one without a name, for the rules of all devices."""
    live = (
        fleet.of_live(
            alive_s, worker.c.name, device.c.identity, *worker_device.c["worker_id", "device_id"]
        )
        .join(device, device.c.id == worker_device.c.device_id)
        .where(worker_device.c.target_id == row.target_id)
        .subquery("live")
    )
    claimant = rule.Claimant(live.c.worker_id, live.c.device_id, job.c.target_id, alive_s)
    rules = rule.rules_of(claimant)
    rows = connection.execute(
        sa.select(
            *live.c["name", "worker_id", "device_id", "identity"],
            *(r.allows.label(f"rule_{i}") for i, r in enumerate(rules)),
        )
        .select_from(job.outerjoin(live, sa.true()))
        .where(job.c.id == row.id)
    ).all()
    operators = _recall_operators(connection, [r.worker_id for r in rows if r.worker_id is not None])
    return [
        _Place(
            r.name, operators.get(r.worker_id), r.device_id, r.identity,
            tuple(one.refusal for one, allows in zip(rules, r[4:], strict=True) if not allows),
        )
        for r in rows
    ]


class _Turn(NamedTuple):
    """The jobs before one in the queue of the devices that may have it, these devices, and those that can take one."""

    before: int
    devices: int
    idle: int


def _find_turn(connection: sa.Connection, row: Any, free: list[_Place]) -> _Turn:
    before = connection.execute(
        sa.select(sa.func.count()).where(
            job.c.state == JobState.QUEUED, job.c.target_id == row.target_id,
            sa.tuple_(job.c.priority, job.c.turn, job.c.id)
            < sa.tuple_(sa.literal(row.priority), sa.literal(row.turn), sa.literal(row.id)),
        )
    ).scalar_one()
    devices = {p.device_id for p in free}
    building = connection.execute(
        sa.select(sa.func.count(lease.c.device_id.distinct())).where(
            lease.c.ended_at.is_(None), lease.c.timing.is_(sa.false()), lease.c.device_id.in_(devices)
        )
    ).scalar_one()
    return _Turn(before, len(devices), len(devices) - building)
