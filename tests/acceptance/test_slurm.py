"""Workers as jobs of a real SLURM: they start with the backlog, and leave; killed ones lose and double nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plevel.client import Client
from strategy.record import RunState
from tests.acceptance.conftest import Stage, wait_until
from tests.acceptance.test_main_job import all_records
from tests.acceptance.test_scale import begin_run, offer_plevel, profile, scale
from tests.integration.test_faults import check
from tests.slurm import Slurm

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm/plevel-worker.sbatch"
TRIALS = 24


@pytest.fixture
def slurm(stage: Stage) -> Iterator[Slurm]:
    folder = stage.folder / "slurm"
    folder.mkdir()
    stage.environment |= offer_plevel(stage.folder) | {"PLEVEL_URL": stage.url}
    one = Slurm(folder, stage.environment)
    stage.environment["SLURM_CONF"] = one.environment["SLURM_CONF"]
    yield one
    one.close()


def test_an_array_of_workers_that_are_killed_cancelled_and_requeued(stage: Stage, slurm: Slurm) -> None:
    stage.start_service()
    with Client(stage.url) as client:
        run = begin_run(client, TRIALS)
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


@pytest.mark.full
def test_a_pilot_that_is_cancelled_gives_its_job_back(stage: Stage, slurm: Slurm) -> None:
    """Its job lasts until its worker has drained: SLURM may kill what a shell leaves that ends at once."""
    stage.start_service()
    given = ("--slurm", str(profile(stage, walltime="00:10:00", exclusive=False)), "--max", "1")
    with Client(stage.url) as client:
        run = begin_run(client, TRIALS)
        scaler = stage.start("fleet", "scale", *given, "--every", "1s")
        wait_until(lambda: client.records()["records"], "a result of the first pilot")
        ((pilot, _),), (worker,) = slurm.jobs().items(), client.workers()
        slurm.run("scancel", pilot)
        wait_until(lambda: pilot not in slurm.jobs(), "the end of the cancelled pilot")
        assert not Path(f"/proc/{worker['pid']}").exists()
        wait_until(lambda: client.run(run).state == RunState.DONE, "the end of the run")
        wait_until(lambda: not slurm.jobs(), "the end of the idle pilot")
        check(f"sqlite:///{stage.database}", client.run(run), TRIALS)
        assert scaler.poll() is None
    with closing(sqlite3.connect(stage.database)) as database:
        reasons = {reason for (reason,) in database.execute("SELECT end_reason FROM lease")}
    assert reasons <= {"done", "released"}, reasons


@pytest.mark.full
def test_a_pilot_that_is_suspended_is_kept_and_goes_on(stage: Stage, slurm: Slurm) -> None:
    stage.start_service()
    given = ("--slurm", str(profile(stage, walltime="00:10:00", exclusive=False)), "--max", "1")
    with Client(stage.url) as client:
        run = begin_run(client, TRIALS)
        wait_until(client.backlog, "a backlog")
        scale(stage, *given, "--once")
        wait_until(lambda: client.records()["records"], "a result of the pilot")
        (pilot,) = slurm.jobs()
        slurm.run("scontrol", "suspend", pilot)
        assert slurm.jobs() == {pilot: "S"}
        assert f"pilots {pilot} are suspended" in scale(stage, *given, "--once")
        assert "0 with a job, 1 suspended" in scale(stage, *given, "--dry-run")
        assert slurm.jobs() == {pilot: "S"}
        slurm.run("scontrol", "resume", pilot)
        wait_until(lambda: client.run(run).state == RunState.DONE, "the end of the run")
        wait_until(lambda: not slurm.jobs(), "the end of the idle pilot")
        check(f"sqlite:///{stage.database}", client.run(run), TRIALS)


def test_pilots_are_submitted_for_a_backlog_and_cancelled_without_one(stage: Stage, slurm: Slurm) -> None:
    """On a drained node they stay pending, which each scaler learns from SLURM."""
    stage.start_service()
    slurm.run("scontrol", "update", f"node={slurm.host}", "state=drain", "reason=test")
    given = ("--slurm", str(profile(stage, walltime="00:10:00", exclusive=False)))
    with Client(stage.url) as client:
        run = begin_run(client, TRIALS)
        wait_until(client.backlog, "a backlog")
        told = scale(stage, *given, "--dry-run")
        assert "would submit 1, each with" in told
        assert "cancel" not in told
        assert not slurm.jobs()
        assert "submitting 1" in scale(stage, *given, "--once")
        assert list(slurm.jobs().values()) == ["PD"]
        assert scale(stage, *given, "--once") == ""  # another process: what is pending is enough
        client.cancel(run)
        wait_until(lambda: not client.backlog(), "the end of the backlog")
        told = scale(stage, *given, "--dry-run")
        assert "would cancel 1 that have not started, if they are still too many in" in told
        assert "would submit 0" in told
        scaler = stage.start("fleet", "scale", *given, "--every", "1s")
        wait_until(lambda: not slurm.jobs(), "the end of what has not started")
        assert scaler.poll() is None
