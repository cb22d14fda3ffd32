"""One run: its head, progress, workloads, leaders, curves and failures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from service.dashboard.query.curve import MAX_CURVES, Curve, best_so_far
from service.errors import NotFoundError
from service.records.ranking import best_on, measured_on, of_one_model
from service.store.sql import among, now
from service.store.tables import TaskState, best, record, run, run_task, target, task, workload
from service.tuning.run import unknown_run
from service.tuning.tally import count_trials
from strategy.record import Phase, RunRequest, StoredRequest, convert
from strategy.workload import Workload

WORKLOADS = 20  # of one run, on one page


def head(connection: sa.Connection, run_id: int) -> Any:
    """The run with its target and the database's time; raises `NotFoundError`."""
    row = connection.execute(
        sa.select(run, target.c.key.label("target"), now().label("now"))
        .join(target, target.c.id == run.c.target_id)
        .where(run.c.id == run_id)
    ).one_or_none()
    if row is None:
        raise unknown_run(run_id)
    return row


def version(connection: sa.Connection, run_id: int) -> tuple[Any, ...]:
    """The run's state, with values that change with its records and tasks; raise `NotFoundError`."""
    newest = sa.select(sa.func.max(record.c.id)).where(record.c.run_id == run_id).scalar_subquery()
    states = (
        sa.select(sa.func.count())
        .select_from(run_task)
        .where(run_task.c.run_id == run_id, run_task.c.state != TaskState.ACTIVE.value)
        .scalar_subquery()
    )
    row = connection.execute(sa.select(run.c.state, newest, states).where(run.c.id == run_id)).one_or_none()
    if row is None:
        raise unknown_run(run_id)
    return tuple(row)


def progress(
    connection: sa.Connection, run_id: int, request: RunRequest, told: list[Any]
) -> dict[str, Any]:
    """Trials that count for the run, its `own` among them, failed ones, and the time of its own records."""
    tasks = (
        sa.select(run_task.c.task_id)
        .join(task, task.c.id == run_task.c.task_id)
        .where(run_task.c.run_id == run_id, task.c.space.is_not(None))
    )
    tunable = set(connection.scalars(tasks))
    own = sum(t.standing for t in told if t.phase == Phase.SEARCH.value and t.task_id in tunable)
    counts = count_trials(connection, run_id, request.force, request.search_policy, told)
    trials = sum(n.total() for task_id, n in counts.items() if task_id in tunable)
    return {
        "trials": min(trials, request.trials), "own": own, "records": sum(t.n for t in told),
        "failed": sum(t.n for t in told if t.error is not None),
        "timing_s": sum(t.run_s for t in told),
    }


def tried(told: list[Any]) -> dict[int, dict[str, int]]:
    """For each task its search trials in this run, and its failed records."""
    found: dict[int, dict[str, int]] = {}
    for t in told:
        of = found.setdefault(t.task_id, {"trials": 0, "failed": 0})
        of["trials"] += t.n if t.phase == Phase.SEARCH.value else 0
        of["failed"] += t.n if t.error is not None else 0
    return found


def device_model(connection: sa.Connection, run_id: int) -> str:
    """The device model on which most of the run's tasks have a time; empty if none is known.

    Workloads are compared on it alone: times of several do not compare.
    """
    query = (
        sa.select(best.c.scope_value)
        .select_from(best)
        .join(run_task, run_task.c.task_id == best.c.task_id)
        .where(run_task.c.run_id == run_id, of_one_model())
        .group_by(best.c.scope_value)
        .order_by(sa.func.count().desc(), best.c.scope_value)
        .limit(1)
    )
    return connection.scalar(query) or ""


def workloads(connection: sa.Connection, run_id: int, offset: int, model: str) -> list[Any]:
    """The run's workloads with the best time of each on a device model.

    One more than a page if there are more.
    """
    query = (
        sa.select(
            workload.c.id, workload.c.op, workload.c.key, sa.func.count(task.c.id).label("tasks"),
            sa.func.min(best.c.median_s).label("median_s"),
        )
        .select_from(workload)
        .join(task, task.c.workload_id == workload.c.id)
        .join(run_task, run_task.c.task_id == task.c.id)
        .outerjoin(best, best_on(model))
        .where(run_task.c.run_id == run_id)
        .group_by(workload.c.id, workload.c.op, workload.c.key)
        .order_by(sa.func.min(run_task.c.id))
        .offset(offset)
        .limit(WORKLOADS + 1)
    )
    return list(connection.execute(query))


def bodies(connection: sa.Connection, ids: Sequence[int]) -> dict[int, Workload]:
    """Workloads by their ids."""
    rows = connection.execute(
        sa.select(workload.c.id, workload.c.body).where(workload.c.id.in_(ids))
    )
    return {r.id: convert(r.body, Workload) for r in rows}


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's share of its run's trials, and of the weighted time (None without a time)."""

    weight: float
    trials: int
    of_trials: float
    of_time: float | None


def portions(
    connection: sa.Connection, run_id: int, told: list[Any], model: str
) -> dict[int, Portion]:
    """The share of each workload of a run, by id, by the times of one device model.

    `told` is the run's tally.
    """
    rows = connection.execute(
        sa.select(
            task.c.workload_id, task.c.id, run_task.c.weight, best.c.median_s,
        )
        .select_from(task)
        .join(run_task, run_task.c.task_id == task.c.id)
        .outerjoin(best, best_on(model))
        .where(run_task.c.run_id == run_id)
    ).all()
    own = tried(told)
    weights = {r.workload_id: r.weight for r in rows}
    trials, time_s = dict.fromkeys(weights, 0), dict.fromkeys(weights, math.inf)
    for r in rows:
        trials[r.workload_id] += own.get(r.id, {"trials": 0})["trials"]
        if r.median_s is not None:
            time_s[r.workload_id] = min(time_s[r.workload_id], r.weight * r.median_s)
    all_trials = max(sum(trials.values()), 1)
    all_time_s = sum(s for s in time_s.values() if math.isfinite(s))
    return {
        i: Portion(
            weight=weight, trials=trials[i], of_trials=trials[i] / all_trials,
            of_time=time_s[i] / all_time_s if math.isfinite(time_s[i]) else None,
        )
        for i, weight in weights.items()
    }


def leaders(connection: sa.Connection, run_id: int, workload_id: int) -> list[Any]:
    """The implementations of one workload of the run on each device model, the fastest first.

    Times of different device models are not compared; `model` is empty if unknown.
    """
    other = best.alias()
    known = sa.exists().where(other.c.task_id == task.c.id, other.c.scope == "model")
    scope = sa.case((known, "model"), else_="target")
    shown = sa.and_(best.c.task_id == task.c.id, best.c.scope == scope)
    fastest = sa.func.min(best.c.median_s).over(partition_by=best.c.scope_value)
    query = (
        sa.select(
            task.c.id, task.c.implementation, task.c.version, task.c.plevel, task.c.library,
            task.c.condition, task.c.space_size, task.c.space.is_not(None).label("tunable"),
            run_task.c.state, run_task.c.message, workload.c.body.label("workload"),
            workload.c.op, workload.c.key,
            best.c.median_s, best.c.low_s, best.c.high_s, best.c.samples, best.c.phase, best.c.config,
            best.c.scope_value.label("model"), (best.c.median_s / fastest).label("ratio"),
        )
        .join(run_task, run_task.c.task_id == task.c.id)
        .join(workload, workload.c.id == task.c.workload_id)
        .outerjoin(best, shown)
        .where(run_task.c.run_id == run_id, task.c.workload_id == workload_id)
        .order_by(
            best.c.median_s.is_(None), best.c.scope_value, best.c.median_s, task.c.plevel.desc(),
            task.c.id,
        )
    )
    return list(connection.execute(query))


def failures(connection: sa.Connection, told: list[Any]) -> list[Any]:
    """Failures by kind and implementation, with the newest of each."""
    found = [t for t in told if t.error is not None and t.standing]
    named = sa.select(task.c.id, task.c.implementation).where(among(task.c.id))
    of = {r.id: r.implementation for r in connection.execute(named, {"ids": [t.task_id for t in found]})}
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for t in found:
        groups[t.error, of[t.task_id]].append(t)
    counts = {max(t.last_id for t in group): sum(t.standing for t in group) for group in groups.values()}
    rows = connection.execute(
        sa.select(
            record.c.id, record.c.error, task.c.implementation,
            sa.func.substr(record.c.message, 1, 200).label("message"),
        )
        .join(task, task.c.id == record.c.task_id)
        .where(record.c.id.in_(list(counts)))
    )
    return sorted(({**r._mapping, "n": counts[r.id]} for r in rows), key=lambda f: (-f["n"], f["id"]))


def curves(connection: sa.Connection, run_id: int, workload_id: int) -> list[Curve]:
    """Best-so-far curves of the tunable implementations of one workload, from this run's own records.

    They are of the run's device model.
    """
    rows = connection.execute(
        sa.select(task.c.id, task.c.implementation)
        .join(run_task, run_task.c.task_id == task.c.id)
        .where(run_task.c.run_id == run_id, task.c.workload_id == workload_id)
        .order_by(task.c.id)
        .limit(MAX_CURVES)
    ).all()
    names = {r.id: r.implementation for r in rows}
    own = sa.and_(record.c.run_id == run_id, measured_on(device_model(connection, run_id)))
    return best_so_far(connection, own, record.c.task_id, names)


def first_workload(connection: sa.Connection, run_id: int, asked: int | None) -> int | None:
    """The requested workload, else the first of the run; None for a run without any.

    Raises:
        NotFoundError: the workload is not one of this run's.
    """
    query = (
        sa.select(task.c.workload_id)
        .join(run_task, run_task.c.task_id == task.c.id)
        .where(run_task.c.run_id == run_id)
        .order_by(run_task.c.id)
        .limit(1)
    )
    if asked is not None:
        query = query.where(task.c.workload_id == asked)
    found = connection.scalar(query)
    if found is None and asked is not None:
        raise NotFoundError(f"workload {asked} is not one of run {run_id}: choose one on the run's page")
    return found


def request_of(row: Any) -> RunRequest:
    """The original request."""
    return convert(row.request, StoredRequest)
