"""Progress of graphs' first calls: logged while they take long, so that no user waits without knowing for what."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Self

logger = logging.getLogger("plevel.torch")
FIRST_S = 5.0  # after which the first line is logged; the next ones are each twice as late
MOST_S = 30.0  # between two lines
PAUSE_S = 10.0  # between graphs, after which those that follow are counted anew


class Series:
    """Graphs that are compiled one soon after the other, as those of one model are: the time of all of them counts."""

    def __init__(self) -> None:
        self.graphs, self.taken_s, self.due_s = 0, 0.0, FIRST_S
        self._ended = -math.inf

    def begin(self) -> None:
        if time.monotonic() - self._ended > PAUSE_S:
            self.graphs, self.taken_s, self.due_s = 0, 0.0, FIRST_S
        self.graphs += 1

    def end(self, taken_s: float) -> None:
        self.taken_s += taken_s
        self._ended = time.monotonic()

    def postpone(self) -> None:
        """Make the next line due."""
        self.due_s += min(self.due_s, MOST_S)


class Progress:
    """The stage of a graph's compilation, from when it is entered.

    Each stage is logged as it begins, at the level of information. One that goes on after 5, 10, 20, 40, 70 s and so on
    is logged as a warning, which Python shows unless the program decides otherwise.

    Args:
        left: the seconds that confirmation may take still; infinite where it has no bound, or there is none.
        series: the graphs before this one.
    """

    def __init__(self, left: Callable[[], float], series: Series) -> None:
        self._left, self._series = left, series
        self._stage = "the next one begins"  # of a series that is slow already
        self._is_timing = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plevel-progress", daemon=True)

    @property
    def left_s(self) -> float:
        return self._left()

    def say(self, stage: str, *, is_timing: bool = False) -> None:
        """Begin a stage; `is_timing`: it is of confirmation."""
        self._stage, self._is_timing = stage, is_timing
        logger.info("%s", stage)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._series.begin()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._series.end(time.monotonic() - self._began)

    def _run(self) -> None:
        series = self._series
        which = "a graph has" if series.graphs == 1 else f"{series.graphs} graphs have"
        while not self._ended.wait(self._began + series.due_s - series.taken_s - time.monotonic()):
            logger.warning("plevel: %s been compiling for %.0f s: %s%s", which, series.due_s, self._stage, self._rest())
            series.postpone()

    def _rest(self) -> str:
        left_s = self._left()
        if not self._is_timing or math.isinf(left_s):
            return ""
        return f' (some {max(left_s, 0.0):.0f} s are left for this; options={{"confirm": False}} leaves it out)'
