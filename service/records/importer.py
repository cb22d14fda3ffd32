"""Import of a reader's items in batches, each one transaction; idempotent.

A record has an identity, so that an interrupted import can simply be repeated.
Memory is bounded by a batch and the ids that are cached.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

from service.formats import Attachment, Item, Rejected, Summary
from service.records import best, settled, tvm_history
from service.records.batch import COLUMNS, Batch, Row
from service.records.known_id import MAX_KNOWN, KnownIds
from service.records.origin import ask_known
from service.store import catalogue
from service.store.db import Store
from service.store.namespace import DEFAULT, key_within
from service.store.sql import COPIED, Ask, add_rows, insert, one_trip, put_rows
from service.store.tables import advice, attachment, record
from strategy.record import Phase

BATCH = 4000  # records at most
ALONE = 8000  # by a process that only imports, into PostgreSQL: each batch reads and ranks its tasks' best once more
BATCH_BYTES = 8 << 20  # approximate size in memory
LEAST = 500  # records, below which no batch is cut
SWITCH_S = 0.0005  # the interpreter's switch interval while a batch is read and another stored
TRIES = 5  # of a batch that conflicts with another transaction
_CROSSED = ("40P01", "40001", "23505")  # PostgreSQL: deadlock, serialization failure, a row that has come meanwhile

_place = [c.name for c in COLUMNS].index
_changed = operator.itemgetter(*map(_place, best.Change._fields))
_attempt = operator.itemgetter(
    *map(_place, ("task_id", "variant_id", "device_id", "mean_s", "config_digest", "config"))
)
_MEAN, _PHASE = _place("mean_s"), _place("phase")
# Of the same columns, those of an advice.
_ADVICE = tuple(advice.c[c.name] for c in COLUMNS if c.name in advice.c)
_advised = operator.itemgetter(*(_place(c.name) for c in _ADVICE))


def import_items(
    store: Store,
    items: Iterable[Item],
    put_aside: Callable[[Rejected], None] | None = None,
    *,
    batch: int | None = None,
    namespace: str = DEFAULT,
    ahead: bool = True,
    summary: Summary | None = None,
) -> Summary:
    """Store records and their attachments; return the summary.

    Batches stored before a failure stay. `items` are iterated in the caller's thread. Batches become smaller while they
    take longer than `best.LOCKED_S`.

    Args:
        store: the database.
        items: the items of `service.formats.read`, which databases can store.
        put_aside: called with each rejected entry.
        batch: maximum number of records in one transaction; default: `BATCH`, or `ALONE` if reading ahead.
        namespace: the namespace of the records.
        ahead: read the next batch while PostgreSQL stores one. Not for processes that also answer
            requests, which would wait for two computing threads.
        summary: an empty one to be returned, which after a failure has the counts of what was stored.

    Raises:
        DatabaseError: the database went away.
        InvalidError: `namespace` is malformed.
    """
    summary = Summary() if summary is None else summary
    importer = Importer(store)
    ahead = ahead and not store.is_sqlite  # which works in this process, so that reading ahead would not help
    size = _Size(batch or (ALONE if ahead else BATCH))

    def reject(item: Rejected) -> None:
        summary.put_aside(item)
        if put_aside is not None:
            put_aside(item)

    def store_timed(pending: Batch) -> frozenset[bytes]:
        began = time.monotonic()
        new = importer.store(pending)
        size.follow(time.monotonic() - began)
        return new

    batches = _batches(items, namespace, size, reject)
    if not ahead:
        for read in batches:
            _count(summary, read, store_timed(read))
        return summary
    with _switching(), ThreadPoolExecutor(1, "import") as writer:
        storing: list[tuple[Batch, Future[frozenset[bytes]]]] = []
        for read in batches:
            storing.append((read, writer.submit(store_timed, read)))
            if len(storing) > 1:
                stored, new = storing.pop(0)
                _count(summary, stored, new.result())
        for stored, new in storing:
            _count(summary, stored, new.result())
    return summary


class _Size:
    """The largest number of records in a batch: smaller after one that took long to store, larger after a quick one."""

    def __init__(self, largest: int) -> None:
        self._largest = self.most = largest

    def follow(self, took_s: float) -> None:
        if took_s > best.LOCKED_S:
            self.most = max(self.most // 2, min(LEAST, self._largest))
        elif took_s < best.LOCKED_S / 4:
            self.most = min(2 * self.most, self._largest)


def _batches(
    items: Iterable[Item], namespace: str, size: _Size, reject: Callable[[Rejected], None]
) -> Iterator[Batch]:
    """Batches of the records and attachments among the items; the last one may be empty."""
    pending = Batch(namespace)
    for item in items:
        if isinstance(item, Rejected):
            reject(item)
            continue
        pending.add(item)
        if pending.count >= size.most or pending.bytes >= BATCH_BYTES:
            yield pending
            pending = Batch(namespace)
    yield pending


_interval = threading.Lock()
_intervals: list[float] = []  # before each import that reads ahead now


@contextlib.contextmanager
def _switching() -> Iterator[None]:
    """Have a thread that has waited for the database go on at once: it waits for it dozens of times a batch.

    The last of concurrent imports to end restores the interval before the first.
    """
    with _interval:
        _intervals.append(sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        with _interval:
            sys.setswitchinterval(_intervals.pop())


def _count(summary: Summary, stored: Batch, new: Collection[bytes]) -> None:
    summary.add(new=len(new), known=stored.count - len(new))


class Importer:
    """Writer of batches, for one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids = KnownIds()

    def store(
        self, pending: Batch, also: Callable[[sa.Connection, frozenset[bytes]], None] | None = None
    ) -> frozenset[bytes]:
        """Commit a batch in one transaction; return the identities of the new records.

        `also` is called with them to insert more in the same transaction, by `put_rows`.
        """
        if not pending.rows and not pending.attachments and also is None:
            return frozenset()
        for attempt in range(TRIES):
            try:
                with self._store.write() as connection:
                    new = self._write(connection, pending, also)
                break
            except BaseException as error:
                self._ids.forget()  # those of rows that were rolled back
                if _state(error) not in _CROSSED or attempt == TRIES - 1:
                    raise
        self._ids.forget(MAX_KNOWN)
        return new

    def _write(
        self, connection: sa.Connection, pending: Batch, also: Callable[[sa.Connection, frozenset[bytes]], None] | None
    ) -> frozenset[bytes]:
        _put_attachments(connection, pending.attachments, pending.namespace)
        rows: Mapping[bytes, Row] = pending.rows
        if self._ids.lacks_device(item for item, _ in rows.values()):
            # Known records insert none: their device may have been renamed since.
            with one_trip(connection) as ask:
                stored = _ask_known(connection, ask, rows)
            before = {bytes(row[0]) for table in stored for row in table}
            rows = {identity: row for identity, row in rows.items() if identity not in before}
        found, spaces = self._ids.put_places(connection, [item for item, _ in rows.values()], pending.namespace)
        known = _find_known(connection, rows, {place.task_id for place in found}) if rows else set()
        # Not before all tasks are locked, in the order of reports: a task that is changed is locked, too.
        catalogue.fill_spaces(connection, spaces)
        whole, advised = [], []
        for (identity, (item, own)), place in zip(rows.items(), found, strict=True):
            if identity in known:
                continue
            row = (*own, *place)
            if item.is_advice:
                advised.append(_advised(row))
            else:
                whole.append(row)
        new = frozenset(rows) - known
        places = best.places_of(connection, [best.Change(*_changed(row)) for row in whole])
        timed = [row for row in whole if row[_MEAN] is not None and row[_PHASE] != Phase.REFERENCE.value]
        fastest = tvm_history.fastest_of(map(_attempt, timed))
        current: list[Any] = []
        lowest: list[Any] = []
        with one_trip(connection, joined=len(whole) < COPIED) as ask:
            if advised:
                put_rows(
                    connection, _ADVICE, advised, "(identity) DO NOTHING", clock=advice.c.recorded_at
                )
            if whole:
                add_rows(connection, COLUMNS, whole, record.c.recorded_at)
                current = best.ask_current(connection, ask, places)
                lowest = tvm_history.ask_known(connection, ask, fastest)
            if also is not None:
                also(connection, new)
        if whole:
            best.settle(connection, places, current, lambda: tvm_history.settle(connection, fastest, lowest))
        return new


def _find_known(connection: sa.Connection, rows: Mapping[bytes, Row], tasks: Collection[int]) -> set[bytes]:
    """The identities of the rows that are in the database; locks their tasks, and announces the others' records."""
    # The lock excludes other writers of these tasks, and an identity belongs to one task.
    with one_trip(connection) as ask:
        best.ask_lock(connection, ask, tasks)
        known = _ask_known(connection, ask, rows)
        settled.announce(connection, ask)
    return {bytes(row[0]) for table in known for row in table}


def _ask_known(connection: sa.Connection, ask: Ask, rows: Mapping[bytes, Row]) -> list[Sequence[Any]]:
    """The rows of `record`, and of `advice` if there is any, that have the identities."""
    known = [ask_known(connection, ask, record, rows.keys())]
    if any(item.is_advice for item, _ in rows.values()):
        known.append(ask_known(connection, ask, advice, rows.keys()))
    return known


def _state(error: BaseException) -> str | None:
    """The SQLSTATE of a database's error, which may be translated."""
    found = (getattr(getattr(e, "orig", None), "sqlstate", None) for e in (error, error.__cause__))
    return next((s for s in found if s is not None), None)


def _put_attachments(connection: sa.Connection, given: Sequence[Attachment], where: str) -> None:
    if given:
        values = [{"what": a.what, "key": key_within(where, a.key), "text": a.text} for a in given]
        values.sort(key=lambda v: (v["what"], v["key"]))
        connection.execute(insert(connection, attachment).on_conflict_do_nothing(), values)
