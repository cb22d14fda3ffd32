"""The daemon's handle on its builders: children of this host, and a cluster if it has one.

A child builds many configurations: a new one is forked only after a crash or a time-out. What the cluster has not
built in time, or cannot build, is built here.
"""
# Over 300 lines: one queue of entries, and the builders of this host and of a cluster that take from it.

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from strategy.record import ErrorKind, Job, JobEntry, convert, to_json
from workers.builder import Build, Built, shorten
from workers.fork import Limits
from workers.sandbox import Child, Died, ForkServer, Interrupt, Interrupted, Late
from workers.scratch import check_room
from workers.turn import Turn

if TYPE_CHECKING:
    from workers.cluster.artefact import Artefact

AHEAD = 4  # the most jobs that are built ahead of the one that is timed
_KEPT = 512  # libraries, about 30 KB each
_POLL_S = 0.25
# Failures that a full disk may cause, too.
_DOUBTFUL = frozenset({ErrorKind.COMPILE, ErrorKind.CRASH, ErrorKind.INSTANTIATION})
# An entry is late on the cluster after so long and so many times the usual, at the latest after the limit of a build.
_LATE_S, _LATE = 5.0, 4.0


class Elsewhere(Protocol):
    """Builders of other hosts: see `workers.cluster.client.Cluster`."""

    @property
    def room(self) -> int: ...
    def start(self, changed: Callable[[], None]) -> None: ...
    def submit(self, job: Job, entry: JobEntry) -> Future[Artefact]: ...
    def note_late(self, waited_s: float) -> None: ...
    def close(self) -> None: ...


class _Slot:
    """A builder of this host: a thread and its child. `shared` if its cores also time."""

    def __init__(self, limits: Limits, shared: bool) -> None:
        self.limits = limits
        self.shared = shared
        self.child: Child | None = None
        self.task: _Task | None = None  # being built
        self.thread: threading.Thread


class _Task:
    """An entry to build, which interrupts its build. `here` is set once it is this host's alone."""

    def __init__(self, job: Job, entry: JobEntry, interrupt: threading.Event) -> None:
        self.job = job
        self.entry = entry
        self.interrupt = interrupt
        self.name = library_name(job, entry)
        self.built: Future[Built | None] = Future()
        self.here = False
        self.is_given_up = False
        self.sent_at = 0.0
        self.order: Future[Artefact]

    def is_set(self) -> bool:
        """Return whether nobody needs it any more."""
        return self.is_given_up or self.interrupt.is_set()


class BuilderPool:
    """Builder children, for the daemon, which never loads TVM itself, and the builders of a cluster.

    Libraries are cached, as finals use those of search jobs. Thread-safe.

    Args:
        server: the fork server of the children.
        cores: the cores to build on.
        directory: the folder of libraries, for the lifetime of the pool.
        memory_bytes: the memory limit of each child.
        forks: allow the children's programs to fork, as nvcc does.
        children: their number; default: one per core.
        shared: cores that also time, one child on each, which builds only what the cluster does not; if they are
            among `cores`, all children do.
        turn: the lock under which children build; None: builds wait for no timing.
        cluster: builders of other hosts, which the pool starts and closes.
    """

    def __init__(
        self,
        server: ForkServer,
        cores: Sequence[int],
        directory: Path,
        memory_bytes: int = 4 * 2**30,
        *,
        forks: bool = False,
        children: int | None = None,
        shared: Sequence[int] = (),
        turn: Turn | None = None,
        cluster: Elsewhere | None = None,
    ) -> None:
        self._server = server
        self._directory = directory
        limits = Limits(
            module="workers.builder", cores=tuple(cores), memory_bytes=memory_bytes, forks=forks
        )
        spare = tuple(core for core in shared if core not in cores)
        overlap = len(spare) < len(shared)
        count = len(cores) if children is None else children
        self._slots = [_Slot(limits, overlap) for _ in range(count)]
        self._slots += [_Slot(msgspec.structs.replace(limits, cores=spare), shared=True) for _ in spare]
        self._turn = turn
        self._kept: dict[str, Built] = {}  # by name of the library, the least recent first
        self._changed = threading.Condition()  # of all that follows
        self._waiting: deque[_Task] = deque()
        self._writing: set[str] = set()  # names of libraries that children build
        self._sent: list[_Task] = []  # to the cluster, the oldest first
        self._usual_s = 0.0  # the time of an entry on the cluster
        self._closed = False
        self._cluster = cluster
        if cluster is not None:
            cluster.start(self._send)
        for slot in self._slots:
            slot.thread = threading.Thread(target=self._serve, args=(slot,), name="builder", daemon=True)
            slot.thread.start()

    def build(
        self,
        job: Job,
        interrupt: threading.Event,
        report: Callable[[Built], None] = lambda built: None,
    ) -> list[Built]:
        """Build all entries of a job, reporting each as it is done.

        The libraries exist at least until as many jobs as may be `AHEAD`, and one more, are built. Entries that are
        not done when `interrupt` is set, or the pool is closed, are omitted.

        Raises:
            ScratchError: the disk of this host is full. Set `interrupt`: the other entries are still queued.
        """
        self._forget(max(_KEPT, (AHEAD + 2) * len(job.entries)))
        tasks = [_Task(job, entry, interrupt) for entry in job.entries]
        with self._changed:
            if self._closed:  # by the end of the worker, which leased this job at the last moment
                return []
            self._waiting += [task for task in tasks if not self._recall(task)]
        self._send()
        found = []
        for task in tasks:
            built = self._await(task)
            if built is not None:
                report(built)
                found.append(built)
        return found

    def _await(self, task: _Task) -> Built | None:
        while self._cluster is not None and not task.built.done():
            if task.interrupt.is_set():
                self._withdraw(task)
            try:
                return task.built.result(_POLL_S)
            except TimeoutError:
                continue
        return task.built.result()

    def _withdraw(self, task: _Task) -> None:
        """Give a task up, unless a child builds it: that one is interrupted by its own thread."""
        with self._changed:
            if task in self._sent:
                self._sent.remove(task)
                task.order.cancel()
            elif task in self._waiting:
                self._waiting.remove(task)
            else:
                return
        task.built.set_result(None)

    # Builders of this host

    def _serve(self, slot: _Slot) -> None:
        """Build what is waiting until the pool is closed; errors are passed to their waiters."""
        while self._await_task(slot):
            task: _Task | None = None
            try:
                with self._await_turn(slot) as mine:
                    # Take a task only under the lock: another slot may have taken it by then.
                    task = self._take(slot) if mine else None
                    if task is not None and self._claim(task):
                        try:
                            self._finish(task, self._build(slot, task))
                        finally:
                            self._unclaim(task)
            except BaseException as error:
                with self._changed:
                    failed = [task] if task is not None else list(self._waiting)
                    if task is None:  # the timing lock cannot be acquired
                        self._waiting.clear()
                for one in failed:
                    one.built.set_exception(error)

    def _await_turn(self, slot: _Slot) -> AbstractContextManager[bool]:
        return self._turn.build(slot.limits.cores, lambda: self._closed) if self._turn else nullcontext(True)

    def _await_task(self, slot: _Slot) -> bool:
        """Wait until there is something to build here; return False once the pool is closed."""
        with self._changed:
            while not self._closed:
                if self._next(slot) is not None:
                    return True
                self._changed.wait(_POLL_S if self._sent else None)
        return False

    def _next(self, slot: _Slot) -> _Task | None:
        """The next task of a slot; shared cores leave to the cluster what it can build."""
        if self._cluster is None:
            return self._waiting[0] if self._waiting else None
        away = not self._cluster.room
        leaves = slot.shared and not away
        for task in self._waiting:
            if task.here or not leaves:
                return task
        return self._sent[0] if self._sent and (away or self._is_late(self._sent[0])) else None

    def _is_late(self, task: _Task) -> bool:
        usual_s = max(_LATE_S, _LATE * self._usual_s)
        return time.monotonic() - task.sent_at >= min(usual_s, task.job.policy.build_timeout_s)

    def _take(self, slot: _Slot) -> _Task | None:
        with self._changed:
            task = self._next(slot)
            if task is None:
                return None
            if task in self._sent:
                assert self._cluster is not None
                self._sent.remove(task)
                task.here = True
                waited_s = time.monotonic() - task.sent_at
                if self._cluster.room:
                    self._usual_s = max(self._usual_s, waited_s)
                    self._cluster.note_late(waited_s)
                task.order.cancel()
            else:
                self._waiting.remove(task)
            slot.task = task
            return task

    def _claim(self, task: _Task) -> bool:
        """Be the only one to write a library; return False if another job's build of it has answered the task."""
        with self._changed:
            self._changed.wait_for(lambda: task.name not in self._writing)
            if self._recall(task):
                return False
            self._writing.add(task.name)
            return True

    def _unclaim(self, task: _Task) -> None:
        with self._changed:
            self._writing.remove(task.name)
            self._changed.notify_all()

    def _build(self, slot: _Slot, task: _Task) -> Built | None:
        if task.is_set():
            return None
        path = self._directory / task.name
        request = Build(
            workload=task.job.workload, target=task.job.target, entry=task.entry, path=str(path)
        )
        built = self._ask(slot, request, task.job.policy.build_timeout_s, task)
        try:
            if built is not None and built.error in _DOUBTFUL:
                check_room(self._directory)
        finally:
            if built is None or built.error is not None:
                for left in self._directory.glob(f"{path.stem}.*"):  # left by a killed child
                    left.unlink(missing_ok=True)
        return built

    # Builders of the cluster

    def _send(self) -> None:
        """Send what is waiting, as far as the cluster has room, and wake the builders of this host."""
        while True:
            with self._changed:
                self._changed.notify_all()
                room = 0 if self._cluster is None or self._closed else self._cluster.room
                task = next((t for t in self._waiting if not t.here), None)
                if self._cluster is None or task is None or len(self._sent) >= room:
                    return
                self._waiting.remove(task)
                task.sent_at = time.monotonic()
                task.order = self._cluster.submit(task.job, task.entry)
                self._sent.append(task)
            task.order.add_done_callback(partial(self._receive, task))

    def _receive(self, task: _Task, order: Future[Artefact]) -> None:
        """Take what the cluster built for a task; build it here if it did not."""
        with self._changed:
            if task not in self._sent:
                return
            self._sent.remove(task)
            if not self._recall(task):  # another job's build of it may have come first
                try:
                    artefact = order.result()
                    if task.name in self._writing:
                        raise FileExistsError(task.name)
                    path = self._directory / task.name
                    artefact.save(path)
                    built = msgspec.structs.replace(
                        artefact.built, entry=task.entry.index, path="" if artefact.built.error else str(path)
                    )
                except Exception:  # the cluster has said why, or a child builds the same for another job
                    task.here = True
                    self._waiting.appendleft(task)
                    self._changed.notify_all()
                    return
                took_s = time.monotonic() - task.sent_at
                self._usual_s += 0.2 * (took_s - self._usual_s)
                self._finish(task, built)
        self._send()

    # Libraries

    def _finish(self, task: _Task, built: Built | None) -> None:
        if built is not None and built.error is None:
            with self._changed:
                self._kept[task.name] = built
        task.built.set_result(built)

    def _recall(self, task: _Task) -> bool:
        """Answer a task by a library that is kept; return False if there is none."""
        known = self._kept.pop(task.name, None)
        if known is None or not Path(known.path).exists():  # a cleaner of temporary files may have deleted it
            return False
        self._kept[task.name] = known  # moved to the end: the most recent
        task.built.set_result(msgspec.structs.replace(known, entry=task.entry.index, build_s=0.0))
        return True

    def _forget(self, most: int) -> None:
        with self._changed:
            for name in list(self._kept)[: max(0, len(self._kept) - most)]:
                path = Path(self._kept.pop(name).path)
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".json").unlink(missing_ok=True)

    def _ask(
        self, slot: _Slot, request: Build, timeout_s: float, interrupt: Interrupt, *, again: bool = True
    ) -> Built | None:
        began = time.perf_counter()
        if slot.child is None or not slot.child.alive:
            slot.child = self._server.spawn(slot.limits)
        child = slot.child
        try:
            child.send(to_json(request))
            return convert(child.receive(timeout_s, interrupt), Built)
        except Interrupted:
            return None
        except Late as error:
            kind, message = ErrorKind.BUILD_TIMEOUT, str(error)
        except Died as error:
            # By the kernel, as for memory that others have taken, or before this build began, by an earlier one.
            if again and (error.signal == signal.SIGKILL or child.stage < 0):
                return self._ask(slot, request, timeout_s, interrupt, again=False)
            kind = ErrorKind.OOM if error.out_of_memory else ErrorKind.CRASH
            message = str(error)
        return Built(
            entry=request.entry.index, error=kind, message=shorten(message),
            build_s=time.perf_counter() - began,
        )

    def close(self) -> None:
        """End the children, and leave the cluster."""
        with self._changed:
            self._closed = True
            for task in [*self._waiting, *self._sent]:
                self._withdraw(task)
            for slot in self._slots:
                if slot.task is not None:
                    slot.task.is_given_up = True
            self._changed.notify_all()
        if self._cluster is not None:
            self._cluster.close()
        for slot in self._slots:
            slot.thread.join()
            if slot.child is not None:
                slot.child.kill()


def library_name(job: Job, entry: JobEntry) -> str:
    """The file name of an entry's library."""
    what = (
        job.workload.key, job.target.to_json(), entry.implementation, entry.version,
        entry.config.to_json(),
    )
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:32] + ".so"
