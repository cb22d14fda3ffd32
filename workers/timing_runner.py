"""The daemon's handle on the runner child of one device."""
# Over 300 lines: sessions that time and sessions that only check find the guilty entry in the same way.

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from strategy.compile.openmp import build_launcher
from strategy.fault import CompileError
from strategy.record import ErrorKind, Job, Reference, Result, convert, to_json
from strategy.target import Target
from workers.builder import Built, shorten
from workers.cpu import state
from workers.drift import DRIFT, drift
from workers.fork import Limits
from workers.guard import explain
from workers.runner import Session
from workers.sandbox import Child, Died, ForkServer, Late, SandboxError
from workers.scratch import find_or_build
from workers.workspace import build_allocator

# OpenBLAS's idle threads spin for 2²⁶ cycles, on cores on which the next kernel of the session runs by then.
# 2²⁰ cycles outlast any gap between calls of one kernel.
_SHORT_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20", "TVM_THREAD_POOL_SPIN_COUNT": "4000"}
# A child keeps the libraries that it has loaded: five mappings each, of 65,530 that a process may have by default.
_MOST_LOADED = 2000
_REFERENCE_S = 600.0  # for inputs and NumPy's reference, which may take longer than any kernel


@dataclass
class Conditions:
    """Conditions of a job's timing: the child's environment, and the calibration kernel's times."""

    environment: dict[str, Any] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """The job of some sessions, and where their outcomes go.

    Attributes:
        checked: the seconds of the check of entries that need none; those that pass one are added.
        timed: False for sessions that only check.
    """

    job: Job
    interrupt: threading.Event
    report: Callable[[Result], None]
    checked: dict[int, float]
    timed: bool = True
    conditions: Conditions = field(default_factory=Conditions)


@dataclass(eq=False)
class TimingRunner:
    """The daemon's handle on the runner child of one device. Not thread-safe.

    Args:
        server: the fork server of the child.
        cores: the device's cores for timing; a kernel may use at most as many threads.
        memory_bytes: the memory limit of a session.
        module: the module whose `serve` the child runs.
        environment: environment variables of the child, besides numbers of threads.
    """

    server: ForkServer
    cores: Sequence[int]
    memory_bytes: int
    _: KW_ONLY
    module: str = "workers.runner"
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._child: Child | None = None
        self._pool = (0, "")  # threads, and their pool
        self._loaded = 0  # libraries, by the child
        self._allocator: str | None = None
        self._launcher: str | None = None

    def run(
        self,
        job: Job,
        built: Sequence[Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
        checked: Mapping[int, float] = MappingProxyType({}),
    ) -> Conditions:
        """Check and time what was built, reporting failures at once and times at the end.

        If the calibration kernel shows drift, all timed entries are timed once more; if it does so again, their
        times are marked. Entries that compiled to the same code are timed as one.

        Args:
            checked: the seconds of `check` by entry; these entries are not checked again.

        Raises:
            Interrupted: `interrupt` was set; finished times are reported.
            ScratchError: the disk is full.
            SandboxError: nothing can be timed on this host.
        """
        self._find_libraries(job.target, built)
        twins = _by_code(built)
        timed: dict[int, Result] = {}

        def report_all(result: Result) -> None:
            for number, twin in enumerate(twins[result.entry]):
                report(result if number == 0 else _copy(result, twin))

        def keep(result: Result) -> None:
            before = timed.pop(result.entry, None)
            if result.error is not None:
                report_all(result)
                return
            if before is not None:
                result = msgspec.structs.replace(result, run_s=result.run_s + before.run_s)
            timed[result.entry] = result

        moved = 0.0
        work = _Work(job, interrupt, keep, dict(checked))
        references = work.conditions.references
        try:
            self._run(work, [group[0] for group in twins.values()])
            moved = drift(references)
            if moved > DRIFT and timed:
                first = len(references)
                right = {entry: result.check_s for entry, result in timed.items()}
                self._run(replace(work, checked=right), [twins[entry][0] for entry in timed])
                moved = drift(references[first:])
        finally:
            for result in timed.values():
                noisy = moved if moved > DRIFT else None
                report_all(msgspec.structs.replace(result, drift=noisy))
        return work.conditions

    def check(
        self,
        job: Job,
        built: Sequence[Built],
        interrupt: threading.Event,
        report: Callable[[Result], None],
        turn: Callable[[], AbstractContextManager[bool]],
    ) -> dict[int, float | None]:
        """Check what was built without timing it, reporting failures at once.

        Entries that compiled to the same code are checked as one.

        Args:
            turn: entered before each check; it ends them by False.

        Returns:
            The seconds of the check of each entry that has not failed; None for one that was not checked.

        Raises:
            As `run`.
        """
        found: dict[int, float | None] = dict.fromkeys(b.entry for b in built)
        self._find_libraries(job.target, built)
        for twins in _by_code(built).values():
            failed: list[Result] = []
            passed: dict[int, float] = {}
            with turn() as mine:
                if not mine:
                    break
                self._run(_Work(job, interrupt, failed.append, passed, timed=False), twins[:1])
            for result in failed:
                for twin in twins:
                    del found[twin.entry]
                    report(result if twin.entry == result.entry else _copy(result, twin))
            found.update(passed)
        return found

    def _run(self, work: _Work, built: Sequence[Built]) -> None:
        """Check each entry that is not checked, and time it if that is wanted, in as many sessions as it takes.

        An entry that kills the child is tried once more alone at the end, as memory corrupted by one kernel may
        kill another. One that hangs is not. All others continue in a new child. A child that died before the first
        entry is replaced once, as an earlier job may have corrupted its memory, or others have taken the host's.
        """
        waiting = {b.entry: b for b in built}
        suspects: dict[int, Built] = {}
        is_again = False
        while waiting or suspects:
            alone = not waiting
            entries = dict([suspects.popitem()]) if alone else waiting
            known = frozenset(entries)
            blamed, error = self._session(work, entries)
            if error is None:
                if entries:  # the child has skipped entries: a defect of the runner
                    raise RuntimeError(
                        f"the runner left entries {sorted(entries)} of job {work.job.id} out"
                    )
                continue
            if blamed < 0 and not is_again and isinstance(error, Died):
                is_again = True
                suspects |= entries if alone else {}
                continue
            # A failure before the first entry is of the shared inputs and reference, one after a result of none. One at
            # an entry that the session did not have has damaged the mark: it may be of any.
            guilty = {i: one for i, one in entries.items() if i == blamed or blamed not in known}
            for index, one in guilty.items():
                del entries[index]
                if _may_be_innocent(error) and not alone and blamed >= 0:
                    suspects[index] = one
                else:
                    work.report(_lost(one, error))

    def _session(self, work: _Work, entries: dict[int, Built]) -> tuple[int, Died | Late | None]:
        """Run one session in the child, and remove finished entries; return the entry to blame for an error, if any."""
        job, conditions = work.job, work.conditions
        threads, limit_s = job.target.threads, job.policy.run_timeout_s
        child = self._ready_child(threads, job.target.pool, len(entries))
        session = Session(
            job=job, built=tuple(entries.values()), cores=tuple(self.cores[-threads:]),
            memory_bytes=self.memory_bytes, allocator=self._allocator, launcher=self._launcher,
            checked=tuple(work.checked.items()), timed=work.timed,
        )
        try:
            child.send(to_json(session))
            while True:
                message = child.receive(limit_s, work.interrupt, first_s=max(_REFERENCE_S, limit_s))
                if "end" in message:
                    conditions.environment.update(message["environment"])
                    return -1, None
                if "checked" in message:
                    entry, seconds = message["checked"]
                    del entries[entry]
                    work.checked[entry] = seconds
                    continue
                if "absent" in message:
                    raise SandboxError(f"the device cannot be used any more: {message['absent']}")
                if "reference" in message:
                    samples_s, now = tuple(message["reference"]), time.time()
                    conditions.references.append(
                        Reference(samples_s=samples_s, measured_at=now, state=state(self.cores))
                    )
                    continue
                result = convert(message["result"], Result)
                entries.pop(result.entry, None)
                work.report(result)
        except Late as error:
            if child.stage < 0:
                return child.stage, Late(f"nothing was run: NumPy's reference of {job.workload} {error}")
            return child.stage, error
        except Died as error:
            return child.stage, error

    def _ready_child(self, threads: int, pool: str, libraries: int) -> Child:
        """The child for a session of so many libraries.

        It is a new one if the last died, has loaded too many, or runs kernels on other threads: those of two pools
        would share cores.
        """
        self._loaded += libraries
        if (
            self._child is not None and self._child.alive
            and self._pool == (threads, pool) and self._loaded <= _MOST_LOADED
        ):
            return self._child
        self.close()
        self._pool, self._loaded = (threads, pool), libraries
        counts = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self._child = self.server.spawn(
            Limits(
                module=self.module, cores=tuple(self.cores[-threads:]), memory_bytes=self.memory_bytes,
                environment={name: str(threads) for name in counts} | _SHORT_SPIN | self.environment,
            )
        )
        return self._child

    def _find_libraries(self, target: Target, built: Sequence[Built]) -> None:
        """Find, beside the kernels, what they run on: guarded workspaces, and the target's threads if not TVM's.

        Raises:
            SandboxError: this host cannot compile that.
        """
        self._allocator = self._launcher = None
        if not built or target.is_gpu:
            return
        folder = Path(built[0].path).parent
        try:
            self._allocator = find_or_build(folder / "workspace", build_allocator)
            if target.pool == "openmp":
                self._launcher = find_or_build(folder / "openmp", build_launcher)
        except CompileError as error:  # of programs that any compiler takes
            raise SandboxError(f"kernels cannot be checked on this host: {error}") from error

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
    )


def _may_be_innocent(error: Died | Late) -> bool:
    """True if another kernel's damage may have killed the child, not a forbidden access to its own buffers."""
    return isinstance(error, Died) and explain(error.note, error.fault) is None


def _lost(built: Built, error: Died | Late) -> Result:
    message = str(error)
    if isinstance(error, Late):
        kind = ErrorKind.RUN_TIMEOUT
    elif explained := explain(error.note, error.fault):
        kind, message = explained[0], f"{explained[1]} ({error.cause})"
    else:
        kind = ErrorKind.OOM if error.out_of_memory else ErrorKind.CRASH
    return msgspec.structs.replace(built, error=kind, message=shorten(message)).failure()
