"""The embedded mode's worker, loaded while the service starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from plevel.client import Client
from plevel.embedded import Embedded
from plevel.extra import EmbeddedError
from tests.limit import HANG_S


def open_early(folder: Path) -> Embedded:
    return Embedded(f"sqlite:///{folder / 'plevel.db'}", threads=1, early=True, logs=folder / "log")


def test_a_worker_that_was_loaded_early_is_the_one_that_is_started(tmp_path: Path) -> None:
    with open_early(tmp_path) as embedded:
        embedded.start_worker()
        with Client(embedded.url) as client:
            (worker,) = client.workers()
        assert worker["alive"]
        assert sorted(path.name.partition("-")[0] for path in (tmp_path / "log").iterdir()) == ["service", "worker"]
        assert embedded.worker_log.read_text().count("registered with") == 1


def test_a_loaded_worker_that_is_not_needed_ends_at_once(tmp_path: Path) -> None:
    with open_early(tmp_path) as embedded:
        loaded = embedded._loaded
        assert loaded is not None and loaded.is_alive
    assert not loaded.is_alive
    with pytest.raises(ProcessLookupError):
        os.kill(loaded.pid, 0)


def test_a_worker_that_has_given_up_is_started_again(tmp_path: Path) -> None:
    """A service that upgrades a large database answers late."""
    with open_early(tmp_path) as embedded:
        loaded = embedded._loaded
        assert loaded is not None
        loaded.kill()
        embedded.start_worker()
        embedded.check()


def test_the_end_of_a_worker_that_has_left_is_awaited(tmp_path: Path) -> None:
    with open_early(tmp_path) as embedded:
        embedded.start_worker()
        embedded.check()
        worker = embedded._children[-1]
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(EmbeddedError, match="the worker ended"):
            embedded.check(HANG_S)
