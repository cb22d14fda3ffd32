"""The first call of a graph: what its user is told of, and waits for."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from plevel.torch import budget, progress
from plevel.torch.budget import BASE_S, PER_SECOND, Budget, Part
from plevel.torch.progress import Progress, Series
from tests.limit import HANG_S


def test_time_for_confirmation_grows_with_inductors_and_is_taken_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: now_s))
    left = Budget()
    now_s += 1000  # the caller's
    assert left.left_s == BASE_S
    with left.count(Part.CONFIRMATION):
        now_s += 5
        with left.count(Part.INDUCTOR):
            now_s += 20
            with left.count(Part.CONFIRMATION):  # what it plans while Inductor compiles
                now_s += 3
                assert left.is_within(Part.INDUCTOR)
            now_s += 10
        now_s += 1
        assert not left.is_within(Part.INDUCTOR)
        assert left.left_s == BASE_S + PER_SECOND * 30 - 9
    now_s += 1000
    assert left.left_s == BASE_S + PER_SECOND * 30 - 9
    left.reset()
    assert left.left_s == BASE_S


@contextmanager
def told() -> Iterator[threading.Event]:
    """An event that is set by the first warning."""
    came = threading.Event()

    class Setting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING:
                came.set()

    handler = Setting()
    progress.logger.addHandler(handler)
    try:
        yield came
    finally:
        progress.logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("left_s", "rest"),
    [(73.4, ' (some 73 s are left for this; options={"confirm": False} leaves it out)'), (math.inf, "")],
)
def test_a_stage_that_takes_long_is_told_with_what_is_left(
    left_s: float, rest: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.001)
    shown = Progress(lambda: left_s, Series())
    shown.say("it is timed as one library", is_timing=True)
    with told() as came, shown:
        assert came.wait(HANG_S)
    assert f"plevel: a graph has been compiling for 0 s: it is timed as one library{rest}" in caplog.messages


def test_a_first_graph_that_begins_slowly_is_not_the_next_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.001)
    series = Series()
    for said in ("a graph has been compiling for 0 s: Inductor is loaded", "2 graphs have been compiling for 0 s: the"):
        caplog.clear()
        with told() as came, Progress(lambda: math.inf, series):
            assert came.wait(HANG_S)
        assert said in caplog.messages[0]


def test_a_graph_that_is_compiled_soon_is_told_of_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with Progress(lambda: math.inf, Series()) as shown:
        shown.say("Inductor compiles it")
    assert not caplog.messages


def test_graphs_that_are_each_compiled_soon_are_told_of_once_all_of_them_take_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = Series()
    for taken_s in (3.0, 4.0, 20.0):
        shown = Progress(lambda: math.inf, series)
        shown.say("Inductor compiles it")
        with told() as came, shown:
            if series.taken_s > progress.FIRST_S:
                assert came.wait(HANG_S)
        series.taken_s += taken_s
    assert caplog.messages == ["plevel: 3 graphs have been compiling for 5 s: Inductor compiles it"]
    monkeypatch.setattr(progress, "PAUSE_S", -1.0)  # a model that is compiled later
    with Progress(lambda: math.inf, series):
        assert (series.graphs, series.taken_s, series.due_s) == (1, 0.0, progress.FIRST_S)


def test_time_in_which_several_graphs_are_compiled_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now_s))
    series = Series()
    series.begin()
    now_s += 2
    series.begin()
    now_s += 1
    assert (series.graphs, series.rest_s()) == (2, progress.FIRST_S - 3)
    series.end()
    now_s += 1
    assert series.claim() is None
    series.end()
    assert series.taken_s == 4
    now_s += 5  # between two graphs
    series.begin()
    now_s += 1
    assert [series.claim(), series.claim()] == [5, None]  # one line, whichever graph's thread asks first
    assert series.rest_s() == 5
    series.end()


def test_no_more_than_half_a_minute_passes_without_a_line() -> None:
    series, due = Series(), []
    for _ in range(7):
        due.append(series.due_s)
        series.postpone()
    assert due == [5, 10, 20, 40, 70, 100, 130]
