"""Checks of libraries on the cores that build, while those before them are timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from strategy.record import Job, Result
from workers.builder import Built
from workers.cpu import Cores, machine_memory
from workers.sandbox import ForkServer
from workers.timing_runner import TimingRunner


class Checker:
    """The child that checks libraries beside the one that times. Thread-safe.

    Kernels run on as many threads as they are timed with, so it checks only those for which there are enough cores,
    and none where building shares cores with timing.

    Args:
        server: the fork server of the child.
        cores: the cores of the device.
    """

    def __init__(self, server: ForkServer, cores: Cores) -> None:
        self._cores = () if cores.overlap else cores.building
        self._runner = TimingRunner(server, self._cores, machine_memory() // 2)
        self._lock = threading.Lock()

    def check(
        self,
        job: Job,
        built: Sequence[Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
        enough: Callable[[], bool],
    ) -> dict[int, float | None]:
        """Check a job's libraries until `enough`; see `TimingRunner.check`."""
        if job.target.kind == "cuda" or job.target.threads > len(self._cores):
            return dict.fromkeys(b.entry for b in built)
        with self._lock:
            return self._runner.check(job, built, interrupt, report, enough)

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._runner.close()
