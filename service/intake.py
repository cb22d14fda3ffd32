"""Small imports: those that come at the same time are written in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import sqlalchemy as sa

from service.db import Store
from service.formats import Item, Rejected, Summary
from service.importer import Batch, Importer
from service.namespace import DEFAULT

Note = Callable[[sa.Connection, Summary], None]


class _Parcel:
    """One import: what it brings, and what became of it."""

    def __init__(self, note: Note, namespace: str) -> None:
        self.batch = Batch(namespace)
        self.summary = Summary()
        self.note = note
        self.done = False
        self.error: Exception | None = None


class Intake:
    """Imports of a few records each; safe to share by threads.

    While one thread writes, others gather; the next writes what they all brought. What fails
    together is tried again one by one, so that nobody pays for another's fault.
    """

    def __init__(self, store: Store) -> None:
        self._importer = Importer(store)
        self._gathering = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[_Parcel] = []

    def put(
        self,
        items: Iterable[Item],
        put_aside: Callable[[Rejected], None],
        note: Note,
        namespace: str = DEFAULT,
    ) -> Summary:
        """As `import_items`; `note` is called in the transaction that stores the records.

        Raises:
            DatabaseError: it went away; nothing of this import is stored.
        """
        parcel = _Parcel(note, namespace)
        for item in items:
            found = self._importer.take(parcel.batch, item)
            if found is not None:
                parcel.summary.put_aside(found)
                put_aside(found)
        with self._gathering:
            self._waiting.append(parcel)
        with self._writing:
            if not parcel.done:
                with self._gathering:
                    parcels, self._waiting = self._waiting, []
                for same in _by_namespace(parcels):
                    self._write(same)
        if parcel.error is not None:
            raise parcel.error
        return parcel.summary

    def _write(self, parcels: list[_Parcel]) -> None:
        try:
            self._store(parcels)
        except Exception as error:
            if len(parcels) == 1:
                parcels[0].error = error
            for parcel in parcels if len(parcels) > 1 else ():
                self._write([parcel])
        for parcel in parcels:
            parcel.done = True

    def _store(self, parcels: list[_Parcel]) -> None:
        together = Batch(parcels[0].batch.namespace)
        for parcel in parcels:
            together.merge(parcel.batch)
        summaries: list[Summary] = []

        def note(connection: sa.Connection, new: frozenset[bytes]) -> None:
            summaries[:] = _summaries(parcels, new)
            for parcel, summary in zip(parcels, summaries, strict=True):
                parcel.note(connection, summary)

        self._importer.store(together, note)
        for parcel, summary in zip(parcels, summaries, strict=True):
            parcel.summary = summary


def _by_namespace(parcels: Iterable[_Parcel]) -> Iterable[list[_Parcel]]:
    """Those of one namespace go into one transaction."""
    groups: dict[str, list[_Parcel]] = {}
    for parcel in parcels:
        groups.setdefault(parcel.batch.namespace, []).append(parcel)
    return groups.values()


def _summaries(parcels: list[_Parcel], new: frozenset[bytes]) -> list[Summary]:
    """What became of each; a record that several brought is new for the first of them."""
    left = set(new)
    found = []
    for parcel in parcels:
        own = parcel.batch.rows.keys() & left
        left -= own
        summary = Summary()
        summary.reasons = parcel.summary.reasons
        summary.read = parcel.summary.rejected
        summary.add(new=len(own), known=parcel.batch.count - len(own))
        found.append(summary)
    return found
