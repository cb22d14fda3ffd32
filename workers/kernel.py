"""One built configuration, loaded: its arguments, its check against the reference, and its calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from strategy.compile.artefact import Artefact, load
from strategy.compile.openmp import Evictor, use_openmp
from strategy.signature import Argument, Role
from workers.builder import Built
from workers.guard import Buffer, Placement, Pool, Span, size_bytes
from workers.reference import Array, Tolerance, WrongAnswerError, compare, poison
from workers.workspace import guarded_workspaces

# Below this many calls a loop in Python costs less than 0.2 % of a repeat of 2 ms, and saves the
# evaluator's extra first call.
_LOOP_IN_C_FROM = 32
_MOST_EVICTED_BYTES = 64 << 20  # of larger constants a call leaves little in the caches
# Of a sample, to evict: to evict a table takes a thousand times as long as a kernel that reads some of its rows.
_MOST_EVICTING_S = 0.1


@dataclass
class Data:
    """Inputs, reference and tolerances, shared by all configurations of a workload and seed."""

    inputs: Mapping[str, Array]
    tensors: Mapping[str, Any]  # the inputs as TVM tensors
    reference: tuple[Array, ...]
    tolerance: tuple[Tolerance, ...]
    pool: Pool = field(default_factory=Pool)
    _guarded: dict[tuple[str, Placement], Buffer] = field(default_factory=dict)

    def guarded_input(self, name: str, placement: Placement) -> Buffer:
        """An input in guarded memory, shared by all configurations until `forget_guarded`."""
        found = self._guarded.get((name, placement))
        if found is None:
            given, dtype = self.inputs[name], str(self.tensors[name].dtype)
            found = self.pool.place(f"input {name}", given.shape, dtype, placement)
            found.array[...] = given
            self._guarded[name, placement] = found
        return found

    def forget_guarded(self) -> None:
        """Discard the guarded inputs after a kernel that may have damaged them."""
        self._guarded.clear()

    def release(self) -> None:
        """Free all guarded memory."""
        self._guarded.clear()
        self.pool = Pool()

    @property
    def nbytes(self) -> int:
        """The memory of inputs, their tensors and the reference."""
        once = [*self.reference, *self.inputs.values()]
        return sum(a.nbytes for a in [*once, *(self.inputs[name] for name in self.tensors)])


class Kernel:
    """One loaded library with its arguments.

    Args:
        allocator: of workspaces in a check (`workers.workspace`); None for kernels that are not checked.
        launcher: of OpenMP's threads (`strategy.compile.openmp`); None for TVM's pool.
        cold_constants: before each timed call, constants are evicted from the caches; with a launcher only.
        begin: called before each run in guarded memory with the addresses of its buffers.
    """

    def __init__(
        self,
        built: Built,
        data: Data,
        *,
        cache_flush: bool = False,
        allocator: Path | None = None,
        launcher: Path | None = None,
        cold_constants: bool = False,
        begin: Callable[[Sequence[Span]], None] = lambda spans: None,
    ) -> None:
        self.entry = built.entry
        self.prepare_s: float | None = None
        self.check_s = 0.0
        self.held_bytes = 0  # of its own buffers, from `bind` on
        self._built = built
        self._data = data
        self._cache_flush = cache_flush
        self._allocator = allocator
        self._launcher = launcher
        self._cold_constants = cold_constants
        self._evict: Evictor | None = None
        self._begin = begin
        self._artefact: Artefact | None = None
        self._arguments: list[Any] = []
        self._outputs: list[Any] = []

    @property
    def built(self) -> Built:
        return self._built

    def load(self) -> Artefact:
        """Load the library."""
        self._artefact = load(Path(self._built.path))
        self._main = self._artefact.main
        if self._launcher is not None:
            use_openmp(Path(self._built.path), self._launcher)
        return self._artefact

    def check(self) -> None:
        """Check a run in guarded memory against the reference.

        Raises:
            OutOfBoundsError: it writes right before or after a buffer. An access further away kills
                the process.
            WrongAnswerError: an output is wrong, or an input was written to.
        """
        began = time.perf_counter()
        try:
            # Compared last, as a read out of bounds also makes a wrong answer, which explains less.
            for outputs in [self._run_guarded(placement) for placement in Placement]:
                self._compare(outputs)
        except Exception:
            self._data.forget_guarded()
            raise
        self._begin(())
        self.check_s += time.perf_counter() - began

    def _run_guarded(self, placement: Placement) -> list[Array]:
        """The outputs of one run with all buffers at inaccessible pages on one side."""
        assert self._artefact is not None
        assert self._allocator is not None
        arguments = self._artefact.arguments
        inputs = {
            a.name: self._data.guarded_input(a.name, placement)
            for a in arguments
            if a.role is not Role.OUTPUT
        }
        taken = [
            inputs[a.name] if a.role in (Role.INPUT, Role.CONSTANT) else self._place(a, placement)
            for a in arguments
        ]
        outputs = [b for a, b in zip(arguments, taken, strict=True) if a.role is Role.OUTPUT]
        for buffer, right in zip(outputs, self._data.reference, strict=True):
            buffer.array[...] = poison(right, buffer.dtype)
        used = {b.name: b for b in (*inputs.values(), *taken)}.values()
        spans = [b.span for b in used]
        self._begin(spans)
        with guarded_workspaces(
            Path(self._built.path), self._allocator, placement, lambda more: self._begin([*spans, *more])
        ):
            for argument, buffer in zip(arguments, taken, strict=True):
                if argument.preparation is not None:
                    prepare = self._artefact.executable[argument.preparation]
                    prepare(inputs[argument.name].tensor, buffer.tensor)
            self._main(*(b.tensor for b in taken))
        for buffer in used:
            buffer.verify()
        for name, buffer in inputs.items():
            if not np.array_equal(bits(buffer.array), bits(self._data.inputs[name])):
                raise WrongAnswerError(f"it writes to its input {name}")
        return [b.array for b in outputs]

    def _place(self, argument: Argument, placement: Placement) -> Buffer:
        kind, output = argument.tensor, argument.role is Role.OUTPUT
        name = argument.name if output else f"{argument.role} {argument.name}"
        return self._data.pool.place(name, kind.concrete_shape, kind.dtype, placement)

    def bind(self) -> None:
        """Make the arguments for timing; packing of constant inputs is timed separately."""
        import tvm

        assert self._artefact is not None
        for argument in self._artefact.arguments:
            if argument.role is Role.OUTPUT:
                right = self._data.reference[len(self._outputs)]
                tensor = tvm.runtime.empty(argument.tensor.concrete_shape, argument.tensor.dtype)
                tensor.copyfrom(poison(right, argument.tensor.dtype))
                self._outputs.append(tensor)
                self.held_bytes += size_bytes(tensor.shape, argument.tensor.dtype)
            else:
                tensor = self._data.tensors[argument.name]
                if argument.preparation is not None:
                    began = time.perf_counter()
                    tensor = self._artefact.prepare(argument, tensor)
                    self.prepare_s = (self.prepare_s or 0.0) + time.perf_counter() - began
                    self.held_bytes += size_bytes(tensor.shape, str(tensor.dtype))
            self._arguments.append(tensor)
        if self._cold_constants:
            self._evict = self._make_evictor()

    def _make_evictor(self) -> Evictor | None:
        assert self._artefact is not None
        assert self._launcher is not None
        constants = [
            (tensor.data_ptr(), size_bytes(tensor.shape, str(tensor.dtype)))
            for argument, tensor in zip(self._artefact.arguments, self._arguments, strict=True)
            if argument.role in (Role.CONSTANT, Role.PREPARED)
        ]
        evicted = [(at, size) for at, size in constants if size <= _MOST_EVICTED_BYTES]
        return Evictor(self._launcher, evicted) if evicted else None

    def compare(self) -> None:
        """Compare the outputs of the timed calls with the reference."""
        self._compare([_view(tensor) for tensor in self._outputs])

    def _compare(self, outputs: Sequence[Array]) -> None:
        for found, right, tolerance in zip(
            outputs, self._data.reference, self._data.tolerance, strict=True
        ):
            compare(found, right, tolerance)

    def measure(self, calls: int) -> float:
        """The total seconds of this many calls, in the loop with the least overhead."""
        assert self._artefact is not None
        if self._cache_flush:
            return self._measure_cold(calls)
        if self._evict is not None:
            return self._measure_evicting(calls, self._evict)
        if calls >= _LOOP_IN_C_FROM:
            import tvm

            evaluator = self._artefact.executable.time_evaluator(
                "main", tvm.cpu(), number=calls, repeat=1
            )
            return float(evaluator(*self._arguments).results[0]) * calls
        main, arguments = self._main, self._arguments
        began = time.perf_counter_ns()
        for _ in range(calls):
            main(*arguments)
        return (time.perf_counter_ns() - began) * 1e-9

    def _measure_cold(self, calls: int) -> float:
        """As `measure`, with all but the first argument evicted from caches before each call."""
        assert self._artefact is not None
        import tvm

        evaluator = self._artefact.executable.time_evaluator(
            "main", tvm.cpu(), number=1, repeat=calls, f_preproc="cache_flush_cpu_non_first_arg"
        )
        return float(sum(evaluator(*self._arguments).results))

    def _measure_evicting(self, calls: int, evict: Evictor) -> float:
        """As `measure`, with cold constants: of fewer calls where they take long to evict.

        The loop is Python's, as the time to evict must not count.
        """
        main, arguments = self._main, self._arguments
        spent, done, ends = 0, 0, time.monotonic() + _MOST_EVICTING_S
        while done < calls:
            evict()
            began = time.perf_counter_ns()
            main(*arguments)
            spent += time.perf_counter_ns() - began
            done += 1
            # Not of the calls, whose own limit is the caller's.
            if time.monotonic() - spent * 1e-9 > ends:
                break
        return spent * 1e-9 * calls / done

    def release(self) -> None:
        """Free its own buffers."""
        self._evict = None
        self._arguments.clear()
        self._outputs.clear()
        self._artefact = None
        self._main = None


def _view(tensor: Any) -> Array:
    """A tensor's memory, not copied if NumPy has its dtype."""
    if str(tensor.dtype) == "bfloat16":
        copied: Array = tensor.numpy()
        return copied
    return np.from_dlpack(tensor)


def bits(array: Array) -> Array:
    """The bytes of an array, viewed as the widest possible elements."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = flat[: flat.size // 8 * 8].view(np.uint64)
    return whole if whole.size * 8 == flat.size else flat
