"""Records of an operator as trials that a cost model is trained on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from service.records import best
from service.records.best import standing
from service.search.features import Digits
from service.search.predictor import Floats, Trials
from service.store.catalogue import code_version, code_versions
from service.store.namespace import DEFAULT
from service.store.sql import among
from service.store.tables import device, record, task, workload
from strategy.record import Phase, convert, estimate
from strategy.space import ConfigSpace
from strategy.workload import Workload

PAGE = 20_000  # records of one task that are held at once
TASKS = 200  # whose records are read by one statement
MOST_SPACES = 256  # in memory
MOST_RANKED = 200_000  # records that the accuracy is computed from

RAN = (record.c.error.is_(None), record.c.phase != Phase.REFERENCE.value, standing())


class DeviceModel(NamedTuple):
    """A device model whose records a model is trained on, and the number of models that have any."""

    name: str  # empty where the device is unknown, as of some imported records
    of: int

    @property
    def condition(self) -> sa.ColumnElement[bool]:
        """The condition on `record`."""
        named = record.c.device_id.in_(sa.select(device.c.id).where(device.c.model == self.name))
        return named if self.name else sa.or_(named, record.c.device_id.is_(None))


def count_most(connection: sa.Connection, op: str, target_id: int) -> tuple[DeviceModel, int, int]:
    """The device model with the most records of an operator on a target, as times of different ones do not compare.

    With the numbers of its records and of their workloads.
    """
    counted = _count_by_task().add_columns(record.c.device_id).group_by(record.c.device_id)
    names = {row.id: row.model for row in connection.execute(sa.select(device.c.id, device.c.model))}
    records: Counter[str] = Counter()
    workloads: dict[str, set[str]] = {}
    for tasks in _read_tasks(connection, op, target_id):
        keys = {t.id: convert(t.body, Workload).anchor.key for t in tasks.values()}
        for row in connection.execute(counted, {"ids": sorted(tasks)}):
            name = names.get(row.device_id, "")
            records[name] += row.n
            workloads.setdefault(name, set()).add(keys[row.task_id])
    most = max(sorted(records), key=lambda name: records[name], default="")
    return DeviceModel(most, len(records)), records[most], len(workloads.get(most, ()))


def read_trials(
    connection: sa.Connection, op: str, target_id: int, wanted: Sequence[sa.ColumnElement[bool]] = ()
) -> Iterator[tuple[int, Trials]]:
    """The successful records of an operator on a target, by their task's id, which pages of one task share.

    Without those of configurations of which a later check found a wrong answer.

    Args:
        wanted: further conditions on `record`.
    """
    rows = (
        sa.select(*record.c["task_id", "config", "median_s", "config_digest"])
        .where(among(record.c.task_id), *RAN, *wanted)
        .order_by(record.c.task_id)
        .execution_options(yield_per=PAGE)
    )
    for tasks in _read_tasks(connection, op, target_id):
        wrong = best.refuted(connection, tasks)
        found = (r for r in connection.execute(rows, {"ids": sorted(tasks)}) if not wrong or (r[0], r[3]) not in wrong)
        for task_id, group in groupby(found, key=lambda r: r[0]):
            while page := [(r[1], r[2], 0.0) for r in islice(group, PAGE)]:
                trials = _trials(tasks[task_id], page)
                if trials is not None:
                    yield task_id, trials


def read_held_out(
    connection: sa.Connection, op: str, target_id: int, wanted: Sequence[sa.ColumnElement[bool]],
    is_held: Callable[[Workload], bool],
) -> list[Trials]:
    """Records of held-out workloads, with the uncertainty of their times: at most `MOST_RANKED`, evenly.

    As `read_trials`, without those whose answer was wrong.

    Args:
        wanted: further conditions on `record`.
    """
    pages = (tasks.values() for tasks in _read_tasks(connection, op, target_id))
    held = [t for page in pages for t in page if is_held(convert(t.body, Workload))]
    ids = [t.id for t in held]
    counts = {row[0]: row[1] for row in connection.execute(_count_by_task(wanted), {"ids": ids})}
    wrong = best.refuted(connection, ids)
    share = max(1, MOST_RANKED // max(1, len(counts)))
    found = []
    for one in held:
        step = -(-counts.get(one.id, 0) // share)
        if step:
            rows = connection.execute(
                sa.select(*record.c["config", "config_digest", "median_s", "samples_s"]).where(
                    record.c.task_id == one.id, record.c.id % step == 0, *RAN, *wanted
                )
            )
            right = (r for r in rows if (one.id, r.config_digest) not in wrong)
            found.append(_trials(one, ((r.config, r.median_s, _doubt(r.samples_s)) for r in right)))
    return [t for t in found if t is not None]


class Counted(NamedTuple):
    """The training data on record: records up to some id and after it, and all their workloads.

    Workloads that differ in their epilogues count as one, as they are held out together.
    """

    before: int
    after: int
    workloads: int


def count_trials(
    connection: sa.Connection, op: str, target_id: int, record_id: int, wanted: Sequence[sa.ColumnElement[bool]]
) -> Counted:
    """Count what `read_trials` reads, and the few records whose answer was wrong."""
    old = sa.func.sum(sa.case((record.c.id <= record_id, 1), else_=0))
    counted = _count_by_task(wanted).add_columns(old.label("old"))
    total = before = 0
    workloads = set()
    for tasks in _read_tasks(connection, op, target_id):
        for row in connection.execute(counted, {"ids": sorted(tasks)}):
            total, before = total + row.n, before + row.old
            workloads.add(convert(tasks[row.task_id].body, Workload).anchor.key)
    return Counted(before, total - before, len(workloads))


def _count_by_task(wanted: Sequence[sa.ColumnElement[bool]] = ()) -> sa.Select[Any]:
    """The number `n` of the records of each of some tasks."""
    counted = sa.select(record.c.task_id, sa.func.count().label("n")).group_by(record.c.task_id)
    return counted.where(among(record.c.task_id), *RAN, *wanted)


def _read_tasks(connection: sa.Connection, op: str, target_id: int) -> Iterator[dict[int, Any]]:
    """Pages of an operator's tasks on a target, of the newest version of each implementation's code."""
    ours = (workload.c.op == op, task.c.target_id == target_id, task.c.namespace == DEFAULT)
    join = task.join(workload, workload.c.id == task.c.workload_id)
    newest = code_versions(connection, op, target_id, DEFAULT)
    columns = "id", "workload_id", "implementation", "version", "space", "space_digest"
    after = 0
    while True:
        page = connection.execute(
            sa.select(*task.c[columns], workload.c.body)
            .select_from(join)
            .where(*ours, task.c.id > after)
            .order_by(task.c.id)
            .limit(TASKS)
        ).all()
        if not page:
            return
        after = page[-1].id
        # One may have come since.
        yield {t.id: t for t in page if code_version(t.version) == newest.get(t.implementation)}


def _doubt(samples_s: Sequence[float]) -> float:
    """The larger distance of a median to an end of its interval, as a difference of logarithms."""
    if not samples_s:
        return 0.0
    found = estimate(samples_s)
    return math.log(max(found.high_s / found.median_s, found.median_s / found.low_s))


def _trials(one: Any, rows: Iterable[tuple[Any, float, float]]) -> Trials | None:
    """Records of a task, as configuration, seconds and doubt; None if there are too few."""
    asked = convert(one.body, Workload)
    if not all(i.tensor.is_constant for i in asked.inputs):
        return None
    space = None if one.space is None else _space(one)
    digits, log_s, doubt = _digits(space, rows)
    return Trials(asked, one.implementation, space, digits, log_s, doubt) if len(log_s) else None


_spaces: dict[str, ConfigSpace] = {}  # by digest: many tasks share one


def _space(one: Any) -> ConfigSpace:
    found = _spaces.get(one.space_digest)
    if found is None or not one.space_digest:
        if len(_spaces) >= MOST_SPACES:
            _spaces.clear()
        found = _spaces[one.space_digest] = convert(one.space, ConfigSpace)
    return found


def _digits(
    space: ConfigSpace | None, rows: Iterable[tuple[Any, float, float]]
) -> tuple[Digits, Floats, Floats]:
    """Digits, log-seconds and doubts of configurations; those outside of the space are omitted."""
    knobs = () if space is None else space.knobs
    places = [(k.name, {_plain(v): i for i, v in enumerate(k.values)}) for k in knobs]
    digits: list[list[int]] = []
    times: list[tuple[float, float]] = []
    for config, median_s, doubt in rows:
        if len(config) != len(knobs):
            continue
        try:
            digits.append([place[_plain(config[name])] for name, place in places])
        except KeyError:
            continue
        times.append((median_s, doubt))
    seconds, doubts = np.array(times, dtype=np.float64).reshape(len(times), 2).T
    return (
        np.array(digits, dtype=np.int32).reshape(len(digits), len(knobs)), np.log(seconds), doubts,
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
