"""The append-only log of what happened to every configuration tried."""
# Over 300 lines: one append, from reports to the rows of a transaction.

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import orjson
import sqlalchemy as sa

from service.formats.entry import config_key
from service.records import best, settled, tvm_history
from service.records.origin import (
    Origin,
    ask_known,
    find_owners,
    identify,
    owner_columns,
    tell_apart,
    with_origins,
)
from service.store import catalogue
from service.store.row_cache import by_id, recall
from service.store.sql import Ask, among, join_each, one_trip, put_rows
from service.store.tables import EntryState, device, job, job_entry, lease, record, run, task
from service.store.tables import target as target_table
from service.store.tables import workload as workload_table
from service.store.text import json_bytes, json_text, positional
from strategy.op_strategy import Candidate
from strategy.peak import least_seconds
from strategy.record import ErrorKind, Phase, Report, Result, Results, convert, estimate
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload

log = logging.getLogger(__name__)
# The calibration kernel (workers/drift.py), as a task of its own.
REFERENCE = Workload("reference", (Input("data", "float32[65536]"),))
REFERENCE_KERNEL = Candidate("reference.sqrt", "1.0", 0)


def append(
    connection: sa.Connection,
    reports: Sequence[Report],
    leases: Mapping[int, Any],
    entries: Iterable[Any],
    about: Sequence[Any],
    also: Callable[[], object] = lambda: None,
    last: Callable[[], object] = lambda: None,
    more: Iterable[int] = (),
) -> Counter[int]:
    """Store the results of open entries under live leases, and update the best; with the calibration kernel's times.

    The latter are records of phase `reference`, of reports with `done`. They are no entries of the job, and numbered
    down from -1.

    The caller holds the locks of the leases. Those of the tasks (`best.lock`) are taken in the round trip of the
    insertion, and after all that does not need them, as reports of one task to several services wait for each other
    from there on. The number of statements does not depend on the number of reports. Returns for each job the number of
    implausible times, which are stored as failures.

    Args:
        connection: the transaction.
        reports: at most one for each lease; the first result of an entry counts.
        leases: the reports' leases, by id.
        entries: the entries of the leases' jobs that have no result yet.
        about: the rows of `ask_about` for the leases, and any others.
        also: called once to execute more statements without results, in a round trip with others.
        last: the same, in the last round trip: what they lock is locked until the commit alone.
        more: other tasks that this transaction will need, to be locked with those of the records.
    """
    pending = {(e.job_id, e.entry): e for e in entries if e.state == EntryState.PENDING}
    environments = recall(
        connection, "environment", {_environment_key(r.results) for r in reports}, _put_environments
    )
    owners = with_origins(connection, about)
    stored, results, held_by = [], [], []
    for report in reports:
        held, sent = leases[report.lease_id], report.results
        environment_id = environments[_environment_key(sent)]
        for result in sent.results:
            entry = pending.pop((held.job_id, result.entry), None)
            if entry is None:
                continue
            stored.append(entry)
            results.append(result)
            held_by.append(_held_by(held, sent, environment_id))
    added = _make_rows(connection, owners, stored, results, held_by)
    references = _make_references(
        connection, owners, [(leases[r.lease_id], r.results) for r in reports if r.results.done], environments,
    )
    names = best.Change._fields
    changes = best.places_of(connection, [best.Change(*(r[name] for name in names)) for r in added])
    fastest = tvm_history.fastest_of(
        (r["task_id"], r["variant_id"], r["device_id"], r["mean_s"], r["config_digest"],
         positional(config_key(r["config"])))
        for r in added if r["mean_s"] is not None
    )
    rows = [*added, *references]
    _identify(connection, owners, rows, {row.device_id: row.identity for row in about})
    with one_trip(connection) as ask:
        connection.execute(_DONE, {"ids": [e.id for e in stored]})
        also()
        best.ask_lock(connection, ask, {e.task_id for e in stored} | set(more))
        known = ask_known(connection, ask, record, [row["identity"] for row in rows])
        settled.announce(connection, ask)
        _put(connection, rows)
        current = best.ask_current(connection, ask, changes)
        lowest = tvm_history.ask_known(connection, ask, fastest)
    _put(connection, tell_apart(rows, known))
    best.settle(connection, changes, current, lambda: tvm_history.settle(connection, fastest, lowest), last)
    return Counter(
        row["job_id"] for row, result in zip(added, results, strict=True)
        if row["error"] is not None and result.error is None
    )


def ask_about(connection: sa.Connection, ask: Ask, leases: Collection[int]) -> list[Any]:
    """The jobs and devices of leases, for `append`; with the states of the jobs' runs."""
    return ask(_about(connection.dialect.name), {"ids": sorted(leases)})


@cache
def _about(dialect: str) -> sa.Select[Any]:
    joined, of = join_each(dialect, lease, job, job.c.id == lease.c.job_id)
    # For each job by its index, as without statistics PostgreSQL would read all records.
    least_entry = sa.select(sa.func.min(record.c.entry)).where(record.c.job_id == of.id).scalar_subquery()
    return (
        sa.select(
            *owner_columns(of), run.c.state.label("run_state"), lease.c.device_id, device.c.identity,
            sa.func.coalesce(least_entry, 0).label("least_entry"),
        )
        .select_from(joined)
        .join(run, run.c.id == of.run_id)
        .join(device, device.c.id == lease.c.device_id)
        .where(among(lease.c.id))
    )


def _environment_key(sent: Results) -> bytes:
    return json_bytes(sent.environment, orjson.OPT_SORT_KEYS)


def _put_environments(connection: sa.Connection, keys: Collection[bytes]) -> dict[bytes, int]:
    return catalogue.put_environments(connection, {k: orjson.loads(k) for k in keys})


def _held_by(held: Any, sent: Results, environment_id: int) -> dict[str, Any]:
    """The columns of a record that its lease and its report have."""
    return {
        "lease_id": held.id, "worker_id": held.worker_id, "device_id": held.device_id,
        "environment_id": environment_id, "session": sent.session,
    }


def append_lost(connection: sa.Connection, owner: Any, entries: Sequence[Any], reason: str) -> None:
    """Append records of lost entries, for which no worker sent a result.

    Records of a task are inserted in the order of their ids, which cursors rely on.
    """
    if not entries:
        return
    best.lock(connection, {e.task_id for e in entries})
    owners = find_owners(connection, {e.job_id for e in entries})
    results = [Result(entry=e.entry, error=ErrorKind.LOST, message=reason) for e in entries]
    rows = _make_rows(connection, owners, entries, results, [{"session": ""}] * len(results))
    _identify(connection, owners, rows, {})
    with one_trip(connection) as ask:
        known = ask_known(connection, ask, record, [row["identity"] for row in rows])
        settled.announce(connection, ask)
        _put(connection, rows)
    _put(connection, tell_apart(rows, known))
    connection.execute(_DONE, {"ids": [e.id for e in entries]})


Owners = Mapping[int, tuple[Any, Origin]]


def _make_rows(
    connection: sa.Connection,
    owners: Owners,
    entries: Sequence[Any],
    results: Sequence[Result],
    held_by: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The record of each entry, with its result, but for its identity; `owners` has the jobs."""
    least = recall(connection, "least", {e.task_id for e in entries}, _find_least)
    rows = []
    for entry, result, held in zip(entries, results, held_by, strict=True):
        owner, origin = owners[entry.job_id]
        believed = _believed(result, least[entry.task_id])
        rows.append({**_described(owner, entry, believed), **held, "variant_id": origin.variant_id})
    return rows


def _make_references(
    connection: sa.Connection,
    owners: Owners,
    reports: Sequence[tuple[Any, Results]],
    environments: Mapping[bytes, int],
) -> list[dict[str, Any]]:
    """The records of the calibration kernel's times, but for their identities.

    Args:
        connection: the transaction.
        owners: the jobs, rows of `ask_about`.
        reports: leases, each with its report.
        environments: the ids of the reports' environments.
    """
    timed = [(held, sent, *owners[held.job_id]) for held, sent in reports if sent.references]
    places = {(owner.target_id, origin.namespace) for _, _, owner, origin in timed}
    tasks = recall(connection, "reference task", places, _put_reference_tasks)
    rows = []
    for held, sent, owner, origin in timed:
        first = min(owner.least_entry, 0) - 1
        for number, one in enumerate(sent.references):
            rows.append({
                "source": "plevel", "run_id": owner.run_id, "task_id": tasks[owner.target_id, origin.namespace],
                "job_id": owner.id, "entry": first - number, "phase": Phase.REFERENCE.value, "config": {},
                "config_digest": Config().digest, "error": None, "message": "", "samples_s": list(one.samples_s),
                "median_s": estimate(one.samples_s).median_s, "mean_s": sum(one.samples_s) / len(one.samples_s),
                "build_s": 0.0, "check_s": 0.0, "run_s": sum(one.samples_s), "code_digest": "",
                "measured_at": one.measured_at, "extra": json_bytes(one.state).decode() if one.state else None,
                "variant_id": origin.variant_id, **_held_by(held, sent, environments[_environment_key(sent)]),
            })
    return rows


def _put_reference_tasks(
    connection: sa.Connection, places: Collection[tuple[int, str]]
) -> dict[tuple[int, str], int]:
    workload_id = catalogue.put_workload(connection, REFERENCE)
    return {
        (target_id, namespace): catalogue.put_task(
            connection, workload_id, target_id, REFERENCE_KERNEL, None, namespace
        )
        for target_id, namespace in sorted(places)
    }


def _identify(
    connection: sa.Connection,
    owners: Owners,
    rows: Sequence[dict[str, Any]],
    devices: Mapping[int, str],
) -> None:
    """Give records identities (`origin.identify`); `devices` has the identities of those that are known."""
    targets = [owners[row["job_id"]][1].target for row in rows]
    identify(connection, rows, targets, [devices.get(row.get("device_id", 0), "") for row in rows])


def _put(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert records but for those of a known identity: the same ones, or equal ones, which `tell_apart` finds."""
    if rows:
        put_rows(connection, _COLUMNS, [_values(row) for row in rows], "DO NOTHING", record.c.recorded_at)


def _least_s(row: Any) -> float:
    """The shortest plausible time of a call of a task; 0 if the installed operator does not tell.

    It may refuse a workload that an older one took, or be another package's and fail: the results count all the same.
    """
    try:
        return least_seconds(convert(row.body, Workload), Target.parse(row.target))
    except Exception as error:
        log.warning(
            "times of task %d are not checked for plausibility, as its operator's fewest operations are not known: "
            "%s: %s", row.id, type(error).__name__, error,
        )
        return 0.0


_find_least = by_id(
    _least_s,
    sa.select(task.c.id, workload_table.c.body, target_table.c.body.label("target"))
    .join(workload_table, workload_table.c.id == task.c.workload_id)
    .join(target_table, target_table.c.id == task.c.target_id),
)


def _believed(result: Result, least_s: float) -> Result:
    """The result, or a failure if its time is implausible; other workers may not check their times."""
    fastest_s = min(result.samples_s, default=least_s)
    if fastest_s >= least_s:
        return result
    return msgspec.structs.replace(
        result, error=ErrorKind.IMPLAUSIBLE, samples_s=(),
        message=f"{fastest_s:.3g} s a call is implausible, the target needs {least_s:.3g} s at its peak: "
        "check the worker's clock with `plevel doctor` on its host",
    )


_DONE = sa.update(job_entry).where(among(job_entry.c.id)).values(state=EntryState.DONE)


_COLUMNS = tuple(
    record.c[
        "identity", "source", "run_id", "task_id", "job_id", "entry", "policy_id", "phase", "seed", "config",
        "config_digest", "error", "message", "samples_s", "median_s", "mean_s", "prepare_s", "build_s", "check_s",
        "run_s", "code_digest", "measured_at", "extra", "lease_id", "worker_id", "device_id", "environment_id",
        "session", "variant_id",
    ]
)


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    texts = {name: json_text(row[name]) for name in ("config", "samples_s")}
    return tuple(texts.get(c.name, row.get(c.name)) for c in _COLUMNS)


def _described(owner: Any, entry: Any, result: Result) -> dict[str, Any]:
    samples = result.samples_s
    return {
        "source": "plevel", "run_id": owner.run_id, "task_id": entry.task_id, "job_id": owner.id,
        "entry": entry.entry, "policy_id": owner.policy_id, "phase": owner.phase, "seed": owner.seed,
        "config": entry.config, "config_digest": entry.config_digest,
        "error": None if result.error is None else result.error.value,
        "message": result.message.replace("\0", ""),  # PostgreSQL's text cannot hold it
        "samples_s": list(samples), "median_s": estimate(samples).median_s if samples else None,
        "mean_s": sum(samples) / len(samples) if samples else None,
        "prepare_s": result.prepare_s, "build_s": result.build_s, "check_s": result.check_s,
        "run_s": result.run_s, "code_digest": result.code_digest[:128],
        "measured_at": result.measured_at or owner.now,
        "extra": None if result.drift is None else orjson.dumps({"drift": result.drift}).decode(),
    }
