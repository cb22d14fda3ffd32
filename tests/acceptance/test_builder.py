"""A run whose configurations a builder of a Dask cluster builds, by the commands that a user types."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import msgspec
import pytest

from plevel.client import Client
from strategy.record import RunState
from tests.acceptance.conftest import Stage, kill, wait_until
from tests.acceptance.test_scale import TRIALS, begin_run
from tests.limit import HANG_S
from tests.port import free_port

pytest.importorskip("distributed", reason="the cluster extra is not installed")


@pytest.mark.full
def test_a_worker_builds_on_a_builder_and_goes_on_without(stage: Stage) -> None:
    artefacts, file = stage.folder / "artefacts", stage.folder / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        [*command, "--no-dashboard", "--scheduler-file", str(file)], stderr=subprocess.DEVNULL, env=stage.environment
    ) as scheduler:
        try:
            wait_until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler's start")
            address = msgspec.json.decode(file.read_bytes())["address"]
            given = ("--scheduler", address, "--threads", "1", "--artefacts", str(artefacts), "--json")
            builder = stage.start("builder", *given)
            stage.start_service()
            stage.start("worker", "--url", stage.url, "--threads", "1", "--build-on", address)
            wait_until(lambda: f"building on {address}" in stage.logs(), "the connection to the builder")
            with Client(stage.url) as client:
                run = begin_run(client, TRIALS)
                wait_until(lambda: client.run(run).state == RunState.DONE, "the end of the run")
                assert list(artefacts.iterdir())
                builder.send_signal(signal.SIGTERM)
                builder.wait(HANG_S)
                kill(scheduler)
                again = begin_run(client, 2 * TRIALS)
                wait_until(lambda: client.run(again).state == RunState.DONE, "the end of the second run")
                assert client.run(again).trials_done == 2 * TRIALS
        finally:
            kill(scheduler)
    lines = next(stage.folder.glob("*-builder.log")).read_text().splitlines()
    assert {"at", "level", "logger", "message"} <= msgspec.json.decode(lines[0]).keys()
    said = [line for line in stage.logs().splitlines() if "is not reachable" in line or "has no builders" in line]
    assert 1 <= len(said) <= 2, said  # each once, if the worker has seen both
    assert "Traceback" not in next(stage.folder.glob("*-worker.log")).read_text()


def test_a_builder_that_is_stopped_while_it_connects_ends_without_a_word(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(HANG_S)
        builder = stage.start("builder", "--scheduler", "tcp://{}:{}".format(*silent.getsockname()))
        connection, _ = silent.accept()
        builder.send_signal(signal.SIGTERM)
        with connection:
            assert builder.wait(HANG_S) == 0, stage.logs()
    assert "Traceback" not in stage.logs()


@pytest.mark.full
def test_a_builder_connects_again_when_its_scheduler_is_back(stage: Stage) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    stage.environment["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "2s"
    done = stage.run("builder", "--scheduler", address)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"plevel: --scheduler {address}: ")
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    builder, log = None, ""
    for registered in (1, 2):
        with subprocess.Popen(
            [*command, "--no-dashboard"], stderr=subprocess.DEVNULL, env=stage.environment
        ) as scheduler:
            try:
                builder = builder or stage.start("builder", "--scheduler", address, "--threads", "1", "--json")
                wait_until(lambda n=registered: stage.logs().count(f"building for {address}") == n, "its registration")
                if registered == 2:
                    log = stage.logs()
                    os.killpg(builder.pid, signal.SIGINT)  # Ctrl-C in a terminal, which reaches its children, too
                    assert builder.wait(HANG_S) == 0
            finally:
                kill(scheduler)
    assert f"{address}: the connection has ended: trying again in 1 s" in log
    assert "Traceback" not in stage.logs().removeprefix(log)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("builder", "--scheduler", "tcp://head:8786"), "--scheduler tcp://head:8786: whoever reaches it"),
        (("builder", "--scheduler", "tls://head:8786"), "needs --tls-ca"),
        (("worker", "--url", "http://127.0.0.1:9", "--build-on", "head:8786"), "write tls://"),
        (("worker", "--url", "http://127.0.0.1:9", "--tls-ca", "ca.pem"), "--build-on is missing"),
    ],
)
def test_a_wrong_address_is_one_line(stage: Stage, arguments: tuple[str, ...], words: str) -> None:
    done = stage.run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr
