"""Rows that stand for values: one each for a workload, target, policy, environment and task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from service.db import insert, now
from service.models import environment, event, target, task, timing_policy, workload
from strategy.op_strategy import Candidate
from strategy.record import TimingPolicy, to_json
from strategy.target import Target
from strategy.workload import Workload

# Counting the valid configurations of a space takes time; beyond this they are not counted.
COUNT_LIMIT = 20_000


def digest_of(data: Any) -> str:
    """32 hexadecimal digits of the SHA-256 of the canonical JSON."""
    text = orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:32]


def _one(
    connection: sa.Connection, table: sa.Table, identity: Mapping[str, Any], values: Mapping[str, Any]
) -> int:
    """The id of the row that `identity` names, made with `values` where there is none."""
    query = sa.select(table.c.id).where(*(table.c[name] == v for name, v in identity.items()))
    found = connection.scalar(query)
    if found is None:
        statement = insert(connection, table).values(**identity, **values).on_conflict_do_nothing()
        connection.execute(statement)
        found = connection.execute(query).scalar_one()
    return int(found)


def put_workload(connection: sa.Connection, value: Workload) -> int:
    body = {"key": value.key, "op": value.op, "body": to_json(value)}
    return _one(connection, workload, {"digest": value.digest}, body)


def put_target(connection: sa.Connection, value: Target) -> int:
    body = {"keys": list(value.keys), "body": value.to_json()}
    return _one(connection, target, {"key": value.key}, body)


def put_policy(connection: sa.Connection, value: TimingPolicy) -> int:
    body = to_json(value)
    return _one(connection, timing_policy, {"digest": digest_of(body)}, {"body": body})


def find_policy(connection: sa.Connection, value: TimingPolicy) -> int | None:
    """The id of a policy, None where nothing was ever timed under it."""
    query = sa.select(timing_policy.c.id).where(timing_policy.c.digest == digest_of(to_json(value)))
    return connection.scalar(query)


def put_environment(connection: sa.Connection, value: Mapping[str, Any]) -> int:
    body = dict(value)
    values = {"body": body, "created_at": now()}
    return _one(connection, environment, {"digest": digest_of(body)}, values)


def put_task(
    connection: sa.Connection, workload_id: int, target_id: int, candidate: Candidate,
    space_size: int | None,
) -> int:  # fmt: skip
    """The task of a candidate; its version is part of what it is."""
    identity = {
        "workload_id": workload_id,
        "target_id": target_id,
        "implementation": candidate.implementation,
        "version": candidate.version,
    }
    condition, space = candidate.condition, candidate.space
    known = connection.scalar(
        sa.select(task.c.id).where(*(task.c[name] == v for name, v in identity.items()))
    )
    if known is not None:
        # What is not part of the version may change: the level, the derived features.
        connection.execute(
            sa.update(task)
            .where(task.c.id == known)
            .values(plevel=candidate.plevel, space=None if space is None else space.to_json())
        )
        return int(known)
    values = {
        "plevel": candidate.plevel,
        "library": candidate.library,
        "condition": None if condition is None else condition.to_json(),
        "space": None if space is None else space.to_json(),
        "space_size": space_size,
        "created_at": now(),
    }
    return _one(connection, task, identity, values)


def note(
    connection: sa.Connection,
    kind: str,
    *,
    run_id: int | None = None,
    job_id: int | None = None,
    worker_id: int | None = None,
    **detail: Any,
) -> None:
    """Appends an event: what changed, beside the state that it changed."""
    connection.execute(
        sa.insert(event).values(
            at=now(), kind=kind, run_id=run_id, job_id=job_id, worker_id=worker_id, detail=detail
        )
    )
