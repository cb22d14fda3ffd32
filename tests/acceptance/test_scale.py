"""Pilots as processes of this host: a backlog starts them, they do the run, and leave."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plevel.client import Client
from strategy.record import RunRequest, RunState, RunWorkload, encode
from tests.acceptance.conftest import Stage, kill, wait_until
from tests.acceptance.test_main_job import WORKLOAD
from tests.integration.test_faults import check
from tests.pods import Pods
from tests.quick import FINALS
from workers.cpu import assign, describe_device, parse_cores

if find_spec("parsl") is None:  # which takes a second to load
    pytest.skip("the cluster extra is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
TARGET = describe_device(assign(parse_cores("cpu"), 1), 1).target
TRIALS = 12


def offer_plevel(folder: Path) -> dict[str, str]:
    """An environment with `plevel` on its PATH, as pilots expect it."""
    program = folder / "bin/plevel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plevel "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def begin_run(client: Client, trials: int) -> int:
    """A run of one implementation for this host, whoever may time it; its number."""
    asked = RunRequest(
        workloads=(RunWorkload(workload=WORKLOAD),), target=TARGET, trials=trials, tuner="random",
        implementations=("dense_nopack.cpu",), confirm_policy=FINALS,
    )
    return client.create_run(asked).id


def profile(stage: Stage, **provider: Any) -> Path:
    path = stage.folder / "pilot.toml"
    options = "\n".join(f"{name} = {encode(value).decode()}" for name, value in provider.items())
    features = f" -mattr={','.join(TARGET.features)}" if TARGET.features else ""  # a host without AMX lacks some
    target = f"llvm -mcpu={TARGET.arch}{features} -num-cores=1"
    path.write_text(
        f'target = "{target}"\nworker = ["--threads", "1"]\nidle_exit = "1s"\n[provider]\n{options}\n'
    )
    return path


def scale(stage: Stage, *options: str) -> str:
    """The output of `plevel fleet scale`, to its end."""
    done = stage.run("fleet", "scale", *options, "--url", stage.url)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.full
def test_a_backlog_starts_pods_that_are_deleted_after_the_run(stage: Stage) -> None:
    pytest.importorskip("kubernetes", reason="the cluster extra is not installed")
    stage.start_service()
    with Pods(stage.folder) as there, Client(stage.url) as client:
        stage.environment |= {"PLEVEL_URL": stage.url, "KUBECONFIG": str(there.configuration)}
        there.environment = offer_plevel(stage.folder)
        given = ("--kubernetes", str(profile(stage, image="plevel", namespace="farm")), "--max", "1")
        run = begin_run(client, TRIALS)
        wait_until(client.backlog, "a backlog")
        scale(stage, *given, "--once")
        (pilot,) = there.specs
        wait_until(lambda: client.run(run).state == RunState.DONE, "the end of the run")
        check(f"sqlite:///{stage.database}", client.run(run), TRIALS)
        there.finish(pilot)
        scale(stage, *given, "--once")
        assert not there.specs
    assert "registered with" in (stage.folder / f"state/plevel/pilots/{pilot}.log").read_text()


def test_a_backlog_starts_pilots_that_leave_after_the_run(stage: Stage) -> None:
    stage.environment |= offer_plevel(stage.folder) | {"PLEVEL_URL": stage.url}
    stage.start_service()
    given = ("--local", str(profile(stage)), "--max", "1")
    with Client(stage.url) as client:
        run = begin_run(client, TRIALS)
        wait_until(client.backlog, "a backlog")
        scaler = stage.start("fleet", "scale", *given, "--every", "1s")
        wait_until(lambda: client.run(run).trials_done, "a result of the first pilot")
        (pilot,) = client.workers()
        kill(scaler)  # its pilots go on, and another scaler finds them
        assert scale(stage, *given, "--once") == ""
        wait_until(lambda: client.run(run).state == RunState.DONE, "the end of the run")
        wait_until(lambda: not client.workers(), "the end of the idle pilot")
        check(f"sqlite:///{stage.database}", client.run(run), TRIALS)
    folder = stage.folder / "state/plevel/pilots"
    wait_until(lambda: [p.read_text() for p in folder.glob("*.ec")] == ["0\n"], "its exit status of 0")
    assert "ended without a job" not in stage.logs()
    assert pilot["name"] in {path.name.removesuffix(".sh") for path in folder.glob("*.sh")}
