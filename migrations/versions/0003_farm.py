"""The farm: tokens, the audit log, turns of runs, pauses. What TVM's rule looks at, derived with every record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Rows that the previous schema cannot hold and a downgrade deletes, as tables with conditions.
LOST = {
    "cost models": "cost_model",
    "pauses": "pause",
    "tokens": "token",
    "entries of the audit log": "audit",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

# The lowest mean cost on record of each task, target as it was written, and device model.
FILL_HISTORY = """
INSERT INTO history (task_id, variant_id, model, mean_s, config_digest, config)
SELECT task_id, variant_id, model, mean_s, config_digest, config FROM (
    SELECT record.*, coalesce(device.model, '') AS model, row_number() OVER (
        PARTITION BY record.task_id, record.variant_id, coalesce(device.model, '')
        ORDER BY record.mean_s, record.id
    ) AS place
    FROM record LEFT JOIN device ON device.id = record.device_id
    WHERE record.error IS NULL
        AND NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.record_id = record.id)
) AS ranked WHERE place = 1
"""


def upgrade() -> None:
    op.create_table(
        "cost_model",
        sa.Column("id", Id, nullable=False),
        sa.Column("op", sa.String(length=128), nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("train_s", sa.Double(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("workloads", sa.Integer(), nullable=False),
        sa.Column("held_out", sa.Integer(), nullable=False),
        sa.Column("pairs", sa.BigInteger(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=False),
        sa.Column("sigma_log", sa.Double(), nullable=False),
        sa.Column("columns", sa.Text(), nullable=False),
        sa.Column("trees", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_cost_model_target_id_target")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cost_model")),
        sa.UniqueConstraint(
            "op", "target_id", "version", name=op.f("uq_cost_model_op_target_id_version")
        ),
    )
    op.create_table(
        "token",
        sa.Column("id", Id, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
    )
    op.create_table(
        "audit",
        sa.Column("id", Id, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("token_id", Id, nullable=True),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["token.id"], name=op.f("fk_audit_token_id_token")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("worker") as batch:
        batch.add_column(sa.Column("token_id", Id, nullable=True))
        batch.create_foreign_key(op.f("fk_worker_token_id_token"), "token", ["token_id"], ["id"])
    op.add_column("run", sa.Column("max_jobs", sa.Integer(), nullable=True))
    op.add_column("run", sa.Column("tuner", sa.String(length=200), nullable=True))
    op.add_column("run", sa.Column("tuner_until", sa.Double(), nullable=True))
    op.add_column(
        "job", sa.Column("turn", sa.Double(), server_default=sa.text("0"), nullable=False)
    )
    op.drop_index("ix_job_queued", "job")
    _index_queued("turn")
    op.drop_index("uq_lease_live_device", "lease")
    _index_leases("uq_lease_live_timing", ["device_id"], "ended_at IS NULL AND timing", unique=True)
    _index_leases("ix_lease_live_device", ["device_id"], "ended_at IS NULL", unique=False)
    op.create_table(
        "pause",
        sa.Column("id", Id, nullable=False),
        sa.Column("device_id", Id, nullable=True),
        sa.Column("target_id", Id, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "(device_id IS NULL) <> (target_id IS NULL)", name=op.f("ck_pause_place")
        ),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name=op.f("fk_pause_device_id_device")
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_pause_target_id_target")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pause")),
    )


    op.create_table(
        "history",
        sa.Column("task_id", Id, nullable=False),
        sa.Column("variant_id", Id, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("mean_s", sa.Double(), nullable=False),
        sa.Column("config_digest", sa.String(length=64), nullable=False),
        sa.Column("config", Json, nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_history_task_id_task")),
        sa.ForeignKeyConstraint(
            ["variant_id"], ["target_variant.id"],
            name=op.f("fk_history_variant_id_target_variant"),
        ),
        sa.PrimaryKeyConstraint("task_id", "variant_id", "model", name=op.f("pk_history")),
    )
    op.execute(FILL_HISTORY)


def _index_queued(*more: str) -> None:
    where = sa.text("state = 'queued'")
    columns = ["target_id", "priority", *more, "id"]
    op.create_index("ix_job_queued", "job", columns, sqlite_where=where, postgresql_where=where)


def _index_leases(name: str, columns: list[str], condition: str, *, unique: bool) -> None:
    where = sa.text(condition)
    op.create_index(
        name, "lease", columns, unique=unique, sqlite_where=where, postgresql_where=where
    )


def downgrade() -> None:
    op.drop_table("cost_model")
    op.drop_table("pause")
    # A device may build several jobs now; the schema before allows one.
    op.execute(
        "UPDATE lease SET ended_at = expires_at, end_reason = 'released' "
        "WHERE ended_at IS NULL AND NOT timing"
    )
    op.execute(
        "UPDATE job SET state = 'queued' WHERE state = 'leased' AND NOT EXISTS "
        "(SELECT 1 FROM lease WHERE lease.job_id = job.id AND lease.ended_at IS NULL)"
    )
    op.drop_index("ix_lease_live_device", "lease")
    op.drop_index("uq_lease_live_timing", "lease")
    _index_leases("uq_lease_live_device", ["device_id", "timing"], "ended_at IS NULL", unique=True)
    op.drop_index("ix_job_queued", "job")
    _index_queued()
    op.drop_column("job", "turn")
    for name in ("tuner_until", "tuner", "max_jobs"):
        op.drop_column("run", name)
    op.drop_table("history")
    with op.batch_alter_table("worker") as batch:
        batch.drop_constraint(op.f("fk_worker_token_id_token"), type_="foreignkey")
        batch.drop_column("token_id")
    op.drop_table("audit")
    op.drop_table("token")
