"""Building of configurations: the child that lowers and compiles them to libraries or cubins.

A request is one entry of a job; the answer is the path of its library, or the kind of its failure.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from strategy.compile.cuda import compile_cuda
from strategy.compile.lower import Lowered, lower
from strategy.cuda.limit import LimitError
from strategy.cuda.source import PlanError
from strategy.fault import CompileError, InstantiationError, ToolError, find_fault
from strategy.op import OpError, get_op
from strategy.op_strategy import Candidate, candidates, evaluate
from strategy.record import ErrorKind, JobEntry, Result, Seconds, convert
from strategy.select import holds
from strategy.space import ConfigError
from strategy.target import Target
from strategy.workload import Workload
from workers.fork import Channel

# Compiled functions that a child keeps, the oldest first.
_OBJECTS = 64
_objects: dict[tuple[str, Target], bytes] = {}
_SAME_VERSION = "install the same version of plevel, or of the package that has it, on both sides"


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A request: one configuration, and the path for its library."""

    workload: Workload
    target: Target
    entry: JobEntry
    path: str


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `Build`: a library at its path, or an error.

    Attributes:
        has: the version of the implementation that this host has, 0 for none, if the entry asks for another; it may be
            offered for other workloads only.
    """

    entry: int
    has: int | None = None
    path: str = ""
    code_digest: str = ""
    error: ErrorKind | None = None
    message: Annotated[str, msgspec.Meta(max_length=20_000)] = ""  # as of a `Result`
    build_s: Seconds = 0.0

    def failure(self) -> Result:
        """The result of an entry that was not timed."""
        return Result(
            entry=self.entry, error=self.error, message=self.message, build_s=self.build_s,
            code_digest=self.code_digest, measured_at=time.time(),
        )


class RefusedError(ValueError):
    """A configuration is refused before anything is built; the message has the reason."""


class NotInstalledError(RefusedError):
    """This host has another version of the implementation, or none.

    Attributes:
        has: that version, 0 for none; None if it is the version that was asked for, with another space or for other
            workloads.
    """

    def __init__(self, message: str, has: int | None) -> None:
        super().__init__(message)
        self.has = has


def serve(channel: Channel) -> None:
    """The child's loop."""
    while True:
        message = channel.receive()
        channel.mark(message["entry"]["index"])
        channel.send(build(convert(message, Build)))


def build(request: Build) -> Built:
    """Build one configuration. Failures of the configuration are results, not exceptions.

    Raises:
        ToolError: this host can build none.
    """
    began = time.perf_counter()
    path = Path(request.path)
    kind, message, digest, has = None, "", "", None
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
    except NotInstalledError as error:
        kind, message, has = ErrorKind.INVALID, str(error), error.has
    except (RefusedError, ConfigError, OpError, LimitError) as error:
        kind, message = ErrorKind.INVALID, str(error)
    except (InstantiationError, PlanError) as error:
        kind, message = ErrorKind.INSTANTIATION, str(error)
    except ToolError:
        raise
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
        message=shorten(message), build_s=time.perf_counter() - began, has=has,
    )


def check(workload: Workload, target: Target, entry: JobEntry) -> None:
    """Check an entry against the implementations that are installed here.

    Raises:
        NotInstalledError: its implementation, or this version of it, is not.
        RefusedError: it does not fit the workload or the space.
    """
    offered = {c.implementation: c for c in _candidates(workload, target)}
    candidate = offered.get(entry.implementation)
    asked = entry.version.partition(".")[0]
    if candidate is None:
        has = _version_elsewhere(workload.op, target, entry.implementation)
        names = ", ".join(offered) or "none"
        raise NotInstalledError(
            f"{workload.op} has no implementation {entry.implementation!r} for {target} here; it has: {names}"
            if not has else
            f"{entry.implementation} is not offered for {workload} on this worker, but for others of {workload.op}: "
            f"{_SAME_VERSION}; it has: {names}",
            None if str(has) == asked else has,
        )
    if candidate.version != entry.version:
        known = candidate.version.partition(".")[0]
        raise NotInstalledError(
            f"{entry.implementation}: version {entry.version} is requested, but this worker has "
            f"{candidate.version}: {_SAME_VERSION}",
            None if known == asked else int(known),
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
def _version_elsewhere(op: str, target: Target, implementation: str) -> int:
    """The version of an implementation by the workloads that are examples of its operator; 0 if it is for none."""
    for example in get_op(op).examples:
        for _, found in evaluate(Workload.make(op, example.inputs, dict(example.attrs)), target):
            if found.name == implementation:
                return found.version
    return 0


@cache
def _candidates(workload: Workload, target: Target) -> list[Candidate]:
    return candidates(workload, target)


def link(lowered: Lowered, path: Path) -> str:
    """Compile and link a shared library, with its signature beside it; return its code's digest.

    Raises:
        CompileError: TVM, LLVM or the linker failed.
        ToolError: there is no linker, or it cannot be run.
    """
    files = []
    digest = hashlib.sha256()
    try:
        for number, function in enumerate(lowered.functions()):
            file = path.with_suffix(f".{number}.o")
            files.append(file)
            digest.update(_write_object(function, file))
        _join(files, path)
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    path.with_name(path.name + ".json").write_bytes(msgspec.json.encode(lowered.signature))
    return digest.hexdigest()


def _join(objects: Sequence[Path], library: Path) -> None:
    # The linker alone takes 3 ms; TVM's export_library runs a C++ compiler driver, 34 ms.
    command = [_linker(), "-shared", "-o", str(library), *map(str, objects)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        if error.errno == errno.ENOMEM:  # which the configuration's own code has taken
            raise
        raise ToolError(f"the linker {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed: {done.stderr.strip()}")


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


@cache
def _linker() -> str:
    """The program that links shared libraries."""
    found = next(filter(None, map(shutil.which, ("ld", "ld.lld", "cc", "gcc", "clang"))), None)
    if found is None:
        raise ToolError("this host has no linker: install a C compiler (Debian: apt install gcc)")
    return found


def _is_memory(message: str) -> bool:
    return any(word in message for word in ("bad_alloc", "MemoryError", "Cannot allocate memory"))


def shorten(message: str, most: int = 8000) -> str:
    """Cut the middle of a message that is too long for a result; TVM's may contain programs."""
    if len(message) <= most:
        return message
    return f"{message[: most // 2]}\n… {len(message) - most} characters …\n{message[-most // 2 :]}"
