"""Lineage of cost models: what a later training needs to bring a model up to date."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# Rows that a way back to the schema before deletes: tables with conditions.
LOST = {
    "lineages of cost models": "cost_model WHERE lineage IS NOT NULL",
}

Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("cost_model", sa.Column("tested", sa.LargeBinary(), nullable=True))
    op.add_column("cost_model", sa.Column("lineage", Json, nullable=True))


def downgrade() -> None:
    op.drop_column("cost_model", "lineage")
    op.drop_column("cost_model", "tested")
