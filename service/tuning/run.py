"""Runs: create, join, finish and cancel."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from service.errors import InvalidError, NotFoundError
from service.queue import job as jobs
from service.records.best import standing
from service.store import catalogue, event
from service.store.namespace import DEFAULT
from service.store.sql import insert, is_given, now
from service.store.tables import (
    LIVE,
    TaskState,
    record,
    run,
    run_task,
    task,
    workload,
)
from service.store.tables import target as target_table
from service.tuning.join import join
from service.tuning.plan import Planned
from strategy.op_strategy import Candidate
from strategy.record import Phase, RunRequest, RunState, StoredRequest, convert, to_json
from strategy.target import Target
from strategy.workload import Workload


def _digest(request: RunRequest, planned: Sequence[Planned]) -> str:
    return catalogue.digest_of(
        [
            [
                [p.workload.key, p.weight, sorted([c.implementation, c.version] for c in p.candidates)]
                for p in planned
            ],
            request.target.key, request.trials, request.timeout_s, request.until_gain, request.tuner,
            request.seed,
            to_json(request.search_policy), to_json(request.confirm_policy),
        ]
    )


def create(
    connection: sa.Connection, request: RunRequest, planned: Sequence[Planned],
    namespace: str = DEFAULT,
) -> int:
    """Create a run in a namespace; return its id.

    An equal request joins the live run (`join`). If all tasks are tuned
    enough (same versions, target and policies, at least this budget or stopped by its own rule), the run is
    done at once.

    Raises:
        InvalidError: it times with cold caches in the default namespace.
    """
    _check_caches(request, namespace)
    digest = _digest(request, planned)
    joined = join(connection, request, digest, namespace)
    if joined is not None:
        return joined
    # In the order of imports, and before tasks as there, against deadlocks.
    ordered = sorted({t.key: t for t in (request.target.host, request.target)}.items())
    targets = {key: catalogue.put_target(connection, t) for key, t in ordered}
    tasks = _put_tasks(connection, planned, targets[request.target.key], namespace)
    # Devices time in any way: the run and its jobs are queued for the target without one.
    host_id = targets[request.target.host.key]
    statement = (
        insert(connection, run)
        .values(
            state=RunState.RUNNING, target_id=host_id, digest=digest, request=to_json(request),
            namespace=namespace, forced=request.force, complete=False, max_jobs=request.max_jobs,
            message="", created_at=now(),
        )
        .on_conflict_do_nothing()
        .returning(run.c.id)
    )
    while (run_id := connection.scalar(statement)) is None:
        # A concurrent request was faster; if its run has ended by now, try again.
        joined = join(connection, request, digest, namespace)
        if joined is not None:
            return joined
    for p, ids in zip(planned, tasks, strict=True):
        connection.execute(
            sa.insert(run_task),
            [
                {"run_id": run_id, "task_id": t, "weight": p.weight, "state": TaskState.ACTIVE}
                for t in ids
            ],
        )
    event.note(connection, "created", run_id=run_id, trials=request.trials)
    if not request.force:
        _finish_if_tuned(connection, run_id, request, planned, tasks)
    return int(run_id)


def _put_tasks(
    connection: sa.Connection, planned: Sequence[Planned], target_id: int, namespace: str
) -> list[list[int]]:
    """The ids of each workload's tasks."""
    workload_ids = catalogue.put_workloads(connection, [p.workload for p in planned])
    given = [
        catalogue.NewTask(workload_ids[p.workload.digest], target_id, candidate, size)
        for p in planned
        for candidate, size in zip(p.candidates, p.space_sizes, strict=True)
    ]
    ids = iter(catalogue.put_tasks(connection, given, namespace))
    return [[next(ids) for _ in p.candidates] for p in planned]


def _check_caches(request: RunRequest, namespace: str) -> None:
    """Refuse times of cold caches in the default namespace, as selection compares all times of one."""
    cold = request.search_policy.cache_flush
    if request.confirm_policy.cache_flush != cold:
        raise InvalidError(
            "confirm_policy.cache_flush: differs from search_policy's, and times of cold and warm "
            "caches do not compare: set both alike"
        )
    if cold and namespace == DEFAULT:
        raise InvalidError(
            f"search_policy.cache_flush: times of cold caches do not compare with those of {DEFAULT!r}: "
            "use another namespace"
        )


def newest(
    connection: sa.Connection, wanted: Workload, target: Target, namespace: str, of: Candidate | None = None
) -> int | None:
    """The newest run of a namespace that had a workload on a target, live or ended, and the version of a candidate."""
    found: int | None = connection.scalar(
        sa.select(sa.func.max(run_task.c.run_id))
        .join(task, task.c.id == run_task.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .join(target_table, target_table.c.id == task.c.target_id)
        .where(
            workload.c.digest == wanted.digest, target_table.c.key == target.key, task.c.namespace == namespace,
            *(() if of is None else (task.c.implementation == of.implementation, task.c.version == of.version)),
        )
    )
    return found


def _finish_if_tuned(
    connection: sa.Connection, run_id: int, request: RunRequest, planned: Sequence[Planned],
    tasks: Sequence[Sequence[int]],
) -> None:
    weights = sum(p.weight for p in planned)
    earlier: list[int] = []
    for p, ids in zip(planned, tasks, strict=True):
        found = _tuned_by(connection, request, ids, request.trials * p.weight / weights)
        if found is None:
            return
        earlier.append(found)
    named = ", ".join(str(e) for e in dict.fromkeys(earlier))
    finish(
        connection, run_id, RunState.DONE,
        f"tuned enough already, in run {named}: the same versions, target and policies, with at "
        "least this budget or stopped by its own rule: --force (`force` of a request) measures "
        f"{request.trials} trials more, beside the records there are",
    )


def _tuned_by(
    connection: sa.Connection, request: RunRequest, tasks: Sequence[int], trials: float
) -> int | None:
    """The newest complete run that tuned all these tasks enough, if any.

    A purge of their records makes it incomplete.
    """
    rows = connection.execute(
        sa.select(run.c.id, run.c.request)
        .join(run_task, run_task.c.run_id == run.c.id)
        .where(run.c.complete, run.c.state == RunState.DONE, run_task.c.task_id.in_(tasks))
        .group_by(run.c.id)
        .having(sa.func.count() == len(tasks))
        .order_by(run.c.id.desc())
        .limit(50)
    ).all()
    for row in rows:
        theirs = convert(row.request, StoredRequest)
        if (theirs.search_policy, theirs.confirm_policy) != (
            request.search_policy, request.confirm_policy,
        ):
            continue
        if theirs.until_gain is not None and theirs.until_gain > (request.until_gain or 0.0):
            continue  # it may have stopped earlier than this one would
        all_weights = sum(w.weight for w in theirs.workloads)
        states = connection.execute(
            sa.select(run_task.c.state, run_task.c.weight, task.c.space)
            .join(task, task.c.id == run_task.c.task_id)
            .where(run_task.c.run_id == row.id, run_task.c.task_id.in_(tasks))
        ).all()
        enough = theirs.trials * states[0].weight / all_weights >= trials
        if enough or all(s.space is None or s.state != TaskState.ACTIVE for s in states):
            return int(row.id)
    return None


def finish(
    connection: sa.Connection, run_id: int, state: RunState, message: str, *, complete: bool = False
) -> None:
    """End a run; one that has ended, for instance by cancellation, stays unchanged."""
    ended = connection.execute(
        sa.update(run)
        .where(run.c.id == run_id, run.c.state.in_(LIVE))
        .values(state=state, message=message, finished_at=now(), complete=complete)
    )
    if ended.rowcount:
        event.note(connection, state.value, run_id=run_id, message=message)


def bound_creation(connection: sa.Connection) -> None:
    """Set the creation of live runs to now if the clock was set back behind it, so that timeouts count."""
    connection.execute(
        sa.update(run)
        .where(run.c.state.in_(LIVE), run.c.created_at > now())
        .values(created_at=now())
    )


def cancel(connection: sa.Connection, run_id: int, namespace: str | None = None) -> None:
    """Stop a run, of any namespace if none is given; its measurements are kept.

    One that has ended stays unchanged. Raises `NotFoundError`.
    """
    seen = run.c.id == run_id, is_given(run.c.namespace, namespace)
    cancelled = connection.execute(
        sa.update(run)
        .where(*seen, run.c.state.in_(LIVE))
        .values(state=RunState.CANCELLED, message="cancelled", finished_at=now())
    )
    if cancelled.rowcount:
        event.note(connection, "cancelled", run_id=run_id)
        jobs.cancel(connection, run_id)
    elif connection.scalar(sa.select(run.c.id).where(*seen)) is None:
        raise unknown_run(run_id)


def unknown_run(run_id: int) -> NotFoundError:
    return NotFoundError(f"run {run_id} does not exist: `plevel runs` lists the runs")


def trials_of(run_id: int, forced: bool, policy_id: int | None) -> sa.ColumnElement[bool]:
    """The condition on records that count as trials of a run's tasks.

    Those of all runs under the same policy, so that an interrupted run resumes; of a `forced` run only its
    own. Purged records do not count, and are measured again.
    """
    of_search = sa.and_(record.c.phase == Phase.SEARCH.value, standing())
    if forced:
        return sa.and_(of_search, record.c.run_id == run_id)
    # Imported records may have this policy; they are another farm's trials, and have no run.
    same = sa.and_(record.c.policy_id == policy_id, record.c.run_id.is_not(None))
    return sa.and_(of_search, sa.or_(same, record.c.run_id == run_id))


def request_of(connection: sa.Connection, run_id: int, namespace: str) -> RunRequest:
    """The request of a run of a namespace; raise `NotFoundError`."""
    body = connection.scalar(
        sa.select(run.c.request).where(run.c.id == run_id, run.c.namespace == namespace)
    )
    if body is None:
        raise unknown_run(run_id)
    return convert(body, StoredRequest)
