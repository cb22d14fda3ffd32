"""One built configuration, loaded: its arguments, its check against the reference, and its calls."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from strategy.compile import huge_page
from strategy.compile.artefact import Artefact, load
from strategy.compile.openmp import Evictor, use_openmp
from strategy.signature import Role
from workers.builder import Built
from workers.data import Data
from workers.guard import Buffer, Placement, Span, size_bytes
from workers.reference import Array, overwrite
from workers.workspace import guarded_workspaces

# Below this many calls a loop in Python costs less than 0.2 % of a repeat of 2 ms, and saves the
# evaluator's extra first call.
_LOOP_IN_C_FROM = 32
_SLEWED = 1.001  # the pace of a wall clock that is corrected gradually, at most: twice that of Linux
_MOST_EVICTED_BYTES = 64 << 20  # of larger constants a call leaves little in the caches
# Of a sample, to evict: to evict a table takes a thousand times as long as a kernel that reads some of its rows.
_MOST_EVICTING_S = 0.1


def _steadily(evaluate: Callable[[], float]) -> float:
    """The seconds of TVM's evaluator, which reads the wall clock; again if that was set meanwhile."""
    while True:
        began = time.perf_counter()
        took_s = evaluate()
        if 0.0 <= took_s <= (time.perf_counter() - began) * _SLEWED:
            return took_s


@dataclass(eq=False)
class Kernel:
    """One loaded library with its arguments.

    Args:
        allocator: of workspaces in a check (`workers.workspace`); None for kernels that are not checked.
        launcher: of OpenMP's threads (`strategy.compile.openmp`); None for TVM's pool.
        cold_constants: before each timed call, constants are evicted from the caches; with a launcher only.
        begin: called before each run in guarded memory with the addresses of its buffers.
    """

    built: Built
    data: Data
    _: KW_ONLY
    cache_flush: bool = False
    allocator: Path | None = None
    launcher: Path | None = None
    cold_constants: bool = False
    begin: Callable[[Sequence[Span]], None] = lambda spans: None

    def __post_init__(self) -> None:
        self.entry = self.built.entry
        self.prepare_s: float | None = None
        self.check_s = 0.0
        self.held_bytes = 0  # of its own buffers, from `bind` on
        self._evict: Evictor | None = None
        self._artefact: Artefact | None = None
        self._arguments: list[Any] = []
        self._own: dict[int, Buffer] = {}  # outputs and packed constants, by the place of the argument
        self._taken: list[Buffer] = []  # those, and what earlier runs had in their place
        self._packing_s: dict[int, float] = {}
        self._is_packed = False  # for good: no other placement tells more

    @property
    def _loaded(self) -> Artefact:
        assert self._artefact is not None
        return self._artefact

    def load(self) -> Artefact:
        """Load the library."""
        self._artefact = load(Path(self.built.path))
        self._main = self._artefact.main
        if self.launcher is not None:
            use_openmp(Path(self.built.path), self.launcher)
        return self._artefact

    def check(self) -> None:
        """Check a run in guarded memory against the reference.

        Raises:
            OutOfBoundsError: it writes right before or after a buffer. An access further away, or a write to an
                input, kills the process.
            WrongAnswerError: an output is wrong.
        """
        began = time.perf_counter()
        runs = []
        for placement in Placement:
            outputs, is_tight = self._run_guarded(placement)
            runs.append(outputs)
            if is_tight:
                break
        # Compared last, as a read out of bounds also makes a wrong answer, which explains less.
        for outputs in runs:
            self.data.compare(outputs)
        self.begin(())
        self.check_s += time.perf_counter() - began - (self.prepare_s or 0.0)

    def _run_guarded(self, placement: Placement) -> tuple[list[Array], bool]:
        """The outputs of one run with all buffers at inaccessible pages on one side.

        True if they are at such pages on both sides: the other placement is the same then.
        """
        assert self.allocator is not None
        arguments = self._loaded.arguments
        inputs = {
            a.name: self.data.guarded_input(a.name, placement)
            for a in arguments
            if a.role is not Role.OUTPUT
        }
        unpacked = self._take_all(placement)
        taken = [self._own.get(place) or inputs[a.name] for place, a in enumerate(arguments)]
        used = {b.name: b for b in (*inputs.values(), *taken)}.values()
        spans = [b.span for b in used]
        self.begin(spans)
        with guarded_workspaces(
            Path(self.built.path), self.allocator, placement, lambda more: self.begin([*spans, *more])
        ) as made:
            self._pack(unpacked, {name: b.tensor for name, b in inputs.items()})
            self._is_packed = all(b.is_tight for b in (*inputs.values(), *made))
            self._main(*(b.tensor for b in taken))
        for buffer in used:
            buffer.verify()
        return [b.array for b in self._outputs], all(b.is_tight for b in (*used, *made))

    @property
    def _outputs(self) -> list[Buffer]:
        return [self._own[place] for place, a in enumerate(self._loaded.arguments) if a.role is Role.OUTPUT]

    def _take_all(self, placement: Placement) -> list[int]:
        """Take poisoned buffers for outputs and packed constants; return the places of what is to be packed.

        Constants that an earlier run has packed for good are kept.
        """
        unpacked = []
        for place, argument in enumerate(self._loaded.arguments):
            kept = self._own.get(place)
            if argument.role is Role.OUTPUT:
                self._take(place, argument.name, placement)
            elif argument.role is Role.PREPARED and not (kept and kept.is_tight and self._is_packed):
                buffer = self._take(place, f"prepared {argument.name}", placement)
                ctypes.memset(buffer.pointer, 0xFF, buffer.array.nbytes)  # another kernel may have packed there
                unpacked.append(place)
        self._poison()
        return unpacked

    def _take(self, place: int, name: str, placement: Placement) -> Buffer:
        kind = self._loaded.arguments[place].tensor
        buffer = self._own[place] = self.data.pool.take(name, kind.concrete_shape, kind.dtype, placement)
        self._taken.append(buffer)
        return buffer

    def _poison(self) -> None:
        for buffer, right in zip(self._outputs, self.data.reference, strict=True):
            overwrite(buffer.array, right, buffer.dtype)

    def _pack(self, places: Sequence[int], sources: Mapping[str, Any]) -> None:
        """Pack constant inputs, which is timed separately."""
        for place in places:
            argument = self._loaded.arguments[place]
            pack = self._loaded.executable[argument.preparation]
            began = time.perf_counter()
            pack(sources[argument.name], self._own[place].tensor)
            self._packing_s[place] = time.perf_counter() - began
            self.prepare_s = sum(self._packing_s.values())

    def bind(self) -> None:
        """Make the arguments for timing: outputs and packed constants are where the last check had them."""
        if self._own:
            self._poison()
        else:  # an earlier session has checked it
            self._pack(self._take_all(Placement.BEGIN), self.data.tensors)
        self._arguments = [
            self._own[place].tensor if place in self._own else self.data.tensors[a.name]
            for place, a in enumerate(self._loaded.arguments)
        ]
        self._give_back([b for b in self._taken if b not in self._own.values()])
        self.held_bytes = sum(b.array.nbytes for b in self._taken)
        if self.cold_constants:
            self._evict = self._make_evictor()

    def _give_back(self, buffers: Sequence[Buffer]) -> None:
        self._taken = [b for b in self._taken if b not in buffers]
        self.data.pool.give_back(buffers)

    def _make_evictor(self) -> Evictor | None:
        assert self.launcher is not None
        constants = [
            (tensor.data_ptr(), size_bytes(tensor.shape, str(tensor.dtype)))
            for argument, tensor in zip(self._loaded.arguments, self._arguments, strict=True)
            if argument.role in (Role.CONSTANT, Role.PREPARED)
        ]
        for at, size in constants:  # as a network's are
            huge_page.collapse(at, size)
        evicted = [(at, size) for at, size in constants if size <= _MOST_EVICTED_BYTES]
        return Evictor(self.launcher, evicted) if evicted else None

    def compare(self) -> None:
        """Compare the outputs of the timed calls with the reference."""
        self.data.compare([b.array for b in self._outputs])

    def measure(self, calls: int) -> float:
        """The total seconds of this many calls, in the loop with the least overhead."""
        if self.cache_flush:
            return self._measure_cold(calls)
        if self._evict is not None:
            return self._measure_evicting(calls, self._evict)
        if calls >= _LOOP_IN_C_FROM:
            import tvm

            evaluator = self._loaded.executable.time_evaluator(
                "main", tvm.cpu(), number=calls, repeat=1
            )
            return _steadily(lambda: float(evaluator(*self._arguments).results[0]) * calls)
        main, arguments = self._main, self._arguments
        began = time.perf_counter_ns()
        for _ in range(calls):
            main(*arguments)
        return (time.perf_counter_ns() - began) * 1e-9

    def _measure_cold(self, calls: int) -> float:
        """As `measure`, with all but the first argument evicted from caches before each call."""
        import tvm

        evaluator = self._loaded.executable.time_evaluator(
            "main", tvm.cpu(), number=1, repeat=calls, f_preproc="cache_flush_cpu_non_first_arg"
        )
        return _steadily(lambda: float(sum(evaluator(*self._arguments).results)))

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
        """Leave its own buffers to other kernels."""
        self._evict = None
        self._arguments.clear()
        self._own.clear()
        self._give_back(self._taken)
        self._artefact = None
        self._main = None
