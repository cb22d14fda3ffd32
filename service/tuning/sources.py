"""Sources of transfer learning: records of an implementation on other shapes, targets and versions."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.records.best import refuted, standing
from service.records.ranking import of_one_model
from service.search.transfer import SOURCES, Source
from service.store.tables import best, device, record, target, task, worker_device, workload
from strategy.record import BY_CHANCE, ErrorKind, Phase, convert
from strategy.space import Config, ConfigError, ConfigSpace
from strategy.target import are_like
from strategy.types import TensorType
from strategy.workload import Workload

MOST_TASKS = 300  # the newest of an implementation, among which the most similar are chosen
MOST_RECORDS = 1000  # of one task, the newest
SHAPES = 16
MOST_OF_SHAPE = 250  # records, the newest
LEAST_RECORDS = 8
MOST_CHAMPIONS = 8
# Failures that say nothing of another task's configuration; the hosts of lost workers may have failed.
_NO_LESSON = (*BY_CHANCE, ErrorKind.LOST)
# Distances, in doublings of a dimension.
_ANOTHER_VERSION, _ANOTHER_TARGET, _ANOTHER_ATTRIBUTE, _ANOTHER_RANK = 0.1, 1.0, 1.0, 8.0


def find_sources(
    connection: sa.Connection, task_id: int, counted: sa.ColumnElement[bool], device_model: str
) -> list[Source]:
    """Sources of transfer learning for a task, the most similar first.

    They are records of the same implementation in this namespace, imported ones of that name included: of the
    task itself if they do not count as trials, of its other versions, and of other epilogues, targets and shapes.
    Each device model's are a source of their own, as its times do not compare with others'.
    Up to `SOURCES` of this shape come first, then up to `SHAPES` others.

    Args:
        task_id: the task to tune.
        counted: the condition on records that count as trials.
        device_model: the device model whose times the search is told.
    """
    own = connection.execute(_tasks().where(task.c.id == task_id)).one()
    asked = convert(own.body, Workload)
    related = connection.execute(
        _tasks()
        .where(sa.or_(task.c.implementation == own.implementation,
                      task.c.implementation.in_(_imported(own.implementation))))
        .where(task.c.namespace == own.namespace)
        .where(sa.exists().where(record.c.task_id == task.c.id))
        .order_by(task.c.id.desc())
        .limit(MOST_TASKS)
    ).all()
    here: list[Source] = []
    shapes: list[list[Source]] = []
    theirs = {r.id: convert(r.body, Workload) for r in related}
    for relative in sorted(related, key=lambda r: (_distance(asked, theirs[r.id], own, r), -r.id)):
        if relative.has_space and _is_another_shape(asked, theirs[relative.id]):
            if len(shapes) < SHAPES:
                found = _enough(_read_shape(connection, theirs[relative.id], relative, device_model))
                shapes += [found] if found else []
        elif len(here) < SOURCES:
            mine = sa.and_(counted, device.c.model == device_model) if relative.id == task_id else None
            rows = _read(connection, relative.id, MOST_RECORDS, mine)
            here += _enough(
                Source([Config(r.config) for r in group], [r.seconds for r in group])
                for _, group in _by_model(rows, device_model)
            )
    return here[:SOURCES] + [source for found in shapes for source in found]


def find_device_model(
    connection: sa.Connection, target_id: int, tasks: Sequence[int], counted: sa.ColumnElement[bool]
) -> str:
    """The device model with most of the trials that ran, else of all, else that of the target's newest device."""
    ran = sa.func.sum(sa.case((record.c.error.is_(None), 1), else_=0))
    found = connection.scalar(
        sa.select(device.c.model)
        .join(record, record.c.device_id == device.c.id)
        .where(counted, record.c.task_id.in_(tasks))
        .group_by(device.c.model)
        .order_by(ran.desc(), sa.func.count().desc(), device.c.model)
        .limit(1)
    )
    if found is None:
        found = connection.scalar(
            sa.select(device.c.model)
            .join(worker_device, worker_device.c.device_id == device.c.id)
            .where(worker_device.c.target_id == target_id)
            .order_by(device.c.seen_at.desc(), device.c.id.desc())
            .limit(1)
        )
    return found or ""


def place_name(target_id: int, device_model: str) -> str:
    """The name of a target and a device model, by which a search tells where times are from."""
    return f"{target_id} {device_model}".strip()


def _enough(sources: Iterable[Source]) -> list[Source]:
    return [source for source in sources if len(source.configs) >= LEAST_RECORDS]


def _by_model(rows: Sequence[_Told], first: str) -> Iterator[tuple[str, list[_Told]]]:
    """Records by device model, that of the search first, then those with the most records."""
    models = Counter(r.model for r in rows)
    for model in sorted(models, key=lambda m: (m != first, -models[m], m)):
        yield model, [r for r in rows if r.model == model]


def find_champions(connection: sa.Connection, task_id: int, device_model: str) -> list[Config]:
    """The best configurations of other versions of a task, then those of its call with other epilogues.

    Of each, those that were timed as the task is come first, then those that were timed otherwise; then those of the
    device model before others', whose times do not compare, and of the newest tasks. If the task's space has them, by
    value, they are good first trials.
    """
    own = connection.execute(_tasks().where(task.c.id == task_id)).one()
    call = convert(own.body, Workload).anchor.key
    keys = {row.id: row.key for row in connection.execute(sa.select(target.c.id, target.c.key))}
    like = [i for i, key in keys.items() if are_like(key, keys[own.target_id])]
    rows = connection.scalars(
        sa.select(best.c.config)
        .join(task, task.c.id == best.c.task_id)
        .join(workload, workload.c.id == task.c.workload_id)
        .where(
            *(task.c[n] == getattr(own, n) for n in ("implementation", "namespace")),
            task.c.target_id.in_(like), task.c.id != task_id, of_one_model(),
            sa.or_(workload.c.key == call, workload.c.key.startswith(f"{call}+", autoescape=True)),
        )
        .order_by(
            task.c.workload_id != own.workload_id, task.c.target_id != own.target_id,
            best.c.scope_value != device_model, task.c.id.desc(), best.c.scope_value,
        )
        .limit(MOST_CHAMPIONS)
    )
    return list(dict.fromkeys(map(Config, rows)))


def _tasks() -> sa.Select[Any]:
    columns = task.c["id", "namespace", "workload_id", "target_id", "implementation", "version"]
    return sa.select(
        *columns, workload.c.body, task.c.space.is_not(None).label("has_space")
    ).join(workload, workload.c.id == task.c.workload_id)


def _imported(name: str) -> list[str]:
    """The names of an implementation in imported logs."""
    return [f"{tool}:{name}" for tool in ("autotvm", "kernel_tuner")]


class _Told(NamedTuple):
    """A trial of another task; `seconds` is None for a failure, `model` empty for an unknown device model."""

    config: Any
    seconds: float | None
    model: str


def _read(
    connection: sa.Connection, task_id: int, most: int, counted: sa.ColumnElement[bool] | None = None
) -> list[_Told]:
    """The newest trials of a task; what a later check found to give a wrong answer has failed, whatever its time was.

    Args:
        counted: a condition on records that are left out.
    """
    query = (
        sa.select(*record.c["config", "config_digest", "median_s"], sa.func.coalesce(device.c.model, "").label("model"))
        .outerjoin(device, device.c.id == record.c.device_id)
        .where(
            record.c.task_id == task_id, record.c.phase == Phase.SEARCH.value, standing(),
            sa.or_(record.c.error.is_(None), record.c.error.not_in(_NO_LESSON)),
        )
        .order_by(record.c.id.desc())
        .limit(most)
    )
    if counted is not None:
        # Imported records have neither policy nor run, and do not count as trials.
        query = query.where(sa.not_(sa.func.coalesce(counted, sa.false())))
    wrong = {digest for _, digest in refuted(connection, [task_id])}
    return [
        _Told(r.config, None if r.config_digest in wrong else r.median_s, r.model) for r in connection.execute(query)
    ]


def _read_shape(connection: sa.Connection, of: Workload, one: Any, device_model: str) -> Iterator[Source]:
    """Records of another shape, without those outside of its space, by device model."""
    found = connection.execute(sa.select(task.c.space).where(task.c.id == one.id)).scalar_one()
    space = convert(found, ConfigSpace)
    for model, rows in _by_model(_read(connection, one.id, MOST_OF_SHAPE), device_model):
        configs, seconds = [], []
        for row in rows:
            config = Config(row.config)
            with contextlib.suppress(ConfigError):
                space.digits(config)
                configs.append(config)
                seconds.append(row.seconds)
        yield Source(configs, seconds, of, place_name(one.target_id, model), space)


def _is_another_shape(asked: Workload, other: Workload) -> bool:
    """Return whether dimensions are comparable, and not all equal: an epilogue changes no knob's meaning."""
    ranks = [[len(_extents(i.tensor)) for i in w.inputs] for w in (asked, other)]
    return asked.anchor.key != other.anchor.key and ranks[0] == ranks[1] and 0 not in ranks[0]


def _extents(type_: TensorType) -> tuple[int, ...]:
    return tuple(max(d, 1) for d in type_.concrete_shape) if type_.is_constant else ()


def _distance(asked: Workload, theirs: Workload, own: Any, other: Any) -> float:
    """The distance of another task, in doublings of dimensions, with weights for other differences."""
    found: float = 0.0 if other.version == own.version else _ANOTHER_VERSION
    if other.target_id != own.target_id:
        found += _ANOTHER_TARGET
    if other.workload_id == own.workload_id:
        return found
    names = asked.attrs.keys() | theirs.attrs.keys()
    found += _ANOTHER_ATTRIBUTE * sum(asked.attrs.get(n) != theirs.attrs.get(n) for n in names)
    found += _ANOTHER_ATTRIBUTE * (asked.epilogue != theirs.epilogue)
    found += _ANOTHER_RANK * abs(len(asked.inputs) - len(theirs.inputs))
    for mine, its in zip(asked.inputs, theirs.inputs, strict=False):
        found += _ANOTHER_ATTRIBUTE * (mine.tensor.dtype != its.tensor.dtype)
        a, b = _extents(mine.tensor), _extents(its.tensor)
        found += _ANOTHER_RANK * abs(len(a) - len(b))
        found += sum(abs(math.log2(x / y)) for x, y in zip(a, b, strict=False))
    return found
