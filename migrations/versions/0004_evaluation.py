"""What a model of times is good for, kept beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("cost_model", sa.Column("evaluation", Json, nullable=True))


def downgrade() -> None:
    op.drop_column("cost_model", "evaluation")
