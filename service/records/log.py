"""The append-only log of attempts: appending results and reading pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import msgspec
import orjson
import sqlalchemy as sa

from service.formats.entry import config_key, identity, task_key
from service.records import best, tvm_history
from service.records.filter import Wanted
from service.store import catalogue
from service.store.db import among, insert_for, now
from service.store.namespace import within
from service.store.row_cache import recall
from service.store.tables import (
    EntryState,
    device,
    environment,
    job,
    job_entry,
    record,
    run,
    task,
    worker,
)
from service.store.tables import target as target_table
from service.store.tables import workload as workload_table
from strategy.op_strategy import Candidate
from strategy.peak import least_seconds
from strategy.record import (
    ErrorKind,
    Estimate,
    Phase,
    Report,
    Result,
    Results,
    convert,
    estimate,
)
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Input, Workload

# The calibration kernel (workers/drift.py), as a task of its own.
REFERENCE = Workload("reference", (Input("data", "float32[65536]"),))
REFERENCE_KERNEL = Candidate("reference.sqrt", "1.0", 0)


# Records scanned for one page if no index serves the filter, which bounds its time.
SCAN = 50_000


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
             config_key(r["config"]))
            for r in added if r["mean_s"] is not None
        ],
    )  # fmt: skip
    return Counter(
        row["job_id"] for row, result in zip(added, results, strict=True)
        if row["error"] is not None and result.error is None
    )  # fmt: skip


_IDENTITIES = sa.select(device.c.id, device.c.identity).where(among(device.c.id))


def _environment_key(sent: Results) -> bytes:
    return orjson.dumps(sent.environment, option=orjson.OPT_SORT_KEYS)


def _put_environments(connection: sa.Connection, keys: Collection[bytes]) -> dict[bytes, int]:
    return {k: catalogue.put_environment(connection, orjson.loads(k)) for k in sorted(keys)}


def append_references(connection: sa.Connection, held: Any, sent: Results) -> None:
    """Store the calibration kernel's times of a job, as records of phase `reference`.

    They are no entries of the job, and numbered down from -1.
    """
    (owner, origin), = _owners(connection, {held.job_id}).values()
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
            "extra": orjson.dumps(one.state).decode() if one.state else None,
        })  # fmt: skip
    _identify(connection, rows, [origin.target] * len(rows), [where] * len(rows))
    connection.execute(sa.insert(record).values(recorded_at=now()), rows)


def append_lost(
    connection: sa.Connection, owner: Any, entries: Sequence[Any], reason: str
) -> None:
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
    owners = _owners(connection, {e.job_id for e in entries})
    least = recall(connection, "least", {e.task_id for e in entries}, _find_least)
    rows, targets = [], []
    for entry, result, held in zip(entries, results, held_by, strict=True):
        owner, origin = owners[entry.job_id]
        believed = _believed(result, least[entry.task_id])
        rows.append({**_described(owner, entry, believed), **held, "variant_id": origin.variant_id})
        targets.append(origin.target)
    _identify(connection, rows, targets, where)
    # A conflicting row is the same record, inserted concurrently.
    connection.execute(_insertion(connection.dialect.name), rows)
    connection.execute(_DONE, {"ids": [e.id for e in entries]})
    return rows


def _find_least(connection: sa.Connection, tasks: Collection[int]) -> dict[int, float]:
    """The shortest plausible time of a call, by task."""
    rows = connection.execute(_WORKLOADS, {"ids": tasks})
    return {r.id: least_seconds(convert(r.body, Workload), Target.parse(r.target)) for r in rows}


_WORKLOADS = (
    sa.select(task.c.id, workload_table.c.body, target_table.c.body.label("target"))
    .join(workload_table, workload_table.c.id == task.c.workload_id)
    .join(target_table, target_table.c.id == task.c.target_id)
    .where(among(task.c.id))
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


@cache
def _insertion(dialect: str) -> sa.Insert:
    return insert_for(dialect, record).values(recorded_at=now()).on_conflict_do_nothing()


@dataclass(frozen=True)
class _Origin:
    """The columns of a run that its records need: the target as requested, and its row."""

    target: dict[str, Any]
    namespace: str
    variant_id: int


_OWNERS = sa.select(
    *job.c["id", "run_id", "target_id", "policy_id", "phase", "seed"], now().label("now")
).where(among(job.c.id))


def _owners(connection: sa.Connection, jobs: Collection[int]) -> dict[int, tuple[Any, _Origin]]:
    """The jobs, each with its run."""
    rows = connection.execute(_OWNERS, {"ids": jobs}).all()
    origins = recall(connection, "origin", {row.run_id for row in rows}, _find_origins)
    return {row.id: (row, origins[row.run_id]) for row in rows}


def _find_origins(connection: sa.Connection, runs: Collection[int]) -> dict[int, _Origin]:
    rows = connection.execute(
        sa.select(
            run.c.id, run.c.target_id, run.c.namespace, run.c.request["target"].label("target")
        )
        .where(among(run.c.id))
        .order_by(run.c.id),
        {"ids": runs},
    ).all()
    return {
        r.id: _Origin(
            r.target, r.namespace,
            catalogue.put_variant(connection, r.target_id, r.target["keys"], r.target),
        )
        for r in rows
    }  # fmt: skip


def _identify(
    connection: sa.Connection,
    rows: Sequence[dict[str, Any]],
    targets: Sequence[dict[str, Any]],
    where: Sequence[str],
) -> None:
    """Give each row a unique identity, also to attempts with equal content."""
    known_tasks = recall(connection, "task", {row["task_id"] for row in rows}, _find_tasks)
    keys: dict[tuple[int, int], str] = {}
    for row, target, device_name in zip(rows, targets, where, strict=True):
        t = known_tasks[row["task_id"]]
        found = row["task_id"], row["variant_id"]
        if found not in keys:
            keys[found] = task_key(t.key, target, t.implementation, t.version, t.space_digest)
        happened = identity(
            keys[found], config_key(row["config"]), row["phase"], row["error"],
            row["measured_at"], row["session"], device_name, row["samples_s"],
        )  # fmt: skip
        row["identity"] = within(t.namespace, happened)
    taken = set(connection.scalars(_TAKEN, {"identities": [r["identity"] for r in rows]}))
    for row in rows:
        if row["identity"] in taken:
            place = b"%d/%d" % (row["job_id"], row["entry"])
            row["identity"] = blake2b(row["identity"] + place, digest_size=16).digest()
        taken.add(row["identity"])


_TAKEN = sa.select(record.c.identity).where(
    record.c.identity.in_(sa.bindparam("identities", expanding=True))
)


def _find_tasks(connection: sa.Connection, ids: Collection[int]) -> dict[int, Any]:
    query = (
        sa.select(
            *task.c["id", "namespace", "implementation", "version", "space_digest"],
            workload_table.c.key,
        )
        .join(workload_table, workload_table.c.id == task.c.workload_id)
        .where(among(task.c.id))
    )
    return {row.id: row for row in connection.execute(query, {"ids": ids})}


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


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one configuration, as it was recorded.

    `source` is `plevel`, or the format of its import, in which case `run_id` and `seed` may be unknown.
    """

    id: int
    source: str
    run_id: int | None
    task_id: int
    workload: str
    target: str
    implementation: str
    version: str
    config: Config
    phase: Phase
    session: str
    error: ErrorKind | None
    message: str
    estimate: Estimate | None
    samples_s: tuple[float, ...]
    prepare_s: float | None
    build_s: float
    check_s: float
    run_s: float
    code_digest: str
    measured_at: float
    device: str | None
    device_model: str | None
    worker: str | None
    environment: dict[str, Any]
    seed: int | None
    drift: float | None = None  # change of the host's speed during the batch: it is noisy
    imported: bool = False  # not measured by a worker of this service


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of records; `next` is the cursor of the following page.

    A page may have fewer than `limit` records, or none, if matches are rare: more follow as long as there is
    a `next`.
    """

    records: tuple[RecordRow, ...]
    next: int | None = None


def page(
    connection: sa.Connection,
    wanted: Wanted,
    *,
    limit: int = 100,
    cursor: int = 0,
    newest: bool = False,
) -> RecordPage:
    """A page of matching records.

    In the order of arrival, or the `newest` first, after the record with the id `cursor`, or from the first.
    If no index serves the filter, at most `SCAN` records are scanned.
    """
    last = connection.scalar(sa.select(sa.func.max(record.c.id))) or 0
    scan = last if wanted.is_indexed else SCAN
    if newest:
        end = min(cursor - 1, last) if cursor else last
        begin = max(end - scan, 0)
        following = begin + 1 if begin else None
    else:
        begin, end = cursor, min(cursor + scan, last)
        following = end if end < last else None
    query = (
        sa.select(record, task.c.implementation, task.c.version, workload_table.c.key.label("workload"),
                  target_table.c.key.label("target"), device.c.identity.label("device"),
                  device.c.model.label("device_model"), device.c.slot,
                  sa.func.coalesce(worker.c.name, record.c.origin_worker).label("worker"),
                  environment.c.body.label("environment"))
        .join(task, task.c.id == record.c.task_id)
        .join(workload_table, workload_table.c.id == task.c.workload_id)
        .join(target_table, target_table.c.id == task.c.target_id)
        .outerjoin(device, device.c.id == record.c.device_id)
        .outerjoin(worker, worker.c.id == record.c.worker_id)
        .outerjoin(environment, environment.c.id == record.c.environment_id)
        .where(record.c.id > begin, record.c.id <= end, best.standing(), *wanted.conditions)
        .order_by(record.c.id.desc() if newest else record.c.id)
        .limit(limit + 1)
    )  # fmt: skip
    rows = connection.execute(query).all()
    shown = tuple(_row(r) for r in rows[:limit])
    return RecordPage(records=shown, next=shown[-1].id if len(rows) > limit else following)


def _row(r: Any) -> RecordRow:
    return RecordRow(
        id=r.id, source=r.source, run_id=r.run_id, task_id=r.task_id, workload=r.workload, target=r.target,
        implementation=r.implementation, version=r.version, config=Config(r.config),
        phase=Phase(r.phase), session=r.session, error=ErrorKind(r.error) if r.error else None,
        message=r.message, estimate=estimate(r.samples_s) if r.samples_s else None,
        samples_s=tuple(r.samples_s), prepare_s=r.prepare_s, build_s=r.build_s,
        check_s=r.check_s, run_s=r.run_s, code_digest=r.code_digest, measured_at=r.measured_at,
        device=r.device if r.slot else None, device_model=r.device_model, worker=r.worker,
        environment=r.environment or {}, seed=r.seed, drift=_drift(r), imported=r.job_id is None,
    )  # fmt: skip


def _drift(r: Any) -> float | None:
    if r.source != "plevel" or not r.extra:
        return None
    found: float | None = orjson.loads(r.extra).get("drift")
    return found


def find_first_failure(connection: sa.Connection, run_id: int) -> Any | None:
    """The `error` and `message` of a run's first failure, None if nothing has failed."""
    query = sa.select(*record.c["error", "message"]).where(
        record.c.run_id == run_id, record.c.error.is_not(None)
    )
    return connection.execute(query.order_by(record.c.id).limit(1)).one_or_none()


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that improved on all previous ones."""

    trial: int
    median_s: float
    recorded_at: float


def curve(connection: sa.Connection, task_id: int, run_id: int | None = None) -> list[CurvePoint]:
    """The tuning curve of a task: the trials that improved; failures count as trials."""
    query = sa.select(record.c.median_s, record.c.recorded_at).where(
        record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, best.standing()
    )
    if run_id is not None:
        query = query.where(record.c.run_id == run_id)
    points: list[CurvePoint] = []
    for trial, row in enumerate(connection.execute(query.order_by(record.c.id)), 1):
        if row.median_s is not None and (not points or row.median_s < points[-1].median_s):
            points.append(
                CurvePoint(trial=trial, median_s=row.median_s, recorded_at=row.recorded_at)
            )
    return points
