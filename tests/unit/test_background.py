"""Threads of the service: a failed step ends none of them, and fills no log."""

from __future__ import annotations

import logging
import threading

import pytest

from service.errors import DatabaseError
from service.store.background import Background
from service.store.wakeup import Wakeup


class Repeated(Background):
    """Raises the errors one after the other, then sets `done`."""

    def __init__(self, *errors: Exception, poll_s: float = 0.001) -> None:
        self.bell = Wakeup()
        super().__init__("tester", poll_s, self.bell)
        self.errors = list(errors)
        self.steps = 0
        self.done = threading.Event()

    def step(self) -> None:
        self.steps += 1
        if self.errors:
            raise self.errors.pop(0)
        self.done.set()


def test_a_failed_step_is_repeated_and_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    away = [DatabaseError("gone") for _ in range(5)]
    repeated = Repeated(*away, ValueError("odd"), *away)
    with caplog.at_level(logging.DEBUG):
        repeated.start()
        assert repeated.done.wait(30)
        repeated.stop()
    said = [(r.levelname, r.getMessage()) for r in caplog.records]
    once = ("WARNING", "the tester waits until the database answers: gone")
    assert said == [once, ("ERROR", "the tester goes on after an error"), once]


def test_the_bell_begins_a_step_and_stopping_waits_for_no_other() -> None:
    repeated = Repeated(poll_s=1e6)
    repeated.start()
    assert repeated.done.wait(30)
    repeated.done.clear()
    repeated.bell.notify()
    assert repeated.done.wait(30)
    repeated.stop()
    assert repeated.steps == 2


def test_one_that_hangs_is_left_behind_after_its_patience() -> None:
    release = threading.Event()

    class Hanging(Repeated):
        patience_s = 0.01

        def step(self) -> None:
            self.done.set()
            release.wait(30)

    hanging = Hanging()
    hanging.start()
    assert hanging.done.wait(30)
    hanging.stop()
    release.set()
    assert hanging._thread is not None
    hanging._thread.join(30)
    assert not hanging._thread.is_alive()
