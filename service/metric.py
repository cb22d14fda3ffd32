"""Metrics for Prometheus: counters of this process and gauges of the database.

Prometheus sums the counters of all processes; gauges are read from the database, and equal in every
process.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.queue import fleet
from service.store.db import Store
from service.store.sql import now
from service.store.tables import (
    LIVE,
    JobState,
    cost_model,
    job,
    lease,
    run,
    target,
    worker,
    worker_device,
)
from strategy.record import ErrorKind, Results, ResultsAccepted

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_RATIOS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._results = Counter(
            "plevel_results", "Results accepted, by kind of failure", ["error"], registry=registry
        )
        self._build = Counter(
            "plevel_build_seconds", "Time that workers spent building", registry=registry
        )
        self._run = Counter("plevel_run_seconds", "Time that devices spent timing", registry=registry)
        self._noisy = Counter(
            "plevel_noisy_results", "Results with drift of the host in both attempts", registry=registry
        )
        self._refused = Counter(
            "plevel_refused", "Connections and requests refused before they were read", ["kind"],
            registry=registry,
        )  # fmt: skip
        self._drift = Histogram(
            "plevel_drift_ratio", "Excess of a job's slowest calibration time over the fastest", buckets=_RATIOS,
            registry=registry,
        )  # fmt: skip
        self.imported = Counter(
            "plevel_imported_records", "Records imported, which are not counted as results",
            registry=registry,
        )
        self.claim = Histogram(
            "plevel_claim_seconds", "Duration of a claim of jobs", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip

    def count(self, sent: Results, answer: ResultsAccepted) -> None:
        """Count the accepted ones of results: the first of each entry that is not repeated."""
        first = {r.entry: r for r in reversed(sent.results)}
        results = [r for entry, r in first.items() if entry not in answer.repeated]
        taken = collections.Counter(r.error for r in results)
        taken.update({None: -answer.refused, ErrorKind.IMPLAUSIBLE: answer.refused})
        for error, number in (+taken).items():
            self._results.labels(error or "none").inc(number)
        self._build.inc(sum(result.build_s for result in results))
        self._run.inc(sum(result.run_s for result in results))
        self._noisy.inc(sum(result.drift is not None for result in results))
        medians = [statistics.median(r.samples_s) for r in sent.references]
        if len(medians) > 1:
            self._drift.observe(max(medians) / min(medians) - 1)

    def refuse(self, kind: str) -> None:
        """Count a connection or request that was refused before it was read."""
        self._refused.labels(kind).inc()

    def render(self, store: Store, alive_s: float) -> bytes:
        """All metrics in Prometheus's text format."""
        registry = CollectorRegistry()
        registry.register(_Standing(store, alive_s))
        return generate_latest(self._registry) + generate_latest(registry)


class _Standing(Collector):
    """Gauges, read from the database in one transaction."""

    def __init__(self, store: Store, alive_s: float) -> None:
        self._store = store
        self._alive_s = alive_s

    def describe(self) -> Iterator[Metric]:
        return iter(())  # registering must not read the database

    def collect(self) -> Iterator[Metric]:
        with self._store.read() as connection:
            found = [
                *_queued(connection),
                *_leases(connection),
                _gauge("plevel_devices_alive", "Devices of live workers", ["target"],
                       _devices(connection, self._alive_s)),
                _gauge("plevel_runs_live", "Live runs", ["state"], _runs(connection)),
                *_models(connection),
            ]  # fmt: skip
        yield from found


def _gauge(name: str, text: str, labels: Sequence[str], rows: Sequence[Any]) -> Metric:
    """Make a gauge; rows are labels with the value last."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for *values, value in rows:
        family.add_metric([str(v) for v in values], float(value))
    return family


def _queued(connection: sa.Connection) -> list[Metric]:
    rows = connection.execute(
        sa.select(target.c.key, sa.func.count().label("n"), (now() - sa.func.min(job.c.created_at)).label("age_s"))
        .join(job, job.c.target_id == target.c.id)
        .where(job.c.state == JobState.QUEUED)
        .group_by(target.c.key)
    ).all()
    return [
        _gauge("plevel_jobs_queued", "Queued jobs", ["target"], [(r.key, r.n) for r in rows]),
        _gauge("plevel_jobs_oldest_seconds", "Age of the oldest queued job", ["target"],
               [(r.key, r.age_s) for r in rows]),
    ]  # fmt: skip


def _leases(connection: sa.Connection) -> list[Metric]:
    rows = connection.execute(
        sa.select(
            lease.c.timing, sa.func.count().label("n"),
            (now() - sa.func.min(lease.c.created_at)).label("age_s"),
        )
        .where(lease.c.ended_at.is_(None))
        .group_by(lease.c.timing)
    ).all()  # fmt: skip
    doing = [("timing" if r.timing else "building", r.n, r.age_s) for r in rows]
    return [
        _gauge("plevel_leases_live", "Live leases", ["doing"], [(d, n) for d, n, _ in doing]),
        _gauge("plevel_lease_oldest_seconds", "Age of the oldest live lease", ["doing"],
               [(d, age_s) for d, _, age_s in doing]),
    ]  # fmt: skip


def _devices(connection: sa.Connection, alive_s: float) -> Sequence[Any]:
    return connection.execute(
        sa.select(target.c.key, sa.func.count(worker_device.c.device_id.distinct()))
        .join(worker_device, worker_device.c.target_id == target.c.id)
        .join(worker, worker.c.id == worker_device.c.worker_id)
        .where(fleet.is_alive(alive_s))
        .group_by(target.c.key)
    ).all()


def _runs(connection: sa.Connection) -> Sequence[Any]:
    query = sa.select(run.c.state, sa.func.count()).where(run.c.state.in_(LIVE))
    return connection.execute(query.group_by(run.c.state)).all()


def _models(connection: sa.Connection) -> list[Metric]:
    """The held-out accuracy of the newest cost model of each operator and target."""
    newest = sa.select(sa.func.max(cost_model.c.id)).group_by(cost_model.c.op, cost_model.c.target_id)
    rows = connection.execute(
        sa.select(
            cost_model.c.op, target.c.key, cost_model.c.accuracy,
            (now() - cost_model.c.created_at).label("age_s"),
        )
        .join(target, target.c.id == cost_model.c.target_id)
        .where(cost_model.c.id.in_(newest))
    ).all()  # fmt: skip
    return [
        _gauge("plevel_model_accuracy", "Share of pairs ranked as measured", ["op", "target"],
               [(r.op, r.key, r.accuracy) for r in rows]),
        _gauge("plevel_model_age_seconds", "Age of the model", ["op", "target"],
               [(r.op, r.key, r.age_s) for r in rows]),
    ]  # fmt: skip
