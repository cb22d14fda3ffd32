"""Indexes by which lists of tasks are read in their order, a page at a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

LISTED = sa.text("scope <> 'device'")
INDEXES = {"ix_task_implementation_id": ("task", ["implementation", "id"], None)} | {
    f"ix_best_{column}": ("best", [column], LISTED) for column in ("median_s", "updated_at")
}


def upgrade() -> None:
    for name, (table, columns, where) in INDEXES.items():
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, (table, _, _) in INDEXES.items():
        op.drop_index(name, table)
