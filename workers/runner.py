"""Checking of libraries against NumPy, and timing: the child of one device.

One request is one job, whose libraries are timed interleaved in one session. The child marks the current
entry, so that the daemon can attribute a crash or a hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from strategy.extern import load_library
from strategy.fault import ToolError
from strategy.peak import least_seconds
from strategy.record import ErrorKind, Job, Result, convert, estimate, to_json
from strategy.workload import Workload
from workers.builder import Built, shorten
from workers.cpu import pin
from workers.data import Data
from workers.drift import time_reference
from workers.fork import Channel
from workers.guard import OutOfBoundsError, Span
from workers.kernel import Kernel
from workers.reference import WrongAnswerError
from workers.timing import ImplausibleError, Timed, time_kernels

# Larger arrays are mapped one by one, and go back to the system when freed. By default glibc raises its limit to
# the largest that was freed; arrays of later sessions then leave holes, which count against the child's memory.
_MAPPED_FROM = 1 << 20
_M_MMAP_THRESHOLD = -3

# The share of the memory for the buffers of kernels timed together; inputs, checks and the process have the rest.
_HELD = 1 / 4
# Of inputs and references, or an eighth of the memory: those of a network's layers, which are timed in turns.
_KEPT_BYTES = 1 << 30


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A request: the entries of a job that were built, and the cores to run them on.

    Args:
        checked: the entries that have passed a check, and its seconds; they are not checked again.
        timed: False for a session that only checks.
    """

    job: Job
    built: tuple[Built, ...]
    cores: tuple[int, ...]
    memory_bytes: int = 8 * 2**30  # the limit of the child
    allocator: str | None = None  # of workspaces in a check; none for a GPU
    launcher: str | None = None  # of the threads of the target's pool, if it is not TVM's
    checked: tuple[tuple[int, float], ...] = ()
    timed: bool = True


def serve(channel: Channel) -> None:
    """The child's loop: send `{"result": …}` or `{"checked": …}` for each entry when it is done, then `{"end": …}`."""
    channel.store_faults()
    with contextlib.suppress(AttributeError):  # no glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
    runner = Runner(channel)
    while True:
        session = convert(channel.receive(), Session)
        runner.run(session)
        target = session.job.target
        timed = {"thread_pool": target.pool, "constants": target.constants}
        channel.send({"end": True, "environment": runner.toolchain() | timed})


class Runner:
    """Runner of sessions, which keeps inputs and references for later sessions of the same workloads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._data: dict[tuple[str, int], Data] = {}  # by workload and seed, the last used at the end
        self._pinned: dict[int, int] = {}
        self._libraries: set[str] = set()
        self._ran: set[str] = set()  # kernels by path

    def run(self, session: Session) -> None:
        """Check and time all entries, as far as the session asks, sending each result as it comes."""
        job = session.job
        data = self._prepare_data(job.workload, job.seed, min(_KEPT_BYTES, session.memory_bytes // 8))
        best_s: dict[int, float] = {}
        for entry in job.entries:
            if entry.best_s is not None:
                best_s[entry.task_id] = min(entry.best_s, best_s.get(entry.task_id, entry.best_s))
        checked = dict(session.checked)
        kernels: list[Kernel] = []
        waiting = deque(session.built)
        while waiting:
            built = waiting.popleft()
            self._channel.mark(built.entry)
            kernel = self._open(built, data, session)
            try:
                library = kernel.load().signature.library
                if library is not None:
                    self._libraries.add(library)
                if built.entry in checked:
                    kernel.check_s = checked[built.entry]
                else:
                    kernel.check()
                    self._ran.add(built.path)
                if not session.timed:
                    self._channel.send({"checked": [built.entry, kernel.check_s]})
                    kernel.release()
                    continue
                kernel.bind()
                # Thread pools start at their first use, and inherit the core of a thread that is pinned before.
                if len(session.cores) > 1 and built.path not in self._ran:  # another child has checked it
                    self._measure(kernel)(1)
            except ToolError:  # of OpenMP's threads: no fault of the kernel
                raise
            except Exception as error:
                if kernels and _is_out_of_memory(error):
                    # There may be room for it once the others are done.
                    kernel.release()
                    waiting.appendleft(built)
                    self._time(job, kernels, best_s)
                    kernels = []
                else:
                    self._fail(kernel, error)
                continue
            pin_threads(session.cores, self._pinned)
            kernels.append(kernel)
            # A job may have many entries with large packed inputs, which would not all fit into memory.
            if sum(k.held_bytes for k in kernels) > self._memory_bytes(session) * _HELD:
                self._time(job, kernels, best_s)
                kernels = []
        if kernels:
            self._time(job, kernels, best_s)

    def _time(self, job: Job, kernels: Sequence[Kernel], best_s: dict[int, float]) -> None:
        """Time kernels interleaved, send their results and release them.

        Args:
            best_s: the best median by task, which is brought up to date.
        """
        tasks = {e.index: e.task_id for e in job.entries}

        def finished(index: int, timed: Timed) -> None:
            kernel = kernels[index]
            if timed.error is None and not timed.gave_up:
                task, median_s = tasks[kernel.entry], estimate(timed.samples_s).median_s
                best_s[task] = min(median_s, best_s.get(task, median_s))
            result = _result(kernel, timed)
            if result.error is not None:
                self._data.clear()  # it may have damaged the inputs, which later jobs would share
            self._channel.send({"result": to_json(result)})
            kernel.release()

        self._channel.send({"reference": time_reference()})
        time_kernels(
            [self._measure(kernel) for kernel in kernels],
            job.policy,
            tasks=[tasks[k.entry] for k in kernels],
            best_s=[best_s.get(tasks[k.entry]) for k in kernels],
            least_s=least_seconds(job.workload, job.target),
            rng=random.Random(f"{job.seed} {job.id}"),  # jobs of one seed differ
            finished=finished,
        )
        self._channel.send({"reference": time_reference()})

    def toolchain(self) -> dict[str, Any]:
        """Versions of LLVM and of the libraries that this process has loaded."""
        from tvm.target.codegen import llvm_version_major

        found: dict[str, Any] = {"llvm": str(llvm_version_major())}
        for role in sorted(self._libraries):
            found[role] = load_library(role).describe()
        return found

    def _open(self, built: Built, data: Data, session: Session) -> Kernel:
        def begin(spans: Sequence[Span]) -> None:
            self._channel.mark(built.entry)
            self._channel.leave(spans)

        return Kernel(
            built, data, cache_flush=session.job.policy.cache_flush, begin=begin,
            allocator=None if session.allocator is None else Path(session.allocator),
            launcher=None if session.launcher is None else Path(session.launcher),
            cold_constants=session.job.target.constants == "cold",
        )

    def _memory_bytes(self, session: Session) -> int:
        """The memory that kernels' buffers are in."""
        return session.memory_bytes

    def _fail(self, kernel: Kernel, error: Exception) -> None:
        kernel.release()
        self._channel.send({"result": to_json(_failure(kernel, error))})

    def _measure(self, kernel: Kernel) -> Callable[[int], float]:
        def measure(calls: int) -> float:
            self._channel.mark(kernel.entry)
            return kernel.measure(calls)

        return measure

    def _prepare_data(self, workload: Workload, seed: int, most_bytes: int) -> Data:
        """The inputs and reference of a job; those of earlier jobs are kept up to this size."""
        key = workload.key, seed
        found = self._data.pop(key, None) or self._draw(workload, seed)
        for other in self._data.values():
            other.release()
        self._data[key] = found
        while len(self._data) > 1 and sum(d.nbytes for d in self._data.values()) > most_bytes:
            del self._data[next(iter(self._data))]
        return found

    def _draw(self, workload: Workload, seed: int) -> Data:
        import tvm

        found = Data.draw(workload, seed)
        found.tensors = {name: tvm.runtime.tensor(array) for name, array in found.inputs.items()}
        return found


def pin_threads(cores: Sequence[int], known: dict[int, int]) -> None:
    """Give each thread of this process one core: the first to the main thread, the others in turn.

    A pool of n threads creates its n - 1 threads one after another, so that each pool gets one thread per core.
    `known` has the cores of the threads that are pinned already. They are pinned again: where a core was lost
    meanwhile, the kernel has moved its thread to another. Raises `DeviceError` as `pin`.
    """
    main = os.getpid()
    for thread in sorted(int(entry.name) for entry in Path("/proc/self/task").iterdir()):
        if thread not in known:
            workers = len(known.keys() - {main})
            others = cores[1:] or cores
            known[thread] = cores[0] if thread == main else others[workers % len(others)]
        with contextlib.suppress(ProcessLookupError):
            pin(thread, {known[thread]})


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "bad_alloc" in str(error) or getattr(error, "errno", 0) == errno.ENOMEM


def _failure(kernel: Kernel, error: Exception) -> Result:
    if isinstance(error, WrongAnswerError):
        kind, message = ErrorKind.WRONG_ANSWER, str(error)
    elif isinstance(error, ImplausibleError):
        kind, message = ErrorKind.IMPLAUSIBLE, str(error)
    elif isinstance(error, OutOfBoundsError):
        kind, message = ErrorKind.OUT_OF_BOUNDS, str(error)
    elif _is_out_of_memory(error):
        said = str(error) if isinstance(error, MemoryError) else ""
        kind, message = ErrorKind.OOM, said or "the runner's memory limit was reached"
    else:
        kind, message = ErrorKind.RUNTIME, f"{type(error).__name__}: {error}"
    return _of(kernel, Timed(), error=kind, message=shorten(message))


def _result(kernel: Kernel, timed: Timed) -> Result:
    if timed.error is not None:
        return _failure(kernel, timed.error)
    try:
        kernel.compare()  # outputs of the last timed call
    except WrongAnswerError as error:
        return _failure(kernel, WrongAnswerError(f"after timing: {error}"))
    return _of(kernel, timed, samples_s=tuple(timed.samples_s))


def _of(kernel: Kernel, timed: Timed, **outcome: Any) -> Result:
    return Result(
        entry=kernel.entry, prepare_s=kernel.prepare_s, build_s=kernel.built.build_s,
        check_s=kernel.check_s, run_s=timed.run_s, code_digest=kernel.built.code_digest,
        measured_at=time.time(), **outcome,
    )
