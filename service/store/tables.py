"""The tables. Constraints that must always hold are constraints of the database.

Instants are Unix times in seconds by the database's clock, durations are in seconds. JSON columns
hold wire forms of `strategy` types. Changes of mutable states (run, job, lease) append an `event`; `record`
is never updated; `best` is derived from it in the same transaction. A purged record has a `tombstone`
and is ignored.
"""
# Over 300 lines: all tables, which refer to each other.

from __future__ import annotations

from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from strategy.record import ErrorKind, Phase, RunState

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Digest = sa.String(64)


# States of a live run.
LIVE = (RunState.RUNNING.value, RunState.CONFIRMING.value)


class JobState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    QUARANTINED = "quarantined"  # it killed workers; its open entries are recorded as lost
    CANCELLED = "cancelled"


class EntryState(StrEnum):
    PENDING = "pending"
    DONE = "done"


class TaskState(StrEnum):
    """State of a task in one run."""

    ACTIVE = "active"
    DROPPED = "dropped"  # can no longer win: no further trials
    EXHAUSTED = "exhausted"  # no configuration of its space is left to try


class TokenScope(StrEnum):
    """Right of a token; `admin` includes all."""

    READ = "read"
    SUBMIT = "submit"  # runs and imports
    WORKER = "worker"  # leasing and reporting its own jobs only
    ADMIN = "admin"


class Scope(StrEnum):
    """The scope of a best: a device, a device model, or a target."""

    DEVICE = "device"
    MODEL = "model"
    TARGET = "target"


def _table(name: str, *items: sa.schema.SchemaItem) -> sa.Table:
    """A table with an id, unless one of its columns is a key, besides these columns and constraints."""
    is_keyed = any(isinstance(item, sa.Column) and item.primary_key for item in items)
    return sa.Table(name, metadata, *([] if is_keyed else [sa.Column("id", Id, primary_key=True)]), *items)


def _ref(name: str, target: str, *, nullable: bool = False, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, Id, sa.ForeignKey(f"{target}.id"), nullable=nullable, primary_key=key)


def _instant(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _namespace() -> sa.Column[str]:
    """The column of the namespace (`service.store.namespace`)."""
    return sa.Column("namespace", sa.String(64), nullable=False, server_default="default")


def _one_of(column: str, kinds: type[StrEnum], *, nullable: bool = False) -> sa.CheckConstraint:
    listed = ", ".join(f"'{k.value}'" for k in kinds)
    empty = f" OR {column} IS NULL" if nullable else ""
    return sa.CheckConstraint(f"{column} IN ({listed}){empty}", name=column)


def _partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


workload = _table(
    "workload",
    sa.Column("digest", Digest, nullable=False, unique=True),
    sa.Column("key", sa.Text(), nullable=False),
    sa.Column("op", sa.String(128), nullable=False, index=True),
    sa.Column("body", Json, nullable=False),
)

target = _table(
    "target",
    sa.Column("key", sa.Text(), nullable=False, unique=True),
    # The keys of all its variants; records transfer between targets that share one.
    sa.Column("keys", Json, nullable=False),
    sa.Column("body", Json, nullable=False),
)

# A target as written. Variants of one key differ in device model, keys, libraries and capability.
target_variant = _table(
    "target_variant",
    _ref("target_id", "target"),
    sa.Column("digest", Digest, nullable=False, unique=True),
    sa.Column("keys", Json, nullable=False),
    sa.Column("body", Json, nullable=False),
)

_LIVE_RUN = "state = 'running' OR state = 'confirming'"
run = _table(
    "run",
    sa.Column("state", sa.String(16), nullable=False, index=True),
    _namespace(),
    _ref("target_id", "target"),
    # The digest of the request: an equal one joins a live run.
    sa.Column("digest", Digest, nullable=False, index=True),
    sa.Column("forced", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("request", Json, nullable=False),
    sa.Column("message", sa.Text(), nullable=False, default=""),
    # It spent its budget or stopped by its own rule: an equal request is done at once.
    sa.Column("complete", sa.Boolean(), nullable=False),
    sa.Column("max_jobs", sa.Integer(), nullable=True),  # maximum of leased jobs
    # The owner that tunes it, and when its lease expires.
    sa.Column("tuner", sa.String(200), nullable=True),
    _instant("tuner_until", nullable=True),
    _instant("created_at"),
    _instant("finished_at", nullable=True),
    sa.Index(None, "namespace", "id"),
    # One of several equal concurrent requests creates the run, the others join it.
    _partial_index("uq_run_live", "namespace", "digest", "forced", where=_LIVE_RUN, unique=True),
    _one_of("state", RunState),
)

task = _table(
    "task",
    _namespace(),
    _ref("workload_id", "workload"),
    _ref("target_id", "target"),
    sa.Column("implementation", sa.String(200), nullable=False),
    sa.Column("version", sa.String(200), nullable=False),
    sa.Column("plevel", sa.Integer(), nullable=False),
    sa.Column("library", sa.String(200), nullable=True),
    sa.Column("condition", Json, nullable=True),
    sa.Column("space", Json, nullable=True),  # SQL NULL if untunable
    sa.Column("space_digest", Digest, nullable=False),  # empty if not known
    sa.Column("space_size", sa.BigInteger(), nullable=True),  # number of valid configurations, if counted
    _instant("created_at"),
    sa.UniqueConstraint(
        "workload_id", "target_id", "implementation", "version", "space_digest", "namespace",
        name="uq_task_identity",
    ),
    sa.Index(None, "implementation", "id"),
)

run_task = _table(
    "run_task",
    _ref("run_id", "run"),
    _ref("task_id", "task"),
    sa.Column("weight", sa.Double(), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("message", sa.Text(), nullable=False, default=""),
    sa.UniqueConstraint("run_id", "task_id"),
    sa.Index(None, "task_id"),
    _one_of("state", TaskState),
)

# Deliveries of runs' final statuses, due when the run has ended.
webhook = _table(
    "webhook",
    _ref("run_id", "run"),
    sa.Column("url", sa.String(1000), nullable=False),
    sa.Column("attempts", sa.Integer(), nullable=False),
    _instant("due_at"),  # the next attempt
    _instant("ended_at", nullable=True),  # delivered or abandoned
    sa.Column("error", sa.Text(), nullable=False),  # the last error, or empty
    sa.UniqueConstraint("run_id", "url"),
    _partial_index("ix_webhook_open", "due_at", where="ended_at IS NULL"),
)

timing_policy = _table(
    "timing_policy",
    sa.Column("digest", Digest, nullable=False, unique=True),
    sa.Column("body", Json, nullable=False),
)

environment = _table(
    "environment",
    sa.Column("digest", Digest, nullable=False, unique=True),
    sa.Column("body", Json, nullable=False),
    _instant("created_at"),
)

# Tokens; only digests of their secrets are stored.
token = _table(
    "token",
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("digest", Digest, nullable=False, unique=True),
    sa.Column("scopes", Json, nullable=False),
    sa.Column("namespace", sa.String(64), nullable=True),  # the namespace that it is restricted to
    _instant("created_at"),
    _instant("expires_at", nullable=True),
    _instant("revoked_at", nullable=True),
)

# The audit log of requests; workers' actions are in `event`.
audit = _table(
    "audit",
    _instant("at"),
    sa.Column("actor", sa.String(200), nullable=False),  # a token's name, or a user of this host
    _ref("token_id", "token", nullable=True),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("detail", Json, nullable=False),
)

worker = _table(
    "worker",
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("host", sa.Text(), nullable=False),
    sa.Column("pid", sa.BigInteger(), nullable=False),
    sa.Column("version", sa.Text(), nullable=False),
    sa.Column("operators", Json, nullable=False),
    # The jobs that it last asked to have ahead of the one that it times.
    sa.Column("ahead", sa.Integer(), nullable=False, server_default="1"),
    _ref("token_id", "token", nullable=True),  # the token that registered it, required by later requests
    _instant("created_at"),
    _instant("seen_at"),
    _instant("ended_at", nullable=True),
)

# Owners of devices: all rows of `device` of one identity have one.
device_owner = _table(
    "device_owner",
    sa.Column("identity", sa.String(200), nullable=False, unique=True),
    # The name of a token; NULL before its registration.
    sa.Column("owner", sa.String(200), nullable=True),
)

# The description of a device, never updated: a changed device (model, processor, firmware) gets another row
# with a new history.
device = _table(
    "device",
    sa.Column("identity", sa.String(200), nullable=False),
    sa.Column("digest", Digest, nullable=False),  # of slot, model, target's key and fingerprint
    # Empty if only the device model is known, from imported records.
    sa.Column("slot", sa.String(200), nullable=False),
    sa.Column("model", sa.Text(), nullable=False),
    _ref("target_id", "target"),
    sa.Column("target", Json, nullable=False),
    sa.Column("fingerprint", Json, nullable=False),
    _instant("created_at"),
    _instant("seen_at"),
    sa.UniqueConstraint("identity", "digest"),
)

worker_device = _table(
    "worker_device",
    _ref("worker_id", "worker", key=True),
    _ref("device_id", "device", key=True),
    # The target under which this worker drives it: threads are part of a target, not of a device.
    _ref("target_id", "target"),
    sa.Index(None, "device_id"),
    sa.Index(None, "target_id"),
)

# Pauses of a device or a target; running jobs finish.
pause = _table(
    "pause",
    _ref("device_id", "device", nullable=True),
    _ref("target_id", "target", nullable=True),
    sa.Column("reason", sa.Text(), nullable=False),
    _instant("starts_at"),
    _instant("ends_at", nullable=True),
    sa.CheckConstraint("(device_id IS NULL) <> (target_id IS NULL)", name="place"),
)

job = _table(
    "job",
    _ref("run_id", "run"),
    _ref("workload_id", "workload"),
    _ref("target_id", "target"),
    _ref("policy_id", "timing_policy"),
    _ref("parent_id", "job", nullable=True),  # the job it was split from
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("priority", sa.Integer(), nullable=False),  # the lowest is leased first
    # Within a priority the lowest first: start-time fair queueing by leased configurations.
    sa.Column("turn", sa.Double(), nullable=False, server_default=sa.text("0")),
    sa.Column("attempts", sa.Integer(), nullable=False),  # number of lost workers
    sa.Column("fence", sa.BigInteger(), nullable=False),  # the fencing token of its latest lease
    sa.Column("seed", sa.BigInteger(), nullable=False),
    # Requirements of a worker: operator and implementations with their versions, canonical JSON.
    sa.Column("needs", sa.Text(), nullable=False),
    sa.Column("reason", sa.Text(), nullable=False, default=""),
    _instant("available_at"),
    _instant("created_at"),
    _instant("finished_at", nullable=True),
    sa.Index(None, "run_id", "state"),
    _partial_index("ix_job_queued", "target_id", "priority", "turn", "id", where="state = 'queued'"),
    _one_of("state", JobState),
    _one_of("phase", Phase),
)

job_entry = _table(
    "job_entry",
    _ref("job_id", "job"),
    sa.Column("entry", sa.Integer(), nullable=False),
    _ref("task_id", "task"),
    sa.Column("config", Json, nullable=False),
    sa.Column("config_digest", Digest, nullable=False),
    sa.Column("best_s", sa.Double(), nullable=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.UniqueConstraint("job_id", "entry"),
    sa.Index(None, "task_id"),
    _one_of("state", EntryState),
)

lease = _table(
    "lease",
    _ref("job_id", "job"),
    _ref("worker_id", "worker"),
    _ref("device_id", "device"),
    sa.Column("token", sa.BigInteger(), nullable=False),
    sa.Column("timing", sa.Boolean(), nullable=False),
    _instant("created_at"),
    _instant("expires_at"),
    _instant("ended_at", nullable=True),
    sa.Column("end_reason", sa.String(32), nullable=True),
    # A device times under one lease and builds under others; a job has one live lease.
    _partial_index("uq_lease_live_timing", "device_id", where="ended_at IS NULL AND timing", unique=True),
    _partial_index("ix_lease_live_device", "device_id", where="ended_at IS NULL"),
    _partial_index("ix_lease_live_worker", "worker_id", "id", where="ended_at IS NULL"),
    _partial_index("uq_lease_live_job", "job_id", where="ended_at IS NULL", unique=True),
    _partial_index("ix_lease_live_expires_at", "expires_at", where="ended_at IS NULL"),
    sa.Index(None, "job_id"),
)

record = _table(
    "record",
    # Identity of the attempt, 16 bytes (`service.formats.ImportedRecord.identity`), unique.
    sa.Column("identity", sa.LargeBinary(16), nullable=False, unique=True),
    # `plevel`, or the format of its first import.
    sa.Column("source", sa.String(200), nullable=False),
    # NULL for imported records, as are the policy and the seed.
    _ref("run_id", "run", nullable=True),
    _ref("job_id", "job", nullable=True),
    sa.Column("entry", sa.Integer(), nullable=True),
    _ref("lease_id", "lease", nullable=True),
    _ref("task_id", "task"),
    _ref("variant_id", "target_variant"),
    _ref("worker_id", "worker", nullable=True),
    _ref("device_id", "device", nullable=True),
    _ref("environment_id", "environment", nullable=True),
    _ref("policy_id", "timing_policy", nullable=True),
    # The run and worker of an imported record, at its origin.
    sa.Column("origin_run", sa.BigInteger(), nullable=True),
    sa.Column("origin_worker", sa.String(200), nullable=True),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("session", sa.String(200), nullable=False),
    sa.Column("seed", sa.BigInteger(), nullable=True),
    sa.Column("config", Json, nullable=False),
    sa.Column("config_digest", Digest, nullable=False),
    sa.Column("error", sa.String(32), nullable=True),
    sa.Column("message", sa.Text(), nullable=False),
    sa.Column("samples_s", Json, nullable=False),
    # A failure has no cost: these are NULL exactly where there is an error.
    sa.Column("median_s", sa.Double(), nullable=True),
    sa.Column("mean_s", sa.Double(), nullable=True),
    sa.Column("prepare_s", sa.Double(), nullable=True),
    sa.Column("build_s", sa.Double(), nullable=False),
    sa.Column("check_s", sa.Double(), nullable=False),
    sa.Column("run_s", sa.Double(), nullable=False),
    sa.Column("code_digest", sa.String(128), nullable=False),
    sa.Column("extra", sa.Text(), nullable=True),  # JSON of fields that only the source's format has
    _instant("measured_at"),
    _instant("recorded_at"),
    sa.UniqueConstraint("job_id", "entry"),
    sa.Index(None, "task_id", "phase", "config_digest"),
    # A run's records in their order, with all that is counted of them.
    _partial_index("ix_record_run", "run_id", "id", "task_id", "phase", "error", "run_s", where="run_id IS NOT NULL"),
    sa.CheckConstraint("(error IS NULL) = (median_s IS NOT NULL)", name="cost"),
    sa.CheckConstraint(
        "(job_id IS NULL) = (run_id IS NULL) AND (job_id IS NULL) = (entry IS NULL)", name="origin"
    ),
    _one_of("phase", Phase),
    _one_of("error", ErrorKind, nullable=True),
)

# Records measured by a worker of this service, not imported.
MEASURED_HERE = record.c.job_id.is_not(None)

# Documents that imported records refer to: spaces by their digest, modules by the SHA-256 of their text.
attachment = _table(
    "attachment",
    sa.Column("what", sa.String(16), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("text", sa.Text(), nullable=False),
)

# Winners of other tools' tuning without a time: never in `record`, `best`, `history` or training.
advice = _table(
    "advice",
    # As a record's (`service.formats.ImportedRecord.identity`).
    sa.Column("identity", sa.LargeBinary(16), nullable=False, unique=True),
    sa.Column("source", sa.String(200), nullable=False),
    _ref("task_id", "task"),
    _ref("variant_id", "target_variant"),
    _ref("device_id", "device", nullable=True),
    _ref("environment_id", "environment", nullable=True),
    sa.Column("origin_worker", sa.String(200), nullable=True),
    sa.Column("config", Json, nullable=False),
    sa.Column("config_digest", Digest, nullable=False),
    sa.Column("extra", sa.Text(), nullable=True),  # JSON of fields that only the source's format has
    _instant("measured_at"),
    _instant("recorded_at"),
    sa.Index(None, "task_id"),
)

# Verdicts on the kernels of whole networks (`strategy.confirmation`), the newest of each key.
network = _table(
    "network",
    _namespace(),
    sa.Column("key", Digest, nullable=False),  # of the graph, its kernels and the machine
    sa.Column("graph", Digest, nullable=False),
    sa.Column("device_model", sa.String(200), nullable=False),
    sa.Column("body", Json, nullable=False),
    _instant("recorded_at"),
    sa.UniqueConstraint("namespace", "key"),
    sa.Index(None, "graph"),
)

purge = _table(
    "purge",
    _instant("at"),
    sa.Column("reason", sa.Text(), nullable=False),
    sa.Column("criteria", Json, nullable=False),
    sa.Column("records", sa.BigInteger(), nullable=False),
)

tombstone = _table(
    "tombstone",
    _ref("record_id", "record", key=True),
    _ref("purge_id", "purge"),
)

advice_tombstone = _table(
    "advice_tombstone",
    _ref("advice_id", "advice", key=True),
    _ref("purge_id", "purge"),
)

best = _table(
    "best",
    _ref("task_id", "task", key=True),
    sa.Column("scope", sa.String(16), primary_key=True),
    # The device's id, the device model, or empty for the target.
    sa.Column("scope_value", sa.Text(), primary_key=True),
    sa.Column("config", Json, nullable=False),
    sa.Column("config_digest", Digest, nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("median_s", sa.Double(), nullable=False),
    sa.Column("low_s", sa.Double(), nullable=False),
    sa.Column("high_s", sa.Double(), nullable=False),
    sa.Column("samples", sa.Integer(), nullable=False),
    _instant("updated_at"),
    _one_of("scope", Scope),
    # Orders of the list of tasks, which shows no single devices.
    _partial_index("ix_best_median_s", "median_s", where="scope <> 'device'"),
    _partial_index("ix_best_updated_at", "updated_at", where="scope <> 'device'"),
)

# The lowest mean cost, the input of TVM's own rule; derived as `best` is.
history = _table(
    "history",
    _ref("task_id", "task", key=True),
    _ref("variant_id", "target_variant", key=True),
    sa.Column("model", sa.Text(), primary_key=True),  # the device model, empty if not known
    sa.Column("mean_s", sa.Double(), nullable=False),
    sa.Column("config_digest", Digest, nullable=False),
    sa.Column("config", Json, nullable=False),
)

# Cost models, trained from the records of one operator on one target (docs/search.md).
cost_model = _table(
    "cost_model",
    sa.Column("op", sa.String(128), nullable=False),
    _ref("target_id", "target"),
    sa.Column("version", sa.Integer(), nullable=False),
    _instant("created_at"),
    sa.Column("train_s", sa.Double(), nullable=False),
    sa.Column("records", sa.BigInteger(), nullable=False),
    sa.Column("workloads", sa.Integer(), nullable=False),
    # The share of pairs of configurations, of held-out workloads, ranked as measured.
    sa.Column("held_out", sa.Integer(), nullable=False),
    sa.Column("pairs", sa.BigInteger(), nullable=False),
    sa.Column("accuracy", sa.Double(), nullable=False),
    sa.Column("sigma_log", sa.Double(), nullable=False),
    sa.Column("columns", sa.Text(), nullable=False),  # JSON: the meaning of each column of features
    sa.Column("trees", sa.LargeBinary(), nullable=False),  # XGBoost's own format
    sa.Column("digest", Digest, nullable=False),  # of the trees
    # Predicted and measured times, importance (`service.predict.evaluation`); NULL in older versions.
    sa.Column("evaluation", Json, nullable=True),
    # Trees of the model that was tested, without the held-out workloads; NULL in older versions.
    sa.Column("tested", sa.LargeBinary(), nullable=True),
    sa.Column("lineage", Json, nullable=True),  # `service.predict.lineage.Lineage`; NULL in older versions
    sa.UniqueConstraint("op", "target_id", "version"),
)

event = _table(
    "event",
    _instant("at"),
    sa.Column("kind", sa.String(32), nullable=False),
    _ref("run_id", "run", nullable=True),
    _ref("job_id", "job", nullable=True),
    _ref("worker_id", "worker", nullable=True),
    sa.Column("detail", Json, nullable=False),
    sa.Index(None, "run_id", "id"),
    sa.Index(None, "job_id"),
)
