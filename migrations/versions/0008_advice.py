"""Advice: winners of other tools' tuning without a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Rows that a way back to the schema before deletes: tables with conditions.
LOST = {
    "winners without a time, of other tools": "advice",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "advice",
        sa.Column("id", Id, nullable=False),
        sa.Column("identity", sa.LargeBinary(length=16), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("variant_id", Id, nullable=False),
        sa.Column("device_id", Id, nullable=True),
        sa.Column("environment_id", Id, nullable=True),
        sa.Column("origin_worker", sa.String(length=200), nullable=True),
        sa.Column("config", Json, nullable=False),
        sa.Column("config_digest", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=True),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        *(
            sa.ForeignKeyConstraint(
                [name], [f"{table}.id"], name=op.f(f"fk_advice_{name}_{table}")
            )
            for name, table in (
                ("task_id", "task"), ("variant_id", "target_variant"), ("device_id", "device"),
                ("environment_id", "environment"),
            )
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_advice")),
        sa.UniqueConstraint("identity", name=op.f("uq_advice_identity")),
    )
    op.create_index(op.f("ix_advice_task_id"), "advice", ["task_id"])


def downgrade() -> None:
    op.drop_table("advice")
