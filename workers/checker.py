"""Checks of libraries on the cores that build, while others are timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from strategy.host import cache_sizes
from strategy.record import Job, Result
from strategy.types import TensorType, TupleType
from strategy.workload import Workload
from workers.builder import Built
from workers.cgroup import machine_memory
from workers.cpu import Cores
from workers.guard import size_bytes
from workers.sandbox import ForkServer
from workers.timing_runner import TimingRunner
from workers.turn import Turn

# The last-level cache has so many times the bytes of inputs and outputs. A check goes through each input, its packed
# form, two of each output and a reference in float64; what is timed has as many inputs and packed forms. Twice that, as
# the cache has other users.
_ROOM = 8
_POLL_S = 0.25


class Checker:
    """The child that checks libraries beside the one that times. Thread-safe.

    It checks only where that disturbs no times: kernels for which there are enough cores that time nothing, and whose
    data fit into the last-level cache beside those of what is timed. The session that times checks the others.

    Args:
        server: the fork server of the child.
        cores: the cores of the device.
        turn: the lock under which builds use the same cores.
        cache_bytes: of the last-level cache.
    """

    def __init__(self, server: ForkServer, cores: Cores, turn: Turn, cache_bytes: int | None = None) -> None:
        self._cores = () if cores.overlap else cores.building
        self._cache_bytes = cache_sizes().get("l3_bytes", 0) if cache_bytes is None else cache_bytes
        self._turn = turn
        self._runner = TimingRunner(server, self._cores, machine_memory() // 2)
        self._lock = threading.Lock()

    def check(
        self,
        job: Job,
        built: Sequence[Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
        timed: Callable[[], Job | None],
    ) -> dict[int, float | None]:
        """Check a job's libraries, one after the other: see `TimingRunner.check`.

        Args:
            timed: the job that is timed now; None ends the checks, as the session that times can go on with them.
        """

        def disturbs() -> bool:
            beside = timed()
            return beside is None or not self._has_room(beside)

        @contextmanager
        def turn() -> Iterator[bool]:
            with self._turn.build(self._cores, lambda: timed() is None) as mine:
                yield mine and not disturbs()

        if not self.takes(job) or not self._begin(lambda: timed() is None or interrupt.is_set()):
            return dict.fromkeys(b.entry for b in built)
        try:
            return self._runner.check(job, built, interrupt, report, turn)
        finally:
            self._lock.release()

    def _begin(self, stop: Callable[[], bool]) -> bool:
        """Wait for the child, in which another job's kernel may hang; return False if `stop` ended the wait."""
        while not self._lock.acquire(timeout=_POLL_S):
            if stop():
                return False
        return True

    def takes(self, job: Job) -> bool:
        return not job.target.is_gpu and job.target.threads <= len(self._cores) and self._has_room(job)

    def _has_room(self, job: Job) -> bool:
        return _ROOM * _data_bytes(job.workload) <= self._cache_bytes

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._runner.close()


def _data_bytes(workload: Workload) -> int:
    """The bytes of the inputs and outputs."""
    out = workload.out_type
    types = [*workload.input_types, *(out.fields if isinstance(out, TupleType) else (out,))]
    return sum(size_bytes(t.concrete_shape, t.dtype) for t in types if isinstance(t, TensorType))
