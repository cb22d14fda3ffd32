"""Purged advice: marked as purged records are, so that an import does not restore it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Rows that a way back to the schema before deletes: tables with conditions.
LOST = {
    "purged winners without a time, of other tools": "advice_tombstone",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "advice_tombstone",
        sa.Column("advice_id", Id, nullable=False),
        sa.Column("purge_id", Id, nullable=False),
        *(
            sa.ForeignKeyConstraint(
                [f"{table}_id"], [f"{table}.id"], name=op.f(f"fk_advice_tombstone_{table}_id_{table}")
            )
            for table in ("advice", "purge")
        ),
        sa.PrimaryKeyConstraint("advice_id", name=op.f("pk_advice_tombstone")),
    )


def downgrade() -> None:
    connection = op.get_bind()
    purged = connection.scalars(sa.text("SELECT advice_id FROM advice_tombstone")).all()
    op.drop_table("advice_tombstone")
    if purged:  # unmarked, it would answer again
        connection.execute(
            sa.text("DELETE FROM advice WHERE id = :id"), [{"id": one} for one in purged]
        )
