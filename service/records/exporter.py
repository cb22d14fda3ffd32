"""Export of records in the formats of `service.formats`, page by page.

An attachment precedes the first record that needs it. Purged records are omitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
import sqlalchemy as sa

from service.errors import InvalidError, NotFoundError
from service.formats import (
    Attachment,
    ImportedRecord,
    Rejected,
    Task,
    autotvm,
    kernel_tuner,
    metaschedule,
    native,
    parquet,
    table,
)
from service.records.best import standing
from service.records.filter import Wanted
from service.store.db import Store
from service.store.namespace import key_within
from service.store.tables import (
    advice,
    attachment,
    device,
    environment,
    record,
    target_variant,
    task,
    timing_policy,
    worker,
    workload,
)
from strategy.condition import SpecializedCondition
from strategy.record import Device, ErrorKind, Phase, TimingPolicy, convert
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

PAGE = 2000
MAX_CACHED = 20_000
SHOWN = 20  # tasks in a message


ALL = Wanted()
Writable = Literal["native", "autotvm", "kernel_tuner", "metaschedule", "csv", "parquet"]
Items = Iterable[ImportedRecord | Attachment]


def export(store: Store, form: Writable, wanted: Wanted = ALL) -> Iterator[bytes]:
    """The bytes of an export; MetaSchedule's two files in one stream, the workloads first.

    Raises:
        InvalidError: immediately, if pyarrow is missing for Parquet, or a filter or the format cannot hold
            the records.
    """
    if form == "parquet" and not parquet.is_installed():
        raise InvalidError(
            "format: parquet needs pyarrow, which is not installed there: install plevel[parquet], or use "
            "csv"
        )
    with store.read() as connection:
        connection.execute(_page(wanted, 0, 0))  # an empty page, to report errors of the filter now
        if form == "kernel_tuner" and (only := _find_one_task(connection, wanted)) is not None:
            wanted = replace(wanted, task_id=only)  # another may be imported meanwhile
    return _export(store, form, wanted)


def check_any(store: Store, form: Writable, wanted: Wanted) -> None:
    """Raise `NotFoundError` if no record matches that the format can hold, or `InvalidError` for a mistyped name."""
    matching = _page(wanted, 0, newest(store)).with_only_columns(record.c.id).limit(1)
    if form == "metaschedule":
        matching = matching.where(record.c.source == form)
    with store.read() as connection:
        found = connection.scalar(matching)
        if found is None and form == "native":
            found = connection.scalar(_advice(wanted, 0).with_only_columns(advice.c.id).limit(1))
        if found is None:
            wanted.check_names(connection)
            raise NotFoundError(
                f"no record matches that can be written as {form}: GET /v1/records and /v1/coverage list what "
                "exists"
            )


def _find_one_task(connection: sa.Connection, wanted: Wanted) -> int | None:
    """The task of all records, None without any; raise `InvalidError` if they are of several: a file has one kernel."""
    tasks = connection.scalars(
        sa.select(record.c.task_id)
        .join(task, task.c.id == record.c.task_id)
        .where(standing(), *wanted.conditions)
        .distinct()
        .order_by(record.c.task_id)
        .limit(SHOWN + 1)
    ).all()
    if len(tasks) > 1:
        shown = ", ".join(map(str, tasks[:SHOWN])) + (", …" if len(tasks) > SHOWN else "")
        raise InvalidError(
            "format: a kernel_tuner file holds one task, and several match: name one with "
            f"task_id (--task): {shown}"
        )
    of = connection.scalar(sa.select(task.c.implementation).where(task.c.id.in_(tasks)))
    if of is not None and of.startswith("metaschedule:"):
        raise InvalidError(
            "format: kernel_tuner cannot hold MetaSchedule's traces: export them as metaschedule"
        )
    return tasks[0] if tasks else None


def _export(store: Store, form: Writable, wanted: Wanted) -> Iterator[bytes]:
    last = newest(store)
    if form == "metaschedule":
        # Records refer to workloads by index: read the workloads first, then the records of these. Meanwhile some may
        # be stored or deleted.
        places: dict[str, int] = {}
        modules: Items = export_items(store, wanted, last)
        records: Items = (i for i in export_items(store, wanted, last) if not isinstance(i, Attachment))
        for which, read in (("workload", modules), ("tuning_record", records)):
            for line in metaschedule.write(read, places):
                if not isinstance(line, Rejected) and line[0] == which:
                    yield line[1]
        return
    items = export_items(store, wanted, last)
    if form == "native":
        items = itertools.chain(items, export_advice(store, wanted))
    writers: dict[str, Callable[[Items], Iterator[bytes]]] = {
        "native": native.write, "autotvm": autotvm.write, "kernel_tuner": kernel_tuner.write,
        "csv": table.write, "parquet": parquet.write,
    }
    yield from writers[form](items)


def newest(store: Store) -> int:
    """The id of the newest record, 0 if there is none."""
    with store.read() as connection:
        return connection.scalar(sa.select(sa.func.max(record.c.id))) or 0


def export_items(
    store: Store, wanted: Wanted = ALL, last: int | None = None
) -> Iterator[ImportedRecord | Attachment]:
    """The records up to id `last` (default: the newest), in the order of arrival."""
    end = newest(store) if last is None else last
    return _Exporter(_record).items(store, lambda cursor: _page(wanted, cursor, end))


def export_advice(store: Store, wanted: Wanted = ALL) -> Iterator[ImportedRecord | Attachment]:
    """The advice, in the order of arrival."""
    return _Exporter(_advice_of).items(store, lambda cursor: _advice(wanted, cursor))


def _advice(wanted: Wanted, cursor: int) -> sa.Select[Any]:
    return (
        sa.select(advice, device.c.model, environment.c.body.label("environment"))
        .join(task, task.c.id == advice.c.task_id)
        .outerjoin(device, device.c.id == advice.c.device_id)
        .outerjoin(environment, environment.c.id == advice.c.environment_id)
        .where(advice.c.id > cursor, standing(advice), *wanted.of_advice)
        .order_by(advice.c.id)
        .limit(PAGE)
    )


def _advice_of(r: Any, known: Task) -> ImportedRecord:
    return ImportedRecord(
        source=r.source, task=known, config_key=Config(r.config).key, measured_at=r.measured_at,
        device_model=r.model or "", worker=r.origin_worker or "", environment=r.environment or {},
        extra=(r.extra or "").encode(),
    )


def _page(wanted: Wanted, cursor: int, last: int) -> sa.Select[Any]:
    return (
        sa.select(
            record, device.c.identity.label("device"), device.c.slot, device.c.model,
            device.c.target.label("device_target"), device.c.fingerprint,
            worker.c.name.label("worker"), environment.c.body.label("environment"),
            timing_policy.c.body.label("policy"),
        )
        .join(task, task.c.id == record.c.task_id)
        .outerjoin(device, device.c.id == record.c.device_id)
        .outerjoin(worker, worker.c.id == record.c.worker_id)
        .outerjoin(environment, environment.c.id == record.c.environment_id)
        .outerjoin(timing_policy, timing_policy.c.id == record.c.policy_id)
        .where(record.c.id > cursor, record.c.id <= last, standing(), *wanted.conditions)
        .order_by(record.c.id)
        .limit(PAGE)
    )


class _Exporter:
    """One export: `make` makes its items of rows and their tasks."""

    def __init__(self, make: Callable[[Any, Task], ImportedRecord]) -> None:
        self._make = make
        self._tasks: dict[tuple[int, int], Task] = {}
        self._attached: set[tuple[str, str]] = set()

    def items(
        self, store: Store, page: Callable[[int], sa.Select[Any]]
    ) -> Iterator[ImportedRecord | Attachment]:
        """The items of pages, each after the id that is given to `page`."""
        cursor = 0
        while True:
            # A transaction for each page, so that slow readers hold none.
            with store.read() as connection:
                rows = connection.execute(page(cursor)).all()
                items = self._read(connection, rows)
            yield from items
            if len(rows) < PAGE:
                return
            cursor = rows[-1].id

    def _read(
        self, connection: sa.Connection, rows: Sequence[Any]
    ) -> list[ImportedRecord | Attachment]:
        found: list[ImportedRecord | Attachment] = []
        for row in rows:
            known = self._tasks.get((row.task_id, row.variant_id))
            if known is None:
                known, attachments = self._task(connection, row)
                found += attachments
            found.append(self._make(row, known))
        return found

    def _task(self, connection: sa.Connection, row: Any) -> tuple[Task, list[Attachment]]:
        r = connection.execute(
            sa.select(task, workload.c.body.label("workload"), target_variant.c.body.label("target"))
            .join(workload, workload.c.id == task.c.workload_id)
            .join(target_variant, target_variant.c.id == row.variant_id)
            .where(task.c.id == row.task_id)
        ).one()
        condition = r.condition
        made = Task(
            workload=convert(r.workload, Workload), target=Target.parse(r.target),
            implementation=r.implementation, version=r.version, space=r.space_digest,
            plevel=r.plevel, library=r.library,
            condition=None if condition is None else convert(condition, SpecializedCondition),
        )
        if len(self._tasks) >= MAX_CACHED:
            self._tasks.clear()
        self._tasks[row.task_id, row.variant_id] = made
        attachments = []
        if r.space_digest and r.space is not None:
            attachments += self._attach("space", r.space_digest, orjson.dumps(r.space).decode())
        module = made.workload.attrs.get("module")
        if row.source == "metaschedule" and isinstance(module, str):
            text = connection.scalar(
                sa.select(attachment.c.text).where(
                    attachment.c.what == "module",
                    attachment.c.key == key_within(r.namespace, module),
                )
            )
            attachments += [] if text is None else self._attach("module", module, text)
        return made, attachments

    def _attach(self, what: Any, key: str, text: str) -> list[Attachment]:
        if (what, key) in self._attached:
            return []
        self._attached.add((what, key))
        return [Attachment(what=what, key=key, text=text)]


def _record(r: Any, known: Task) -> ImportedRecord:
    described = None
    if r.slot:
        described = Device(
            identity=r.device, slot=r.slot, model=r.model, target=Target.parse(r.device_target),
            fingerprint=r.fingerprint,
        )
    return ImportedRecord(
        source=r.source, task=known, config_key=Config(r.config).key,
        samples_s=tuple(r.samples_s), error=None if r.error is None else ErrorKind(r.error),
        message=r.message, measured_at=r.measured_at,
        device_model="" if described or r.model is None else r.model, device=described,
        phase=Phase(r.phase), session=r.session, worker=r.worker or r.origin_worker or "",
        run=r.run_id if r.origin_run is None else r.origin_run, seed=r.seed,
        policy=None if r.policy is None else convert(r.policy, TimingPolicy),
        environment=r.environment or {}, prepare_s=r.prepare_s, build_s=r.build_s,
        check_s=r.check_s, run_s=r.run_s, code_digest=r.code_digest,
        extra=(r.extra or "").encode(),
    )
