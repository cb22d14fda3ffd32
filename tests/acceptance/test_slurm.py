"""Workers as jobs of a real SLURM: they start with the backlog, and leave; killed ones lose and double nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plevel.client import Client
from strategy.record import RunRequest, RunState, RunWorkload
from tests.acceptance.conftest import Stage, wait_until
from tests.acceptance.test_main_job import WORKLOAD, all_records
from tests.integration.test_faults import check
from tests.slurm import Slurm
from workers.cpu import assign, describe_device, parse_cores

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm/plevel-worker.sbatch"
TRIALS = 24


@pytest.fixture
def slurm(stage: Stage) -> Iterator[Slurm]:
    folder = stage.folder / "slurm"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin/plevel"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plevel "$@"\n')
    program.chmod(0o755)
    stage.environment |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    stage.environment["PLEVEL_URL"] = stage.url
    one = Slurm(folder, stage.environment)
    yield one
    one.close()


def begin_run(client: Client) -> int:
    target = describe_device(assign(parse_cores("cpu"), 1), 1).target
    asked = RunRequest(
        workloads=(RunWorkload(workload=WORKLOAD),), target=target, trials=TRIALS, tuner="random",
        implementations=("dense_nopack.cpu",),
    )  # fmt: skip
    return client.create_run(asked).id


def test_an_array_of_workers_that_are_killed_cancelled_and_requeued(stage: Stage, slurm: Slurm) -> None:
    stage.start_service()
    with Client(stage.url) as client:
        run = begin_run(client)
        folder = f"--chdir={stage.folder}"
        given = ("--array=0-1", folder, str(SCRIPT), "--threads", "1", "--idle-exit", "1s")
        array = slurm.run("sbatch", "--parsable", *given)
        first, second = f"{array}_0", f"{array}_1"

        def measures_more() -> bool:
            return len(client.records()["records"]) > known

        # A node is for one worker: the second waits until the first has died.
        known = 0
        wait_until(measures_more, "a result of the first")
        assert slurm.jobs() == {first: "R", second: "PD"}
        (worker,) = (w for w in client.workers() if w["name"] == f"plevel-worker-{array}-0")
        os.kill(worker["pid"], signal.SIGKILL)
        wait_until(lambda: first not in slurm.jobs(), "the end of the first")
        slurm.run("scontrol", "requeue", first)
        slurm.run("scontrol", "update", f"job={first}", "StartTime=now")

        known = len(client.records()["records"])
        wait_until(measures_more, "a result of the second")
        slurm.run("scancel", second)  # SIGTERM to every process of it
        wait_until(lambda: second not in slurm.jobs(), "the end of the second")
        assert client.run(run).state == RunState.RUNNING

        wait_until(lambda: client.run(run).state == RunState.DONE, "the end of the run")
        wait_until(lambda: not slurm.jobs(), "the end of the idle worker")
        check(f"sqlite:///{stage.database}", client.run(run), TRIALS)
        assert not [r["error"] for r in all_records(client) if r["error"] == "crash"]
        assert not [w for w in client.workers() if w["alive"]]
    assert "ExitCode=0:0" in slurm.run("scontrol", "show", "job", first)
