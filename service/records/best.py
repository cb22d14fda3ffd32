"""The best configuration of each task per device, device model and target: derived from records.

A configuration's cost is the median of its pooled samples: those of phase `confirm` if the scope has any,
else those of the search. One with a wrong answer on record in the scope is never the best, and a failure
has no cost. Purged records are ignored.
"""
# Over 300 lines: one derivation, from pooled samples to a rank, which is read and kept by the same rules.

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.store import catalogue
from service.store.sql import COPIED, Ask, among, given_table, one_trip, put_rows, values_of
from service.store.tables import (
    Scope,
    advice,
    advice_tombstone,
    best,
    device,
    purge,
    record,
    task,
    tombstone,
)
from service.store.text import read_json
from strategy.record import REFUTING, Phase, estimate

# The time from which imports and pruning end a transaction that locks tasks, in seconds: reports to these wait
# meanwhile, and are refused after `app.LOCK_S`.
LOCKED_S = 1.0
Place = tuple[int, Scope, str]  # a task, and a scope of devices
_IDENTITY = ("task_id", "scope", "scope_value")
_COLUMNS = tuple(
    best.c[
        (*_IDENTITY, "config_digest", "phase", "median_s", "low_s", "high_s", "samples", "config")
    ]
)
_REPLACED = (
    f"({', '.join(_IDENTITY)}) DO UPDATE SET "
    f"{', '.join(f'{c.name} = excluded.{c.name}' for c in best.c if c.name not in _IDENTITY)}"
)


# Built once, as building takes longer than executing.
# NO KEY UPDATE does not block the foreign-key checks of new records.
_LOCK = sa.select(task.c.id).where(among(task.c.id)).order_by(task.c.id).with_for_update(key_share=True)
_SAMPLES = sa.select(record.c.id, record.c.samples_s).where(among(record.c.id))
_CONFIGS = sa.select(*record.c["id", "config"]).where(among(record.c.id))
# Columns of records read as text, because few of them are decoded.
_TEXTS = tuple(sa.cast(record.c[name], sa.Text()).label(name) for name in ("samples_s", "config"))
_TEXTS_OF = sa.select(record.c.id, *_TEXTS).where(among(record.c.id))


class Change(NamedTuple):
    """A new record of a configuration or, without a `phase`, a removed one."""

    task_id: int
    device_id: int | None
    config_digest: str
    phase: str | None = None
    median_s: float | None = None  # None for a failure


_MARKS = {record: tombstone.c.record_id, advice: advice_tombstone.c.advice_id}


def _purged(of: sa.Table) -> sa.Select[Any]:
    return sa.select(_MARKS[of]).where(_MARKS[of] == of.c.id)


def standing(of: sa.Table = record) -> sa.ColumnElement[bool]:
    """The condition on `record`, or on `advice`, that it was not purged."""
    return ~_purged(of).exists()


def stood(when: float, of: sa.Table = record) -> list[sa.ColumnElement[bool]]:
    """The conditions on `record`, or on `advice`, that it existed and was not purged at an instant."""
    purged = _purged(of).join(purge, purge.c.id == _MARKS[of].table.c.purge_id)
    return [of.c.recorded_at <= when, ~purged.where(purge.c.at <= when).exists()]


def refuted(
    connection: sa.Connection, tasks: Collection[int], device_model: str | None = None
) -> set[tuple[int, str]]:
    """The configurations, with their tasks, of which a check found a wrong answer: their times do not count.

    On any device, or on those of a model and those that are not known.
    """
    query = sa.select(record.c.task_id, record.c.config_digest).distinct()
    wrong = record.c.error.in_([k.value for k in REFUTING])
    if device_model is not None:
        query = query.outerjoin(device, device.c.id == record.c.device_id)
        query = query.where(sa.or_(device.c.id.is_(None), device.c.model == device_model))
    rows = connection.execute(query.where(among(record.c.task_id), wrong, standing()), {"ids": sorted(tasks)})
    return {(r.task_id, r.config_digest) for r in rows}


def lock(connection: sa.Connection, tasks: Iterable[int]) -> None:
    """Lock tasks, so that rows shared by devices are derived by one transaction at a time.

    No-op on SQLite, which has one writer.
    """
    with one_trip(connection, joined=False) as ask:
        ask_lock(connection, ask, tasks)


def ask_lock(connection: sa.Connection, ask: Ask, tasks: Iterable[int]) -> None:
    """As `lock`, in a round trip with others."""
    if connection.dialect.name != "sqlite":
        ask(_LOCK, {"ids": sorted(tasks)})


def refresh(connection: sa.Connection, changed: Iterable[Change]) -> None:
    """Update the rows after records were added or removed.

    The number of statements does not depend on the number of records, except for places whose best has
    become worse. The caller holds the tasks' locks.
    """
    changes = places_of(connection, changed)
    if not changes:
        return
    with one_trip(connection, joined=False) as ask:
        standing_now = ask_current(connection, ask, changes)
    settle(connection, changes, standing_now)


def settle(
    connection: sa.Connection, changes: Mapping[Place, list[Change]], rows: Iterable[Any],
    also: Callable[[], object] = lambda: None, last: Callable[[], object] = lambda: None,
) -> None:
    """As `refresh`, of places whose current rows (`ask_current`) have come.

    `also` is called once to insert more by `put_rows`, in a round trip with a query of this function; `last` to
    execute statements without results in its last round trip.
    """
    current = {(row.task_id, Scope(row.scope), row.scope_value): row for row in rows}
    places = {
        place: digests
        for place, found in changes.items()
        if (digests := _contenders(found, current.get(place)))
    }
    if not places:
        also()
        last()
        return
    wanted = {(place[0], digest) for place, digests in places.items() for digest in digests}
    wanted |= {(p[0], row.config_digest) for p, row in current.items() if p in places}
    few = len(wanted) < COPIED  # then a round trip takes longer than the texts of all
    with one_trip(connection) as ask:
        also()
        found = ask(_telling_of(connection.dialect.name, few), {"rows": values_of(sorted(wanted))})
    attempts: dict[tuple[int, str], list[Any]] = {}  # all records of these configurations that affect their cost
    for row in found:
        attempts.setdefault((row.task_id, row.config_digest), []).append(row)
    read = {row.id: row for row in found} if few else {}
    pooled_ids = _pooled_ids(attempts.values())
    _read_texts(connection, pooled_ids, read)
    samples = {i: read_json(read[i].samples_s) for i in pooled_ids}
    gone: list[Place] = []
    winners: dict[Place, list[Any]] = {}
    for place, digests in sorted(places.items()):
        old = current.get(place)
        deciding = _derive(connection, place, digests, old, attempts, samples)
        if deciding is not None:
            winners[place] = deciding
        elif old is not None:
            gone.append(place)
    _read_texts(connection, {row.id for rows in winners.values() for row in rows}, read)
    rows = _rows(winners, current, read)
    for place in gone:
        connection.execute(sa.delete(best).where(_at(place)))
    if not rows:
        last()
        return
    with one_trip(connection):
        put_rows(connection, _COLUMNS, rows, _REPLACED, clock=best.c.updated_at)
        last()


def _read_texts(connection: sa.Connection, ids: set[int], read: dict[int, Any]) -> None:
    """Add the texts of records to those read already, by id."""
    missing = ids - read.keys()
    if missing:
        read |= {row.id: row for row in connection.execute(_TEXTS_OF, {"ids": missing})}


def _rows(
    winners: Mapping[Place, list[Any]], current: Mapping[Place, Any], read: Mapping[int, Any]
) -> list[tuple[Any, ...]]:
    """The changed rows, with the columns `_COLUMNS`; `read` are the winners' texts, by id."""
    found: list[tuple[Any, ...]] = []
    for place, rows in winners.items():
        cost = estimate([s for row in rows for s in read_json(read[row.id].samples_s)])
        new = (
            *place, rows[0].config_digest, rows[0].phase, cost.median_s, cost.low_s, cost.high_s,
            cost.samples,
        )
        old = current.get(place)
        if old is None or new != tuple(old):
            found.append((*new, read[rows[0].id].config))
    return found


def _pooled_ids(groups: Iterable[list[Any]]) -> set[int]:
    """The records whose samples are pooled; the median of a single one is on record."""
    return {row.id for rows in groups if len(rows) > 1 for row in rows if row.error is None}


def _samples(connection: sa.Connection, ids: set[int]) -> dict[int, list[float]]:
    rows = connection.execute(_SAMPLES, {"ids": ids}) if ids else ()
    return {row.id: row.samples_s for row in rows}


def places_of(connection: sa.Connection, changed: Iterable[Change]) -> dict[Place, list[Change]]:
    """The rows that may change, each with the records that may change it."""
    changed = list(changed)
    ids = {c.device_id for c in changed if c.device_id is not None}
    devices = catalogue.find_devices(connection, ids)
    scopes = {i: scopes_of(i, None if i is None else devices[i]) for i in (None, *ids)}
    places: dict[Place, list[Change]] = {}
    for change in changed:
        for scope, value in scopes[change.device_id]:
            places.setdefault((change.task_id, scope, value), []).append(change)
    return places


def scopes_of(device_id: int | None, described: Any) -> list[tuple[Scope, str]]:
    """The scopes of the records of a device with this `model` and `slot`, or of one that is not known."""
    if device_id is None:
        return [(Scope.TARGET, "")]
    own = [(Scope.DEVICE, str(device_id))] if described.slot else []  # a device, not only a model's name
    return [(Scope.TARGET, ""), (Scope.MODEL, described.model), *own]


def _contenders(changes: Iterable[Change], old: Any) -> set[str]:
    """The configurations whose records may change the best of a place, currently `old`.

    The median of pooled samples is not lower than the lowest median of the pools: a record slower than the best
    cannot make its configuration the best.
    """
    if old is None:
        return {c.config_digest for c in changes}
    digest, phase, median_s = old.config_digest, old.phase, old.median_s
    return {
        c.config_digest for c in changes
        if c.phase is None or c.config_digest == digest or (
            c.median_s is not None
            # Of equal medians, the lowest digest is the best. A confirm sample outranks all search samples.
            and ((c.median_s, c.config_digest) < (median_s, digest) if c.phase == phase
                 else c.phase == Phase.CONFIRM)
        )
    }


def ask_current(connection: sa.Connection, ask: Ask, places: Iterable[Place]) -> list[Any]:
    """The rows of places, as they are."""
    return ask(_standing_now(connection.dialect.name), {"rows": values_of(sorted(places))})


@cache
def _standing_now(dialect: str) -> sa.Select[Any]:
    given = given_table(dialect, [best.c[name] for name in _IDENTITY])
    same = sa.and_(*(best.c[name] == given.c[name] for name in _IDENTITY))
    return sa.select(*_COLUMNS[:-1]).join(given, same)


@cache
def _telling_of(dialect: str, texts: bool) -> sa.Select[Any]:
    asked = given_table(dialect, [record.c.task_id, record.c.config_digest])
    same = (
        record.c.task_id == asked.c.task_id, record.c.config_digest == asked.c.config_digest,
        # All phases, so that the index is used.
        record.c.phase.in_(_written(Phase)),
    )
    there = (device, device.c.id == record.c.device_id)
    told = telling(standing()).add_columns(*_TEXTS if texts else ())
    if dialect == "sqlite":
        joined = told.join_from(asked, record, sa.and_(*same)).outerjoin(*there)
        return joined.order_by(record.c.id)
    # By the index for each that is asked for: without statistics, PostgreSQL would compare all of them with all new
    # records. OFFSET 0 keeps it from joining in another way.
    each = told.where(*same).outerjoin_from(record, *there).correlate(asked).offset(0).lateral()
    return sa.select(*each.c).join_from(asked, each, sa.true()).order_by(each.c.id)


def telling(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select the records that affect a cost: successes, and wrong answers."""
    return sa.select(
        *record.c["id", "task_id", "config_digest", "device_id", "phase", "error", "median_s"],
        device.c.model,
    ).where(
        sa.or_(record.c.error.is_(None), record.c.error.in_(_written(REFUTING))),
        *conditions,
    )


def _written(values: Iterable[StrEnum]) -> list[sa.ColumnElement[str]]:
    """Values as a part of the statement: a list of parameters could not be sent in one trip with others."""
    return [sa.literal_column(f"'{value}'") for value in values]


def _derive(
    connection: sa.Connection,
    place: Place,
    digests: set[str],
    old: Any,
    attempts: Mapping[tuple[int, str], list[Any]],
    samples: Mapping[int, list[float]],
) -> list[Any] | None:
    """The deciding records of the best configuration, None if there is none."""
    task_id, scope, value = place
    looked = digests if old is None else {*digests, old.config_digest}
    rows = [
        row for digest in looked for row in attempts.get((task_id, digest), ())
        if _covers(scope, value, row)
    ]
    there = {row.phase for row in rows}
    for phase in (Phase.CONFIRM, Phase.SEARCH):
        ranked = rank(rows, phase, samples) if phase in there else ()
        if ranked:
            median_s, digest, pool = ranked[0]
            # The others rank behind the best, whose phase was the same or a lower one.
            if (
                old is None
                or (old.phase == phase and (median_s, digest) <= (old.median_s, old.config_digest))
                or (phase is Phase.CONFIRM and old.phase != phase)
            ):
                return pool
            break
    # The best has become worse or invalid: any other may be the best now.
    return None if old is None else lowest(connection, task_id, scope, value)


def _covers(scope: Scope, value: str, row: Any) -> bool:
    if scope is Scope.TARGET:
        return True
    if scope is Scope.MODEL:
        return bool(row.model == value)
    return str(row.device_id) == value


def rank(
    rows: Iterable[Any], phase: Phase, samples: Mapping[int, list[float]]
) -> list[tuple[float, str, list[Any]]]:
    """Median, digest and records of each configuration, the fastest first."""
    pools: dict[str, list[Any]] = {}
    refuted = set()
    for row in rows:
        if row.error is not None:
            refuted.add(row.config_digest)
        elif row.phase == phase:
            pools.setdefault(row.config_digest, []).append(row)
    found = [
        (_median(pool, samples), digest, pool)
        for digest, pool in pools.items()
        if digest not in refuted
    ]
    return sorted(found, key=lambda f: f[:2])


def _median(pool: list[Any], samples: Mapping[int, list[float]]) -> float:
    if len(pool) == 1:
        median_s: float = pool[0].median_s
        return median_s
    return statistics.median([s for row in pool for s in samples[row.id]])


def lowest(connection: sa.Connection, task_id: int, scope: Scope, value: str) -> list[Any] | None:
    """The records of the best of a place, searched among all; None if there is none.

    Ties are broken by digest.
    """
    for phase in (Phase.CONFIRM, Phase.SEARCH):
        ranked = _rank_place(connection, task_id, scope, value, phase)
        if ranked:
            return ranked[0][2]
    return None


def rank_configs(
    connection: sa.Connection, task_id: int, scope: Scope, value: str, phase: Phase
) -> dict[str, int]:
    """The digests of the configurations with samples in the scope, the fastest first, each with the id of a record."""
    return {digest: pool[0].id for _, digest, pool in _rank_place(connection, task_id, scope, value, phase)}


def read_configs(connection: sa.Connection, ids: Collection[int]) -> dict[int, Any]:
    """The configurations of records, by their ids."""
    return {row.id: row.config for row in connection.execute(_CONFIGS, {"ids": ids})} if ids else {}


def find_champions(connection: sa.Connection, task_id: int, models: Collection[str]) -> Sequence[Any]:
    """The best `config` of a task on each of these device models, and its `config_digest`.

    If it has none there, its best on each other, or on all devices if no model is known.
    """
    columns = best.c["config", "config_digest", "scope", "scope_value"]
    places = best.c.scope.in_((Scope.MODEL.value, Scope.TARGET.value))
    rows = connection.execute(sa.select(*columns).where(best.c.task_id == task_id, places)).all()
    on_models = [r for r in rows if r.scope == Scope.MODEL]
    return [r for r in on_models if r.scope_value in models] or on_models or rows


def is_measured(connection: sa.Connection, tasks: Collection[int]) -> bool:
    """Return whether anything ran of any of these tasks."""
    query = sa.select(best.c.task_id).where(
        best.c.task_id.in_(tasks), best.c.scope == Scope.TARGET.value
    )
    return connection.execute(query.limit(1)).one_or_none() is not None


def _rank_place(
    connection: sa.Connection, task_id: int, scope: Scope, value: str, phase: Phase
) -> list[tuple[float, str, list[Any]]]:
    query = telling(standing()).outerjoin_from(record, device, device.c.id == record.c.device_id)
    query = query.where(
        record.c.task_id == task_id,
        sa.or_(record.c.phase == phase.value, record.c.error.is_not(None)),
    )
    if scope is Scope.DEVICE:
        query = query.where(record.c.device_id == int(value))
    elif scope is Scope.MODEL:
        query = query.where(device.c.model == value)
    rows = connection.execute(query.order_by(record.c.id)).all()
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.config_digest, []).append(row)
    return rank(rows, phase, _samples(connection, _pooled_ids(groups.values())))


def _at(place: Place) -> sa.ColumnElement[bool]:
    return sa.and_(
        best.c.task_id == place[0], best.c.scope == place[1].value, best.c.scope_value == place[2]
    )
