"""Building of configurations: children that lower and compile them to libraries or cubins, and their pool.

A request is one entry of a job; the answer is the path of its library, or the kind of its failure. A child
builds many configurations: a new one is forked only after a crash or a time-out.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

import msgspec

from strategy.compile.cuda import compile_cuda
from strategy.compile.lower import Lowered, lower
from strategy.cuda.limit import LimitError
from strategy.cuda.source import PlanError
from strategy.fault import CompileError, InstantiationError, find_fault
from strategy.op import OpError
from strategy.op_strategy import Candidate, candidates
from strategy.record import ErrorKind, Job, JobEntry, convert, to_json
from strategy.select import holds
from strategy.space import ConfigError
from strategy.target import Target
from strategy.workload import Workload
from workers.fork import Channel, Limits
from workers.sandbox import Child, Died, ForkServer, Interrupted, Late
from workers.turn import Turn

_KEPT = 512  # libraries, about 30 KB each
# Compiled functions that a child keeps, the oldest first.
_OBJECTS = 64
_objects: dict[tuple[str, Target], bytes] = {}


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A request: one configuration, and the path for its library."""

    workload: Workload
    target: Target
    entry: JobEntry
    path: str


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `Build`: a library at its path, or an error."""

    entry: int
    path: str = ""
    code_digest: str = ""
    error: ErrorKind | None = None
    message: str = ""
    build_s: float = 0.0


class RefusedError(ValueError):
    """A configuration is refused before anything is built; the message has the reason."""


def serve(channel: Channel) -> None:
    """The child's loop."""
    while True:
        message = channel.receive()
        channel.mark(message["entry"]["index"])
        channel.send(build(convert(message, Build)))


def build(request: Build) -> Built:
    """Build one configuration. Failures of the configuration are results, not exceptions."""
    began = time.perf_counter()
    path = Path(request.path)
    kind, message, digest = None, "", ""
    try:
        check(request.workload, request.target, request.entry)
        lowered = lower(
            request.workload, request.target, request.entry.implementation, request.entry.config
        )
        if request.target.kind == "cuda":
            artefact = compile_cuda(lowered)
            artefact.save(path)
            digest = artefact.digest
        else:
            digest = link(lowered, path)
    except (RefusedError, ConfigError, OpError, LimitError) as error:
        kind, message = ErrorKind.INVALID, str(error)
    except (InstantiationError, PlanError) as error:
        kind, message = ErrorKind.INSTANTIATION, str(error)
    except CompileError as error:
        kind, message = ErrorKind.COMPILE, str(error)
    except MemoryError:
        kind, message = ErrorKind.OOM, "the builder's memory limit was reached"
    except Exception as error:
        fault = find_fault(error)
        at = f"{fault}: " if fault else ""
        kind, message = ErrorKind.INSTANTIATION, f"{at}{type(error).__name__}: {error}"
    if kind in (ErrorKind.INSTANTIATION, ErrorKind.COMPILE) and _is_memory(message):
        kind = ErrorKind.OOM
    return Built(
        entry=request.entry.index, path="" if kind else str(path), code_digest=digest, error=kind,
        message=shorten(message), build_s=time.perf_counter() - began,
    )  # fmt: skip


def check(workload: Workload, target: Target, entry: JobEntry) -> None:
    """Raise `RefusedError` if the entry's implementation or version is not installed here."""
    offered = {c.implementation: c for c in _candidates(workload, target)}
    candidate = offered.get(entry.implementation)
    if candidate is None:
        raise RefusedError(
            f"{workload.op} has no implementation {entry.implementation!r} for {target} here; "
            f"it has: {', '.join(offered) or 'none'}"
        )
    if candidate.version != entry.version:
        raise RefusedError(
            f"{entry.implementation}: version {entry.version} is requested, but this worker has "
            f"{candidate.version}: install the same version of plevel on both sides"
        )
    if not holds(candidate, workload):
        raise RefusedError(
            f"{entry.implementation} needs {candidate.condition}, which {workload} does not satisfy"
        )
    if candidate.space is not None:
        candidate.space.check(entry.config)
    elif entry.config:
        raise RefusedError(f"{entry.implementation} has no knobs, got {entry.config}")


@cache
def _candidates(workload: Workload, target: Target) -> list[Candidate]:
    return candidates(workload, target)


def link(lowered: Lowered, path: Path) -> str:
    """Compile and link a shared library, with its signature beside it; return its code's digest.

    Raises:
        CompileError: TVM, LLVM or the linker failed, or there is no linker.
    """
    files = []
    digest = hashlib.sha256()
    try:
        for number, function in enumerate(lowered.functions()):
            file = path.with_suffix(f".{number}.o")
            files.append(file)
            digest.update(_write_object(function, file))
        # The linker alone takes 3 ms; TVM's export_library runs a C++ compiler driver, 34 ms.
        command = [_linker(), "-shared", "-o", str(path), *map(str, files)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    path.with_name(path.name + ".json").write_bytes(msgspec.json.encode(lowered.signature))
    return digest.hexdigest()


def _write_object(function: Lowered, file: Path) -> bytes:
    """Write and return the machine code of one function.

    It is cached, as many configurations pack a constant in the same way, and some give the same kernel.
    """
    key = (function.digest, function.target)
    code = _objects.pop(key, None)
    if code is None:
        function.compile(checks=False).write_object(file)
        code = file.read_bytes()
    else:
        file.write_bytes(code)
    _objects[key] = code  # moved to the end: the most recent
    if len(_objects) > _OBJECTS:
        del _objects[next(iter(_objects))]
    return code


def find_linker() -> str | None:
    """The program that links shared libraries, None if this host has none."""
    return next(
        (found for name in ("ld", "ld.lld", "cc", "gcc", "clang") if (found := shutil.which(name))),
        None,
    )


@cache
def _linker() -> str:
    found = find_linker()
    if found is None:
        raise CompileError("this host has no linker: install binutils or a C compiler")
    return found


def _is_memory(message: str) -> bool:
    return any(word in message for word in ("bad_alloc", "MemoryError", "Cannot allocate memory"))


def shorten(message: str, most: int = 8000) -> str:
    """Cut the middle of a message that is too long for a result; TVM's may contain programs."""
    if len(message) <= most:
        return message
    return f"{message[: most // 2]}\n… {len(message) - most} characters …\n{message[-most // 2 :]}"


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
