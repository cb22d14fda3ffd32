"""Ids of what imported records refer to: inserted once, and cached once their batch is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from service.formats import ImportedRecord
from service.formats.entry import Task
from service.store import catalogue
from service.store.sql import given_table, one_trip, values_of
from service.store.tables import task, workload
from strategy.record import Device, TimingPolicy, encode
from strategy.target import Target

MAX_KNOWN = 20_000  # ids of a kind

K = TypeVar("K")
V = TypeVar("V")


class Place(NamedTuple):
    """The ids that a record refers to, in the order of its columns."""

    task_id: int
    variant_id: int
    device_id: int | None
    environment_id: int | None
    policy_id: int | None


class KnownIds:
    """Ids of tasks, targets, devices, environments and policies of one database."""

    def __init__(self) -> None:
        # By namespace and key: task, variant, target.
        self._tasks: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._targets: dict[str, int] = {}  # by the digest of the JSON
        self._variants: dict[str, int] = {}  # by the same
        self._devices: dict[bytes, int] = {}  # by the whole description: an identity may get another
        self._models: dict[str, int] = {}  # devices of which only the model is known
        self._environments: dict[bytes, int] = {}
        self._policies: dict[TimingPolicy, int] = {}
        self._all: tuple[dict[Any, Any], ...] = (
            self._tasks, self._targets, self._variants, self._devices, self._models, self._environments,
            self._policies,
        )

    def forget(self, most: int = 0) -> None:
        """Discard each kind of which there are more than `most`: all, after a rollback."""
        for ids in self._all:
            if len(ids) > most:
                ids.clear()

    def lacks_device(self, items: Iterable[ImportedRecord]) -> bool:
        """Return whether one of the records' devices is not known yet."""
        devices = {id(i.device): i.device for i in items if i.device is not None}
        return any(encode(d) not in self._devices for d in devices.values())

    def put_places(
        self, connection: sa.Connection, items: Sequence[ImportedRecord], where: str
    ) -> tuple[list[Place], dict[int, Any]]:
        """The place of each record, in their order; and spaces of tasks that may lack them (`catalogue.fill_spaces`).

        Missing rows are inserted table by table, each in a fixed order, against deadlocks: with other imports, and
        with reports, which insert environments first, too, and lock tasks last.
        """
        firsts: dict[Any, ImportedRecord] = {}  # by their identities, as readers give one object for equal parts
        keys = []
        for item in items:
            environment = id(item.environment) if item.environment else None
            key = id(item.task), id(item.device), item.device_model, environment, id(item.policy)
            firsts.setdefault(key, item)
            keys.append(key)
        distinct = list(firsts.values())
        devices = {id(i.device): i.device for i in distinct if i.device is not None}
        environments = {id(i.environment): i.environment for i in distinct if i.environment}
        texts = {key: encode(part) for key, part in (*devices.items(), *environments.items())}
        fresh = _missing(self._environments, ((texts[key], part) for key, part in environments.items()))
        self._environments |= catalogue.put_environments(connection, fresh)
        described = _missing(self._devices, ((texts[key], part) for key, part in devices.items()))
        spaces = self._put_tasks(connection, {i.task.key: i.task for i in distinct}, where, described.values())
        policies = _missing(self._policies, ((i.policy, i.policy) for i in distinct if i.policy is not None))
        for policy in sorted(policies, key=encode):
            self._policies[policy] = catalogue.put_policy(connection, policy)
        self._put_devices(connection, described)
        self._put_models(connection, distinct, where)
        places = {key: self._place(item, where, texts) for key, item in firsts.items()}
        return [places[key] for key in keys], spaces

    def _place(self, item: ImportedRecord, where: str, texts: Mapping[int, bytes]) -> Place:
        """The place of a record; `texts` are encoded parts by their identities."""
        task_id, variant_id, _ = self._tasks[where, item.task.key]
        device_id = None
        if item.device is not None:
            device_id = self._devices[texts[id(item.device)]]
        elif item.device_model:
            device_id = self._models[item.device_model]
        environment_id = self._environments[texts[id(item.environment)]] if item.environment else None
        policy_id = None if item.policy is None else self._policies[item.policy]
        return Place(task_id, variant_id, device_id, environment_id, policy_id)

    def _put_tasks(
        self, connection: sa.Connection, tasks: Mapping[str, Task], where: str, devices: Iterable[Device]
    ) -> dict[int, Any]:
        """Put tasks by their keys, with their targets and those of devices; return spaces that they may lack."""
        tasks = {key: t for key, t in tasks.items() if (where, key) not in self._tasks}
        digests = {key: catalogue.digest_of(t.target.to_json()) for key, t in tasks.items()}
        written = {digests[key]: t.target for key, t in tasks.items()}  # most tasks share a few
        self._put_targets(connection, written | {_digest(d): d.target for d in devices})
        for digest in sorted(written.keys() - self._variants.keys()):
            target = written[digest]
            self._variants[digest] = catalogue.put_variant(
                connection, self._targets[digest], target.keys, target.to_json()
            )
        spaces: dict[int, Any] = {}
        if not tasks:
            return spaces
        on = {key: self._targets[digest] for key, digest in digests.items()}
        identities = {key: _identity(on[key], t, where) for key, t in tasks.items()}
        known = _find_whole(connection, identities.values())
        ids = {key: known.get(identity) for key, identity in identities.items()}
        left = {key: tasks[key] for key, task_id in ids.items() if task_id is None}
        if left:
            workload_ids = catalogue.put_workloads(connection, [t.workload for t in left.values()])
            values = [(workload_ids[t.workload.digest], on[key], t) for key, t in left.items()]
            put, spaces = catalogue.put_foreign_tasks(connection, values, where)
            ids |= zip(left, put, strict=True)
        for key, task_id in ids.items():
            assert task_id is not None
            self._tasks[where, key] = task_id, self._variants[digests[key]], on[key]
        return spaces

    def _put_targets(self, connection: sa.Connection, targets: Mapping[str, Target]) -> None:
        """Put targets by the digests of their JSON."""
        for digest in sorted(targets.keys() - self._targets.keys(), key=lambda d: (targets[d].key, d)):
            self._targets[digest] = catalogue.put_target(connection, targets[digest])

    def _put_devices(self, connection: sa.Connection, devices: Mapping[bytes, Device]) -> None:
        """Put devices by their descriptions; their targets are there. In the order of registrations."""
        for described, d in sorted(devices.items(), key=lambda i: (i[1].target.key, i[1].identity, i[0])):
            self._devices[described] = catalogue.put_device(
                connection, d.identity, d.slot, d.model, self._targets[_digest(d)], d.target.to_json(), d.fingerprint
            )

    def _put_models(self, connection: sa.Connection, items: Sequence[ImportedRecord], where: str) -> None:
        """Put one device for each model of which only the name is known, which stands for all such devices."""
        first: dict[str, Task] = {}
        for i in items:
            if i.device is None and i.device_model:
                first.setdefault(i.device_model, i.task)
        for model in sorted(first.keys() - self._models.keys()):
            t = first[model]
            self._models[model] = catalogue.put_device(
                connection, f"model:{catalogue.digest_of(model)}", "", model, self._tasks[where, t.key][2],
                t.target.to_json(), {},
            )


def _missing(known: Mapping[K, Any], found: Iterable[tuple[K, V]]) -> dict[K, V]:
    return {key: value for key, value in found if key not in known}


def _digest(of: Device) -> str:
    return catalogue.digest_of(of.target.to_json())


_WITHIN = ("target_id", "implementation", "version", "space_digest", "namespace")  # identify a task of a workload


def _identity(target_id: int, t: Task, where: str) -> tuple[Any, ...]:
    return t.workload.digest, target_id, t.implementation, t.version, t.space, where


def _find_whole(connection: sa.Connection, identities: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    """The ids of tasks by identity, without those that lack their space.

    One query finds workloads and tasks, as the tasks of most small imports exist.
    """
    with one_trip(connection) as ask:
        found = ask(_whole(connection.dialect.name), {"rows": values_of(identities)})
    return {tuple(row[1:]): row[0] for row in found}


@cache
def _whole(dialect: str) -> sa.Select[Any]:
    given = given_table(dialect, [workload.c.digest, *task.c[_WITHIN]])
    same = (task.c.workload_id == workload.c.id, *(task.c[name] == given.c[name] for name in _WITHIN))
    return (
        sa.select(task.c.id, *given.c)
        .join_from(given, workload, workload.c.digest == given.c.digest)
        .join(task, sa.and_(*same))
        .where(sa.or_(task.c.space_digest == sa.literal_column("''"), task.c.space.is_not(sa.null())))
    )
