"""Rows of values: one for each workload, target, policy, environment and task."""
# Over 300 lines: each kind of value that records refer to.

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from service.errors import InvalidError
from service.formats.admission import MAX_KEY
from service.formats.entry import Task as ImportedTask
from service.store.namespace import DEFAULT, key_within
from service.store.row_cache import by_id, recall
from service.store.sql import among, given_table, insert, now, values_of, values_table
from service.store.tables import (
    attachment,
    device,
    environment,
    target,
    target_variant,
    task,
    timing_policy,
    workload,
)
from service.store.text import json_bytes
from strategy.op_strategy import Candidate
from strategy.record import TimingPolicy, to_json
from strategy.target import Target
from strategy.workload import Workload

# Counting the valid configurations of a space takes time; beyond this they are not counted.
COUNT_LIMIT = 20_000


def digest_of(data: Any) -> str:
    """32 hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(json_bytes(data, orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _one(
    connection: sa.Connection, table: sa.Table, identity: Mapping[str, Any], values: Mapping[str, Any]
) -> int:
    """The id of the row with `identity`, inserted with `values` if there is none."""
    query = sa.select(table.c.id).where(*(table.c[name] == v for name, v in identity.items()))
    found = connection.scalar(query)
    if found is None:
        statement = insert(connection, table).values(**identity, **values).on_conflict_do_nothing()
        found = connection.scalar(statement.returning(table.c.id))
    if found is None:  # inserted concurrently
        found = connection.execute(query).scalar_one()
    return int(found)


def _many(
    connection: sa.Connection, table: sa.Table, identity: Sequence[str], rows: Iterable[dict[str, Any]]
) -> dict[tuple[Any, ...], int]:
    """The ids of rows by identity, in a few statements; missing ones are inserted.

    They are inserted in a fixed order, against deadlocks; tasks of one implementation in the given one, as their ids
    tell which version is the newest. Of two imports that have them in opposite orders one may be repeated.
    """
    wanted = {tuple(row[name] for name in identity): row for row in rows}
    found = _find(connection, table, identity, wanted)
    missing = [key for key in wanted if key not in found]
    missing.sort(key=_in_order if table is task else None)
    if missing:
        statement = insert(connection, table).on_conflict_do_nothing()
        if "created_at" in table.c:
            statement = statement.values(created_at=now())
        connection.execute(statement, [wanted[key] for key in missing])
        found |= _find(connection, table, identity, missing)
    return found


def _in_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The workload and the implementation of a task's identity."""
    return key[0], key[2]


def _find(
    connection: sa.Connection, table: sa.Table, identity: Sequence[str], keys: Collection[tuple[Any, ...]]
) -> dict[tuple[Any, ...], int]:
    rows = connection.execute(_found(connection.dialect.name, table, tuple(identity)), {"rows": values_of(keys)}).all()
    return {tuple(row[1:]): row[0] for row in rows}


@cache
def _found(dialect: str, table: sa.Table, identity: tuple[str, ...]) -> sa.Select[Any]:
    given = given_table(dialect, [table.c[name] for name in identity])
    return sa.select(table.c.id, *table.c[identity]).join(given, sa.and_(*(table.c[c.name] == c for c in given.c)))


def put_workload(connection: sa.Connection, value: Workload) -> int:
    return put_workloads(connection, [value])[value.digest]


def put_workloads(connection: sa.Connection, values: Iterable[Workload]) -> dict[str, int]:
    """The workloads' ids by their digests."""
    rows = [
        {"digest": w.digest, "key": w.key, "op": w.op, "body": to_json(w)} for w in values
    ]
    found = _many(connection, workload, ("digest",), rows)
    return {digest: row_id for (digest,), row_id in found.items()}


def find_workload_keys(connection: sa.Connection, ids: Collection[int]) -> list[str]:
    return list(connection.scalars(sa.select(workload.c.key).where(workload.c.id.in_(ids))))


def put_target(connection: sa.Connection, value: Target) -> int:
    """The row of a target's key, with the keys of all its variants, and with libraries once one has them.

    Raises `InvalidError` if its key is too long for an index.
    """
    if len(value.key.encode()) > MAX_KEY:
        raise InvalidError(f"target: its key is longer than {MAX_KEY} bytes: leave out features")
    body = {"keys": list(value.keys), "body": value.to_json()}
    target_id = _one(connection, target, {"key": value.key}, body)
    query = sa.select(*target.c["keys", "body"]).where(target.c.id == target_id)
    known, written = connection.execute(query).one()
    if not set(value.keys) <= set(known):
        # Serialise concurrent additions of keys.
        known, written = connection.execute(query.with_for_update(key_share=True)).one()
        keys = list(dict.fromkeys([*known, *value.keys]))
        connection.execute(sa.update(target).where(target.c.id == target_id).values(keys=keys))
    if value.libs and "libs" not in written:
        # The first variant may have been without, as the host of a target in a network is.
        connection.execute(sa.update(target).where(target.c.id == target_id).values(body=body["body"]))
    return target_id


def put_variant(
    connection: sa.Connection, target_id: int, keys: Sequence[str], body: Mapping[str, Any]
) -> int:
    """The variant of a target as written: its keys and its complete JSON."""
    values = {"target_id": target_id, "keys": list(keys), "body": dict(body)}
    return _one(connection, target_variant, {"digest": digest_of(body)}, values)


def put_policy(connection: sa.Connection, value: TimingPolicy) -> int:
    body = to_json(value)
    return _one(connection, timing_policy, {"digest": _policy_digest(value)}, {"body": body})


def find_policy(connection: sa.Connection, value: TimingPolicy) -> int | None:
    """The id of a policy, None if nothing was timed under it."""
    query = sa.select(timing_policy.c.id).where(timing_policy.c.digest == _policy_digest(value))
    return connection.scalar(query)


def _policy_digest(value: TimingPolicy) -> str:
    body = to_json(value)
    for name in ("cache_flush", "beaten_ratio"):  # absent in policies of older records
        if not body[name]:
            del body[name]
    return digest_of(body)


def put_environment(connection: sa.Connection, value: Mapping[str, Any]) -> int:
    body = dict(value)
    values = {"body": body, "created_at": now()}
    return _one(connection, environment, {"digest": digest_of(body)}, values)


def put_environments(connection: sa.Connection, values: Mapping[bytes, Mapping[str, Any]]) -> dict[bytes, int]:
    """The environments' ids by the keys under which they are given, inserted in a fixed order."""
    digests = {key: digest_of(dict(value)) for key, value in values.items()}
    return {key: put_environment(connection, values[key]) for key in sorted(values, key=digests.__getitem__)}


class NewTask(NamedTuple):
    """A candidate for a workload on a target.

    `space_size` is None if it has no space, or one of too many configurations to count.
    """

    workload_id: int
    target_id: int
    candidate: Candidate
    space_size: int | None


_TASK = ("workload_id", "target_id", "implementation", "version", "space_digest", "namespace")


def put_tasks(connection: sa.Connection, given: Sequence[NewTask], namespace: str = DEFAULT) -> list[int]:
    """The tasks of candidates, in order; a candidate's version is part of their identity.

    Missing ones are inserted in the order of imports. Then those that are described anew are changed in the order of
    their ids, in which reports lock them: both against deadlocks.
    """
    rows = [_task_of(one, namespace) for one in given]
    found = _many(connection, task, _TASK, rows)
    by_id = {found[tuple(row[name] for name in _TASK)]: row for row in rows}
    for known in connection.execute(_DESCRIBED, {"ids": sorted(by_id)}).all():
        # Columns that are not part of the version may change: plevel, derived features.
        described = {name: by_id[known.id][name] for name in ("plevel", "space")}
        if described != {"plevel": known.plevel, "space": known.space}:
            connection.execute(sa.update(task).where(task.c.id == known.id).values(**described))
    return [found[tuple(row[name] for name in _TASK)] for row in rows]


_DESCRIBED = sa.select(*task.c["id", "plevel", "space"]).where(among(task.c.id)).order_by(task.c.id)


def _task_of(one: NewTask, namespace: str) -> dict[str, Any]:
    """The row of a new task."""
    condition, space = one.candidate.condition, one.candidate.space
    return {
        "workload_id": one.workload_id,
        "target_id": one.target_id,
        "implementation": one.candidate.implementation,
        "version": one.candidate.version,
        "space_digest": "" if space is None else space.digest,
        "namespace": namespace,
        "plevel": one.candidate.plevel,
        "space": None if space is None else space.to_json(),
        "library": one.candidate.library,
        "condition": None if condition is None else condition.to_json(),
        "space_size": one.space_size,
    }


def put_task(
    connection: sa.Connection, workload_id: int, target_id: int, candidate: Candidate,
    space_size: int | None, namespace: str = DEFAULT,
) -> int:
    """As `put_tasks`, of one."""
    (task_id,) = put_tasks(connection, [NewTask(workload_id, target_id, candidate, space_size)], namespace)
    return task_id


def put_device(
    connection: sa.Connection, identity: str, slot: str, model: str, target_id: int,
    body: Mapping[str, Any], fingerprint: Mapping[str, Any],
) -> int:
    """The row of a device with exactly this description.

    If only the device model is known, the slot is empty, and one row stands for all such devices.
    """
    key = connection.execute(sa.select(target.c.key).where(target.c.id == target_id)).scalar_one()
    described = [slot, model, key if slot else "", dict(fingerprint)]
    values = {
        "slot": slot, "model": model, "target_id": target_id, "target": dict(body),
        "fingerprint": dict(fingerprint), "created_at": now(), "seen_at": now(),
    }
    return _one(connection, device, {"identity": identity, "digest": digest_of(described)}, values)


def find_devices(connection: sa.Connection, ids: Collection[int]) -> Mapping[int, Any]:
    """The device model and slot of devices by id, which never change, as identities do (`plevel fleet rename`)."""
    return recall(connection, "device", ids, _find_devices)


_find_devices = by_id(lambda row: row, sa.select(*device.c["id", "model", "slot"]))


def put_foreign_tasks(
    connection: sa.Connection, values: Sequence[tuple[int, int, ImportedTask]], namespace: str
) -> tuple[list[int], dict[int, Any]]:
    """The tasks of imported records, in order, given the ids of workloads and targets; with the spaces that are known.

    Existing tasks stay unchanged: `fill_spaces` gives them their spaces.
    """
    spaces = _spaces(connection, {t.space for _, _, t in values if t.space}, namespace)
    rows = [
        {
            "workload_id": workload_id, "target_id": target_id, "implementation": t.implementation,
            "version": t.version, "space_digest": t.space, "plevel": t.plevel, "library": t.library,
            "condition": None if t.condition is None else t.condition.to_json(),
            "space": spaces.get(t.space), "space_size": None, "namespace": namespace,
        }
        for workload_id, target_id, t in values
    ]
    found = _many(connection, task, _TASK, rows)
    ids = [found[tuple(row[name] for name in _TASK)] for row in rows]
    return ids, {i: row["space"] for i, row in zip(ids, rows, strict=True) if row["space"] is not None}


def _spaces(connection: sa.Connection, digests: Collection[str], namespace: str) -> dict[str, Any]:
    if not digests:
        return {}
    keys = {key_within(namespace, d): d for d in digests}
    given = values_table(connection, [attachment.c.key], [(k,) for k in sorted(keys)])
    rows = connection.execute(
        sa.select(attachment.c.key, attachment.c.text)
        .join(given, given.c.key == attachment.c.key)
        .where(attachment.c.what == "space")
    )
    return {keys[row.key]: orjson.loads(row.text) for row in rows}


def fill_spaces(connection: sa.Connection, spaces: Mapping[int, Any]) -> None:
    """Store the spaces of those tasks that have none. The caller holds the tasks' locks."""
    if not spaces:
        return
    lost = sa.select(task.c.id).where(among(task.c.id), task.c.space.is_(sa.null())).order_by(task.c.id)
    for task_id in connection.scalars(lost, {"ids": sorted(spaces)}).all():
        connection.execute(
            sa.update(task).where(task.c.id == task_id).values(space=spaces[task_id])
        )


def code_version(version: str) -> str:
    """The declared integer of a version such as `2.1a2b3c4d`, which the worker must have."""
    return version.partition(".")[0]


def code_versions(connection: sa.Connection, op: str, target_id: int, namespace: str) -> dict[str, str]:
    """The newest version on record of the code of each of an operator's implementations on a target."""
    seen = connection.execute(
        sa.select(*task.c["implementation", "version"], sa.func.max(task.c.id).label("id"))
        .join(workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == op, task.c.target_id == target_id, task.c.namespace == namespace)
        .group_by(task.c.implementation, task.c.version)
    ).all()

    by_age = sorted(seen, key=lambda one: age(one.version, one.id))
    return {one.implementation: code_version(one.version) for one in by_age}


def age(version: str, task_id: int) -> tuple[int, int]:
    """The place of a task among those of other versions of an implementation, the newest last.

    An import of an old log has the highest id, and not the highest version.
    """
    code = code_version(version)
    return (int(code) if code.isdecimal() else -1), task_id  # another tool's, which is no number, comes first
