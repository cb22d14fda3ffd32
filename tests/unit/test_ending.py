"""Signals that ask a worker to end, in the middle of what it does."""

from __future__ import annotations

import signal
import threading

import pytest

from strategy.ending import ending_signals
from tests.limit import HANG_S
from workers.ending import ended_by_signals

pytestmark = pytest.mark.usefixtures("signals_kept")


def test_a_signal_may_come_while_the_lock_of_an_event_is_held() -> None:
    drained, stopped = threading.Event(), threading.Event()
    with ended_by_signals(drained.set, stopped.set):
        with drained._cond:  # as within `set` and `wait`
            signal.raise_signal(signal.SIGTERM)
        assert drained.wait(HANG_S)
        assert not stopped.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stopped.wait(HANG_S)
    assert {signal.getsignal(kind) for kind in ending_signals()} == {signal.SIG_IGN}


@pytest.mark.parametrize("fails", [False, True])
def test_a_second_signal_stops_a_worker_that_does_not_drain(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    draining, stopped = threading.Event(), threading.Event()

    def drain() -> None:
        draining.set()
        if fails:
            raise ValueError("no")
        stopped.wait(HANG_S)

    with ended_by_signals(drain, stopped.set):
        signal.raise_signal(signal.SIGTERM)
        assert draining.wait(HANG_S)
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(HANG_S / 10)


def test_a_worker_that_ends_by_itself_can_be_signalled_as_before() -> None:
    with ended_by_signals(threading.Event().set, threading.Event().set):
        pass
    signal.raise_signal(signal.SIGTERM)  # no failure, and not ignored for its children
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
