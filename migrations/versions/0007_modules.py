"""Modules of MetaSchedule's under the SHA-256 of their lines, which their workloads name."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Rows that the previous schema cannot hold and a downgrade deletes, as tables with conditions.
CANNOT = {
    "modules of MetaSchedule by their content": "attachment WHERE what = 'module'",
}

OP = "metaschedule.module"
PAGE = 4000
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _table(name: str, *columns: str) -> sa.TableClause:
    """The columns that are used here; of those in capitals the values are JSON."""
    types = {c.lower(): Json if c.isupper() else None for c in columns}
    return sa.table(name, *(sa.column(c, t) for c, t in types.items()))


attachment = _table("attachment", "what", "key", "text")
workload = _table("workload", "id", "digest", "key", "op", "BODY")
task = _table("task", "id", "namespace", "workload_id", "implementation", "version", "space_digest")
job = _table("job", "workload_id")
variant = _table("target_variant", "id", "BODY")
device = _table("device", "id", "identity", "slot", "model")
record = _table(
    "record", "id", "identity", "task_id", "variant_id", "device_id", "phase", "error", "session",
    "CONFIG", "SAMPLES_S", "measured_at",
)


def upgrade() -> None:
    connection = op.get_bind()
    rows = connection.execute(
        sa.select(task.c.namespace, workload)
        .join_from(task, workload, workload.c.id == task.c.workload_id)
        .where(workload.c.op == OP).distinct().order_by(workload.c.id, task.c.namespace)
    ).all()
    old = connection.scalars(sa.select(attachment.c.key).where(attachment.c.what == "module")).all()
    for row in rows:
        hashed = row.body.get("attrs", {}).get("structural_hash")
        if not isinstance(hashed, str):
            continue
        text = connection.scalar(
            sa.select(attachment.c.text).where(
                attachment.c.what == "module", attachment.c.key == _within(row.namespace, hashed)
            )
        )
        if text is not None:
            key = _put_line(connection, row.namespace, hashed, text)
            _move(connection, row, _put_workload(connection, row, key))
    for key in old:
        connection.execute(
            sa.delete(attachment).where(attachment.c.what == "module", attachment.c.key == key)
        )
    used = sa.union(sa.select(task.c.workload_id), sa.select(job.c.workload_id))
    connection.execute(
        sa.delete(workload).where(
            workload.c.id.in_([row.id for row in rows]), workload.c.id.not_in(used)
        )
    )


def _within(namespace: str, key: str) -> str:
    """An attachment's key in a namespace."""
    if namespace == "default":
        return key
    return hashlib.blake2b(key.encode(), digest_size=32, key=namespace.encode()).hexdigest()


def _put_line(connection: sa.Connection, namespace: str, hashed: str, module: str) -> str:
    line = json.dumps([hashed, module], separators=(",", ":"))
    key = hashlib.sha256(line.encode()).hexdigest()
    values = {"what": "module", "key": _within(namespace, key), "text": line}
    found = sa.select(attachment.c.key).where(
        attachment.c.what == "module", attachment.c.key == values["key"]
    )
    if connection.scalar(found) is None:  # several workloads may be of one module
        connection.execute(sa.insert(attachment).values(values))
    return key


def _put_workload(connection: sa.Connection, row: Any, module: str) -> Any:
    """The workload that names its module: in several namespaces it may be the same."""
    attrs = row.body["attrs"]
    named = {**attrs, "module": module}
    key = row.key.removesuffix(_compact(attrs)) + _compact(named)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    found = sa.select(workload).where(workload.c.digest == digest)
    if connection.execute(found).first() is None:
        connection.execute(
            sa.insert(workload).values(
                digest=digest, key=key, op=OP, body={**row.body, "attrs": named}
            )
        )
    return connection.execute(found).one()


def _compact(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def _move(connection: sa.Connection, old: Any, new: Any) -> None:
    """Its tasks, and the identities of their records, in one namespace."""
    tasks = connection.scalars(
        sa.select(task.c.id).where(
            task.c.workload_id == old.id, task.c.namespace == old.namespace
        )
    ).all()
    of_tasks = sa.update(task).where(task.c.id.in_(tasks)).values(workload_id=new.id)
    connection.execute(of_tasks)
    for page in _pages(connection, tasks):
        connection.execute(
            sa.update(record).where(record.c.id == sa.bindparam("of"))
            .values(identity=sa.bindparam("now")),
            [{"of": r.id, "now": _identity(r, new.key, old.namespace)} for r in page],
        )


def _pages(connection: sa.Connection, tasks: Any) -> Iterator[Any]:
    last = 0
    while True:
        page = connection.execute(
            sa.select(
                record, *task.c["implementation", "version", "space_digest"],
                variant.c.body.label("target"), device.c.identity.label("device"),
                *device.c["slot", "model"],
            )
            .join_from(record, task, task.c.id == record.c.task_id)
            .join(variant, variant.c.id == record.c.variant_id)
            .outerjoin(device, device.c.id == record.c.device_id)
            .where(record.c.task_id.in_(tasks), record.c.id > last)
            .order_by(record.c.id).limit(PAGE)
        ).all()
        if not page:
            return
        yield page
        last = page[-1].id


def _identity(r: Any, workload_key: str, namespace: str) -> bytes:
    """16 bytes over what happened, as an import of this record has them from now on."""
    target = json.dumps(r.target, sort_keys=True)
    parts = (workload_key, target, r.implementation, r.version, r.space_digest)
    of = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    where = r.device if r.slot else r.model or ""
    text = (
        f"{of}\n{_compact(r.config)}\n{r.phase}\n{r.error or ''}\n{r.measured_at!r}\n"
        f"{r.session}\n{where}\n"
    )
    content = text.encode() + struct.pack(f"<{len(r.samples_s)}d", *r.samples_s)
    identity = hashlib.blake2b(content, digest_size=16).digest()
    if namespace == "default":
        return identity
    return hashlib.blake2b(identity, digest_size=16, key=namespace.encode()).digest()


def downgrade() -> None:
    """Nothing to do: a database that has modules is refused, by `CANNOT`."""
