"""Kinds of failure: code that reads or writes outside of its buffers, and times that cannot be."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NAME = "ck_record_error"
NEW = ("out_of_bounds", "implausible")
# Rows that the previous schema cannot hold, as tables with conditions.
CANNOT = {f"errors of kind {kind}": f"record WHERE error = '{kind}'" for kind in NEW}
BEFORE = (
    "invalid", "instantiation", "compile", "runtime", "crash", "oom", "wrong_answer",
    "build_timeout", "run_timeout", "lost", "cancelled",
)
AFTER = (*BEFORE[:7], *NEW, *BEFORE[7:])


def upgrade() -> None:
    _change(BEFORE, AFTER)


def downgrade() -> None:
    _change(AFTER, BEFORE)


def _change(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(op.f(NAME), "record", type_="check")
        op.create_check_constraint(op.f(NAME), "record", f"{_listed(new)} OR error IS NULL")
        return
    # SQLite would copy the whole log to change what is checked; its own documentation of ALTER TABLE
    # gives this way where no row changes.
    op.execute("PRAGMA writable_schema = ON")
    schema = sa.table("sqlite_master", sa.column("name"), sa.column("sql"))
    changed = sa.func.replace(schema.c.sql, _listed(old), _listed(new))
    op.execute(sa.update(schema).where(schema.c.name == "record").values(sql=changed))
    op.execute("PRAGMA writable_schema = RESET")


def _listed(kinds: tuple[str, ...]) -> str:
    return "error IN (" + ", ".join(f"'{kind}'" for kind in kinds) + ")"
