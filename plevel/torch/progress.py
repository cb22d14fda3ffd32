"""Progress of a graph's first call: logged while that takes long, so that no user waits without knowing for what."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Self

logger = logging.getLogger("plevel.torch")
FIRST_S = 5.0  # after which the first line is logged; the next ones are each twice as late


class Progress:
    """The stage of a graph's compilation, from when it is entered.

    Each stage is logged as it begins, at the level of information. A stage that goes on after 5, 10, 20 s and so on is
    logged as a warning, which Python shows unless the program decides otherwise.

    Args:
        left: the seconds that confirmation may take still; infinite where it has no bound, or there is none.
    """

    def __init__(self, left: Callable[[], float]) -> None:
        self._left = left
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
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        due_s = FIRST_S
        while not self._ended.wait(self._began + due_s - time.monotonic()):
            logger.warning("plevel: a graph has been compiling for %.0f s: %s%s", due_s, self._stage, self._rest())
            due_s *= 2

    def _rest(self) -> str:
        left_s = self._left()
        if not self._is_timing or math.isinf(left_s):
            return ""
        return f' (some {max(left_s, 0.0):.0f} s are left for this; options={{"confirm": False}} leaves it out)'
