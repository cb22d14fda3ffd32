"""One built configuration, loaded: its arguments, its check against the reference, and its calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strategy.lower import Artefact, load
from strategy.signature import Role
from workers.builder import Built
from workers.reference import Array, WrongAnswerError, compare, poison

# Below this many calls a loop in Python costs less than 0.2 % of a repeat of 2 ms, and spares the
# extra call with which TVM's evaluator begins.
_LOOP_IN_C_FROM = 32


@dataclass
class Data:
    """What all configurations of a workload and seed share."""

    key: tuple[str, int]
    inputs: Mapping[str, Array]
    tensors: Mapping[str, Any]  # the same, as kernels take them
    reference: tuple[Array, ...]
    tolerance: tuple[float, ...]


class Kernel:
    """One loaded library with its arguments."""

    def __init__(self, built: Built, data: Data, *, cache_flush: bool = False) -> None:
        self.entry = built.entry
        self.prepare_s: float | None = None
        self.check_s = 0.0
        self._built = built
        self._data = data
        self._cache_flush = cache_flush
        self._artefact: Artefact | None = None
        self._arguments: list[Any] = []
        self._outputs: list[Any] = []

    @property
    def built(self) -> Built:
        return self._built

    def load(self) -> Artefact:
        """Loads the library and prepares its constant inputs, which is timed by itself."""
        import tvm

        artefact = self._artefact = load(Path(self._built.path))
        for argument in artefact.arguments:
            if argument.role is Role.OUTPUT:
                shape, dtype = argument.tensor.concrete_shape, argument.tensor.dtype
                tensor = tvm.runtime.empty(shape, dtype)
                self._outputs.append(tensor)
            else:
                tensor = self._data.tensors[argument.name]
                if argument.preparation is not None:
                    began = time.perf_counter()
                    tensor = artefact.prepare(argument, tensor)
                    self.prepare_s = (self.prepare_s or 0.0) + time.perf_counter() - began
            self._arguments.append(tensor)
        self._main = artefact.main
        return artefact

    def check(self) -> None:
        """Runs once on poisoned outputs and compares them with the reference.

        Raises:
            WrongAnswerError: an output is wrong, or an input was written to.
        """
        began = time.perf_counter()
        for tensor, right in zip(self._outputs, self._data.reference, strict=True):
            tensor.copyfrom(poison(right, str(tensor.dtype)))
        self._main(*self._arguments)
        self._compare_inputs()
        self.compare()
        self.check_s += time.perf_counter() - began

    def _compare_inputs(self) -> None:
        assert self._artefact is not None
        for argument, tensor in zip(self._artefact.arguments, self._arguments, strict=True):
            given = self._data.inputs.get(argument.name)
            if argument.role not in (Role.INPUT, Role.CONSTANT) or given is None:
                continue
            if not np.array_equal(bits(_view(tensor)), bits(given)):
                tensor.copyfrom(given)  # the other configurations use it too
                raise WrongAnswerError(f"it writes to its input {argument.name}")

    def compare(self) -> None:
        """Compares what the outputs hold now with the reference."""
        for tensor, right, tolerance in zip(
            self._outputs, self._data.reference, self._data.tolerance, strict=True
        ):
            compare(_view(tensor), right, tolerance)

    def measure(self, calls: int) -> float:
        """Seconds that this many calls take together, in the tightest loop there is for them."""
        assert self._artefact is not None
        if self._cache_flush:
            return self._measure_cold(calls)
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
        """The same, where each call finds all but its first argument in no cache."""
        assert self._artefact is not None
        import tvm

        evaluator = self._artefact.executable.time_evaluator(
            "main", tvm.cpu(), number=1, repeat=calls, f_preproc="cache_flush_cpu_non_first_arg"
        )
        return float(sum(evaluator(*self._arguments).results))

    def release(self) -> None:
        """Frees memory: a job may have many entries with large packed inputs."""
        self._arguments.clear()
        self._outputs.clear()
        self._artefact = None
        self._main = None


def _view(tensor: Any) -> Array:
    """A tensor's memory, not copied where NumPy knows its dtype."""
    if str(tensor.dtype) == "bfloat16":
        copied: Array = tensor.numpy()
        return copied
    return np.from_dlpack(tensor)


def bits(array: Array) -> Array:
    """The bytes of an array, in as few elements as they fill."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = flat[: flat.size // 8 * 8].view(np.uint64)
    return whole if whole.size * 8 == flat.size else flat
