"""The daemon's handle on its builders.

A child builds many configurations: a new one is forked only after a crash or a time-out.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec

from strategy.record import ErrorKind, Job, JobEntry, convert, to_json
from workers.builder import Build, Built, shorten
from workers.fork import Limits
from workers.sandbox import Child, Died, ForkServer, Interrupted, Late
from workers.turn import Turn

_KEPT = 512  # libraries, about 30 KB each


class _Slot:
    """A builder: a thread of the daemon, its child, and the lock of shared cores."""

    def __init__(self, limits: Limits, turn: Turn | None) -> None:
        self.limits = limits
        self.turn = turn
        self.thread = ThreadPoolExecutor(1, "builder")
        self.child: Child | None = None


class BuilderPool:
    """One builder child per core, for the daemon, which never loads TVM itself.

    Libraries are cached, as finals use those of search jobs.

    Args:
        server: the fork server of the children.
        cores: the cores to build on.
        directory: the folder of libraries, for the lifetime of the pool.
        memory_bytes: the memory limit of each child.
        forks: allow the children's programs to fork, as nvcc does.
        shared: cores that also time, one child on each, which builds only under `turn`; if they are
            among `cores`, all children do.
        turn: the lock of the shared cores.
    """

    def __init__(
        self,
        server: ForkServer,
        cores: Sequence[int],
        directory: Path,
        memory_bytes: int = 4 * 2**30,
        *,
        forks: bool = False,
        shared: Sequence[int] = (),
        turn: Turn | None = None,
    ) -> None:
        self._server = server
        self._directory = directory
        limits = Limits(
            module="workers.builder", cores=tuple(cores), memory_bytes=memory_bytes, forks=forks
        )
        spare = tuple(core for core in shared if core not in cores)
        overlap = len(spare) < len(shared)
        self._slots = [_Slot(limits, turn if overlap else None) for _ in cores]
        self._slots += [_Slot(msgspec.structs.replace(limits, cores=spare), turn) for _ in spare]
        self._kept: dict[str, Built] = {}  # by name of the library, the least recent first
        self._lock = threading.Lock()

    def build(
        self,
        job: Job,
        interrupt: threading.Event,
        report: Callable[[Built], None] = lambda built: None,
    ) -> list[Built]:
        """Build all entries of a job, reporting each as it is done.

        The libraries exist at least until the job after the next is built. Entries that are not done when
        `interrupt` is set are omitted.
        """
        self._forget(max(_KEPT, 2 * len(job.entries)))
        waiting = deque((entry, Future[Built | None]()) for entry in job.entries)
        futures = [future for _, future in waiting]
        for slot in self._slots:
            slot.thread.submit(self._work, slot, job, interrupt, waiting)
        found = []
        for future in futures:
            built = future.result()
            if built is not None:
                report(built)
                found.append(built)
        return found

    def _work(
        self,
        slot: _Slot,
        job: Job,
        interrupt: threading.Event,
        waiting: deque[tuple[JobEntry, Future[Built | None]]],
    ) -> None:
        """Build waiting entries until none is left; errors are passed to their waiters."""
        try:
            while waiting:
                # Take an entry only under the lock: another slot may have built them all by then.
                with slot.turn.build() if slot.turn else nullcontext():
                    self._build_next(slot, job, interrupt, waiting)
        except BaseException as error:  # the timing lock cannot be acquired
            with suppress(IndexError):
                while True:
                    waiting.popleft()[1].set_exception(error)

    def _build_next(
        self,
        slot: _Slot,
        job: Job,
        interrupt: threading.Event,
        waiting: deque[tuple[JobEntry, Future[Built | None]]],
    ) -> None:
        try:
            entry, future = waiting.popleft()
        except IndexError:
            return
        try:
            future.set_result(self._build(slot, job, interrupt, entry))
        except BaseException as error:
            future.set_exception(error)

    def _forget(self, most: int) -> None:
        with self._lock:
            for name in list(self._kept)[: max(0, len(self._kept) - most)]:
                path = Path(self._kept.pop(name).path)
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".json").unlink(missing_ok=True)

    def _build(
        self, slot: _Slot, job: Job, interrupt: threading.Event, entry: JobEntry
    ) -> Built | None:
        if interrupt.is_set():
            return None
        name = library_name(job, entry)
        with self._lock:
            known = self._kept.pop(name, None)
            if known is not None:
                self._kept[name] = known  # moved to the end: the most recent
                return msgspec.structs.replace(known, entry=entry.index, build_s=0.0)
        path = self._directory / name
        request = Build(workload=job.workload, target=job.target, entry=entry, path=str(path))
        built = self._ask(slot, request, job.policy.build_timeout_s, interrupt)
        if built is not None and built.error is None:
            with self._lock:
                self._kept[name] = built
        else:
            for left in self._directory.glob(f"{path.stem}.*"):  # left by a killed child
                left.unlink(missing_ok=True)
        return built

    def _ask(
        self, slot: _Slot, request: Build, timeout_s: float, interrupt: threading.Event
    ) -> Built | None:
        began = time.perf_counter()
        try:
            if slot.child is None or not slot.child.alive:
                slot.child = self._server.spawn(slot.limits)
            slot.child.send(to_json(request))
            return convert(slot.child.receive(timeout_s, interrupt), Built)
        except Interrupted:
            return None
        except Late as error:
            kind, message = ErrorKind.BUILD_TIMEOUT, str(error)
        except Died as error:
            kind = ErrorKind.OOM if error.out_of_memory else ErrorKind.CRASH
            message = str(error)
        return Built(
            entry=request.entry.index, error=kind, message=shorten(message),
            build_s=time.perf_counter() - began,
        )  # fmt: skip

    def close(self) -> None:
        """End the children."""
        for slot in self._slots:
            slot.thread.shutdown(wait=True, cancel_futures=True)
            if slot.child is not None:
                slot.child.kill()


def library_name(job: Job, entry: JobEntry) -> str:
    """The file name of an entry's library."""
    what = (
        job.workload.key, job.target.to_json(), entry.implementation, entry.version,
        entry.config.to_json(),
    )  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:32] + ".so"
