"""Extents near or beyond 32 bits, for which TVM makes no code by some schedules, by their names."""

from __future__ import annotations

from strategy.types import TensorType, TupleType
from strategy.workload import Workload

MOST = 2**31 - 1 - 2**16  # code has extents rounded up to whole tiles


def too_large(workload: Workload) -> str:
    """The message on the first extent of a workload beyond `MOST`, of inputs, then of outputs; empty without one."""
    out_type = workload.out_type
    outputs = out_type.fields if isinstance(out_type, TupleType) else (out_type,)
    named = [(given.name, given.tensor) for given in workload.inputs]
    for name, kind in (*named, *(("output", kind) for kind in outputs)):
        assert isinstance(kind, TensorType)
        for axis, dim in enumerate(kind.shape):
            if dim.is_constant and int(dim) > MOST:
                return (
                    f"{name}.shape[{axis}] = {int(dim)} exceeds {MOST}, above which its code overflows 32 bits: "
                    "divide the tensor into parts"
                )
    return ""
