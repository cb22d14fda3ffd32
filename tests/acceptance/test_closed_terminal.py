"""A terminal that closes (SIGHUP): all end as after Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from plevel.client import Client
from tests.acceptance.conftest import Stage, wait_until
from tests.acceptance.test_main_job import BUDGET, DENSE, count_records
from tests.limit import HANG_S


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Processes do not inherit that these tests' own ignores it, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_worker_and_service_end_in_order(stage: Stage) -> None:
    service = stage.start_service()
    worker = stage.start_worker()
    stage.start("tune", *DENSE, *BUDGET, "--url", stage.url)
    with Client(stage.url) as client:
        wait_until(lambda: count_records(stage) >= 1, "a result")
        worker.send_signal(signal.SIGHUP)
        assert worker.wait(HANG_S) == 0, stage.logs()
        assert client.workers() == []  # it has said that it leaves
    service.send_signal(signal.SIGHUP)
    assert service.wait(HANG_S) == 0, stage.logs()


def test_a_command_says_how_to_resume(stage: Stage) -> None:
    tune = stage.start("tune", *DENSE, *BUDGET, "--database", f"sqlite:///{stage.database}")
    wait_until(lambda: stage.database.exists() and count_records(stage) >= 1, "a result")
    tune.send_signal(signal.SIGHUP)
    out, _ = tune.communicate(timeout=HANG_S)
    assert tune.returncode == 130
    assert "to resume" in out
    wait_until(lambda: not stage.survivors(), "the end of service and worker")
