"""Records of an operator as trials that a cost model is trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa

from service.records.best import standing
from service.search.features import Digits
from service.search.predictor import Floats, Trials
from service.store.namespace import DEFAULT
from service.store.tables import record, task, workload
from strategy.record import Phase, convert, estimate
from strategy.space import ConfigSpace
from strategy.workload import Workload

RAN = (record.c.error.is_(None), record.c.phase != Phase.REFERENCE.value, standing())


def find_tasks(connection: sa.Connection, op: str, target_id: int) -> dict[int, Any]:
    """The tasks of an operator on a target, of the newest version of each implementation's code."""
    tasks = connection.execute(
        sa.select(*task.c["id", "implementation", "version", "space"], workload.c.body)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == op, task.c.target_id == target_id, task.c.namespace == DEFAULT)
        .order_by(task.c.id)
    ).all()
    newest = {t.implementation: _code(t.version) for t in tasks}
    return {t.id: t for t in tasks if _code(t.version) == newest[t.implementation]}


def read_trials(
    connection: sa.Connection, op: str, target_id: int, tasks: Mapping[int, Any]
) -> Iterator[tuple[int, Trials]]:
    """The successful records of these tasks, by the task's id."""
    ours = (
        sa.select(task.c.id)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == op, task.c.target_id == target_id, task.c.namespace == DEFAULT)
    )
    rows = connection.execution_options(yield_per=20_000).execute(
        sa.select(record.c.task_id, record.c.config, record.c.median_s)
        .where(record.c.task_id.in_(ours), *RAN)
        .order_by(record.c.task_id)
    )
    for task_id, group in groupby(rows, key=lambda r: r[0]):
        if task_id in tasks:
            trials = _trials(tasks[task_id], ((r[1], r[2], 0.0) for r in group))
            if trials is not None:
                yield task_id, trials


def read_with_doubt(connection: sa.Connection, one: Any) -> Trials:
    """The successful records of a task, with the uncertainty of their times."""
    rows = connection.execute(
        sa.select(*record.c["config", "median_s", "samples_s"]).where(
            record.c.task_id == one.id, *RAN
        )
    )
    trials = _trials(one, ((r.config, r.median_s, _doubt(r.samples_s)) for r in rows))
    assert trials is not None
    return trials


def _doubt(samples_s: Sequence[float]) -> float:
    """Half the width of the interval of a median, as a difference of logarithms."""
    if not samples_s:
        return 0.0
    found = estimate(samples_s)
    return math.log(found.high_s / found.low_s) / 2


def _trials(one: Any, rows: Iterable[tuple[Any, float, float]]) -> Trials | None:
    """Records of a task, as configuration, seconds and doubt; None if there are too few."""
    asked = convert(one.body, Workload)
    if not all(i.tensor.is_constant for i in asked.inputs):
        return None
    space = None if one.space is None else convert(one.space, ConfigSpace)
    digits, log_s, doubt = _digits(space, rows)
    return Trials(asked, one.implementation, space, digits, log_s, doubt) if len(log_s) else None


def _code(version: str) -> str:
    return version.partition(".")[0]


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
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
