"""Metrics of a known queue, as Prometheus reads them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.metric import Metrics
from service.queue import report as reporting
from service.store.db import Store
from service.store.sql import now
from service.store.tables import JobState, cost_model, job
from strategy.record import ErrorKind, Reference, Report, Results, ResultsAccepted
from strategy.target import Target
from tests.integration.scene import TARGET, TERMS, Scene, configs, failed, timed

pytestmark = pytest.mark.in_turn("url")
PILOT = Path(__file__).parents[2] / "deploy/kubernetes/pilot.yaml"


def values(metrics: Metrics, store: Store) -> dict[tuple[str, ...], float]:
    text = metrics.render(store, TERMS.alive_s).decode()
    return {
        (sample.name, *(v for _, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_autoscaler_of_kubernetes_asks_for_a_gauge_that_there_is(store: Store) -> None:
    (scaled,) = (one for one in yaml.safe_load_all(PILOT.read_text()) if one["kind"] == "ScaledJob")
    (trigger,) = scaled["spec"]["triggers"]
    asked = re.fullmatch(r'(\w+)\{target="(.+)"\}', trigger["metadata"]["valueLocation"])
    assert asked is not None
    threads = scaled["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0]["args"]
    wanted = f"llvm -mcpu=znver4 -num-cores={threads[threads.index('--threads') + 1]}"
    assert asked[2] == Target.parse(wanted).key
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    assert values(Metrics(), store)[asked[1], TARGET.key] == 1


def test_the_metrics_of_the_documentation_are_there(store: Store) -> None:
    text = Metrics().render(store, TERMS.alive_s).decode()
    page = (PILOT.parents[2] / "docs/operations.md").read_text()
    named = {n for row in re.findall(r"^\| `plevel_.*? \|", page, re.MULTILINE) for n in re.findall(r"plevel_\w+", row)}
    assert len(named) > 10
    assert [name for name in named if f"# HELP {name} " not in text] == []


@pytest.mark.parametrize("empty", [True, False])
def test_gauges_are_of_the_database(store: Store, empty: bool) -> None:
    if empty:
        found = values(Metrics(), store)
        assert not any(name.startswith("plevel_jobs") for name, *_ in found)
        return
    scene = Scene.make(store)
    for _ in range(3):
        scene.enqueue(configs(1))
    scene.leased(scene.register())
    with store.write() as c:
        for version, accuracy in ((1, 0.9), (2, 0.8)):
            c.execute(
                sa.insert(cost_model).values(
                    op="filter", target_id=scene.target_id, version=version, created_at=now(),
                    train_s=1.0, records=1, workloads=2, held_out=1, pairs=10, accuracy=accuracy,
                    sigma_log=0.1, columns="[]", trees=b"", digest="d",
                )
            )
    found = values(Metrics(), store)
    assert found["plevel_jobs_queued", TARGET.key] == 2
    assert found["plevel_jobs_oldest_seconds", TARGET.key] >= 0
    assert found["plevel_leases_live", "building"] == 1
    assert found["plevel_lease_oldest_seconds", "building"] >= 0
    assert found["plevel_devices_alive", TARGET.key] == 1
    assert found["plevel_runs_live", "running"] == 1
    assert found["plevel_model_accuracy", "filter", TARGET.key] == 0.8  # of the newest
    assert found["plevel_model_age_seconds", "filter", TARGET.key] >= 0
    with store.write() as c:
        c.execute(sa.update(job).values(state=JobState.DONE))
    found = values(Metrics(), store)
    assert found["plevel_jobs_queued", TARGET.key] == found["plevel_jobs_oldest_seconds", TARGET.key] == 0


def test_counters_are_of_what_was_taken(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(1))
    held = scene.leased(scene.register())
    metrics = Metrics()
    references = tuple(Reference(samples_s=(s,), measured_at=1.0) for s in (1.0, 1.3))
    results = (timed(held.job.entries[0]), failed(1), failed(2, ErrorKind.CRASH), failed(3))
    sent = Results(token=1, session="s", results=results, references=references)
    metrics.count(sent, ResultsAccepted(accepted=4, known=0))
    found = values(metrics, store)
    assert found["plevel_results_total", "compile"] == 2
    assert found["plevel_results_total", "crash"] == 1
    assert found["plevel_results_total", "none"] == 1
    assert found["plevel_run_seconds_total",] == pytest.approx(results[0].run_s)
    assert found["plevel_noisy_results_total",] == 0
    assert found["plevel_drift_ratio_bucket", "0.2"] == 0
    assert found["plevel_drift_ratio_bucket", "0.5"] == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("done", [True, False])
def test_times_that_the_service_refuses_count_as_failures(store: Store, done: bool) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(2))
    held = scene.leased(scene.register())
    first, second = (timed(e) for e in held.job.entries)
    sent = Results(
        token=held.token, session="s", results=(msgspec.structs.replace(first, samples_s=(1e-12,) * 9), second),
        done=done,
    )
    with store.write() as c:
        (answer,) = reporting.report_many(c, [Report(lease_id=held.id, results=sent)], TERMS)
    assert isinstance(answer, ResultsAccepted)
    assert (answer.accepted, answer.refused) == (2, 1)
    metrics = Metrics()
    metrics.count(sent, answer)
    found = values(metrics, store)
    assert found["plevel_results_total", "implausible"] == 1
    assert found["plevel_results_total", "none"] == 1


def test_results_that_come_again_with_others_count_once(store: Store) -> None:
    scene = Scene.make(store)
    scene.enqueue(configs(3))
    held = scene.leased(scene.register())
    first, second, third = (timed(e) for e in held.job.entries)
    metrics = Metrics()
    for results, done in (((first, second), False), ((first, second, third, third), True)):
        sent = Results(token=held.token, session="s", results=results, done=done)
        with store.write() as c:
            (answer,) = reporting.report_many(c, [Report(lease_id=held.id, results=sent)], TERMS)
        assert isinstance(answer, ResultsAccepted)
        metrics.count(sent, answer)
    found = values(metrics, store)
    assert found["plevel_results_total", "none"] == 3
    assert found["plevel_run_seconds_total",] == pytest.approx(first.run_s + second.run_s + third.run_s)
