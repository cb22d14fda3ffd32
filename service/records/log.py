"""The append-only log of what happened to every configuration tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson
import sqlalchemy as sa

from service.formats.entry import config_key
from service.records import best, tvm_history
from service.records.origin import find_owners, identify
from service.store import catalogue
from service.store.row_cache import by_id, recall
from service.store.sql import among, now, put_rows
from service.store.tables import EntryState, device, job_entry, record, task
from service.store.tables import target as target_table
from service.store.tables import workload as workload_table
from service.store.text import json_bytes, json_text, positional
from strategy.op_strategy import Candidate
from strategy.peak import least_seconds
from strategy.record import ErrorKind, Phase, Report, Result, Results, convert, estimate
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload

# The calibration kernel (workers/drift.py), as a task of its own.
REFERENCE = Workload("reference", (Input("data", "float32[65536]"),))
REFERENCE_KERNEL = Candidate("reference.sqrt", "1.0", 0)


def append(
    connection: sa.Connection,
    reports: Sequence[Report],
    leases: Mapping[int, Any],
    entries: Iterable[Any],
) -> Counter[int]:
    """Store the results of open entries under live leases, and update the best.

    The number of statements does not depend on the number of reports. Returns for each job the number of
    implausible times, which are stored as failures.

    Args:
        connection: the transaction.
        reports: at most one for each lease; the first result of an entry counts.
        leases: the reports' leases, by id.
        entries: the entries of the leases' jobs that have no result yet.
    """
    pending = {(e.job_id, e.entry): e for e in entries if e.state == EntryState.PENDING}
    best.lock(connection, {entry.task_id for entry in pending.values()})
    devices = connection.execute(_IDENTITIES, {"ids": {h.device_id for h in leases.values()}})
    where = {row.id: row.identity for row in devices}
    environments = recall(
        connection, "environment", {_environment_key(r.results) for r in reports}, _put_environments
    )
    stored, results, held_by, places = [], [], [], []
    for report in reports:
        held, sent = leases[report.lease_id], report.results
        for result in sent.results:
            entry = pending.pop((held.job_id, result.entry), None)
            if entry is None:
                continue
            stored.append(entry)
            results.append(result)
            places.append(where[held.device_id])
            held_by.append({
                "lease_id": held.id, "worker_id": held.worker_id, "device_id": held.device_id,
                "environment_id": environments[_environment_key(sent)], "session": sent.session,
            })  # fmt: skip
    added = _store(connection, stored, results, held_by, places)
    names = best.Change._fields
    best.refresh(connection, [best.Change(*(r[name] for name in names)) for r in added])
    tvm_history.lower(
        connection,
        [
            (r["task_id"], r["variant_id"], r["device_id"], r["mean_s"], r["config_digest"],
             positional(config_key(r["config"])))
            for r in added if r["mean_s"] is not None
        ],
    )  # fmt: skip
    return Counter(
        row["job_id"] for row, result in zip(added, results, strict=True)
        if row["error"] is not None and result.error is None
    )  # fmt: skip


_IDENTITIES = sa.select(device.c.id, device.c.identity).where(among(device.c.id))


def _environment_key(sent: Results) -> bytes:
    return json_bytes(sent.environment, orjson.OPT_SORT_KEYS)


def _put_environments(connection: sa.Connection, keys: Collection[bytes]) -> dict[bytes, int]:
    return {k: catalogue.put_environment(connection, orjson.loads(k)) for k in sorted(keys)}


def append_references(connection: sa.Connection, held: Any, sent: Results) -> None:
    """Store the calibration kernel's times of a job, as records of phase `reference`.

    They are no entries of the job, and numbered down from -1.
    """
    (owner, origin), = find_owners(connection, {held.job_id}).values()
    environment_id = catalogue.put_environment(connection, sent.environment)
    where = connection.execute(
        sa.select(device.c.identity).where(device.c.id == held.device_id)
    ).scalar_one()
    workload_id = catalogue.put_workload(connection, REFERENCE)
    task_id = catalogue.put_task(
        connection, workload_id, owner.target_id, REFERENCE_KERNEL, None, origin.namespace
    )
    least = connection.scalar(
        sa.select(sa.func.min(record.c.entry)).where(record.c.job_id == held.job_id)
    )
    first = min(least or 0, 0) - 1
    rows = []
    for number, one in enumerate(sent.references):
        median_s = estimate(one.samples_s).median_s
        rows.append({
            "source": "plevel", "run_id": owner.run_id, "task_id": task_id, "job_id": owner.id,
            "entry": first - number, "policy_id": None, "phase": Phase.REFERENCE.value, "seed": None,
            "config": {}, "config_digest": Config().digest, "error": None, "message": "",
            "samples_s": list(one.samples_s), "median_s": median_s,
            "mean_s": sum(one.samples_s) / len(one.samples_s), "build_s": 0.0, "check_s": 0.0,
            "run_s": sum(one.samples_s), "code_digest": "", "measured_at": one.measured_at,
            "lease_id": held.id, "worker_id": held.worker_id,
            "device_id": held.device_id, "environment_id": environment_id,
            "session": sent.session, "variant_id": origin.variant_id,
            "extra": json_bytes(one.state).decode() if one.state else None,
        })  # fmt: skip
    identify(connection, rows, [origin.target] * len(rows), [where] * len(rows))
    connection.execute(sa.insert(record).values(recorded_at=now()), rows)


def append_lost(connection: sa.Connection, owner: Any, entries: Sequence[Any], reason: str) -> None:
    """Append records of lost entries, for which no worker sent a result.

    Records of a task are inserted in the order of their ids, which cursors rely on.
    """
    best.lock(connection, {e.task_id for e in entries})
    results = [Result(entry=e.entry, error=ErrorKind.LOST, message=reason) for e in entries]
    unheld = [{"session": ""}] * len(results)
    _store(connection, entries, results, unheld, [""] * len(results))


def _store(
    connection: sa.Connection,
    entries: Sequence[Any],
    results: Sequence[Result],
    held_by: Sequence[dict[str, Any]],
    where: Sequence[str],
) -> list[dict[str, Any]]:
    """Insert one record for each entry; return them."""
    if not entries:
        return []
    owners = find_owners(connection, {e.job_id for e in entries})
    least = recall(connection, "least", {e.task_id for e in entries}, _find_least)
    rows, targets = [], []
    for entry, result, held in zip(entries, results, held_by, strict=True):
        owner, origin = owners[entry.job_id]
        believed = _believed(result, least[entry.task_id])
        rows.append({**_described(owner, entry, believed), **held, "variant_id": origin.variant_id})
        targets.append(origin.target)
    identify(connection, rows, targets, where)
    # A conflicting row is the same record, inserted concurrently.
    put_rows(connection, _COLUMNS, [_values(row) for row in rows], "DO NOTHING", record.c.recorded_at)
    connection.execute(_DONE, {"ids": [e.id for e in entries]})
    return rows


# The shortest plausible time of a call, by task.
_find_least = by_id(
    lambda row: least_seconds(convert(row.body, Workload), Target.parse(row.target)),
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
    )  # fmt: skip


_DONE = sa.update(job_entry).where(among(job_entry.c.id)).values(state=EntryState.DONE)


_COLUMNS = tuple(
    record.c[
        "identity", "source", "run_id", "task_id", "job_id", "entry", "policy_id", "phase", "seed", "config",
        "config_digest", "error", "message", "samples_s", "median_s", "mean_s", "prepare_s", "build_s", "check_s",
        "run_s", "code_digest", "measured_at", "extra", "lease_id", "worker_id", "device_id", "environment_id",
        "session", "variant_id",
    ]
)  # fmt: skip


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
    }  # fmt: skip
