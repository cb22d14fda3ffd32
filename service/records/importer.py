"""Import of a reader's items in batches, each one transaction; idempotent.

A record has an identity, so that an interrupted import can simply be repeated.
Memory is bounded by a batch and the caches; ids are remembered once their batch is committed.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa

from service.errors import DatabaseError
from service.formats import Attachment, ImportedRecord, Item, Rejected, Summary
from service.records import best, tvm_history
from service.store import catalogue
from service.store.db import Store
from service.store.namespace import DEFAULT, check, key_within, within
from service.store.sql import insert, put_rows
from service.store.tables import attachment, record
from strategy.record import Device, TimingPolicy, encode
from strategy.target import Target

BATCH = 4000  # records at most
BATCH_BYTES = 8 << 20  # approximate size in memory
MAX_CACHED = 20_000
TRIES = 5  # of a batch that conflicts with another transaction
_CROSSED = ("40P01", "40001")  # PostgreSQL: deadlock, serialization failure

# First the columns of the record itself, then the ids of its references.
_COLUMNS = tuple(
    record.c[
        "identity", "source", "origin_run", "origin_worker", "phase", "session", "seed", "config",
        "config_digest", "error", "message", "samples_s", "median_s", "mean_s", "prepare_s", "build_s",
        "check_s", "run_s", "code_digest", "extra", "measured_at",
        "task_id", "variant_id", "device_id", "environment_id", "policy_id",
    ]
)  # fmt: skip

_place = [c.name for c in _COLUMNS].index
_changed = operator.itemgetter(*map(_place, best.Change._fields))
_attempt = operator.itemgetter(
    *map(_place, ("task_id", "variant_id", "device_id", "mean_s", "config_digest", "config"))
)
_MEAN = _place("mean_s")

K = TypeVar("K")


def import_items(
    store: Store,
    items: Iterable[Item],
    put_aside: Callable[[Rejected], None] | None = None,
    *,
    batch: int = BATCH,
    namespace: str = DEFAULT,
    ahead: bool = True,
) -> Summary:
    """Store records and their attachments; return the summary.

    Batches stored before a failure stay. `items` are iterated in the caller's thread.

    Args:
        store: the database.
        items: the items of `service.formats.read`, which databases can store.
        put_aside: called with each rejected entry.
        batch: maximum number of records in one transaction.
        namespace: the namespace of the records.
        ahead: read the next batch while PostgreSQL stores one. Not for processes that also answer
            requests, which would wait for two computing threads.

    Raises:
        DatabaseError: the database went away.
        InvalidError: `namespace` is malformed.
    """
    summary = Summary()
    importer = Importer(store)

    def batches() -> Iterator[Batch]:
        pending = Batch(namespace)
        for item in items:
            if isinstance(item, Rejected):
                summary.put_aside(item)
                if put_aside is not None:
                    put_aside(item)
                continue
            pending.add(item)
            if pending.count >= batch or pending.bytes >= BATCH_BYTES:
                yield pending
                pending = Batch(namespace)
        yield pending

    # SQLite works in this process, so reading ahead would not help.
    if store.is_sqlite or not ahead:
        for read in batches():
            _count(summary, read, importer.store(read))
        return summary
    with ThreadPoolExecutor(1, "import") as writer:
        storing: list[tuple[Batch, Future[frozenset[bytes]]]] = []
        for read in batches():
            storing.append((read, writer.submit(importer.store, read)))
            if len(storing) > 1:
                stored, new = storing.pop(0)
                _count(summary, stored, new.result())
        for stored, new in storing:
            _count(summary, stored, new.result())
    return summary


def _count(summary: Summary, stored: Batch, new: Collection[bytes]) -> None:
    summary.add(new=len(new), known=stored.count - len(new))


class Batch:
    """Records for one namespace and one transaction.

    Attributes:
        namespace: their namespace.
        rows: by identity in the namespace: records, with the first columns of their rows.
        count: the number of added records, duplicates included.
        attachments: the documents that they refer to.
        bytes: the approximate size in memory.
    """

    def __init__(self, namespace: str = DEFAULT) -> None:
        self.namespace = check(namespace)
        self.rows: dict[bytes, tuple[ImportedRecord, tuple[Any, ...]]] = {}
        self.count = 0
        self.attachments: list[Attachment] = []
        self.bytes = 0

    def add(self, item: ImportedRecord | Attachment) -> None:
        if isinstance(item, Attachment):
            self.attachments.append(item)
            self.bytes += len(item.text)
            return
        self.count += 1
        identity = within(self.namespace, item.identity)
        if identity not in self.rows:
            self.rows[identity] = item, (identity, *_own_values(item))
            self.bytes += 32 * len(item.samples_s) + len(item.extra) + len(item.message)

    def merge(self, other: Batch) -> None:
        """Add the records of another batch of the same namespace."""
        for identity, row in other.rows.items():
            self.rows.setdefault(identity, row)
        self.count += other.count
        self.attachments += other.attachments
        self.bytes += other.bytes


def _own_values(item: ImportedRecord) -> tuple[Any, ...]:
    """The columns of the record itself, in the order of `_COLUMNS`, without the identity."""
    samples = item.samples_s
    median_s = mean_s = samples[0] if samples else None
    if len(samples) > 1:
        median_s, mean_s = statistics.median(samples), sum(samples) / len(samples)
    error = item.error
    return (
        item.source, item.run, item.worker or None, item.phase.value, item.session, item.seed,
        item.config_key, item.config_digest, None if error is None else error.value, item.message,
        orjson.dumps(samples).decode(), median_s, mean_s, item.prepare_s, item.build_s,
        item.check_s, item.run_s, item.code_digest, item.extra.decode() or None, item.measured_at,
    )  # fmt: skip


class Importer:
    """Writer of batches, for one thread at a time. Caches ids of committed rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By namespace and key: task, variant, target.
        self._tasks: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._targets: dict[str, tuple[int, int]] = {}  # by the digest of the JSON: target, variant
        self._devices: dict[str, int] = {}
        self._models: dict[str, int] = {}  # devices of which only the model is known
        self._environments: dict[bytes, int] = {}
        self._policies: dict[TimingPolicy, int] = {}

    def store(
        self, pending: Batch, also: Callable[[sa.Connection, frozenset[bytes]], None] | None = None
    ) -> frozenset[bytes]:
        """Commit a batch in one transaction; return the identities of the new records.

        `also` is called with them to write more in the same transaction.
        """
        if not pending.rows and not pending.attachments and also is None:
            return frozenset()
        for attempt in range(TRIES):
            try:
                with self._store.write() as connection:
                    new = self._write(connection, pending)
                    if also is not None:
                        also(connection, new)
                break
            except DatabaseError as error:
                self._forget()
                state = getattr(getattr(error.__cause__, "orig", None), "sqlstate", None)
                if state not in _CROSSED or attempt == TRIES - 1:
                    raise
            except BaseException:
                self._forget()
                raise
        for cache in self._caches:
            if len(cache) > MAX_CACHED:
                cache.clear()
        return new

    @property
    def _caches(self) -> tuple[dict[Any, Any], ...]:
        return (
            self._tasks, self._targets, self._devices, self._models, self._environments,
            self._policies,
        )  # fmt: skip

    def _forget(self) -> None:
        """Discard cached ids of rows that were rolled back."""
        for cache in self._caches:
            cache.clear()

    def _write(self, connection: sa.Connection, pending: Batch) -> frozenset[bytes]:
        _put_attachments(connection, pending.attachments, pending.namespace)
        if not pending.rows:
            return frozenset()
        where, rows = pending.namespace, pending.rows
        self._put_tasks(connection, [item for item, _ in rows.values()], where)
        best.lock(connection, {self._tasks[where, item.task.key][0] for item, _ in rows.values()})
        # The lock excludes other writers of these tasks, and an identity belongs to one task.
        known = _known(connection, rows.keys())
        if known:
            rows = {identity: row for identity, row in rows.items() if identity not in known}
        if not rows:
            return frozenset()
        whole = [(*own, *self._places(connection, item, where)) for item, own in rows.values()]
        put_rows(connection, _COLUMNS, whole, "(identity) DO NOTHING", clock=record.c.recorded_at)
        best.refresh(connection, [best.Change(*_changed(row)) for row in whole])
        tvm_history.lower(connection, [_attempt(row) for row in whole if row[_MEAN] is not None])
        return frozenset(rows)

    def _put_tasks(
        self, connection: sa.Connection, items: Sequence[ImportedRecord], where: str
    ) -> None:
        """Insert the tasks in a fixed order, against deadlocks between imports."""
        tasks = {i.task.key: i.task for i in items if (where, i.task.key) not in self._tasks}
        if not tasks:
            return
        # Most records share a few targets.
        written: dict[str, Target] = {}
        digests: dict[str, str] = {}
        for key, t in tasks.items():
            digests[key] = catalogue.digest_of(t.target.to_json())
            written[digests[key]] = t.target
        self._put_targets(connection, written)
        workload_ids = catalogue.put_workloads(connection, [t.workload for t in tasks.values()])
        values = [
            (workload_ids[t.workload.digest], self._targets[digests[key]][0], t)
            for key, t in tasks.items()
        ]
        ids = catalogue.put_foreign_tasks(connection, values, where)
        for key, task_id in zip(tasks, ids, strict=True):
            target_id, variant_id = self._targets[digests[key]]
            self._tasks[where, key] = task_id, variant_id, target_id

    def _put_targets(self, connection: sa.Connection, written: dict[str, Target]) -> None:
        """The ids of rows by the digest of their JSON."""
        fresh = written.keys() - self._targets.keys()
        target_ids = {
            d: catalogue.put_target(connection, written[d])
            for d in sorted(fresh, key=lambda d: (written[d].key, d))
        }
        for d in sorted(fresh):
            variant_id = catalogue.put_variant(
                connection, target_ids[d], written[d].keys, written[d].to_json()
            )
            self._targets[d] = target_ids[d], variant_id

    def _places(
        self, connection: sa.Connection, item: ImportedRecord, where: str
    ) -> tuple[int | None, ...]:
        """The ids of a record's task, variant, device, environment and policy."""
        task_id, variant_id, target_id = self._tasks[where, item.task.key]
        environment_id = None
        if item.environment:
            environment_id = _remembered(
                self._environments, encode(item.environment),
                lambda: catalogue.put_environment(connection, item.environment),
            )  # fmt: skip
        policy_id, policy = None, item.policy
        if policy is not None:
            policy_id = _remembered(
                self._policies, policy, lambda: catalogue.put_policy(connection, policy)
            )
        device_id = self._device(connection, item, target_id)
        return task_id, variant_id, device_id, environment_id, policy_id

    def _device(self, connection: sa.Connection, item: ImportedRecord, target_id: int) -> int | None:
        given = item.device
        if given is not None:
            return _remembered(
                self._devices, given.identity, lambda: _put_device(connection, given)
            )
        if not item.device_model:
            return None
        # Only the device model is known: one row stands for all such devices.
        return _remembered(
            self._models, item.device_model,
            lambda: catalogue.put_device(
                connection, f"model:{catalogue.digest_of(item.device_model)}", "", item.device_model,
                target_id, item.task.target.to_json(), {},
            ),
        )  # fmt: skip


def _remembered(cache: dict[K, int], key: K, put: Callable[[], int]) -> int:
    found = cache.get(key)
    if found is None:
        found = cache[key] = put()
    return found


def _put_device(connection: sa.Connection, given: Device) -> int:
    return catalogue.put_device(
        connection, given.identity, given.slot, given.model,
        catalogue.put_target(connection, given.target), given.target.to_json(), given.fingerprint,
    )  # fmt: skip


def _put_attachments(
    connection: sa.Connection, given: Sequence[Attachment], where: str
) -> None:
    if given:
        values = [
            {"what": a.what, "key": key_within(where, a.key), "text": a.text} for a in given
        ]
        values.sort(key=lambda v: (v["what"], v["key"]))
        connection.execute(insert(connection, attachment).on_conflict_do_nothing(), values)


def _known(connection: sa.Connection, identities: Collection[bytes]) -> frozenset[bytes]:
    """The identities that exist already."""
    query = "SELECT identity FROM record WHERE identity"
    if connection.dialect.name == "sqlite":
        query += f" IN ({', '.join('?' * len(identities))})"
        given: tuple[Any, ...] = tuple(identities)
    else:  # one parameter, as a list is written value by value, ten times as slowly
        query += " = ANY(CAST(%s AS BYTEA[]))"
        listed = ",".join([rf"\\x{i.hex()}" for i in identities])
        given = (f"{{{listed}}}",)
    return frozenset(bytes(row[0]) for row in connection.exec_driver_sql(query, given))
