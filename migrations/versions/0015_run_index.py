"""An index by which a run's records are counted without being read, in place of one of their order.

Imported records, which are of no run, are not in it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

OF_RUNS = sa.text("run_id IS NOT NULL")


def upgrade() -> None:
    columns = ["run_id", "id", "task_id", "phase", "error", "run_s"]
    op.create_index("ix_record_run", "record", columns, sqlite_where=OF_RUNS, postgresql_where=OF_RUNS)
    op.drop_index("ix_record_run_id_id", "record")


def downgrade() -> None:
    op.create_index("ix_record_run_id_id", "record", ["run_id", "id"])
    op.drop_index("ix_record_run", "record")
