"""Metrics for Prometheus: counters of this process and gauges of the database.

Prometheus sums the counters of all processes; gauges are read from the database, and equal in every
process.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.queue import fleet
from service.store.db import Store
from service.store.sql import now
from service.store.tables import LIVE, JobState, cost_model, job, lease, run, target, worker_device
from strategy.record import ErrorKind, Results, ResultsAccepted

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_RATIOS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._results = counter("plevel_results", "Results accepted, by kind of failure", ["error"])
        self._build = counter("plevel_build_seconds", "Time that workers spent building")
        self._run = counter("plevel_run_seconds", "Time that devices spent timing")
        self._noisy = counter("plevel_noisy_results", "Results with drift of the host in both attempts")
        self._refused = counter(
            "plevel_refused", "Connections and requests refused before they were read", ["kind"]
        )
        self._drift = histogram(
            "plevel_drift_ratio", "Excess of a job's slowest calibration time over the fastest", buckets=_RATIOS
        )
        self.imported = counter("plevel_imported_records", "Records imported, which are not counted as results")
        self.claim = histogram("plevel_claim_seconds", "Duration of a claim of jobs", buckets=_SECONDS)

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
        gauges = (
            (_queued(), ("target",), {
                "plevel_jobs_queued": "Queued jobs", "plevel_jobs_oldest_seconds": "Age of the oldest queued job",
            }),
            (_leases(), ("doing",), {
                "plevel_leases_live": "Live leases", "plevel_lease_oldest_seconds": "Age of the oldest live lease",
            }),
            (_devices(self._alive_s), ("target",), {"plevel_devices_alive": "Devices of live workers"}),
            (_runs(), ("state",), {"plevel_runs_live": "Live runs"}),
            (_models(), ("op", "target"), {
                "plevel_model_accuracy": "Share of pairs ranked as measured",
                "plevel_model_age_seconds": "Age of the model",
            }),
        )
        with self._store.read() as connection:
            found = [(connection.execute(query).all(), labels, names) for query, labels, names in gauges]
        for rows, labels, names in found:
            yield from _gauges(rows, labels, names)


def _gauges(rows: Sequence[Any], labels: Sequence[str], names: Mapping[str, str]) -> Iterator[Metric]:
    """Make gauges, given by name and text; a row has the labels, then the value of each gauge."""
    for i, (name, text) in enumerate(names.items(), len(labels)):
        family = GaugeMetricFamily(name, text, labels=labels)
        for row in rows:
            family.add_metric([str(v) for v in row[: len(labels)]], float(row[i]))
        yield family


def _queued() -> sa.Select[Any]:
    """The queue of each target that has one, or has had a worker: an autoscaler takes a missing gauge for a failure."""
    age_s = now() - sa.func.min(job.c.created_at)
    queued = (
        sa.select(job.c.target_id, sa.func.count().label("jobs"), age_s.label("age_s"))
        .where(job.c.state == JobState.QUEUED)
        .group_by(job.c.target_id)
    )
    driven = sa.select(worker_device.c.target_id, sa.literal(0), sa.literal(0.0)).distinct()
    known = queued.union_all(driven).subquery()
    return (
        sa.select(target.c.key, sa.func.sum(known.c.jobs), sa.func.max(known.c.age_s))
        .join(known, known.c.target_id == target.c.id)
        .group_by(target.c.key)
    )


def _leases() -> sa.Select[Any]:
    doing = sa.case((lease.c.timing, "timing"), else_="building")
    return (
        sa.select(doing, sa.func.count(), now() - sa.func.min(lease.c.created_at))
        .where(lease.c.ended_at.is_(None))
        .group_by(lease.c.timing)
    )


def _devices(alive_s: float) -> sa.Select[Any]:
    return (
        fleet.of_live(alive_s, target.c.key, sa.func.count(worker_device.c.device_id.distinct()))
        .join(target, target.c.id == worker_device.c.target_id)
        .group_by(target.c.key)
    )


def _runs() -> sa.Select[Any]:
    return sa.select(run.c.state, sa.func.count()).where(run.c.state.in_(LIVE)).group_by(run.c.state)


def _models() -> sa.Select[Any]:
    """The held-out accuracy of the newest cost model of each operator and target, and its age."""
    newest = sa.select(sa.func.max(cost_model.c.id)).group_by(cost_model.c.op, cost_model.c.target_id)
    return (
        sa.select(cost_model.c.op, target.c.key, cost_model.c.accuracy, now() - cost_model.c.created_at)
        .join(target, target.c.id == cost_model.c.target_id)
        .where(cost_model.c.id.in_(newest))
    )
