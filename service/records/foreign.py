"""Results of other tools' kernels: the best known configurations, ranked by the likeness of their devices.

Times of different device models are never compared: answers are in groups of one task and device model, the likest
first. Within a group measured configurations precede advice.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Meta

from service.formats.foreign import UNKNOWN
from service.formats.gpu import arch_of_model
from service.records.best import standing
from service.store.tables import advice, device, record, target, task, workload
from strategy.record import REFUTING, AskedWorkload
from strategy.space import Config

MAX_ANSWERS = 1000
MAX_ROWS = 50_000  # the newest results that one answer is derived from
_COLUMNS = (
    "task_id", "config_digest", "recorded_at", "config", "source", "origin_worker", "measured_at", "extra",
)  # fmt: skip
_REFUTING = frozenset(k.value for k in REFUTING)


class Likeness(StrEnum):
    """Likeness of a result's device to the asked one, the closest first."""

    MODEL = "model"
    ARCHITECTURE = "architecture"
    OTHER = "other"


class ForeignTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device and the source for which configurations are asked, and how many.

    `architecture` (`sm_90`, `gfx942`) is derived from a well-known `device_model`. `version`, a digest of the
    kernel's source, excludes results of other known sources. `failures` asks for the configurations that
    failed on devices of this model, too.
    """

    device_model: Annotated[str, Meta(max_length=200)] = ""
    architecture: Annotated[str, Meta(max_length=100)] = ""
    version: Annotated[str, Meta(max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] = 5
    failures: bool = False


class ForeignQuestion(ForeignTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question for the best configurations of one problem of another tool's kernel."""

    workload: AskedWorkload


class ForeignAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration, with its origin and age.

    `median_s` is null for advice, a winner without a time. `source` is the format of its first import, `worker` the
    host that reported it, `extra` the fields that only the tool's format has. `measured_at` is 0 if it is not known.
    """

    implementation: str
    version: str
    config: Config
    median_s: float | None
    likeness: Likeness
    device_model: str
    target: str
    source: str
    worker: str
    measured_at: float
    recorded_at: float
    extra: dict[str, Any] | None


class ForeignBest(msgspec.Struct, frozen=True, kw_only=True):
    """The answers, the likest device first, and of it the fastest; failed configurations if asked for."""

    answers: tuple[ForeignAnswer, ...]
    failed: tuple[Config, ...] = ()


class ForeignKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's problem on one device model: its best, and the spread of its candidates."""

    task_id: int
    workload: str
    best: ForeignAnswer | None
    candidates: int
    failures: int
    slowest_s: float | None


class ForeignList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of kernels, the newest first; `next` is the cursor of the following page."""

    kernels: tuple[ForeignKernel, ...]
    next: int | None


class ForeignProblem(ForeignBest, frozen=True, kw_only=True):
    """The answers of one problem, from the likest device that has any."""

    workload: str


class ForeignProblems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one kernel's problems, the newest first; `next` is the cursor of the following page."""

    problems: tuple[ForeignProblem, ...]
    next: int | None


class _Group:
    """The results of one task on one device model."""

    def __init__(self, of: Any, model: str) -> None:
        self.task = of
        self.model = model
        self.times: dict[str, list[Any]] = defaultdict(list)
        self.failed: dict[str, Any] = {}
        self.advised: list[Any] = []

    def add(self, row: Any) -> None:
        if row.error is None:
            self.times[row.config_digest].append(row)
        elif row.error in _REFUTING or row.config_digest not in self.failed:
            self.failed[row.config_digest] = row  # a refutation outlasts later failures

    def close(self) -> None:
        """Leave out what gave a wrong answer once, and failures of what ran another time."""
        for digest, row in list(self.failed.items()):
            if row.error in _REFUTING:
                self.times.pop(digest, None)
            elif digest in self.times:
                del self.failed[digest]

    @property
    def newest(self) -> float:
        rows = [*(rows[-1] for rows in self.times.values()), *self.advised]
        return max((r.recorded_at for r in rows), default=0.0)

    def ranked(self) -> list[tuple[float | None, Any]]:
        """Time and newest row of each configuration: the measured ones, the fastest first, then advice."""
        timed = [
            (statistics.median(r.median_s for r in rows), rows[-1]) for rows in self.times.values()
        ]
        timed.sort(key=lambda found: (found[0], found[1].config_digest))
        seen = set(self.times) | set(self.failed)
        advised = [r for r in reversed(self.advised) if r.config_digest not in seen]
        return [*timed, *((None, r) for r in advised)]


def find_best(
    connection: sa.Connection, tool: str, asked: ForeignQuestion, namespace: str
) -> ForeignBest:
    """The best known configurations of a problem."""
    which = {"digest": asked.workload.digest, "namespace": namespace}
    tasks = [
        t for t in connection.execute(_OF_PROBLEM, which)
        if t.implementation.startswith(f"{tool}:") and (asked.version is None or t.version in (asked.version, UNKNOWN))
    ]  # fmt: skip
    return _rank(_groups(connection, tasks), asked)


def find_problems(
    connection: sa.Connection,
    tool: str,
    kernel: str,
    asked: ForeignTerms,
    namespace: str,
    *,
    page: int,
    cursor: int | None = None,
) -> ForeignProblems:
    """The best known configurations of each problem of a kernel, on the likest device: a page."""
    query = _tasks(tool, namespace, asked.version).where(workload.c.op == f"{tool}.{kernel}")
    ids = query.with_only_columns(workload.c.id).group_by(workload.c.id)
    if cursor is not None:
        ids = ids.where(workload.c.id < cursor)
    found = connection.scalars(ids.order_by(workload.c.id.desc()).limit(page + 1)).all()
    query = query.where(workload.c.id.in_(found[:page])).order_by(workload.c.id.desc())
    tasks = connection.execute(query).all()
    by_problem: dict[str, list[_Group]] = {t.key: [] for t in tasks}
    for group in _groups(connection, tasks):
        by_problem[group.task.key].append(group)
    problems = []
    for key, groups in by_problem.items():
        best = _rank(groups, asked)
        places = [(a.likeness, a.device_model) for a in best.answers]
        likest = best.answers[: places.count(places[0])] if places else ()
        problems.append(ForeignProblem(workload=key, answers=likest, failed=best.failed))
    return ForeignProblems(
        problems=tuple(problems), next=found[page - 1] if len(found) > page else None
    )


def _rank(groups: list[_Group], asked: ForeignTerms) -> ForeignBest:
    """The answers of one problem's groups."""
    arch = asked.architecture or arch_of_model(asked.device_model)
    likest = list(Likeness)
    rank = {
        id(g): likest.index(_likeness(g, asked.device_model, arch)) for g in groups
    }  # fmt: skip
    # Of one device those of the asked source precede newer ones of an unknown source.
    other = {id(g): asked.version not in (None, g.task.version) for g in groups}
    groups.sort(key=lambda g: (rank[id(g)], other[id(g)], -g.newest, -g.task.id))
    found = [(g, *one) for g in groups for one in g.ranked()][: asked.limit]
    answers = tuple(_answer(g, took, row, likest[rank[id(g)]]) for g, took, row in found)
    own = [r for g in groups if asked.failures and rank[id(g)] == 0 for r in g.failed.values()]
    return ForeignBest(answers=answers, failed=tuple(Config(r.config) for r in own[:MAX_ANSWERS]))


def list_kernels(
    connection: sa.Connection,
    tool: str | None,
    namespace: str | None,
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    limit: int = 100,
    cursor: int | None = None,
) -> ForeignList:
    """A page of the kernels of one tool, or of all; of one namespace, or of all."""
    query = _tasks(tool, namespace)
    if kernel is not None:
        query = query.where(task.c.implementation.endswith(f":{kernel}", autoescape=True))
    if cursor is not None:
        query = query.where(task.c.id < cursor)
    tasks = connection.execute(query.order_by(task.c.id.desc()).limit(limit + 1)).all()
    shown = _readable(connection, tasks[:limit])
    last = shown[-1].id if len(shown) < len(tasks) else None
    groups = [g for g in _groups(connection, shown) if device_model in (None, g.model)]
    groups.sort(key=lambda g: (-g.task.id, -g.newest, g.model))
    first = [(g, g.ranked()) for g in groups]
    kernels = tuple(
        ForeignKernel(
            task_id=g.task.id, workload=g.task.key,
            best=_answer(g, *ranked[0], Likeness.MODEL) if ranked else None,
            candidates=len(ranked), failures=len(g.failed),
            slowest_s=max((t for t, _ in ranked if t is not None), default=None),
        )
        for g, ranked in first
    )  # fmt: skip
    return ForeignList(kernels=kernels, next=last)


def _readable(connection: sa.Connection, tasks: Sequence[Any]) -> Sequence[Any]:
    """The first tasks whose results are at most `MAX_ROWS`, so that none is cut off; at least one task."""
    sizes: Counter[int] = Counter()
    for table in (record, advice):
        query = sa.select(table.c.task_id, sa.func.count()).group_by(table.c.task_id)
        for task_id, rows in connection.execute(query.where(table.c.task_id.in_([t.id for t in tasks]))):
            sizes[task_id] += rows
    total = list(accumulate(sizes[t.id] for t in tasks))
    return tasks[: max(1, sum(rows <= MAX_ROWS for rows in total))]


_TASKS = (
    sa.select(
        *task.c["id", "implementation", "version"], workload.c.key, target.c.key.label("target"),
        target.c.body.label("body"),
    )
    .join(workload, workload.c.id == task.c.workload_id)
    .join(target, target.c.id == task.c.target_id)
)  # fmt: skip
# Made once, as making a statement takes longer than executing it.
_OF_PROBLEM = _TASKS.where(
    workload.c.digest == sa.bindparam("digest"), task.c.namespace == sa.bindparam("namespace")
)


def _tasks(tool: str | None, namespace: str | None, version: str | None = None) -> sa.Select[Any]:
    of_tool = (
        task.c.implementation.contains(":") if tool is None
        else task.c.implementation.startswith(f"{tool}:", autoescape=True)
    )  # fmt: skip
    return _TASKS.where(
        of_tool, sa.true() if namespace is None else task.c.namespace == namespace,
        sa.true() if version is None else task.c.version.in_((version, UNKNOWN)),
    )  # fmt: skip


def _results(table: sa.Table, *more: str) -> sa.Select[Any]:
    """The newest results of tasks, the newest first."""
    return (
        sa.select(*table.c[*_COLUMNS, *more], device.c.model)
        .outerjoin(device, device.c.id == table.c.device_id)
        .where(table.c.task_id.in_(sa.bindparam("tasks", expanding=True)))
        .order_by(table.c.id.desc())
        .limit(MAX_ROWS)
    )


_TIMED = _results(record, "error", "median_s").where(standing())
_ADVISED = _results(advice)


def _groups(connection: sa.Connection, tasks: Iterable[Any]) -> list[_Group]:
    by_id = {t.id: t for t in tasks}
    groups: dict[tuple[int, str], _Group] = {}
    if not by_id:
        return []

    def group_of(row: Any) -> _Group:
        place = row.task_id, row.model or ""
        if place not in groups:
            groups[place] = _Group(by_id[row.task_id], place[1])
        return groups[place]

    which = {"tasks": list(by_id)}
    for row in reversed(connection.execute(_TIMED, which).all()):
        group_of(row).add(row)
    for row in reversed(connection.execute(_ADVISED, which).all()):
        group_of(row).advised.append(row)
    for group in groups.values():
        group.close()
    return list(groups.values())


def _likeness(group: _Group, model: str, arch: str) -> Likeness:
    if model and group.model == model:
        return Likeness.MODEL
    own = group.task.body.get("arch") or group.task.body.get("mcpu") or arch_of_model(group.model)
    return Likeness.ARCHITECTURE if arch and own == arch else Likeness.OTHER


def _answer(group: _Group, took: float | None, row: Any, likeness: Likeness) -> ForeignAnswer:
    return ForeignAnswer(
        implementation=group.task.implementation, version=group.task.version,
        config=Config(row.config), median_s=took, likeness=likeness, device_model=group.model,
        target=group.task.target, source=row.source, worker=row.origin_worker or "",
        measured_at=row.measured_at, recorded_at=row.recorded_at,
        extra=msgspec.json.decode(row.extra) if row.extra else None,
    )  # fmt: skip
