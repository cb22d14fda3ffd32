"""Networks: verdicts on the kernels of whole models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Rows that a way back to the schema before deletes: tables with conditions.
LOST = {
    "confirmations of networks": "network",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "network",
        sa.Column("id", Id, nullable=False),
        sa.Column("namespace", sa.String(length=64), server_default="default", nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("graph", sa.String(length=64), nullable=False),
        sa.Column("device_model", sa.String(length=200), nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_network")),
        sa.UniqueConstraint("namespace", "key", name=op.f("uq_network_namespace_key")),
    )
    op.create_index(op.f("ix_network_graph"), "network", ["graph"])


def downgrade() -> None:
    op.drop_table("network")
