"""Training on a Dask cluster of real processes over TLS: as good as on one host, and it survives a worker."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")

from plevel.cli.error import UsageError
from plevel.cli.main import app
from service.errors import InvalidError
from service.predict import cluster as clusters
from service.predict import learner, spool, training
from service.predict.cluster import Cluster
from service.store.db import Store
from tests.certificate import make_certificates
from tests.integration.scene import TARGET
from tests.integration.test_training import SHAPES, measure
from tests.limit import wait_until

TLS = ("--tls-ca", "--tls-cert", "--tls-key")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def farm(certificates: dict[str, Path]) -> Iterator[Any]:
    name, key = str(certificates["certificate"]), str(certificates["key"])
    security = distributed.Security(
        tls_ca_file=str(certificates["ca"]), require_encryption=True,
        tls_client_cert=name, tls_client_key=key, tls_scheduler_cert=name, tls_scheduler_key=key,
        tls_worker_cert=name, tls_worker_key=key,
    )
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, protocol="tls://", security=security, dashboard_address=":0",
        host="127.0.0.1", silence_logs=False,
    ) as cluster:
        yield cluster


@pytest.fixture
def store(sqlite_copy: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A database with records, in several parts."""
    monkeypatch.setattr(spool, "PART_ROWS", 40)
    opened = Store(sqlite_copy)
    measure(opened, SHAPES)
    yield opened
    opened.close()


def files(farm: Any) -> list[Path]:
    folders = {w.local_directory for w in farm.workers.values()}
    return [p for folder in folders for p in Path(folder).parent.rglob("plevel-training-*")]


def test_the_command_trains_on_a_cluster_as_well_as_on_this_host(
    store: Store, sqlite_copy: str, farm: Any, certificates: dict[str, Path]
) -> None:
    alone = learner.train(store, "filter", TARGET.key)
    paths = [certificates["ca"], certificates["certificate"], certificates["key"]]
    options = [word for pair in zip(TLS, map(str, paths), strict=True) for word in pair]
    done = CliRunner().invoke(
        app,
        ["model", "train", "filter", "--target", "llvm -mcpu=znver4 -num-cores=2", "--dask",
         farm.scheduler_address, *options, "--database", sqlite_copy],
    )
    assert done.exit_code == 0, done.output
    with store.read() as c:
        together = training.find(c)[0]
    assert (together.version, together.records) == (2, alone.records)
    assert together.accuracy == pytest.approx(alone.accuracy, abs=0.03)
    assert files(farm) == []


@pytest.mark.full
def test_a_killed_worker_costs_the_trees_since_the_last_checkpoint(
    store: Store, farm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "ROUNDS", 400)
    monkeypatch.setattr(learner, "NEGLIGIBLE", 1.0)  # it is trained once
    said: list[str] = []
    with distributed.Client(farm, set_as_default=False) as client:
        client.wait_for_workers(2)
        victims = [pid for _, pid in sorted(client.run(os.getpid).items())][:1]

        def told(text: str) -> None:
            found = re.fullmatch(r"testing: (\d+) of 400 trees", text)
            if found and int(found[1]) > clusters.share.CHECKPOINT and victims:
                os.kill(victims.pop(), signal.SIGKILL)

        cluster = Cluster(client, said.append)
        try:
            model = learner.train(store, "filter", TARGET.key, progress=told, cluster=cluster)
        finally:
            cluster.clear()
    assert model.accuracy > 0.85
    (line,) = said
    found = re.search(r"training again from tree (\d+) on", line)
    assert found is not None, line
    assert int(found[1]) >= clusters.share.CHECKPOINT


@pytest.mark.full
def test_a_scheduler_that_ends_is_said(store: Store) -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, protocol="inproc://", dashboard_address=":0", silence_logs=False
        ) as farm,
        distributed.Client(farm, set_as_default=False) as client,
    ):
        end = lambda text: farm.close() if text.startswith("sending") else None
        with pytest.raises(InvalidError, match=r"the Dask scheduler is gone .*: start it, and train again"):
            learner.train(store, "filter", TARGET.key, progress=end, cluster=Cluster(client, print))


@pytest.mark.full
def test_a_worker_that_cannot_keep_records_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(*order: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(clusters.share, "keep", keep)
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, protocol="inproc://", dashboard_address=":0", silence_logs=False
        ) as farm,
        distributed.Client(farm, set_as_default=False) as client,
        pytest.raises(InvalidError, match=r"do not keep the records: Dask worker .*No space left on device"),
    ):
        learner.train(store, "filter", TARGET.key, cluster=Cluster(client, print))


@pytest.mark.full
def test_a_training_ends_with_its_command(store: Store, farm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is killed cancels nothing."""
    monkeypatch.setattr(learner, "ROUNDS", 1_000_000)
    monkeypatch.setattr(clusters.share, "cancel", len)
    monkeypatch.setattr(distributed.Client, "cancel", lambda self, futures, **options: None)
    begun = threading.Event()
    look = clusters._look

    def look_once(client: Any, futures: Any) -> None:
        look(client, futures)
        if begun.is_set():
            client.close()
            raise OSError("killed")

    monkeypatch.setattr(clusters, "_look", look_once)
    told = lambda text: begun.set() if text.startswith("testing: 3 of") else None
    with distributed.Client(farm, set_as_default=False) as client, pytest.raises(InvalidError):
        learner.train(store, "filter", TARGET.key, progress=told, cluster=Cluster(client, print))
    with distributed.Client(farm, set_as_default=False) as client:
        wait_until(lambda: not any(client.run(lambda: len(clusters.share._running)).values()), "its end", 0.1)


@pytest.mark.full
def test_records_that_a_worker_cannot_keep_go_to_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = clusters.share.keep
    with (
        distributed.LocalCluster(
            n_workers=2, processes=False, protocol="inproc://", dashboard_address=":0", silence_logs=False
        ) as farm,
        distributed.Client(farm, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        full = min(client.nthreads())

        def keep_on_other(*order: Any) -> tuple[int, int]:
            if distributed.get_worker().address == full:
                raise OSError(28, "No space left on device")
            return keep(*order)

        monkeypatch.setattr(clusters.share, "keep", keep_on_other)
        cluster = Cluster(client, print)
        assert learner.train(store, "filter", TARGET.key, cluster=cluster).accuracy > 0.85


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dask", "tcp://head:8786"), "use tls://"),
        (("--dask", "head:8786"), "no address of a Dask scheduler"),
        (("--dask", "tcp://127.0.0.1:1"), "not reachable"),
        (("--dask", "tls://head:8786", "--url", "http://127.0.0.1:1"), "name the --database instead"),
    ],
)
def test_a_wrong_option_is_one_line(
    options: tuple[str, ...], said: str, sqlite_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plevel.cli.model._CONNECT_S", 0.2)
    place = () if "--url" in options else ("--database", sqlite_copy)
    done = CliRunner().invoke(app, ["model", "train", "filter", *options, *place])
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)
