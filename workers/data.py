"""Inputs of a workload and NumPy's outputs for them, which all of its configurations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategy.workload import Workload
from workers.guard import Buffer, Placement, Pool
from workers.reference import (
    Array,
    Tolerance,
    after,
    bounds,
    compare,
    random_inputs,
    reference,
    tolerances,
)


@dataclass
class Data:
    """Inputs, reference and tolerances, shared by all configurations of a workload and seed."""

    inputs: Mapping[str, Array]
    tensors: Mapping[str, Any]  # the inputs as TVM tensors; none for a GPU
    reference: tuple[Array, ...]
    tolerance: tuple[Tolerance, ...]
    pool: Pool = field(default_factory=Pool)
    _bounds: dict[int, tuple[Array, Array] | None] = field(default_factory=dict)
    _guarded: dict[tuple[str, Placement], Buffer] = field(default_factory=dict)

    @classmethod
    def draw(cls, workload: Workload, seed: int) -> Data:
        """Random inputs, and what NumPy makes of them."""
        inputs = random_inputs(workload, seed)
        anchor = found = reference(workload.anchor, inputs)
        if workload.epilogue:
            found = [after(workload.epilogue, anchor[0], inputs)]
        outputs = tuple(np.asarray(x) for x in found)
        return cls(inputs, {}, outputs, tolerances(workload, inputs, outputs, anchor))

    def compare(self, outputs: Sequence[Array]) -> None:
        """Compare a kernel's outputs with the reference; raise `WrongAnswerError` for the first that is wrong."""
        for place, (found, right, tolerance) in enumerate(
            zip(outputs, self.reference, self.tolerance, strict=True)
        ):
            if place not in self._bounds:
                self._bounds[place] = bounds(right, tolerance, found.dtype)
            compare(found, right, tolerance, self._bounds[place])

    def guarded_input(self, name: str, placement: Placement) -> Buffer:
        """An input in guarded memory that is read-only, shared by all configurations."""
        found = self._guarded.get((name, placement))
        if found is None:
            tight = next((b for (other, _), b in self._guarded.items() if other == name and b.is_tight), None)
            found = self._guarded[name, placement] = tight or self._guard(name, placement)
        return found

    def _guard(self, name: str, placement: Placement) -> Buffer:
        given, dtype = self.inputs[name], str(self.tensors[name].dtype)
        found = self.pool.take(f"input {name}", given.shape, dtype, placement)
        found.array[...] = given
        found.region.protect()
        return found

    def release(self) -> None:
        """Free all guarded memory."""
        self._guarded.clear()
        self.pool = Pool()

    @property
    def nbytes(self) -> int:
        """The memory of inputs, their tensors, the reference, its tolerances and bounds."""
        drawn = [*self.reference, *self.inputs.values(), *map(np.asarray, self.tolerance)]
        once = [*drawn, *(bound for both in self._bounds.values() for bound in both or ())]
        return sum(a.nbytes for a in [*once, *(self.inputs[name] for name in self.tensors)])
