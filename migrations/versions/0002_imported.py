"""Records from elsewhere: identities, sources, targets as they were written, attachments, purges."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Rows that the previous schema cannot hold and a downgrade deletes, as tables with conditions.
CANNOT = {
    "imported records": "record WHERE job_id IS NULL",
    "purged records": "tombstone",
}
LOST = {
    "purges of the log": "purge",
    "attachments of imports": "attachment",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
NEW_COLUMNS = ("identity", "source", "variant_id", "origin_run", "origin_worker", "extra")
OPTIONAL = {
    "run_id": Id, "job_id": Id, "policy_id": Id, "entry": sa.Integer(), "seed": sa.BigInteger(),
}
FILLED = 2000  # records in one step


def _checks() -> tuple[sa.CheckConstraint, ...]:
    """Those of record in schema 0001: SQLite copies a table to change it, and does not tell them."""
    return (
        sa.CheckConstraint(
            "error IN ('invalid', 'instantiation', 'compile', 'runtime', 'crash', 'oom', 'wrong_answer', 'build_timeout', 'run_timeout', 'lost', 'cancelled') OR error IS NULL",
            name=op.f("ck_record_error"),
        ),
        sa.CheckConstraint(
            "phase IN ('search', 'confirm', 'reference')", name=op.f("ck_record_phase")
        ),
        sa.CheckConstraint(
            "(error IS NULL) = (median_s IS NOT NULL)", name=op.f("ck_record_cost")
        ),
    )


def upgrade() -> None:
    op.create_table(
        "target_variant",
        sa.Column("id", Id, nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("keys", Json, nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_target_variant_target_id_target")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_target_variant")),
        sa.UniqueConstraint("digest", name=op.f("uq_target_variant_digest")),
    )
    op.create_table(
        "attachment",
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("what", "key", name=op.f("pk_attachment")),
    )
    op.create_table(
        "purge",
        sa.Column("id", Id, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("criteria", Json, nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_purge")),
    )
    op.add_column("task", sa.Column("space_digest", sa.String(length=64)))
    for column in (
        sa.Column("identity", sa.LargeBinary(length=16)),
        sa.Column("source", sa.String(length=200)),
        sa.Column("variant_id", Id),
        sa.Column("origin_run", sa.BigInteger()),
        sa.Column("origin_worker", sa.String(length=200)),
        sa.Column("extra", sa.Text()),
    ):
        op.add_column("record", column)
    _fill(op.get_bind())
    with op.batch_alter_table("task") as batch:
        batch.alter_column("space_digest", existing_type=sa.String(length=64), nullable=False)
        batch.drop_constraint(
            op.f("uq_task_workload_id_target_id_implementation_version"), type_="unique"
        )
        batch.create_unique_constraint(
            op.f("uq_task_identity"),
            ["workload_id", "target_id", "implementation", "version", "space_digest"],
        )
    with op.batch_alter_table("record", table_args=_checks()) as batch:
        for name, kind in OPTIONAL.items():
            batch.alter_column(name, existing_type=kind, nullable=True)
        batch.alter_column("identity", existing_type=sa.LargeBinary(length=16), nullable=False)
        batch.alter_column("source", existing_type=sa.String(length=200), nullable=False)
        batch.alter_column("variant_id", existing_type=Id, nullable=False)
        batch.create_unique_constraint(op.f("uq_record_identity"), ["identity"])
        batch.create_foreign_key(
            op.f("fk_record_variant_id_target_variant"), "target_variant", ["variant_id"], ["id"]
        )
        batch.create_check_constraint(
            op.f("ck_record_origin"),
            "(job_id IS NULL) = (run_id IS NULL) AND (job_id IS NULL) = (entry IS NULL)",
        )
    op.create_table(
        "tombstone",
        sa.Column("record_id", Id, nullable=False),
        sa.Column("purge_id", Id, nullable=False),
        sa.ForeignKeyConstraint(
            ["purge_id"], ["purge.id"], name=op.f("fk_tombstone_purge_id_purge")
        ),
        sa.ForeignKeyConstraint(
            ["record_id"], ["record.id"], name=op.f("fk_tombstone_record_id_record")
        ),
        sa.PrimaryKeyConstraint("record_id", name=op.f("pk_tombstone")),
    )


def _fill(connection: sa.Connection) -> None:
    """Give what is there the digests and identities that it would be written with now."""
    from strategy.space import ConfigSpace

    meta = sa.MetaData()
    names = ("workload", "target", "target_variant", "task", "run", "device", "record")
    meta.reflect(connection, only=names)
    t = meta.tables
    for row in connection.execute(sa.select(t["task"].c.id, t["task"].c.space)).all():
        digest = "" if row.space is None else ConfigSpace.from_json(row.space).digest
        _set(connection, t["task"], row.id, space_digest=digest)
    variants = _fill_variants(connection, t)
    tasks: dict[tuple[int, int], str] = {}
    record, last = t["record"], 0
    seen: set[bytes] = set()
    while True:
        rows = connection.execute(
            sa.select(
                *record.c["id", "run_id", "task_id", "phase", "session", "config", "error",
                         "samples_s", "measured_at"],
                t["device"].c.identity.label("device"),
            )
            .outerjoin(t["device"], t["device"].c.id == record.c.device_id)
            .where(record.c.id > last).order_by(record.c.id).limit(FILLED)
        ).all()
        if not rows:
            return
        values = []
        for r in rows:
            variant_id, body = variants[r.run_id]
            key = tasks.get((r.task_id, variant_id))
            if key is None:
                key = tasks[r.task_id, variant_id] = _task_key(connection, t, r.task_id, body)
            identity = _identity(key, r)
            if identity in seen:  # two that nobody could tell apart
                identity = hashlib.blake2b(identity + b"%d" % r.id, digest_size=16).digest()
            seen.add(identity)
            values.append({"row": r.id, "identity": identity, "variant": variant_id})
        connection.execute(
            sa.update(record)
            .where(record.c.id == sa.bindparam("row"))
            .values(
                identity=sa.bindparam("identity"),
                variant_id=sa.bindparam("variant"),
                source="plevel",
            ),
            values,
        )
        last = rows[-1].id


def _fill_variants(connection: sa.Connection, t: Any) -> dict[int, tuple[int, Any]]:
    """The target of each run as its request has it: its row's id and its JSON."""
    variants: dict[int, tuple[int, Any]] = {}
    known: dict[str, int] = {}
    for run in connection.execute(sa.select(*t["run"].c["id", "target_id", "request"])).all():
        body = run.request["target"]
        digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
        if digest not in known:
            known[digest] = connection.execute(
                sa.insert(t["target_variant"])
                .values(target_id=run.target_id, digest=digest, keys=body["keys"], body=body)
                .returning(t["target_variant"].c.id)
            ).scalar_one()
        variants[run.id] = known[digest], body
    return variants


def _task_key(connection: sa.Connection, t: Any, task_id: int, target: Any) -> str:
    task = connection.execute(
        sa.select(
            *t["task"].c["implementation", "version", "space_digest"], t["workload"].c.key
        )
        .join(t["workload"], t["workload"].c.id == t["task"].c.workload_id)
        .where(t["task"].c.id == task_id)
    ).one()
    parts = (
        task.key, json.dumps(target, sort_keys=True), task.implementation, task.version,
        task.space_digest,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _identity(task_key: str, r: Any) -> bytes:
    text = (
        f"{task_key}\n{_canonical(r.config)}\n{r.phase}\n{r.error or ''}\n{r.measured_at!r}\n"
        f"{r.session}\n{r.device or ''}\n"
    )
    content = text.encode() + struct.pack(f"<{len(r.samples_s)}d", *r.samples_s)
    return hashlib.blake2b(content, digest_size=16).digest()


def _canonical(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def _set(connection: sa.Connection, table: Any, row_id: int, **values: Any) -> None:
    connection.execute(sa.update(table).where(table.c.id == row_id).values(**values))


def downgrade() -> None:
    connection = op.get_bind()
    op.drop_table("tombstone")
    with op.batch_alter_table("record", table_args=_checks()) as batch:
        batch.drop_constraint(op.f("uq_record_identity"), type_="unique")
        batch.drop_constraint(op.f("fk_record_variant_id_target_variant"), type_="foreignkey")
        for name in NEW_COLUMNS:
            batch.drop_column(name)
        for name, kind in OPTIONAL.items():
            batch.alter_column(name, existing_type=kind, nullable=False)
        if connection.dialect.name != "sqlite":  # there it is not copied
            batch.drop_constraint(op.f("ck_record_origin"), type_="check")
    with op.batch_alter_table("task") as batch:
        batch.drop_constraint(op.f("uq_task_identity"), type_="unique")
        batch.drop_column("space_digest")
        batch.create_unique_constraint(
            op.f("uq_task_workload_id_target_id_implementation_version"),
            ["workload_id", "target_id", "implementation", "version"],
        )
    for name in ("purge", "attachment", "target_variant"):
        op.drop_table(name)
