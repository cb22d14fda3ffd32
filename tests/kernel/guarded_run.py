"""Implementations in guarded memory, each run in a fork: `test_memory.py` sends a JSON line for each.

A process of its own, since a fork has none of the threads that TVM starts with its first parallel loop.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strategy.compile.artefact import ALIGNMENT, Artefact, load
from strategy.compile.lower import Lowered, Role, lower
from strategy.target import Target
from strategy.workload import Workload
from tests.limit import HANG_S
from workers.builder import link
from workers.fork import without_torch
from workers.guard import Buffer, OutOfBoundsError, Placement, allocate
from workers.reference import (
    WrongAnswerError,
    compare,
    poison,
    random_inputs,
    reference,
    tolerances,
)
from workers.workspace import build_allocator, guarded_workspaces

_CANARY = 0xF5


class Placing(StrEnum):
    """The side at which buffers touch an inaccessible page; EXACT leaves no gap, for loosened code."""

    END = "end"
    BEGIN = "begin"
    EXACT = "exact"


class Request(msgspec.Struct, frozen=True):
    """One implementation of a workload with one configuration, run at each of the sizes of its symbols.

    A sample (not `full`) is compiled once, for any alignment, and runs at both sides. Inputs that are not `given` are
    drawn. `capability` replaces sizes of this host, such as those of its caches.
    """

    workload: Workload
    implementation: str
    config: dict[str, Any] | None
    threads: int
    full: bool
    sizes: tuple[dict[str, int], ...] = ({},)
    given: dict[str, list[int]] = {}
    capability: dict[str, int] = {}


@dataclass(frozen=True)
class Memory:
    """A buffer of the function under test: its array, the tensor over it, and whether it was overrun."""

    buffer: Buffer
    gap: Any
    array: Any
    tensor: Any

    @classmethod
    def allocate(cls, name: str, shape: tuple[int, ...], dtype: str, placing: Placing) -> Memory:
        import tvm
        import tvm_ffi

        if placing is not Placing.EXACT:
            buffer = allocate(name, shape, dtype, Placement(placing))
            return cls(buffer, np.empty(0, np.uint8), buffer.array, buffer.tensor)
        kind = allocate(name, (), dtype).array.dtype
        size = int(np.prod(shape)) * kind.itemsize
        buffer = allocate(name, (-(-size // ALIGNMENT) * ALIGNMENT,), "uint8")
        gap, rest = buffer.array[: len(buffer.array) - size], buffer.array[len(buffer.array) - size :]
        gap[...] = _CANARY
        if not size:
            tensor = tvm.runtime.empty(shape, dtype)
        else:
            raw = tvm_ffi.from_dlpack(rest, require_alignment=1)
            tensor = tvm.runtime.Tensor._create_view(raw, shape, dtype)
        return cls(buffer, gap, rest.view(kind).reshape(shape), tensor)

    def verify(self) -> None:
        self.buffer.verify()
        if (self.gap != _CANARY).any():
            raise OutOfBoundsError(f"it writes before the beginning of {self.buffer.name}")


def loosened(lowered: Lowered) -> Lowered:
    """The same functions for buffers that are aligned to one element only."""
    import tvm
    from tvm.tirx import _ffi_api
    from tvm.tirx.buffer import BufferType
    from tvm_ffi import structural_map

    def loosen(kind: Any) -> Any:
        return _ffi_api.BufferType(
            kind.storage_scope, kind.dtype, kind.shape, kind.strides, kind.elem_offset,
            max(1, tvm.DataType(str(kind.dtype.dtype)).bits // 8), kind.offset_factor, kind.layout,
            kind.allocated_addr, kind.span,
        )

    functions = {
        variable.name_hint: structural_map(function, [(BufferType, loosen)])
        for variable, function in lowered.module.functions.items()
    }
    return replace(lowered, module=tvm.IRModule(functions))


def failures(request: Request, allocator: Path) -> Iterator[str]:
    """The failures of each placement; empty if there are none."""
    work = request.workload
    host = Target.parse("cpu").with_threads(request.threads)
    target = Target.parse({**host.to_json(), **request.capability})
    lowered = lower(work, target, request.implementation, request.config)
    with tempfile.TemporaryDirectory() as folder:
        aligned, loose = Path(folder, "aligned.so"), Path(folder, "loosened.so")
        link(loosened(lowered), loose)
        if request.full:
            link(lowered, aligned)
        placings = Placing if request.full else (Placing.BEGIN, Placing.EXACT)
        for placing, sizes in product(placings, request.sizes):
            path = aligned if request.full and placing is not Placing.EXACT else loose
            found = forked(lambda: _run(path, allocator, request, sizes, placing))  # noqa: B023
            if found:
                yield f"{placing} {sizes or ''}: {found}"


def _run(
    path: Path, allocator: Path, request: Request, sizes: Mapping[str, int], placing: Placing
) -> None:
    work = request.workload.bind(sizes) if sizes else request.workload
    inputs = random_inputs(work, 3)
    for name, numbers in request.given.items():
        inputs[name] = np.asarray(numbers, inputs[name].dtype)
    with np.errstate(all="ignore"):
        expected = reference(work, inputs)
        allowed = tolerances(work, inputs, expected)
    side = Placement.BEGIN if placing is Placing.BEGIN else Placement.END
    artefact = load(path)
    with guarded_workspaces(path, allocator, side, lambda spans: None):
        _call(artefact, sizes, inputs, expected, allowed, placing)


def _call(
    artefact: Artefact, sizes: Mapping[str, int], inputs: Mapping[str, Any], expected: Any, allowed: Any,
    placing: Placing,
) -> None:
    given: list[Memory] = []
    outputs: list[Memory] = []
    for argument in artefact.arguments:
        if argument.role is Role.OUTPUT:
            right, dtype = np.asarray(expected[len(outputs)]), argument.type.partition("[")[0]
            memory = Memory.allocate(argument.name, right.shape, dtype, placing)
            memory.array[...] = poison(right, dtype)
            outputs.append(memory)
            continue
        kind = argument.tensor
        shape = tuple(int(d.evaluate(sizes)) for d in kind.shape)
        memory = Memory.allocate(argument.name, shape, kind.dtype, placing)
        source = inputs[argument.name]
        if argument.preparation is None:
            memory.array[...] = source
        else:
            raw = Memory.allocate(argument.name, source.shape, str(source.dtype), placing)
            raw.array[...] = source
            memory.array.reshape(-1).view(np.uint8)[...] = _CANARY  # as there may be anything in it
            artefact.executable[argument.preparation](raw.tensor, memory.tensor)
            raw.verify()
        given.append(memory)
    artefact.main(*(m.tensor for m in (*given, *outputs)))
    for memory in (*given, *outputs):
        memory.verify()
    for memory, right, tolerance in zip(outputs, expected, allowed, strict=True):
        compare(memory.array, np.asarray(right), tolerance)


def forked(run: Any) -> str:
    """The signal or exception that ended the run; empty if none did."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for caught in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):  # TVM prints a trace of each
            signal.signal(caught, signal.SIG_DFL)
        signal.alarm(int(HANG_S))
        try:
            run()
        except (OutOfBoundsError, WrongAnswerError) as error:
            os.write(write, str(error).encode()[:2000])
        except Exception as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:2000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def serve() -> None:
    """Answer each request on standard input with the list of its failures."""
    with without_torch():  # of whose memory each fork would copy the tables
        import tvm  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        allocator = build_allocator(Path(folder))
        for line in sys.stdin.buffer:
            request = msgspec.json.decode(line, type=Request)
            try:
                answer = list(failures(request, allocator))
            except Exception as error:
                answer = [f"{type(error).__name__}: {error}"]
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
