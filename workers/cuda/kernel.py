"""One built CUDA configuration on a device: its buffers, its check, and its timed launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strategy.compile.artefact import MAIN
from strategy.cuda.program import CudaArtefact, Launch, LibraryCall, evaluate, symbols_of
from strategy.signature import Role
from workers.builder import Built
from workers.cuda.driver import PycudaDriver
from workers.cuda.library import prepare_call
from workers.data import Data
from workers.kernel import Kernel
from workers.reference import Array, WrongAnswerError, compare, numpy_dtype, poison

# Maximum number of sets of buffers, so that calls find no data in an L2 cache of up to 60 MB if a set has a
# megabyte or more.
COPIES = 64
# Number of calls replayed together; for fewer, the host stays ahead of the device.
REPLAYED = 32


class CudaKernel(Kernel):
    """A built configuration on a device, with the interface of `Kernel`."""

    def __init__(self, built: Built, data: Data, driver: PycudaDriver) -> None:
        super().__init__(built, data)
        self._driver = driver
        self._memory: list[Any] = []
        self._copies: list[list[Callable[[], None]]] = []
        self._replay: Callable[[], None] | None = None
        self._buffers: dict[str, Any] = {}
        self._next = 0

    def load(self) -> Any:
        """Load the cubin, upload the inputs, and prepare constant ones, which is timed separately."""
        artefact = CudaArtefact.load(Path(self.built.path))
        self._cuda = artefact
        self._module = self._driver.load(artefact) if artefact.source else None
        shapes = {name: array.shape for name, array in self.data.inputs.items()}
        self._symbols = symbols_of(artefact.signature, shapes)
        size = 0
        self._buffers, size = self._make_buffers()
        self._copies = [self._launches(MAIN, self._buffers)]
        # Enough sets of buffers to evict each from the L2 cache.
        for _ in range(min(COPIES, -(-2 * self._driver.l2_bytes // max(size, 1))) - 1):
            try:
                buffers, _ = self._make_buffers()
                self._copies.append(self._launches(MAIN, buffers))  # which may allocate workspaces
            except MemoryError:
                break
        return artefact

    def _allocate(self, size_bytes: int) -> Any:
        buffer = self._driver.allocate(max(size_bytes, 1))
        self._memory.append(buffer)
        self.held_bytes += size_bytes
        return buffer

    def _make_buffers(self) -> tuple[dict[str, Any], int]:
        """One set of the filled buffers of `main` by name, and their bytes.

        Later sets are copied from the first.
        """
        program, found, total = self._cuda.programs[MAIN], {}, 0
        arguments = self._cuda.signature.arguments
        for name, argument in zip(program.parameters, arguments, strict=True):
            shape = [int(d.evaluate(self._symbols)) for d in argument.tensor.shape]
            size = int(np.prod(shape)) * numpy_dtype(argument.tensor.dtype).itemsize
            buffer = found[name] = self._allocate(size)
            total += size
            if argument.role is Role.OUTPUT:
                continue
            if self._buffers:
                self._driver.copy(buffer, self._buffers[name], size)
                continue
            source = self.data.inputs[argument.name]
            if argument.preparation is None:
                self._driver.upload(buffer, source)
                continue
            given = self._allocate(source.nbytes)
            self._driver.upload(given, source)
            queue = self._launches(argument.preparation, {"source": given, "packed": buffer})
            took = self._driver.time(partial(_run, queue))
            self.prepare_s = (self.prepare_s or 0.0) + took
        return found, total

    def _launches(self, name: str, buffers: Mapping[str, Any]) -> list[Callable[[], None]]:
        program = self._cuda.programs[name]
        memory = dict(buffers)
        for workspace in program.workspaces:
            memory[workspace.name] = self._allocate(evaluate(workspace.size_bytes, self._symbols))
        return [self._prepare(step.bind(self._symbols), memory) for step in program.steps]

    def _prepare(self, step: Launch | LibraryCall, memory: Mapping[str, Any]) -> Callable[[], None]:
        if isinstance(step, Launch):
            return self._driver.prepare(self._module, step, memory)
        addresses = {name: self._driver.address(buffer) for name, buffer in memory.items()}

        def allocate(size_bytes: int) -> int:
            return self._driver.address(self._allocate(size_bytes))

        return prepare_call(step, self._driver.stream, addresses, allocate)

    def check(self) -> None:
        """Run once on poisoned outputs and compare them with the reference.

        Raises:
            WrongAnswerError: an output is wrong, or an input was written to.
        """
        began = time.perf_counter()
        for name, right, dtype in self._outputs_with_reference():
            self._driver.upload(self._buffers[name], poison(right, dtype))
        _run(self._copies[0])
        self._driver.synchronize()
        for name, argument in self._arguments_by_name():
            given = self.data.inputs.get(argument.name)
            if argument.role in (Role.INPUT, Role.CONSTANT) and given is not None:
                found = np.empty_like(given, order="C")
                self._driver.download(self._buffers[name], found)
                if not np.array_equal(_bits(found), _bits(given)):
                    raise WrongAnswerError(f"it writes to its input {argument.name}")
        self.compare()
        self.check_s += time.perf_counter() - began

    def bind(self) -> None:
        """Do nothing: the buffers are there since `load`."""

    def compare(self) -> None:
        """Compare the first set of outputs, after timing, with the reference."""
        tolerances = iter(self.data.tolerance)
        for name, right, dtype in self._outputs_with_reference():
            found = np.empty(right.shape, numpy_dtype(dtype))
            self._driver.download(self._buffers[name], found)
            compare(found, right, next(tolerances))

    def _arguments_by_name(self) -> list[tuple[str, Any]]:
        arguments = self._cuda.signature.arguments
        return list(zip(self._cuda.programs[MAIN].parameters, arguments, strict=True))

    def _outputs_with_reference(self) -> list[tuple[str, Array, str]]:
        outputs = [(n, a) for n, a in self._arguments_by_name() if a.role is Role.OUTPUT]
        return [
            (name, right, argument.tensor.dtype)
            for (name, argument), right in zip(outputs, self.data.reference, strict=True)
        ]

    def measure(self, calls: int) -> float:
        """The total seconds of this many calls on the device, each on the next set of buffers."""
        if calls < REPLAYED:
            return self._driver.time(lambda: self._queue(calls))
        # Whole rounds, so that the next call uses the first set again.
        size = -(-REPLAYED // len(self._copies)) * len(self._copies)
        if self._replay is None:
            self._replay = self._driver.capture(lambda: self._queue(size))
        replay, times = self._replay, -(-calls // size)

        def queue() -> None:
            for _ in range(times):
                replay()

        return self._driver.time(queue) * calls / (times * size)

    def _queue(self, calls: int) -> None:
        for _ in range(calls):
            _run(self._copies[self._next])
            self._next = (self._next + 1) % len(self._copies)

    def release(self) -> None:
        """Free the device's memory."""
        self._replay = None
        for buffer in self._memory:
            self._driver.free(buffer)
        self._memory.clear()
        self._copies.clear()
        self._module = None


def _run(launches: list[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def _bits(array: Array) -> Array:
    """The bytes of an array, viewed as the widest possible elements."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = flat[: flat.size // 8 * 8].view(np.uint64)
    return whole if whole.size * 8 == flat.size else flat
