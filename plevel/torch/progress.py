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
    """Graphs that are compiled one soon after the other, as those of one model are: the time of all of them counts.

    Time in which several are compiled at once, by threads of a program, counts once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiling = 0
        self._since, self._ended = 0.0, -math.inf
        self._restart()

    def _restart(self) -> None:
        self.graphs, self.taken_s, self.due_s = 0, 0.0, FIRST_S

    def begin(self) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._compiling:
                if now - self._ended > PAUSE_S:
                    self._restart()
                self._since = now
            self._compiling += 1
            self.graphs += 1

    def end(self) -> None:
        with self._lock:
            self._compiling -= 1
            if not self._compiling:
                self._ended = time.monotonic()
                self.taken_s += self._ended - self._since

    def rest_s(self) -> float:
        """Seconds until the next line is due, while a graph is compiled."""
        with self._lock:
            return self._rest_s()

    def _rest_s(self) -> float:
        return self._since + self.due_s - self.taken_s - time.monotonic()

    def claim(self) -> float | None:
        """The seconds that a line is due for, which no other thread is given; None where none is due."""
        with self._lock:
            if self._rest_s() > 0:
                return None
            due_s = self.due_s
            self.postpone()
            return due_s

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
        self._stage = ""
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
        self._series.begin()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._series.end()

    def _run(self) -> None:
        series = self._series
        while not self._ended.wait(series.rest_s()):
            due_s = series.claim()
            if due_s is not None:
                which = "a graph has" if series.graphs == 1 else f"{series.graphs} graphs have"
                # Before its first stage a process loads Inductor; of a series that is slow already a line may be due.
                stage = self._stage or ("Inductor is loaded" if series.graphs == 1 else "the next one begins")
                logger.warning("plevel: %s been compiling for %.0f s: %s%s", which, due_s, stage, self._rest())

    def _rest(self) -> str:
        left_s = self._left()
        if not self._is_timing or math.isinf(left_s):
            return ""
        return f' (some {max(left_s, 0.0):.0f} s are left for this; options={{"confirm": False}} leaves it out)'
