"""An index of the live leases of each worker, in place of one of all that it has ever had, which each claim read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

LIVE = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_index("ix_lease_live_worker", "lease", ["worker_id", "id"], sqlite_where=LIVE, postgresql_where=LIVE)
    op.drop_index("ix_lease_worker_id", "lease")


def downgrade() -> None:
    op.create_index("ix_lease_worker_id", "lease", ["worker_id"])
    op.drop_index("ix_lease_live_worker", "lease")
