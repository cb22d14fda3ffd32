"""Explanations of `plevel why`: the reasons for a job's state."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.queue import fleet, pause, rule
from service.queue.place import can_build, named_needs
from service.store.sql import is_given, now
from service.store.tables import JobState, device, job, lease, run, target, worker, worker_device
from strategy.table import show_number


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
    query = (
        sa.select(
            job, run.c.max_jobs, target.c.key, rule.leased_of_run().label("running"),
            (job.c.available_at - now()).label("back_off_s"),
            (job.c.available_at + rule.SPREAD_S - now()).label("spread_s"),
        )
        .join(run, run.c.id == job.c.run_id)
        .join(target, target.c.id == job.c.target_id)
        .where(job.c.id == job_id, is_given(run.c.namespace, namespace))
    )
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
    free = [p for p in able if not p.refusals]
    if free:
        reasons += _explain_turn(connection, row, free)
    elif not known:
        reasons.append(f"no worker for target {row.key} is alive: start one with `plevel worker`")
    elif not able:
        names = ", ".join(sorted({str(p.name) for p in known}))
        reasons.append(f"no worker for the target has the versions that it needs ({row.needs}); alive: {names}")
    return reasons


def missing(connection: sa.Connection, run_id: int, alive_s: float) -> tuple[str, ...]:
    """The implementations, with versions, that a run at rest waits for; empty if a live worker can go on with it."""
    jobs = connection.execute(
        sa.select(*job.c["state", "needs", "target_id"])
        .where(job.c.run_id == run_id, job.c.state.in_([JobState.QUEUED, JobState.LEASED]))
        .distinct()
    ).all()
    if not jobs or any(j.state == JobState.LEASED for j in jobs):
        return ()
    query = fleet.of_live(alive_s, worker.c.operators)
    alive = connection.scalars(query.where(worker_device.c.target_id == jobs[0].target_id)).all()
    if any(can_build(j.needs, operators) for operators in alive for j in jobs):
        return ()
    named = (version for j in jobs for version in named_needs(j.needs))
    return tuple(dict.fromkeys(named))


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
            alive_s, *worker.c["name", "operators"], device.c.identity, *worker_device.c["worker_id", "device_id"]
        )
        .join(device, device.c.id == worker_device.c.device_id)
        .where(worker_device.c.target_id == row.target_id)
        .subquery("live")
    )
    claimant = rule.Claimant(live.c.worker_id, live.c.device_id, job.c.target_id, alive_s)
    rules = rule.rules_of(claimant)
    rows = connection.execute(
        sa.select(
            *live.c["name", "operators", "device_id", "identity"],
            *(r.allows.label(f"rule_{i}") for i, r in enumerate(rules)),
        )
        .select_from(job.outerjoin(live, sa.true()))
        .where(job.c.id == row.id)
    )
    return [
        _Place(
            r.name, r.operators, r.device_id, r.identity,
            tuple(one.refusal for one, allows in zip(rules, r[4:], strict=True) if not allows),
        )
        for r in rows
    ]


def _explain_turn(connection: sa.Connection, row: Any, free: list[_Place]) -> list[str]:
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
    idle = len(devices) - building
    if before:
        return [f"{show_number(before, 'job')} ahead of it in the queue of {show_number(len(devices), 'device')}"]
    if not idle:
        return [f"{show_number(len(devices), 'device')} for it: each is building another job"]
    return [f"nothing holds it up: {show_number(idle, 'device')} can take it at the next poll, within seconds"]
