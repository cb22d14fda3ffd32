"""Evaluations of cost models; namespaces; webhooks at the ends of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Rows that the previous schema cannot hold and a downgrade deletes, as tables with conditions.
CANNOT = {
    "tasks of other namespaces": "task WHERE coalesce(namespace, 'default') <> 'default'",
    "runs of other namespaces": "run WHERE coalesce(namespace, 'default') <> 'default'",
    "tokens of other namespaces": "token WHERE coalesce(namespace, 'default') <> 'default'",
}
LOST = {
    "webhooks": "webhook",
    "evaluations of cost models": "cost_model WHERE evaluation IS NOT NULL",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
IDENTITY = ["workload_id", "target_id", "implementation", "version", "space_digest"]


def upgrade() -> None:
    op.add_column("cost_model", sa.Column("evaluation", Json, nullable=True))
    with op.batch_alter_table("task") as batch:
        batch.add_column(_namespace())
        batch.drop_constraint(op.f("uq_task_identity"), type_="unique")
        batch.create_unique_constraint(op.f("uq_task_identity"), [*IDENTITY, "namespace"])
    op.add_column("run", _namespace())
    op.create_index(op.f("ix_run_namespace_id"), "run", ["namespace", "id"])
    op.add_column("token", sa.Column("namespace", sa.String(length=64), nullable=True))
    op.create_table(
        "webhook",
        sa.Column("id", Id, nullable=False),
        sa.Column("run_id", Id, nullable=False),
        sa.Column("url", sa.String(length=1000), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_webhook_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook")),
        sa.UniqueConstraint("run_id", "url", name=op.f("uq_webhook_run_id_url")),
    )
    where = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_webhook_open", "webhook", ["due_at"], sqlite_where=where, postgresql_where=where
    )


def _namespace() -> sa.Column[str]:
    return sa.Column("namespace", sa.String(length=64), server_default="default", nullable=False)


def downgrade() -> None:
    op.drop_table("webhook")
    op.drop_column("token", "namespace")
    op.drop_index(op.f("ix_run_namespace_id"), "run")
    op.drop_column("run", "namespace")
    with op.batch_alter_table("task") as batch:
        batch.drop_constraint(op.f("uq_task_identity"), type_="unique")
        batch.drop_column("namespace")
        batch.create_unique_constraint(op.f("uq_task_identity"), IDENTITY)
    op.drop_column("cost_model", "evaluation")
