"""A worker that stands still past its lease, and then goes on as if nothing had been."""

from __future__ import annotations

import json
import signal

import pytest

from plevel.client import Client
from tests.acceptance.conftest import Stage, wait_until
from tests.acceptance.test_main_job import BUDGET, DENSE, all_records
from tests.limit import HANG_S


@pytest.mark.full
def test_a_worker_stopped_past_its_lease(stage: Stage) -> None:
    stage.start_service()
    stopped = stage.start_worker()
    tune = stage.start("tune", *DENSE, *BUDGET, "--url", stage.url, "--json")
    with Client(stage.url) as client:
        wait_until(lambda: len(client.records()["records"]) >= 4, "some results")
        stopped.send_signal(signal.SIGSTOP)
        other = stage.start_worker()

        def is_given_up() -> bool:
            return not any(w["pid"] == stopped.pid and w["alive"] for w in client.workers())

        wait_until(is_given_up, "the end of its lease")
        stopped.send_signal(signal.SIGCONT)
        out, _ = tune.communicate(timeout=HANG_S)
        assert tune.returncode == 0, stage.logs()
        run = json.loads(out)["run"]
        assert run["state"] == "done"
        search = [r for r in all_records(client, run_id=run["id"], phase="search") if not r["error"]]
        tried = [(r["task_id"], json.dumps(r["config"], sort_keys=True)) for r in search]
        assert len(tried) == len(set(tried))
        # It is of use again.
        wait_until(
            lambda: any(w["pid"] == stopped.pid and w["alive"] for w in client.workers()),
            "its return",
        )
        assert other.poll() is None
        assert stopped.poll() is None
