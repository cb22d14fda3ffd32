"""Checking of libraries against NumPy, and timing: a child process, and the daemon's handle on it.

One request is one job, whose libraries are timed interleaved in one session. The child marks the current
entry, so that the daemon can attribute a crash or a hang.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strategy.extern import load_library
from strategy.peak import least_seconds
from strategy.record import ErrorKind, Job, Reference, Result, TimingPolicy, convert, to_json
from strategy.workload import Workload
from workers.builder import Built, shorten
from workers.cpu import pin_threads, state
from workers.drift import DRIFT, drift, time_reference
from workers.fork import Channel, Limits
from workers.guard import OutOfBoundsError, Span, explain
from workers.kernel import Data, Kernel
from workers.reference import WrongAnswerError, random_inputs, reference, tolerances
from workers.sandbox import Child, Died, ForkServer, Late
from workers.timing import ImplausibleError, Timed, time_kernels

# OpenBLAS's idle threads spin for 2²⁶ cycles, on cores on which the next kernel of the session runs by then.
# 2²⁰ cycles outlast any gap between calls of one kernel.
_SHORT_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20", "TVM_THREAD_POOL_SPIN_COUNT": "4000"}


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A request: the entries of a job that were built, and the cores to time them on."""

    job: Job
    built: tuple[Built, ...]
    cores: tuple[int, ...]


def serve(channel: Channel) -> None:
    """The child's loop: send `{"result": …}` for each entry when it is done, then `{"end": …}`."""
    channel.store_faults()
    runner = Runner(channel)
    while True:
        runner.run(convert(channel.receive(), Session))
        channel.send({"end": True, "environment": runner.toolchain()})


class Runner:
    """Runner of sessions, which caches inputs and reference for the next session of the same workload."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._data: Data | None = None
        self._pinned: dict[int, int] = {}
        self._libraries: set[str] = set()

    def run(self, session: Session) -> None:
        """Check and time all entries, sending each result as it comes."""
        job = session.job
        data = self._prepare_data(job.workload, job.seed)
        entries = {e.index: e for e in job.entries}
        kernels: list[Kernel] = []
        for built in session.built:
            self._channel.mark(built.entry)
            kernel = self._open(built, data, job.policy)
            try:
                library = kernel.load().signature.library
                if library is not None:
                    self._libraries.add(library)
                kernel.check()
                # Thread pools start at their first use.
                pin_threads(session.cores, self._pinned)
            except Exception as error:
                self._fail(kernel, error)
                continue
            kernels.append(kernel)

        def finished(index: int, timed: Timed) -> None:
            self._send(_result(kernels[index], timed))
            kernels[index].release()

        if not kernels:
            return
        self._send_reference()
        time_kernels(
            [self._measure(kernel) for kernel in kernels],
            job.policy,
            tasks=[entries[k.entry].task_id for k in kernels],
            best_s=[entries[k.entry].best_s for k in kernels],
            least_s=least_seconds(job.workload, job.target),
            rng=random.Random(job.seed),
            finished=finished,
        )
        self._send_reference()

    def toolchain(self) -> dict[str, Any]:
        """Versions of LLVM and of the libraries that this process has loaded."""
        from tvm.target.codegen import llvm_version_major

        found: dict[str, Any] = {"llvm": str(llvm_version_major())}
        for role in sorted(self._libraries):
            found[role] = load_library(role).describe()
        return found

    def _open(self, built: Built, data: Data, policy: TimingPolicy) -> Kernel:
        def begin(spans: Sequence[Span]) -> None:
            self._channel.mark(built.entry)
            self._channel.leave(spans)

        return Kernel(built, data, cache_flush=policy.cache_flush, begin=begin)

    def _fail(self, kernel: Kernel, error: Exception) -> None:
        kernel.release()
        self._send(_failure(kernel, error))

    def _measure(self, kernel: Kernel) -> Callable[[int], float]:
        def measure(calls: int) -> float:
            self._channel.mark(kernel.entry)
            return kernel.measure(calls)

        return measure

    def _send_reference(self) -> None:
        self._channel.send({"reference": time_reference()})

    def _send(self, result: Result) -> None:
        self._channel.send({"result": to_json(result)})

    def _prepare_data(self, workload: Workload, seed: int) -> Data:
        import tvm

        key = (workload.key, seed)
        if self._data is None or self._data.key != key:
            inputs = random_inputs(workload, seed)
            outputs = tuple(np.asarray(x) for x in reference(workload, inputs))
            tolerance = tolerances(workload, inputs, outputs)
            tensors = {name: tvm.runtime.tensor(array) for name, array in inputs.items()}
            self._data = Data(key, inputs, tensors, outputs, tolerance)
        return self._data


def _failure(kernel: Kernel, error: Exception) -> Result:
    if isinstance(error, WrongAnswerError):
        kind, message = ErrorKind.WRONG_ANSWER, str(error)
    elif isinstance(error, ImplausibleError):
        kind, message = ErrorKind.IMPLAUSIBLE, str(error)
    elif isinstance(error, OutOfBoundsError):
        kind, message = ErrorKind.OUT_OF_BOUNDS, str(error)
    elif isinstance(error, MemoryError) or "bad_alloc" in str(error):
        kind, message = ErrorKind.OOM, "the runner's memory limit was reached"
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
    )  # fmt: skip


@dataclass(frozen=True)
class Conditions:
    """Conditions of a job's timing: the child's environment, and the calibration kernel's times."""

    environment: dict[str, Any]
    references: tuple[Reference, ...]


class TimingRunner:
    """The daemon's handle on the runner child of one device. Not thread-safe.

    Args:
        server: the fork server of the child.
        cores: the device's cores for timing; a kernel may use at most as many threads.
        memory_bytes: the memory limit of a session.
        module: the module whose `serve` the child runs.
        environment: environment variables of the child, besides numbers of threads.
    """

    def __init__(
        self,
        server: ForkServer,
        cores: Sequence[int],
        memory_bytes: int,
        *,
        module: str = "workers.runner",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._environment = dict(environment or {})
        self._server = server
        self._cores = tuple(cores)
        self._memory_bytes = memory_bytes
        self._child: Child | None = None
        self._threads = 0

    def run(
        self,
        job: Job,
        built: Sequence[Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
    ) -> Conditions:
        """Check and time what was built, reporting failures at once and times at the end.

        If the calibration kernel shows drift, all timed entries are timed once more; if it does so again, their
        times are marked. Entries that compiled to the same code are timed as one.

        Raises:
            Interrupted: `interrupt` was set; finished times are reported.
        """
        twins = _by_code(built)
        timed: dict[int, Result] = {}
        conditions = Conditions({}, ())

        def report_all(result: Result) -> None:
            for number, twin in enumerate(twins[result.entry]):
                report(result if number == 0 else _copy(result, twin))

        def keep(result: Result) -> None:
            before = timed.pop(result.entry, None)
            if result.error is not None:
                report_all(result)
                return
            spent_s = result.run_s + (before.run_s if before else 0.0)
            timed[result.entry] = msgspec.structs.replace(result, run_s=spent_s)

        moved = 0.0
        try:
            conditions = self._time(job, [group[0] for group in twins.values()], interrupt, keep)
            moved = drift(conditions.references)
            if moved > DRIFT and timed:
                again = [twins[entry][0] for entry in timed]
                second = self._time(job, again, interrupt, keep)
                moved = drift(second.references)
                conditions = Conditions(
                    conditions.environment | second.environment,
                    conditions.references + second.references,
                )
        finally:
            for result in timed.values():
                noisy = moved if moved > DRIFT else None
                report_all(msgspec.structs.replace(result, drift=noisy))
        return conditions

    def _time(
        self,
        job: Job,
        built: Sequence[Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
    ) -> Conditions:
        """Check and time each entry, in as many sessions as it takes.

        An entry that kills the child is tried once more alone at the end, as memory corrupted by one kernel may
        kill another. One that hangs is not. All others continue in a new child.
        """
        environment: dict[str, Any] = {}
        references: list[Reference] = []
        waiting = {b.entry: b for b in built}
        suspects: dict[int, Built] = {}
        while waiting or suspects:
            alone = not waiting
            entries = dict([suspects.popitem()]) if alone else waiting
            blamed, error = self._session(
                job, entries, interrupt, report, environment, references
            )
            if error is None:
                if entries:  # the child has skipped entries: a defect of the runner
                    raise RuntimeError(
                        f"the runner left entries {sorted(entries)} of job {job.id} out"
                    )
                continue
            # A failure before the first entry is of the shared inputs and reference.
            guilty = {blamed: entries[blamed]} if blamed in entries else dict(entries)
            for index, one in guilty.items():
                del entries[index]
                if _may_be_innocent(error) and not alone and len(guilty) == 1:
                    suspects[index] = one
                else:
                    report(_lost(one, error))
        return Conditions(environment, tuple(references))

    def _session(
        self,
        job: Job,
        entries: dict[int, Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
        environment: dict[str, Any],
        references: list[Reference],
    ) -> tuple[int, Died | Late | None]:
        """Run one session in the child; remove finished entries from `entries`."""
        session = Session(job=job, built=tuple(entries.values()), cores=self._timing_cores(job))
        child = self._ready_child(job.target.threads)
        try:
            child.send(to_json(session))
            while True:
                message = child.receive(job.policy.run_timeout_s, interrupt)
                if "end" in message:
                    environment.update(message["environment"])
                    return -1, None
                if "reference" in message:
                    references.append(self._reference(message["reference"]))
                    continue
                result = convert(message["result"], Result)
                entries.pop(result.entry, None)
                report(result)
        except (Died, Late) as error:
            return child.stage, error

    def _reference(self, samples_s: Sequence[float]) -> Reference:
        return Reference(
            samples_s=tuple(samples_s), measured_at=time.time(), state=state(self._cores)
        )

    def _timing_cores(self, job: Job) -> tuple[int, ...]:
        return self._cores[-job.target.threads :]

    def _ready_child(self, threads: int) -> Child:
        """The child, a new one if it died or its thread pools have another size."""
        if self._child is not None and self._child.alive and self._threads == threads:
            return self._child
        self.close()
        self._threads = threads
        counts = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self._child = self._server.spawn(
            Limits(
                module=self._module, cores=self._cores[-threads:], memory_bytes=self._memory_bytes,
                environment={name: str(threads) for name in counts} | _SHORT_SPIN | self._environment,
            )
        )  # fmt: skip
        return self._child

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def _by_code(built: Sequence[Built]) -> dict[int, list[Built]]:
    """Built entries grouped by identical code, each group under its first entry."""
    groups: dict[object, list[Built]] = {}
    for one in built:
        signature = Path(one.path + ".json")
        known = one.code_digest and signature.exists()
        same = (one.code_digest, signature.read_bytes()) if known else one.entry
        groups.setdefault(same, []).append(one)
    return {group[0].entry: group for group in groups.values()}


def _copy(result: Result, twin: Built) -> Result:
    """The result of an entry with the same code as a timed one."""
    note = f"the same code as entry {result.entry}, which was timed"
    return msgspec.structs.replace(
        result, entry=twin.entry, build_s=twin.build_s, check_s=0.0, run_s=0.0,
        message=f"{result.message}; {note}" if result.message else note,
    )  # fmt: skip


def _may_be_innocent(error: Died | Late) -> bool:
    """True if another kernel's damage may have killed the child, not an access out of its own bounds."""
    return isinstance(error, Died) and explain(error.note, error.fault) is None


def _lost(built: Built, error: Died | Late) -> Result:
    message = str(error)
    if isinstance(error, Late):
        kind = ErrorKind.RUN_TIMEOUT
    elif outside := explain(error.note, error.fault):
        kind, message = ErrorKind.OUT_OF_BOUNDS, f"{outside} ({error.cause})"
    else:
        kind = ErrorKind.OOM if error.out_of_memory else ErrorKind.CRASH
    return Result(
        entry=built.entry, error=kind, message=shorten(message), build_s=built.build_s,
        code_digest=built.code_digest, measured_at=time.time(),
    )  # fmt: skip
