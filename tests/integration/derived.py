"""The derived tables, computed naively from all records at once."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from service.store.db import Store
from service.store.tables import best, device, history, record, tombstone
from strategy.record import REFUTING

Place = tuple[int, str, str]


def best_of(rows: list[Any]) -> dict[Place, tuple[str, str, float, int]]:
    """The table `best`: digest, phase, median and number of samples of each task, scope and its value.

    Rows are records with the `model` and the `slot` of their device.
    """
    places = defaultdict(list)
    for r in rows:
        places[r.task_id, "target", ""].append(r)
        if r.device_id is not None:
            places[r.task_id, "model", r.model].append(r)
            if r.slot:  # a device, not only a model's name
                places[r.task_id, "device", str(r.device_id)].append(r)
    found = {}
    for place, of_place in places.items():
        wrong = {r.config_digest for r in of_place if r.error in REFUTING}
        for phase in ("confirm", "search"):
            pools = defaultdict(list)
            for r in of_place:
                if r.error is None and r.phase == phase and r.config_digest not in wrong:
                    pools[r.config_digest] += r.samples_s
            if pools:
                lowest = min((statistics.median(p), d, len(p)) for d, p in pools.items())
                found[place] = (lowest[1], phase, lowest[0], lowest[2])
                break
    return found


def lowest_means(rows: list[Any]) -> dict[tuple[int, int, str], float]:
    """The table `history`: the lowest mean of each task, target as it was written, and device model."""
    found: dict[tuple[int, int, str], float] = {}
    for r in rows:
        if r.error is None and r.phase != "reference":
            place = r.task_id, r.variant_id, r.model or ""
            found[place] = min(r.mean_s, found.get(place, r.mean_s))
    return found


def assert_derived(store: Store) -> None:
    """That `best` and `history` are what follows from the records that were not purged."""
    with store.read() as c:
        rows = list(
            c.execute(
                sa.select(record, device.c.model, device.c.slot)
                .outerjoin(device, device.c.id == record.c.device_id)
                .where(record.c.id.not_in(sa.select(tombstone.c.record_id)))
            )
        )
        kept = {
            (b.task_id, b.scope, b.scope_value): (b.config_digest, b.phase, b.median_s, b.samples)
            for b in c.execute(sa.select(best))
        }
        means = {(h.task_id, h.variant_id, h.model): h.mean_s for h in c.execute(sa.select(history))}
    assert kept == best_of(rows)
    assert means == lowest_means(rows)
