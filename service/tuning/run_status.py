"""Status of runs and of tasks."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.queue import explain, fleet
from service.queue import job as jobs
from service.records import ranking
from service.records.best import standing
from service.records.ranking import Ranked
from service.store import catalogue
from service.store.sql import among, is_given, now
from service.store.tables import LIVE, job, lease, record, run, run_task, task, workload
from service.tuning import budget, other_run
from service.tuning.ownership import is_interrupted, is_overdue
from service.tuning.run import unknown_run
from service.tuning.run_filter import OF_DEFAULT, OfRun
from service.tuning.tally import count_trials, tally
from strategy.op import find_op
from strategy.record import Phase, RunState, RunStatus, TaskStatus, TimingPolicy, convert
from strategy.target import Target
from strategy.workload import Workload

INTERRUPTION_S = 60.0  # from which a pause of a run is an interruption


def status(
    connection: sa.Connection, run_id: int, alive_s: float, namespace: str | None = None
) -> RunStatus:
    """The status of a run, of any namespace if none is given; raise `NotFoundError`."""
    query = _runs().where(run.c.id == run_id, is_given(run.c.namespace, namespace))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_run(run_id)
    return _status(connection, row, alive_s, idle_s(connection, [run_id]).get(run_id, 0.0))


class _Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `RunRequest` that its status shows; its workloads and their candidates take longer to read."""

    target: Target
    trials: int
    search_policy: TimingPolicy


def _runs() -> sa.Select[Any]:
    own = run.c["id", "target_id", "state", "forced", "message", "created_at", "finished_at"]
    return sa.select(*own, *(run.c.request[f.name].label(f.name) for f in msgspec.structs.fields(_Budget)))


def _status(connection: sa.Connection, row: Any, alive_s: float, idle: float) -> RunStatus:
    run_id = row.id
    asked = convert({name: getattr(row, name) for name in _Budget.__struct_fields__}, _Budget)
    told = tally(connection, run_id)
    tasks = _task_statuses(connection, run_id, count_trials(connection, run_id, row.forced, asked.search_policy, told))
    # Of a run that has ended, times since then no longer say what it was charged.
    done = (
        _count_charged(connection, run_id, asked.trials, tasks, told)
        if row.state == RunState.RUNNING
        else sum(t.trials for t in tasks if t.tunable)
    )
    workers = fleet.count_alive(connection, row.target_id, alive_s)
    message = row.message
    waiting = False
    interrupted = is_interrupted(connection, run_id)
    if interrupted:
        message = (
            "interrupted: the service that tunes it was stopped or slow for a while, or cannot write to its database; "
            "it goes on with it by itself"
            if is_overdue(connection, run_id)
            else "interrupted: the service that tuned it has ended, or cannot write to its database; its measurements "
            "are kept"
        )
    elif row.state in LIVE and not workers:
        waiting = True
        message = (
            f"waiting for a worker for target {asked.target}: start one with "
            "`plevel worker --url URL`, with this service's URL"
        )
    elif row.state in LIVE and (why := explain_rest(connection, run_id, alive_s)):
        waiting, message = True, why
    return RunStatus(
        id=run_id, state=RunState(row.state), target=asked.target, trials=asked.trials,
        trials_done=min(done, asked.trials), created_at=row.created_at,
        finished_at=row.finished_at, timing_s=float(sum(t.run_s for t in told)),
        idle_s=idle, workers=workers, interrupted=interrupted, waiting=waiting, message=message, tasks=tuple(tasks),
    )


def explain_rest(connection: sa.Connection, run_id: int, alive_s: float) -> str:
    """The reason why live workers take no job of a live run, or of another's for which it waits; empty if they do."""
    if jobs.open_jobs(connection, run_id):
        return explain.explain_rest(connection, explain.OF_RUN, {"run_id": run_id}, alive_s)
    of_search = run.c.request["search_policy"].label("search_policy")
    asked = connection.execute(sa.select(*run.c["state", "forced"], of_search).where(run.c.id == run_id)).one()
    if asked.state != RunState.RUNNING:  # its finals are done
        return ""
    policy_id = catalogue.find_policy(connection, convert(asked.search_policy or {}, TimingPolicy))
    tasks = connection.scalars(sa.select(run_task.c.task_id).where(run_task.c.run_id == run_id)).all()
    awaited = other_run.find_awaited(connection, run_id, asked.forced, policy_id, tasks)
    others = {job_id for found in awaited.values() for job_id, _ in found}
    return explain.explain_rest(connection, explain.GIVEN, {"ids": sorted(others)}, alive_s) if others else ""


def _count_charged(
    connection: sa.Connection, run_id: int, trials: int, tasks: Sequence[TaskStatus], told: Iterable[Any]
) -> int:
    """The trials that a run is charged (`budget.charge`); `told` is its tally."""
    shares = sa.select(run_task.c.task_id, run_task.c.weight).where(run_task.c.run_id == run_id)
    weights = {row.task_id: row.weight for row in connection.execute(shares)}
    own: Counter[int] = Counter()
    for t in told:
        own[t.task_id] += t.standing * (t.phase == Phase.SEARCH.value)
    groups: defaultdict[str, list[TaskStatus]] = defaultdict(list)
    for status in tasks:
        groups[status.workload].append(status)
    leads_s = [min((t.best.median_s for t in g if t.best is not None), default=None) for g in groups.values()]
    parts = budget.parts(trials, [weights[g[0].task_id] for g in groups.values()], leads_s)
    total = 0
    for group, part in zip(groups.values(), parts, strict=True):
        tunable = [t for t in group if t.tunable]
        earlier = [t.trials - own[t.task_id] for t in tunable]
        total += budget.charge(sum(own[t.task_id] for t in tunable), earlier, part)
    return total


def idle_s(connection: sa.Connection, ids: Sequence[int]) -> dict[int, float]:
    """The seconds of runs' interruptions: pauses of a minute or more in which no worker had a job of the run.

    Waiting for a first worker is none. Runs without any are left out.
    """
    return {row.run_id: row.idle_s for row in connection.execute(_IDLE, {"ids": ids})}


def _sum_gaps() -> sa.Select[Any]:
    """The sums of the gaps between leases of runs, the last of which ends with the run, or now."""
    asked = (
        sa.select(run.c.id, sa.func.coalesce(run.c.finished_at, now()).label("end")).where(among(run.c.id)).cte("asked")
    )
    # The lease of a worker that was lost is ended when a service next looks.
    until = sa.case((lease.c.ended_at < lease.c.expires_at, lease.c.ended_at), else_=lease.c.expires_at)
    begun = sa.case((lease.c.created_at < asked.c.end, lease.c.created_at), else_=asked.c.end)
    held = (
        sa.select(asked.c.id.label("run_id"), begun.label("begun"), until.label("until"))
        .join_from(asked, job, job.c.run_id == asked.c.id)
        .join(lease, lease.c.job_id == job.c.id)
        .union_all(sa.select(asked.c.id, asked.c.end, asked.c.end))
        .subquery()
    )
    before = sa.func.max(held.c.until).over(partition_by=held.c.run_id, order_by=held.c.begun, rows=(None, -1))
    gaps = sa.select(held.c.run_id, (held.c.begun - before).label("gap_s")).subquery()
    return (
        sa.select(gaps.c.run_id, sa.func.sum(gaps.c.gap_s).label("idle_s"))
        .where(gaps.c.gap_s >= INTERRUPTION_S)
        .group_by(gaps.c.run_id)
    )


_IDLE = _sum_gaps()


def _task_statuses(
    connection: sa.Connection, run_id: int, counts: Mapping[int, Mapping[str | None, int]]
) -> list[TaskStatus]:
    """The statuses of the tasks of a run; `counts` has their trials by error."""
    rows = connection.execute(
        _tasks().join(run_task, run_task.c.task_id == task.c.id)
        .where(run_task.c.run_id == run_id).order_by(run_task.c.id)
    ).all()
    ranked = ranking.rank(connection, [r.id for r in rows])
    bodies = {r.workload_id: r.workload_body for r in rows}
    flops = {workload_id: flops_of(body) for workload_id, body in bodies.items()}
    return [_task_status(r, ranked.get(r.id, Ranked()), counts.get(r.id, {}), flops[r.workload_id]) for r in rows]


def _tasks() -> sa.Select[Any]:
    return (
        sa.select(
            *task.c["id", "workload_id", "implementation", "version", "plevel", "space_size"],
            task.c.space.is_not(None).label("tunable"),
            workload.c.key.label("workload"), workload.c.body.label("workload_body"),
        )
        .join(workload, workload.c.id == task.c.workload_id)
    )


def task_status(
    connection: sa.Connection, task_id: int, namespace: str | None = None
) -> TaskStatus:
    """A task over all runs, of any namespace if none is given; raise `NotFoundError`."""
    query = _tasks().where(task.c.id == task_id, is_given(task.c.namespace, namespace))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"task {task_id} does not exist: `plevel coverage` lists the tasks")
    counts = connection.execute(
        sa.select(record.c.error, sa.func.count().label("n"))
        .where(record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, standing())
        .group_by(record.c.error)
    )
    ranked = ranking.rank(connection, [task_id]).get(task_id, Ranked())
    return _task_status(row, ranked, {row.error: row.n for row in counts}, flops_of(row.workload_body))


def _task_status(r: Any, ranked: Ranked, counts: Mapping[str | None, int], flops: int | None) -> TaskStatus:
    cost = ranked.best
    return TaskStatus(
        task_id=r.id, workload=r.workload, implementation=r.implementation, version=r.version,
        plevel=r.plevel, tunable=bool(r.tunable), space_size=r.space_size,
        trials=sum(counts.values()), failed=sum(n for e, n in counts.items() if e is not None),
        gflops=None if cost is None or flops is None else flops / cost.median_s / 1e9,
        failures={e: n for e, n in counts.items() if e is not None and n}, **vars(ranked),
    )


def flops_of(body: Any) -> int | None:
    """The FLOPs of a workload's JSON form.

    None if the operator is not installed here, refuses the workload, which an older one has measured, or fails.
    """
    asked = convert(body, Workload)
    with contextlib.suppress(Exception):  # a package's may raise anything, which must not hide its run and all others
        return None if find_op(asked.op) is None else asked.flops
    return None


def find_ids(connection: sa.Connection, of: OfRun, limit: int, cursor: int | None = None) -> Sequence[int]:
    """The ids of the newest matching runs, the newest first: of those before the run `cursor`, if it is given.

    Raises:
        InvalidError: none matches, and a name of the filter is mistyped.
    """
    before = [] if cursor is None else [run.c.id < cursor]
    query = sa.select(run.c.id).where(*of.conditions, *before).order_by(run.c.id.desc()).limit(limit)
    found = connection.scalars(query).all()
    if not found:
        of.check_names(connection)
    return found


def recent(connection: sa.Connection, limit: int, alive_s: float, of: OfRun = OF_DEFAULT) -> list[RunStatus]:
    """The matching runs, the newest first; raise as `find_ids`."""
    rows = connection.execute(
        _runs().where(run.c.id.in_(find_ids(connection, of, limit))).order_by(run.c.id.desc())
    ).all()
    idle = idle_s(connection, [row.id for row in rows])
    return [_status(connection, row, alive_s, idle.get(row.id, 0.0)) for row in rows]
