"""Lineage of a cost model: its last training from nothing, and the updates since.

An update adds trees that are grown on the new records and as many old ones. It must rank the held-out workloads as
well as the model that was trained from nothing; the records may double until the next of these, so that all
trainings together take a multiple of the time of the last.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from service.predict.evidence import Counted
from service.search.description import MOST_EXTENTS, Layout, extent_name

LEAST_UPDATED = 200_000  # records: on fewer, training from nothing takes seconds
LEAST_OLD = 50_000  # old records that an update is trained on as well
MOST_GROWTH = 2.0  # ratio of records to those of the last training from nothing
LEAST_LEFT = 0.95  # share of the records trained on that must still count: code changes, and records are purged
UPDATE_ROUNDS = 40
TOLERANCE = 0.005  # of the accuracy


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a model.

    Attributes:
        held_below: workloads whose `spool.split` is below were held out.
        newest: the id up to which the log was settled (`service.records.settled`).
        records: the number of records that it was trained on.
        full_records, full_accuracy: those of the last training from nothing.
        updates: the number of updates since.
        said: the same for people.
        versions: of each implementation's code, whose records it was trained on.
        device_model: the device model whose records it was trained on; None: of all, by an earlier version of plevel.
    """

    held_below: float
    newest: int
    records: int
    full_records: int
    full_accuracy: float
    updates: int
    said: str
    versions: dict[str, str] = {}
    device_model: str | None = None


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be brought up to date."""

    version: int
    columns: tuple[str, ...]
    trees: bytes
    tested: bytes
    digest: str  # of the trees, as stored with them
    lineage: Lineage

    @property
    def layout(self) -> Layout:
        skipped = {i for i in range(MOST_EXTENTS) if extent_name(i) not in self.columns}
        return Layout(self.columns, frozenset(skipped))

    def refuse(self, counted: Counted, versions: Mapping[str, str], device_model: str) -> str | None:
        """The reason for training from nothing, empty where it goes without saying; None to update this model."""
        known, total = self.lineage, counted.before + counted.after
        changed = [name for name, code in known.versions.items() if versions.get(name) != code]
        if changed:
            return f"the code of {', '.join(sorted(changed))} has changed since version {self.version}"
        if known.device_model != device_model:
            theirs = "all device models" if known.device_model is None else known.device_model or "an unknown device"
            return f"version {self.version} was trained on records of {theirs}"
        if total < LEAST_UPDATED or not counted.after:
            return ""
        if counted.before < LEAST_LEFT * known.records:
            return f"{known.records - counted.before:,} records of version {self.version} no longer count"
        if total > MOST_GROWTH * known.full_records:
            return "the records have doubled since the last training from nothing"
        return None

    def lacks(self, layout: Layout) -> str | None:
        """The first column that the model does not have; None if it has all."""
        return next((name for name in layout.columns if name not in set(self.columns)), None)
