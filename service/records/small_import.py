"""Group commit of small imports.

A log that is slow to read is read again alone, while the others proceed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from anyio import CapacityLimiter, to_thread

from service.access import audit
from service.access.auth import Actor
from service.errors import InvalidError, ServiceError
from service.formats import FormatError, Item, Rejected, Summary
from service.records.batch import Batch
from service.records.importer import Importer
from service.records.reading import Readers, SilentError
from service.records.reading_message import Order
from service.store.batcher import Batcher, answer_each
from service.store.db import Store
from service.store.namespace import DEFAULT

MOST = 1 << 20  # bytes of one batch
SOON_S = 2.0  # without an answer from the reading process, after which the others proceed
GATHER_S = 0.002  # a third of what a batch takes
ALONE = 8  # logs that are read alone at a time


@dataclass(frozen=True, kw_only=True)
class Upload:
    """An uploaded log; its answer has the first `shown` rejected entries."""

    data: bytes
    actor: Actor
    order: Order = field(default_factory=Order)
    namespace: str = DEFAULT
    shown: int = 0


@dataclass(frozen=True)
class Arrived:
    """The outcome of an upload."""

    summary: Summary
    rejects: Sequence[Rejected]


@dataclass
class _Opened:
    """An upload that is being stored."""

    upload: Upload
    batch: Batch
    summary: Summary = field(default_factory=Summary)
    rejects: list[Rejected] = field(default_factory=list)
    error: Exception | None = None


class SmallImports:
    """Batcher of imports of a few records each. Bound to one event loop.

    If a transaction fails, its imports are stored one by one (`answer_each`).
    """

    def __init__(self, store: Store, readers: Readers) -> None:
        self._importer = Importer(store)
        self._readers = readers
        self._batcher: Batcher[Upload | _Opened, Arrived | None]
        self._batcher = Batcher(self._serve, MOST, _size, gather_s=GATHER_S)
        self._alone = CapacityLimiter(ALONE)

    async def put(self, upload: Upload) -> Arrived:
        """Store an upload's records, and a line of the audit log.

        Raises:
            InvalidError: the format is not known, or reading took too long.
            StoppedError: the service is stopping.
            DatabaseError: the database is away; nothing of this import is stored.
        """
        answer = await self._batcher.ask(upload)
        if answer is None:
            opened = await to_thread.run_sync(self._open_alone, upload, limiter=self._alone)
            answer = await self._batcher.ask(opened)
        assert answer is not None
        return answer

    def _serve(self, given: Sequence[Upload | _Opened]) -> list[Arrived | Exception | None]:
        """Return the outcome of each upload, None if it must be read alone first."""
        uploads = [one for one in given if isinstance(one, Upload)]
        read = iter(self._readers.read_each([(one.data, one.order) for one in uploads], SOON_S))
        opened: list[_Opened | None] = []
        for one in given:
            if isinstance(one, _Opened):
                opened.append(one)
            else:
                found = next(read)
                opened.append(None if isinstance(found, SilentError) else _open(one, found))
        for same in _by_namespace(o for o in opened if o is not None and o.error is None):
            for stored, answer in zip(same, answer_each(self._store, same), strict=True):
                if isinstance(answer, Exception):
                    stored.error = answer
                else:
                    stored.summary = answer
        return [None if o is None else o.error or Arrived(o.summary, o.rejects) for o in opened]

    def _open_alone(self, upload: Upload) -> _Opened:
        try:
            return _open(upload, list(self._readers.read(io.BytesIO(upload.data), upload.order)))
        except (FormatError, ServiceError) as error:
            return _open(upload, error)

    def _store(self, opened: Sequence[_Opened]) -> list[Summary]:
        """Store the records of one namespace in a transaction; return the summary of each upload."""
        together = Batch(opened[0].upload.namespace)
        for one in opened:
            together.merge(one.batch)
        summaries: list[Summary] = []

        def note(connection: sa.Connection, new: frozenset[bytes]) -> None:
            summaries[:] = _summaries(opened, new)
            audit.note_all(
                connection, "import",
                [
                    (o.upload.actor, {"name": o.upload.order.name, "new": summary.new,
                                      "namespace": o.upload.namespace})
                    for o, summary in zip(opened, summaries, strict=True)
                ],
            )

        self._importer.store(together, note)
        return summaries


def _open(upload: Upload, found: list[Item] | Exception) -> _Opened:
    """An upload with what was read of it, or the error of reading it."""
    opened = _Opened(upload, Batch(upload.namespace))
    if isinstance(found, Exception):
        opened.error = InvalidError(str(found)) if isinstance(found, FormatError) else found
        return opened
    for item in found:
        if not isinstance(item, Rejected):
            opened.batch.add(item)
            continue
        opened.summary.put_aside(item)
        if len(opened.rejects) < upload.shown:
            opened.rejects.append(item)
    return opened


def _size(given: Upload | _Opened) -> int:
    return len(given.data if isinstance(given, Upload) else given.upload.data)


def _by_namespace(opened: Iterable[_Opened]) -> Iterable[list[_Opened]]:
    """Group uploads by namespace: each group is one transaction."""
    groups: dict[str, list[_Opened]] = {}
    for one in opened:
        groups.setdefault(one.upload.namespace, []).append(one)
    return groups.values()


def _summaries(opened: Sequence[_Opened], new: frozenset[bytes]) -> list[Summary]:
    """Count the outcome of each upload; a record in several is new for the first of them."""
    left = set(new)
    found = []
    for one in opened:
        own = one.batch.rows.keys() & left
        left -= own
        summary = Summary()
        summary.reasons = one.summary.reasons
        summary.read = one.summary.rejected
        summary.add(new=len(own), known=one.batch.count - len(own))
        found.append(summary)
    return found
