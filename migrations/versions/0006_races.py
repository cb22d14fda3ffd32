"""One live run for equal requests; devices with owners, and a history for each state of a device."""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Rows that the previous schema cannot hold and a downgrade deletes, as tables with conditions.
CANNOT = {
    "devices with several histories": "(SELECT identity FROM device GROUP BY identity HAVING count(*) > 1) AS several",
}
LOST = {
    "owners of devices": "device_owner WHERE owner IS NOT NULL",
}

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
LIVE = ("running", "confirming")
REFUTING = ("wrong_answer", "out_of_bounds")

# A device whose model was overwritten took its records to another model, but not `best`.
MOVED = """
SELECT DISTINCT record.task_id, device.model FROM record JOIN device ON device.id = record.device_id
WHERE record.error IS NULL AND record.phase IN ('search', 'confirm')
    AND NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.record_id = record.id)
"""
FILL_HISTORY = """
INSERT INTO history (task_id, variant_id, model, mean_s, config_digest, config)
SELECT task_id, variant_id, model, mean_s, config_digest, config FROM (
    SELECT record.*, coalesce(device.model, '') AS model, row_number() OVER (
        PARTITION BY record.task_id, record.variant_id, coalesce(device.model, '')
        ORDER BY record.mean_s, record.id
    ) AS place
    FROM record LEFT JOIN device ON device.id = record.device_id
    WHERE record.error IS NULL AND record.task_id = :task
        AND NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.record_id = record.id)
) AS ranked WHERE place = 1
"""


def upgrade() -> None:
    op.add_column(
        "run", sa.Column("forced", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    with op.batch_alter_table("device") as batch:
        batch.add_column(sa.Column("digest", sa.String(length=64), nullable=True))
        batch.drop_constraint(op.f("uq_device_identity"), type_="unique")
    op.create_table(
        "device_owner",
        sa.Column("id", Id, nullable=False),
        sa.Column("identity", sa.String(length=200), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_owner")),
        sa.UniqueConstraint("identity", name=op.f("uq_device_owner_identity")),
    )
    connection = op.get_bind()
    tables = sa.MetaData()
    tables.reflect(connection)
    _join_runs(connection, tables.tables)
    _describe_devices(connection, tables.tables)
    _derive(connection, tables.tables)
    with op.batch_alter_table("device") as batch:
        batch.alter_column("digest", existing_type=sa.String(length=64), nullable=False)
        batch.create_unique_constraint(op.f("uq_device_identity_digest"), ["identity", "digest"])
    where = sa.text("state = 'running' OR state = 'confirming'")
    op.create_index(
        "uq_run_live", "run", ["namespace", "digest", "forced"], unique=True,
        sqlite_where=where, postgresql_where=where,
    )


def _join_runs(connection: sa.Connection, t: Any) -> None:
    """Of equal live runs the oldest goes on; records of the others count for it."""
    run, job = t["run"], t["job"]
    live = connection.execute(
        sa.select(*run.c["id", "namespace", "digest"], _json(run.c.request))
        .where(run.c.state.in_(LIVE)).order_by(run.c.id)
    ).all()
    first: dict[tuple[str, str, bool], int] = {}
    for row in live:
        forced = bool(_read(row.request).get("force", False))
        kept = first.setdefault((row.namespace, row.digest, forced), row.id)
        values: dict[str, Any] = {"forced": forced}
        if kept != row.id:
            message = f"cancelled: the equal run {kept} was under way, and goes on"
            ended_at = sa.select(sa.func.max(t["event"].c.at)).scalar_subquery()
            values |= {"state": "cancelled", "message": message, "finished_at": ended_at}
            connection.execute(
                sa.update(job).where(job.c.run_id == row.id, job.c.state == "queued")
                .values(state="cancelled", reason=message, finished_at=ended_at)
            )
        connection.execute(sa.update(run).where(run.c.id == row.id).values(**values))


def _describe_devices(connection: sa.Connection, t: Any) -> None:
    device, owner = t["device"], t["device_owner"]
    rows = connection.execute(
        sa.select(*device.c["id", "identity", "slot", "model"], _json(device.c.fingerprint),
                  t["target"].c.key)
        .join(t["target"], t["target"].c.id == device.c.target_id)
    ).all()
    for row in rows:
        # Some rows know only the model.
        of_device = [row.slot, row.model, row.key if row.slot else "", _read(row.fingerprint)]
        text = orjson.dumps(of_device, option=orjson.OPT_SORT_KEYS)
        connection.execute(
            sa.update(device).where(device.c.id == row.id)
            .values(digest=hashlib.sha256(text).hexdigest()[:32])
        )
        if row.slot:
            newest = connection.scalar(
                sa.select(t["token"].c.name)
                .join(t["worker"], t["worker"].c.token_id == t["token"].c.id)
                .join(t["worker_device"], t["worker_device"].c.worker_id == t["worker"].c.id)
                .where(t["worker_device"].c.device_id == row.id)
                .order_by(t["worker"].c.id.desc()).limit(1)
            )
            connection.execute(sa.insert(owner).values(identity=row.identity, owner=newest))


def _derive(connection: sa.Connection, t: Any) -> None:
    best, history = t["best"], t["history"]
    of_records = {tuple(r) for r in connection.execute(sa.text(MOVED))}
    of_best = {
        (r.task_id, r.scope_value)
        for r in connection.execute(
            sa.select(*best.c["task_id", "scope_value"]).where(best.c.scope == "model")
        )
    }
    # One whose answers are all refuted has records and no best: it is looked at, and stays so.
    for task_id in sorted({task for task, _ in of_records ^ of_best}):
        connection.execute(
            sa.delete(best).where(best.c.task_id == task_id, best.c.scope == "model")
        )
        for model in sorted(m for task, m in of_records if task == task_id):
            found = _lowest(connection, t, task_id, model)
            if found is not None:
                connection.execute(sa.insert(best).values(found))
        connection.execute(sa.delete(history).where(history.c.task_id == task_id))
        connection.execute(sa.text(FILL_HISTORY), {"task": task_id})


def _lowest(connection: sa.Connection, t: Any, task_id: int, model: str) -> dict[str, Any] | None:
    """The best of a task on a device model: the lowest median of pooled samples, finals first."""
    record, device, tombstone = t["record"], t["device"], t["tombstone"]
    rows = connection.execute(
        sa.select(
            *record.c["config_digest", "phase", "error", "recorded_at"],
            _json(record.c.config), _json(record.c.samples_s),
        )
        .join(device, device.c.id == record.c.device_id)
        .where(
            record.c.task_id == task_id, device.c.model == model,
            sa.or_(record.c.error.is_(None), record.c.error.in_(REFUTING)),
            record.c.id.not_in(sa.select(tombstone.c.record_id)),
        )
        .order_by(record.c.id)
    ).all()
    refuted = {r.config_digest for r in rows if r.error is not None}
    for phase in ("confirm", "search"):
        pools = defaultdict(list)
        for r in rows:
            if r.phase == phase and r.config_digest not in refuted:
                pools[r.config_digest].append(r)
        if not pools:
            continue
        samples = {d: [s for r in pool for s in _read(r.samples_s)] for d, pool in pools.items()}
        median_s, digest = min((statistics.median(s), d) for d, s in samples.items())
        ordered = sorted(samples[digest])
        rank = _rank(len(ordered))
        return {
            "task_id": task_id, "scope": "model", "scope_value": model,
            "config": _read(pools[digest][0].config), "config_digest": digest, "phase": phase,
            "median_s": median_s, "low_s": ordered[rank], "high_s": ordered[-1 - rank],
            "samples": len(ordered), "updated_at": max(r.recorded_at for r in pools[digest]),
        }
    return None


def _rank(n: int) -> int:
    """As `strategy.record.estimate` takes it, as it was with this schema."""
    if n > 2000:
        return int(n / 2 - 0.98 * n**0.5) - 1
    rank, tail, term = -1, 0, 1
    while 40 * (tail + term) <= 2**n:
        rank, tail, term = rank + 1, tail + term, term * (n - rank - 1) // (rank + 2)
    return max(rank, 0)


def _json(column: Any) -> Any:
    """The text of a JSON column, which a reflected table has as text on one database only."""
    return sa.cast(column, sa.Text()).label(column.name)


def _read(text: str) -> Any:
    return orjson.loads(text)


def downgrade() -> None:
    op.drop_index("uq_run_live", "run")
    op.drop_column("run", "forced")
    op.drop_table("device_owner")
    with op.batch_alter_table("device") as batch:
        batch.drop_constraint(op.f("uq_device_identity_digest"), type_="unique")
        batch.drop_column("digest")
        batch.create_unique_constraint(op.f("uq_device_identity"), ["identity"])
