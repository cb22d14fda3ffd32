"""Ids of what imported records refer to: inserted once, and cached once their batch is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from service.formats import ImportedRecord
from service.formats.entry import Task, remembered
from service.store import catalogue
from service.store.sql import given_table, one_trip, values_of
from service.store.tables import task, workload
from strategy.record import Device, TimingPolicy, encode
from strategy.target import Target

MAX_KNOWN = 20_000  # ids of a kind


class KnownIds:
    """Ids of tasks, targets, devices, environments and policies of one database."""

    def __init__(self) -> None:
        # By namespace and key: task, variant, target.
        self._tasks: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._targets: dict[str, tuple[int, int]] = {}  # by the digest of the JSON: target, variant
        self._devices: dict[bytes, int] = {}  # by the whole description: an identity may get another
        self._models: dict[str, int] = {}  # devices of which only the model is known
        self._environments: dict[bytes, int] = {}
        self._policies: dict[TimingPolicy, int] = {}
        self._all: tuple[dict[Any, Any], ...] = (
            self._tasks, self._targets, self._devices, self._models, self._environments, self._policies,
        )  # fmt: skip

    def forget(self, most: int = 0) -> None:
        """Discard each kind of which there are more than `most`: all, after a rollback."""
        for ids in self._all:
            if len(ids) > most:
                ids.clear()

    def put_tasks(
        self, connection: sa.Connection, items: Sequence[ImportedRecord], where: str
    ) -> set[int]:
        """The ids of the records' tasks, inserted in a fixed order, against deadlocks between imports."""
        tasks = {i.task.key: i.task for i in items}
        fresh = {key: t for key, t in tasks.items() if (where, key) not in self._tasks}
        if fresh:
            self._put_fresh(connection, fresh, where)
        return {self._tasks[where, key][0] for key in tasks}

    def _put_fresh(self, connection: sa.Connection, tasks: Mapping[str, Task], where: str) -> None:
        # Most records share a few targets.
        written: dict[str, Target] = {}
        digests: dict[str, str] = {}
        for key, t in tasks.items():
            digests[key] = catalogue.digest_of(t.target.to_json())
            written[digests[key]] = t.target
        self._put_targets(connection, written)
        on = {key: self._targets[digests[key]][0] for key in tasks}
        identities = {key: _identity(on[key], t, where) for key, t in tasks.items()}
        known = _find_whole(connection, identities.values())
        ids = {key: known.get(identity) for key, identity in identities.items()}
        left = {key: tasks[key] for key, task_id in ids.items() if task_id is None}
        if left:
            workload_ids = catalogue.put_workloads(connection, [t.workload for t in left.values()])
            values = [(workload_ids[t.workload.digest], on[key], t) for key, t in left.items()]
            ids |= zip(left, catalogue.put_foreign_tasks(connection, values, where), strict=True)
        for key, task_id in ids.items():
            assert task_id is not None
            target_id, variant_id = self._targets[digests[key]]
            self._tasks[where, key] = task_id, variant_id, target_id

    def _put_targets(self, connection: sa.Connection, written: dict[str, Target]) -> None:
        """The ids of rows by the digest of their JSON."""
        fresh = written.keys() - self._targets.keys()
        target_ids = {
            d: catalogue.put_target(connection, written[d])
            for d in sorted(fresh, key=lambda d: (written[d].key, d))
        }
        for d in sorted(fresh):
            variant_id = catalogue.put_variant(
                connection, target_ids[d], written[d].keys, written[d].to_json()
            )
            self._targets[d] = target_ids[d], variant_id

    def put_places(
        self, connection: sa.Connection, items: Sequence[ImportedRecord], where: str
    ) -> list[tuple[int | None, ...]]:
        """The ids of each record's task, variant, device, environment and policy."""
        known: dict[Any, tuple[int | None, ...]] = {}  # by their identities, as readers give one object for equal parts
        found = []
        for item in items:
            environment = id(item.environment) if item.environment else None
            key = id(item.task), id(item.device), item.device_model, environment, id(item.policy)
            place = known.get(key)
            if place is None:
                place = known[key] = self._put_place(connection, item, where)
            found.append(place)
        return found

    def _put_place(self, connection: sa.Connection, item: ImportedRecord, where: str) -> tuple[int | None, ...]:
        task_id, variant_id, target_id = self._tasks[where, item.task.key]
        environment_id = None
        if item.environment:
            environment_id = remembered(
                self._environments, encode(item.environment),
                lambda: catalogue.put_environment(connection, item.environment),
            )  # fmt: skip
        policy_id, policy = None, item.policy
        if policy is not None:
            policy_id = remembered(
                self._policies, policy, lambda: catalogue.put_policy(connection, policy)
            )
        device_id = self._device(connection, item, target_id)
        return task_id, variant_id, device_id, environment_id, policy_id

    def _device(self, connection: sa.Connection, item: ImportedRecord, target_id: int) -> int | None:
        given = item.device
        if given is not None:
            return remembered(
                self._devices, encode(given), lambda: _put_device(connection, given)
            )
        if not item.device_model:
            return None
        # Only the device model is known: one row stands for all such devices.
        return remembered(
            self._models, item.device_model,
            lambda: catalogue.put_device(
                connection, f"model:{catalogue.digest_of(item.device_model)}", "", item.device_model,
                target_id, item.task.target.to_json(), {},
            ),
        )  # fmt: skip


def _put_device(connection: sa.Connection, given: Device) -> int:
    return catalogue.put_device(
        connection, given.identity, given.slot, given.model,
        catalogue.put_target(connection, given.target), given.target.to_json(), given.fingerprint,
    )  # fmt: skip


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
