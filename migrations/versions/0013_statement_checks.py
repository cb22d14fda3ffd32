"""Checks of `record`'s references on PostgreSQL, once per statement: a query and a lock for each row cost more.

They take the place of the foreign keys that imported records have. Those of `run_id`, `job_id`, `lease_id` and
`worker_id` stay. An insertion is refused where a row that it refers to is missing, and so is deleting a row with records.
An insertion locks no rows: a deletion waits for those that run, by a lock of the table, and holds off others.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

PARENTS = {
    "task_id": "task", "variant_id": "target_variant", "device_id": "device", "environment_id": "environment",
    "policy_id": "timing_policy",
}

# A transaction that does not see what others commit does not see deletions: it locks rows, which fails if one is gone.
# A query for each column that has ids: starting one takes most of its time, where a statement stores few rows.
_FIND = """
CREATE OR REPLACE FUNCTION plevel_find_parents() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    {ids}
BEGIN
    SELECT {arrays} INTO {names} FROM stored;
    {checks}
    RETURN NULL;
END $$
"""
_CHECK = """
    IF {column}s <> '{{NULL}}' THEN
        IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
            PERFORM FROM {parent} WHERE id = ANY({column}s) ORDER BY id FOR KEY SHARE;
        END IF;
        IF (SELECT count(*) FROM {parent} WHERE id = ANY({column}s)) < cardinality(array_remove({column}s, NULL)) THEN
            RAISE foreign_key_violation USING MESSAGE = 'record.{column}: {parent} has no id ' || (
                SELECT min(i) FROM unnest({column}s) AS i WHERE NOT EXISTS (SELECT FROM {parent} AS p WHERE p.id = i));
        END IF;
    END IF;"""
_KEEP = """
CREATE OR REPLACE FUNCTION plevel_keep_parent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    used boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.id = OLD.id THEN
            RETURN NULL;
        END IF;
    END IF;
    EXECUTE format('LOCK TABLE %I.record IN SHARE MODE', TG_TABLE_SCHEMA);
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.record WHERE %I = $1)', TG_TABLE_SCHEMA, TG_ARGV[0])
        INTO used USING OLD.id;
    IF used THEN
        RAISE foreign_key_violation
            USING MESSAGE = format('%s %s has records, by record.%s', TG_TABLE_NAME, OLD.id, TG_ARGV[0]);
    END IF;
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        RAISE foreign_key_violation
            USING MESSAGE = format('%s %s may have records that only READ COMMITTED sees', TG_TABLE_NAME, OLD.id);
    END IF;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        return
    # Tables are named in full: a program that restores a dump has no search path.
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    parents = {column: f"{schema}.{parent}" for column, parent in PARENTS.items()}
    op.execute(
        _FIND.format(
            ids="\n    ".join(f"{c}s bigint[];" for c in parents),
            arrays=", ".join(f"array_agg(DISTINCT {c})" for c in parents),
            names=", ".join(f"{c}s" for c in parents),
            checks="".join(_CHECK.format(column=c, parent=parent) for c, parent in parents.items()),
        )
    )
    op.execute(_KEEP)
    for event in ("insert", "update"):  # a trigger of both has no table of new rows
        op.execute(
            f"CREATE TRIGGER plevel_{event} AFTER {event} ON record REFERENCING NEW TABLE AS stored "
            "FOR EACH STATEMENT EXECUTE FUNCTION plevel_find_parents()"
        )
    for column, parent in PARENTS.items():
        op.execute(
            f"CREATE TRIGGER plevel_keep AFTER DELETE OR UPDATE OF id ON {parent} "
            f"FOR EACH ROW EXECUTE FUNCTION plevel_keep_parent('{column}')"
        )
        op.drop_constraint(f"fk_record_{column}_{parent}", "record")


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        return
    for column, parent in PARENTS.items():
        op.create_foreign_key(f"fk_record_{column}_{parent}", "record", parent, [column], ["id"])
    op.execute("DROP FUNCTION plevel_find_parents, plevel_keep_parent CASCADE")  # with their triggers
