"""The jobs that a worker asks to have ahead of the one that it times, of which a tuner keeps as many in the queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("ahead", sa.Integer(), nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("worker", "ahead")
