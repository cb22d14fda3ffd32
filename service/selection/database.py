"""The selection rule's queries: measurements, at the levels at which they match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from service.predict.ranker import ModelRanker
from service.records import best, tvm_history
from service.records.as_of import best_at
from service.selection.statement import (
    ADVICE,
    BEST,
    FAILED,
    FOREIGN,
    STANDING_ADVICE,
    TASKS,
    failed_at,
    of_given,
)
from service.store.namespace import DEFAULT
from service.store.sql import one_trip
from service.store.tables import Scope, advice, device, worker_device
from service.store.tables import workload as workload_table
from service.store.text import read_json
from strategy.op_strategy import Candidate
from strategy.record import Estimate, convert
from strategy.select import Advised, Failed, History, Level, Measured
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.workload import Input, Workload


class RecordDatabase:
    """`strategy.select.Database` on SQL, within one transaction.

    Args:
        together: workloads that will be selected: the first query reads the records of all.
        as_of: the instant after which records are ignored; default: now.
    """

    def __init__(
        self, connection: sa.Connection, together: Iterable[Workload] = (),
        as_of: float | None = None, namespace: str = DEFAULT,
    ) -> None:
        self.connection = connection
        self._together = {one.digest for w in together for one in (w, *w.shorter)}
        self._as_of = as_of
        self._namespace = namespace
        self._known: dict[str, dict[str, list[Any]]] = {}
        self._places: dict[str, tuple[str, str] | None] = {}
        self._keys: dict[str, frozenset[str]] = {}  # of all variants of a target, by its key
        self._configs: dict[str, Config] = {}  # by their digests

    @cached_property
    def ranker(self) -> ModelRanker | None:
        """The cost models; None for as-of queries and namespaces other than the default."""
        modelled = self._as_of is None and self._namespace == DEFAULT
        return ModelRanker(self.connection) if modelled else None

    def _read(
        self, what: str, workload: Workload, read: Callable[[set[str]], Iterable[tuple[str, Any]]]
    ) -> list[Any]:
        """The result of `read` for a workload, cached; reads all workloads of a batch in one query."""
        known = self._known.setdefault(what, {})
        if workload.digest not in known:
            foreseen = workload.digest in self._together
            asked = self._together if foreseen else {workload.digest}
            if self._as_of is None and what in _STATEMENTS:
                self._read_together(what, asked)
                return known[workload.digest]
            known.update((digest, []) for digest in asked)
            for digest, row in read(asked):
                known[digest].append(row)
        return known[workload.digest]

    def _read_together(self, what: str, digests: set[str]) -> None:
        """Read one kind of rows; on PostgreSQL with those that a selection needs next, in one round trip."""
        kinds = [what]
        if self.connection.dialect.name != "sqlite":
            kinds += [one for one in _NEXT.get(what, ()) if not digests <= self._known.get(one, {}).keys()]
        with one_trip(self.connection) as ask:
            answers = [ask(*of_given(_STATEMENTS[one], digests, self._namespace)) for one in kinds]
        for one, rows in zip(kinds, answers, strict=True):
            known = self._known.setdefault(one, {})
            known.update((digest, []) for digest in digests)
            for row in rows:
                known[row.digest].append(row)

    def measured(self, workload: Workload, target: Target, device: str | None) -> list[Measured]:
        """The best of each implementation and version at each level.

        The device model is the device's, else the target's. `target` has the best of every other device model,
        `transferred` of every device model of each other target that shares a key.
        """
        rows = self._read("best", workload, self._read_best)
        return list(self._matching(rows, target, device))

    def _read_best(self, digests: set[str]) -> Iterator[tuple[str, Any]]:
        assert self._as_of is not None  # else `_read_together` has read it
        return ((row.digest, row) for row in best_at(self.connection, digests, self._as_of, self._namespace))

    def _execute(self, query: sa.Select[Any], digests: set[str], *conditions: sa.ColumnElement[bool]) -> Sequence[Any]:
        statement, given = of_given(query, digests, self._namespace)
        return self.connection.execute(statement.where(*conditions) if conditions else statement, given).all()

    def failed(self, workload: Workload, target: Target, device: str | None) -> list[Failed]:
        """The versions of implementations that failed on the target, and have no time there."""
        return [
            Failed(implementation=r.implementation, version=r.version)
            for r in self._read("failed", workload, self._read_failed) if target.is_like(r.target)
        ]

    def _read_failed(self, digests: set[str]) -> Iterator[tuple[str, Any]]:
        assert self._as_of is not None  # else `_read_together` has read it
        found = best_at(self.connection, digests, self._as_of, self._namespace)
        timed = {(b.digest, b.target, b.implementation, b.version) for b in found}
        for row in self._execute(TASKS, digests, *failed_at(self._as_of)):
            if (row.digest, row.target, row.implementation, row.version) not in timed:
                yield row.digest, row

    def advised(self, workload: Workload, target: Target, device: str | None) -> list[Advised]:
        """The newest advice of each implementation, version, target and device model, the newest first."""
        _, model = self._place(device, target)
        found: dict[tuple[Any, ...], Advised] = {}
        for r in self._read("advice", workload, self._read_advice):
            key, keys = r.target, self._keys_of(r.target, r.target_keys)
            if target.is_like(key):
                level = Level.MODEL if model and r.model == model else Level.TARGET
            elif key.partition("/")[0] == target.kind and not keys.isdisjoint(target.keys):
                level = Level.TRANSFERRED
            else:
                continue
            found.setdefault(
                (r.implementation, r.version, key, r.model),
                Advised(
                    implementation=r.implementation, version=r.version, config=Config(r.config),
                    level=level, source=r.source, target=key, model=r.model or "",
                ),
            )
        return list(found.values())

    def _read_advice(self, digests: set[str]) -> Iterator[tuple[str, Any]]:
        assert self._as_of is not None  # else `_read_together` has read it
        rows = self._execute(ADVICE, digests, *best.stood(self._as_of, advice))
        return ((row.digest, row) for row in rows)

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> list[tuple[Workload, list[Measured]]]:
        """The concrete workloads on record that a symbolic one covers, with their measurements."""
        bodies = self.connection.execute(
            sa.select(workload_table.c.body)
            .where(
                workload_table.c.op == workload.op,
                workload_table.c.key.like(_like(workload), escape="!"),
            )
            .order_by(workload_table.c.id)
        )
        alike = [convert(body, Workload) for body in bodies.scalars()]
        covered = [w for w in alike if workload.match(w) is not None]
        self._together.update(w.digest for w in covered)
        measured = ((w, self.measured(w, target, device)) for w in covered)
        return [(w, found) for w, found in measured if found]

    def _matching(
        self, rows: Sequence[Any], asked: Target, identity: str | None
    ) -> Iterator[Measured]:
        """Measurements of the workloads, each with the level at which it matches."""
        device_id, model = self._place(identity, asked)
        own, shared = asked.key, asked.keys
        # Records of unknown device models count as one model, if a task has no others.
        modelled = {row[1:4] for row in rows if row.scope == Scope.MODEL}
        for row in rows:
            # By position, as access by name would take a quarter of the time.
            (
                _, key, implementation, version, scope, value, config, digest, median_s, low_s, high_s, samples,
                listed,
            ) = row
            alike = key == own or asked.is_like(key)
            if scope == Scope.DEVICE:
                if not alike or value != device_id:
                    continue
                level = Level.DEVICE
            elif scope == Scope.TARGET and (key, implementation, version) in modelled:
                continue  # of several device models
            elif not alike:
                # Schedules of other tools do not transfer between kinds of targets.
                strange = ":" in implementation and key.partition("/")[0] != asked.kind
                if strange or self._keys_of(key, listed).isdisjoint(shared):
                    continue
                level = Level.TRANSFERRED
            elif scope == Scope.MODEL and model and value == model:
                level = Level.MODEL
            else:
                level = Level.TARGET
            # The best of a device is mostly also that of its device model and target.
            made = self._configs.get(digest)
            if made is None:
                made = self._configs[digest] = Config(config)
            yield Measured(
                implementation=implementation, version=version, config=made, level=level, target=key,
                device=(identity or "") if level is Level.DEVICE else "",
                model=value if scope == Scope.MODEL else "",
                timed=asked.otherwise(key) if alike and key != own else "",
                estimate=Estimate(median_s, low_s, high_s, samples),
            )

    def _place(self, identity: str | None, asked: Target) -> tuple[str | None, str]:
        """The device's id in the form of `scope_value`, and its device model."""
        if identity is None:
            return None, asked.model
        if identity not in self._places:
            # The newest row of the device; records from before a change of it do not count.
            newest = sa.func.coalesce(sa.func.max(worker_device.c.worker_id), 0)
            row = self.connection.execute(
                sa.select(device.c.id, device.c.model)
                .outerjoin(worker_device, worker_device.c.device_id == device.c.id)
                .where(device.c.identity == identity)
                .group_by(device.c.id)
                .order_by(newest.desc(), device.c.id.desc())
                .limit(1)
            ).one_or_none()
            self._places[identity] = None if row is None else (str(row.id), row.model)
        return self._places[identity] or (None, asked.model)

    def _keys_of(self, target: str, listed: str) -> frozenset[str]:
        """The keys of all variants of a target, given as JSON; they are those of one moment."""
        found = self._keys.get(target)
        if found is None:
            found = self._keys[target] = frozenset(read_json(listed))
        return found

    def history(self, workload: Workload) -> list[History]:
        """The lowest mean cost per implementation, device model and target as written.

        Only the newest version of each implementation on a target counts, as TVM's rule has no versions.
        """

        def read(digests: set[str]) -> list[tuple[str, History]]:
            return tvm_history.read(self.connection, digests, self._namespace, self._as_of)

        return self._read("history", workload, read)

    def foreign(self, workload: Workload, target: Target) -> list[Candidate]:
        """Measurements of a workload in other tools' logs, as candidates on a target.

        From targets that share a key with it, in the order of their names; of each implementation, the newest version.
        """
        found = {}
        for r in self._read("foreign", workload, self._read_foreign):
            keys = self._keys_of(r.target, r.target_keys)
            if not keys.isdisjoint(target.keys):
                space = None if r.space is None else convert(r.space, ConfigSpace)
                found[r.implementation] = Candidate(
                    r.implementation, r.version, r.plevel, None, space, r.library, symbolic=False
                )
        return [found[name] for name in sorted(found)]

    def _read_foreign(self, digests: set[str]) -> Iterator[tuple[str, Any]]:
        return ((row.digest, row) for row in self._execute(FOREIGN, digests))


# The statements of current rows by kind, and the kinds that are read after another.
_STATEMENTS: Mapping[str, sa.Select[Any]] = {
    "best": BEST, "failed": FAILED, "advice": STANDING_ADVICE, "foreign": FOREIGN,
}
_NEXT: Mapping[str, Sequence[str]] = {"foreign": ("best", "advice")}  # no tool's candidates: no advice


def warm(connection: sa.Connection) -> None:
    """Compile the statements of a selection, so that the first requests need not."""
    database = RecordDatabase(connection)
    asked = Workload("nothing", (Input("data", "float32[1]"),))
    database.measured(asked, Target.parse("llvm"), None)
    database.foreign(asked, Target.parse("llvm"))


def _like(workload: Workload) -> str:
    """The LIKE pattern of the keys that a symbolic workload may cover, with any attributes."""
    inputs = []
    for given in workload.inputs:
        kind, const = given.tensor, ":const" if given.constant else ""
        shape = ",".join(str(d.value) if d.is_constant else "%" for d in kind.shape)
        inputs.append(f"{_literal(f'{given.name}={kind.dtype}')}[{shape}]{const}")
    return f"{_literal(workload.op)}({','.join(inputs)})%"


def _literal(text: str) -> str:
    return re.sub("[!%_]", r"!\g<0>", text)
