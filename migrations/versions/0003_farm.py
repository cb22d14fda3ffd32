"""The farm: tokens and the audit log. What TVM's rule looks at, derived with every record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

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
    )  # fmt: skip
    op.execute(FILL_HISTORY)


def downgrade() -> None:
    op.drop_table("history")
    with op.batch_alter_table("worker") as batch:
        batch.drop_constraint(op.f("fk_worker_token_id_token"), type_="foreignkey")
        batch.drop_column("token_id")
    op.drop_table("audit")
    op.drop_table("token")
