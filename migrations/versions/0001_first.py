"""The first schema: runs, jobs, leases, workers, devices, records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Tables that a downgrade deletes.
LOST = {
    "records": "record",
    "runs": "run",
    "workloads": "workload",
    "devices": "device",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "environment",
        sa.Column("id", Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment")),
        sa.UniqueConstraint("digest", name=op.f("uq_environment_digest")),
    )
    op.create_table(
        "target",
        sa.Column("id", Id, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("keys", Json, nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_target")),
        sa.UniqueConstraint("key", name=op.f("uq_target_key")),
    )
    op.create_table(
        "timing_policy",
        sa.Column("id", Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_timing_policy")),
        sa.UniqueConstraint("digest", name=op.f("uq_timing_policy_digest")),
    )
    op.create_table(
        "worker",
        sa.Column("id", Id, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("operators", Json, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
    )
    op.create_table(
        "workload",
        sa.Column("id", Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("op", sa.String(length=128), nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workload")),
        sa.UniqueConstraint("digest", name=op.f("uq_workload_digest")),
    )
    op.create_index(op.f("ix_workload_op"), "workload", ["op"], unique=False)
    op.create_table(
        "device",
        sa.Column("id", Id, nullable=False),
        sa.Column("identity", sa.String(length=200), nullable=False),
        sa.Column("slot", sa.String(length=200), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("target", Json, nullable=False),
        sa.Column("fingerprint", Json, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_device_target_id_target")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
        sa.UniqueConstraint("identity", name=op.f("uq_device_identity")),
    )
    op.create_table(
        "run",
        sa.Column("id", Id, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("request", Json, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('running', 'confirming', 'done', 'failed', 'cancelled')",
            name=op.f("ck_run_state"),
        ),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_run_target_id_target")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_index(op.f("ix_run_digest"), "run", ["digest"], unique=False)
    op.create_index(op.f("ix_run_state"), "run", ["state"], unique=False)
    op.create_table(
        "task",
        sa.Column("id", Id, nullable=False),
        sa.Column("workload_id", Id, nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("implementation", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=200), nullable=False),
        sa.Column("plevel", sa.Integer(), nullable=False),
        sa.Column("library", sa.String(length=200), nullable=True),
        sa.Column("condition", Json, nullable=True),
        sa.Column("space", Json, nullable=True),
        sa.Column("space_size", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_task_target_id_target")
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_task_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task")),
        sa.UniqueConstraint(
            "workload_id",
            "target_id",
            "implementation",
            "version",
            name=op.f("uq_task_workload_id_target_id_implementation_version"),
        ),
    )
    op.create_table(
        "best",
        sa.Column("task_id", Id, nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("scope_value", sa.Text(), nullable=False),
        sa.Column("config", Json, nullable=False),
        sa.Column("config_digest", sa.String(length=64), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("median_s", sa.Double(), nullable=False),
        sa.Column("low_s", sa.Double(), nullable=False),
        sa.Column("high_s", sa.Double(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.CheckConstraint("scope IN ('device', 'model', 'target')", name=op.f("ck_best_scope")),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_best_task_id_task")),
        sa.PrimaryKeyConstraint("task_id", "scope", "scope_value", name=op.f("pk_best")),
    )
    op.create_table(
        "job",
        sa.Column("id", Id, nullable=False),
        sa.Column("run_id", Id, nullable=False),
        sa.Column("workload_id", Id, nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("policy_id", Id, nullable=False),
        sa.Column("parent_id", Id, nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("available_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "phase IN ('search', 'confirm', 'reference')", name=op.f("ck_job_phase")
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'done', 'quarantined', 'cancelled')",
            name=op.f("ck_job_state"),
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["job.id"], name=op.f("fk_job_parent_id_job")),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["timing_policy.id"], name=op.f("fk_job_policy_id_timing_policy")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_job_run_id_run")),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_job_target_id_target")),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_job_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index(
        "ix_job_queued",
        "job",
        ["target_id", "priority", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(op.f("ix_job_run_id_state"), "job", ["run_id", "state"], unique=False)
    op.create_table(
        "run_task",
        sa.Column("id", Id, nullable=False),
        sa.Column("run_id", Id, nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('active', 'dropped', 'exhausted')", name=op.f("ck_run_task_state")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_task_run_id_run")),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_run_task_task_id_task")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_task")),
        sa.UniqueConstraint("run_id", "task_id", name=op.f("uq_run_task_run_id_task_id")),
    )
    op.create_index(op.f("ix_run_task_task_id"), "run_task", ["task_id"], unique=False)
    op.create_table(
        "worker_device",
        sa.Column("worker_id", Id, nullable=False),
        sa.Column("device_id", Id, nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name=op.f("fk_worker_device_device_id_device")
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_worker_device_target_id_target")
        ),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["worker.id"], name=op.f("fk_worker_device_worker_id_worker")
        ),
        sa.PrimaryKeyConstraint("worker_id", "device_id", name=op.f("pk_worker_device")),
    )
    op.create_index(
        op.f("ix_worker_device_device_id"), "worker_device", ["device_id"], unique=False
    )
    op.create_index(
        op.f("ix_worker_device_target_id"), "worker_device", ["target_id"], unique=False
    )
    op.create_table(
        "event",
        sa.Column("id", Id, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("run_id", Id, nullable=True),
        sa.Column("job_id", Id, nullable=True),
        sa.Column("worker_id", Id, nullable=True),
        sa.Column("detail", Json, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_event_job_id_job")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_event_run_id_run")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["worker.id"], name=op.f("fk_event_worker_id_worker")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_job_id"), "event", ["job_id"], unique=False)
    op.create_index(op.f("ix_event_run_id_id"), "event", ["run_id", "id"], unique=False)
    op.create_table(
        "job_entry",
        sa.Column("id", Id, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("entry", sa.Integer(), nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("config", Json, nullable=False),
        sa.Column("config_digest", sa.String(length=64), nullable=False),
        sa.Column("best_s", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'done')", name=op.f("ck_job_entry_state")),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_job_entry_job_id_job")),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_job_entry_task_id_task")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_entry")),
        sa.UniqueConstraint("job_id", "entry", name=op.f("uq_job_entry_job_id_entry")),
    )
    op.create_index(op.f("ix_job_entry_task_id"), "job_entry", ["task_id"], unique=False)
    op.create_table(
        "lease",
        sa.Column("id", Id, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("worker_id", Id, nullable=False),
        sa.Column("device_id", Id, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("timing", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("end_reason", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name=op.f("fk_lease_device_id_device")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_lease_job_id_job")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["worker.id"], name=op.f("fk_lease_worker_id_worker")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    op.create_index(op.f("ix_lease_job_id"), "lease", ["job_id"], unique=False)
    op.create_index(
        "ix_lease_live_expires_at",
        "lease",
        ["expires_at"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(op.f("ix_lease_worker_id"), "lease", ["worker_id"], unique=False)
    op.create_index(
        "uq_lease_live_device",
        "lease",
        ["device_id", "timing"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "uq_lease_live_job",
        "lease",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "record",
        sa.Column("id", Id, nullable=False),
        sa.Column("run_id", Id, nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("entry", sa.Integer(), nullable=False),
        sa.Column("lease_id", Id, nullable=True),
        sa.Column("worker_id", Id, nullable=True),
        sa.Column("device_id", Id, nullable=True),
        sa.Column("environment_id", Id, nullable=True),
        sa.Column("policy_id", Id, nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("session", sa.String(length=200), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("config", Json, nullable=False),
        sa.Column("config_digest", sa.String(length=64), nullable=False),
        sa.Column("error", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("samples_s", Json, nullable=False),
        sa.Column("median_s", sa.Double(), nullable=True),
        sa.Column("mean_s", sa.Double(), nullable=True),
        sa.Column("prepare_s", sa.Double(), nullable=True),
        sa.Column("build_s", sa.Double(), nullable=False),
        sa.Column("check_s", sa.Double(), nullable=False),
        sa.Column("run_s", sa.Double(), nullable=False),
        sa.Column("code_digest", sa.String(length=128), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "error IN ('invalid', 'instantiation', 'compile', 'runtime', 'crash', 'oom', 'wrong_answer', 'build_timeout', 'run_timeout', 'lost', 'cancelled') OR error IS NULL",
            name=op.f("ck_record_error"),
        ),
        sa.CheckConstraint(
            "phase IN ('search', 'confirm', 'reference')", name=op.f("ck_record_phase")
        ),
        sa.CheckConstraint("(error IS NULL) = (median_s IS NOT NULL)", name=op.f("ck_record_cost")),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name=op.f("fk_record_device_id_device")
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environment.id"],
            name=op.f("fk_record_environment_id_environment"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_record_job_id_job")),
        sa.ForeignKeyConstraint(["lease_id"], ["lease.id"], name=op.f("fk_record_lease_id_lease")),
        sa.ForeignKeyConstraint(
            ["policy_id"], ["timing_policy.id"], name=op.f("fk_record_policy_id_timing_policy")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_record_run_id_run")),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_record_task_id_task")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["worker.id"], name=op.f("fk_record_worker_id_worker")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_record")),
        sa.UniqueConstraint("job_id", "entry", name=op.f("uq_record_job_id_entry")),
    )
    op.create_index(op.f("ix_record_run_id_id"), "record", ["run_id", "id"], unique=False)
    op.create_index(
        op.f("ix_record_task_id_phase_config_digest"),
        "record",
        ["task_id", "phase", "config_digest"],
        unique=False,
    )


def downgrade() -> None:
    for table in (
        "record",
        "lease",
        "job_entry",
        "event",
        "worker_device",
        "run_task",
        "job",
        "best",
        "task",
        "run",
        "device",
        "workload",
        "worker",
        "timing_policy",
        "target",
        "environment",
    ):
        op.drop_table(table)
