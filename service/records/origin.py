"""Origin and identity of records: the job and run that they are of, and what tells two attempts apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa

from service.formats.entry import config_key, identity, task_key
from service.store import catalogue
from service.store.namespace import within
from service.store.row_cache import by_id, recall
from service.store.sql import Ask, among, now
from service.store.tables import advice, job, record, run, task
from service.store.tables import workload as workload_table
from strategy.target import Target


@dataclass(frozen=True)
class Origin:
    """The columns of a run that its records need: the target as requested, and its row."""

    target: dict[str, Any]
    namespace: str
    variant_id: int


def owner_columns(of: sa.sql.base.ReadOnlyColumnCollection[str, Any]) -> tuple[sa.ColumnElement[Any], ...]:
    """The columns of a record that its job has, given by the job's columns, and the time."""
    return *of["id", "run_id", "target_id", "policy_id", "phase", "seed"], now().label("now")


_OWNERS = sa.select(*owner_columns(job.c)).where(among(job.c.id))


def find_owners(connection: sa.Connection, jobs: Collection[int]) -> dict[int, tuple[Any, Origin]]:
    """The jobs, each with its run."""
    return with_origins(connection, connection.execute(_OWNERS, {"ids": jobs}).all())


def with_origins(connection: sa.Connection, jobs: Collection[Any]) -> dict[int, tuple[Any, Origin]]:
    """The jobs by their ids, rows with `owner_columns`, each with its run."""
    origins = recall(connection, "origin", {row.run_id for row in jobs}, _find_origins)
    return {row.id: (row, origins[row.run_id]) for row in jobs}


def _find_origins(connection: sa.Connection, runs: Collection[int]) -> dict[int, Origin]:
    rows = connection.execute(
        sa.select(
            run.c.id, run.c.namespace, run.c.request["target"].label("target")
        )
        .where(among(run.c.id))
        .order_by(run.c.id),
        {"ids": runs},
    ).all()
    return {
        r.id: Origin(
            r.target, r.namespace,
            catalogue.put_variant(
                connection, catalogue.put_target(connection, Target.parse(r.target)),
                r.target["keys"], r.target,
            ),
        )
        for r in rows
    }


def identify(
    connection: sa.Connection,
    rows: Sequence[dict[str, Any]],
    targets: Sequence[dict[str, Any]],
    where: Sequence[str],
) -> None:
    """Give each row an identity that no other of them has, also to attempts with equal content."""
    known_tasks = recall(connection, "task", {row["task_id"] for row in rows}, _find_tasks)
    keys: dict[tuple[int, int], str] = {}
    taken: set[bytes] = set()
    for row, target, device_name in zip(rows, targets, where, strict=True):
        t = known_tasks[row["task_id"]]
        found = row["task_id"], row["variant_id"]
        if found not in keys:
            keys[found] = task_key(t.key, target, t.implementation, t.version, t.space_digest)
        happened = identity(
            keys[found], config_key(row["config"]), row["phase"], row["error"],
            row["measured_at"], row["session"], device_name, row["samples_s"],
        )
        row["identity"] = within(t.namespace, happened)
        if row["identity"] in taken:
            _distinguish(row)
        taken.add(row["identity"])


def tell_apart(rows: Iterable[dict[str, Any]], known: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Give another identity to rows whose first is that of an attempt on record (`ask_known`); return these."""
    taken = {bytes(row[0]) for row in known}
    equal = [row for row in rows if row["identity"] in taken]
    for row in equal:
        _distinguish(row)
    return equal


def _distinguish(row: dict[str, Any]) -> None:
    place = b"%d/%d" % (row["job_id"], row["entry"])
    row["identity"] = blake2b(row["identity"] + place, digest_size=16).digest()


def ask_known(
    connection: sa.Connection, ask: Ask, table: sa.Table, identities: Collection[bytes]
) -> Sequence[Any]:
    """The rows of `record` or `advice` whose identities these are."""
    if connection.dialect.name == "sqlite":
        query = f"SELECT identity FROM {table.name} WHERE identity IN ({', '.join('?' * len(identities))})"  # noqa: S608
        return connection.exec_driver_sql(query, tuple(identities)).all()
    # One parameter, as a list is written value by value, ten times as slowly.
    listed = ",".join([rf"\\x{i.hex()}" for i in identities])
    return ask(_IDENTITIES[table], {"listed": f"{{{listed}}}"})


_GIVEN = sa.text("SELECT unnest(CAST(:listed AS BYTEA[])) AS identity").columns(record.c.identity).subquery("given")


def _identities(table: sa.Table) -> sa.Select[Any]:
    """The given identities that are in use.

    For each by the index, as without statistics PostgreSQL would read all records. OFFSET 0 keeps it from joining in
    another way.
    """
    same = table.c.identity == _GIVEN.c.identity
    found = sa.select(table.c.identity).where(same).correlate(_GIVEN).offset(0).lateral()
    return sa.select(found.c.identity).select_from(_GIVEN.join(found, sa.true()))


_IDENTITIES = {table: _identities(table) for table in (record, advice)}


_find_tasks = by_id(
    lambda row: row,
    sa.select(*task.c["id", "namespace", "implementation", "version", "space_digest"], workload_table.c.key)
    .join(workload_table, workload_table.c.id == task.c.workload_id),
)
