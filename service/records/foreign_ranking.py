"""Ranking of other tools' results by the likeness of their devices.

Times of different device models are never compared: answers are in order of device models, the likest first. Within one
measured configurations precede advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, islice
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Meta

from service.formats.gpu import arch_of_model
from service.records.best import read_configs
from service.records.foreign_reading import BODIES, SIZES, Group, read_each
from service.store.tables import advice, record
from service.store.text import read_json
from strategy.record import AskedWorkload
from strategy.space import Config

MAX_ANSWERS = 1000
MAX_SIZE = 16 << 20  # characters of configurations and extra fields in one page


class Likeness(StrEnum):
    """Likeness of a result's device to the asked one, the closest first."""

    MODEL = "model"
    ARCHITECTURE = "architecture"
    OTHER = "other"


class ForeignTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device and the source for which configurations are asked, and how many.

    `architecture` (`sm_90`, `gfx942`) is derived from a well-known `device_model`. `version`, a digest of the
    kernel's source, excludes results of other known sources. `failures` asks for the configurations that
    failed on devices of this model, too, at most `limit` of them.
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


class Ranked(msgspec.Struct, frozen=True):
    """A result by its place among those of its problem; `took` is None for advice."""

    group: Group
    took: float | None
    row: Any
    likeness: Likeness


class Ranking(msgspec.Struct, frozen=True):
    """The results of a problem that are answered, the best first, and rows of failures."""

    best: list[Ranked]
    failed: list[Any]

    def of_likest(self) -> Ranking:
        """The results of the likest device that has any."""
        places = [(r.likeness, r.group.model) for r in self.best]
        return Ranking(self.best[: places.count(places[0])] if places else [], self.failed)


def rank(groups: list[Group], asked: ForeignTerms) -> Ranking:
    """Rank the results of one problem's groups."""
    arch = asked.architecture or arch_of_model(asked.device_model)
    likest = list(Likeness)
    likeness = {id(g): _likeness(g, asked.device_model, arch) for g in groups}
    # Of one device those of the asked source precede faster ones of an unknown source.
    other = {id(g): asked.version not in (None, g.task.version) for g in groups}
    groups.sort(key=lambda g: (likest.index(likeness[id(g)]), other[id(g)], -g.newest, -g.task.id))
    models = list(dict.fromkeys((likeness[id(g)], g.model) for g in groups))
    found = [Ranked(g, *one, likeness[id(g)]) for g in groups for one in g.ranked()]
    found.sort(
        key=lambda r: (
            models.index((r.likeness, r.group.model)), other[id(r.group)], r.took is None, r.took or 0.0,
        )
    )
    own = [g for g in groups if asked.failures and likeness[id(g)] is Likeness.MODEL]
    failed = [r for g in own for r in g.failed.values()][: asked.limit]
    return Ranking(found[: asked.limit], failed)


def _likeness(group: Group, model: str, arch: str) -> Likeness:
    if model and group.model == model:
        return Likeness.MODEL
    own = group.task.body.get("arch") or group.task.body.get("mcpu") or arch_of_model(group.model)
    return Likeness.ARCHITECTURE if arch and own == arch else Likeness.OTHER


def read_best(connection: sa.Connection, rankings: list[Ranking]) -> list[ForeignBest]:
    """The answers of problems, in their order."""
    answers = iter(read_answers(connection, [r for one in rankings for r in one.best]))
    configs = read_configs(connection, [r.id for one in rankings for r in one.failed])
    return [
        ForeignBest(
            answers=tuple(islice(answers, len(one.best))),
            failed=tuple(Config(configs[r.id]) for r in one.failed),
        )
        for one in rankings
    ]


def count_fitting(connection: sa.Connection, parts: Sequence[Sequence[Ranked]]) -> int:
    """The number of first parts whose answers have at most `MAX_SIZE`; at least one."""
    sizes = iter(_read(connection, SIZES, [r for part in parts for r in part]))
    totals: Iterable[int] = accumulate(sum(row.size for row in islice(sizes, len(part))) for part in parts)
    return max(1, sum(total <= MAX_SIZE for total in totals))


def read_answers(connection: sa.Connection, ranked: Sequence[Ranked]) -> list[ForeignAnswer]:
    """The answers of results, in their order."""
    return list(map(_answer, ranked, _read(connection, BODIES, ranked)))


def _read(
    connection: sa.Connection, queries: Mapping[sa.Table, sa.Select[Any]], ranked: Sequence[Ranked]
) -> list[Any]:
    """The row of each result, by the query of its table."""
    timed = read_each(connection, queries[record], [r.row.id for r in ranked if r.took is not None])
    advised = read_each(connection, queries[advice], [r.row.id for r in ranked if r.took is None])
    return [(advised if r.took is None else timed)[r.row.id] for r in ranked]


def _read_extra(text: str) -> Any:
    try:
        return msgspec.json.decode(text)  # a long text takes an eighth of the memory of orjson
    except msgspec.ValidationError:  # 1e400, which older versions stored
        return read_json(text)


def _answer(ranked: Ranked, body: Any) -> ForeignAnswer:
    of = ranked.group
    return ForeignAnswer(
        implementation=of.task.implementation, version=of.task.version, config=Config(body.config),
        median_s=ranked.took, likeness=ranked.likeness, device_model=of.model,
        target=of.task.target, source=body.source, worker=body.origin_worker or "",
        measured_at=body.measured_at, recorded_at=ranked.row.recorded_at,
        extra=_read_extra(body.extra) if body.extra else None,
    )
