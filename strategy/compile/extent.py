"""Extents near or beyond 32 bits, for which TVM makes no code by some schedules, by their names."""

from __future__ import annotations

import math

from strategy.types import TensorType, TupleType
from strategy.workload import Workload

MOST = 2**31 - 1 - 2**16  # code has extents rounded up to whole tiles


def too_large(workload: Workload) -> str:
    """The message on the first number of a workload beyond `MOST`; empty without one.

    Extents of inputs, then of outputs; then numbers of elements, which flattened tensors have for an extent.
    """
    out_type = workload.out_type
    outputs = out_type.fields if isinstance(out_type, TupleType) else (out_type,)
    named = [(given.name, given.tensor) for given in workload.inputs]
    numbers: list[tuple[str, int]] = []
    sizes: list[tuple[str, int]] = []
    for name, kind in (*named, *(("output", kind) for kind in outputs)):
        assert isinstance(kind, TensorType)
        known = [(axis, int(dim)) for axis, dim in enumerate(kind.shape) if dim.is_constant]
        numbers += [(f"{name}.shape[{axis}]", extent) for axis, extent in known]
        sizes.append((f"{name}.size", math.prod(extent for _, extent in known)))
    for name, number in (*numbers, *sizes):
        if number > MOST:
            return (
                f"{name} = {number} exceeds {MOST}, above which its code overflows 32 bits: "
                "divide the tensor into parts"
            )
    return ""
