"""The shortest plausible time of a call.

The bound is the device's peak for the workload's operations and written bytes. It is generous, so that it refuses
no true time; misread clocks, miscounted calls and invented times are far beyond it.
"""

from __future__ import annotations

import math

from strategy.op import find_op
from strategy.schedule import dtype_bytes
from strategy.target import Target
from strategy.types import TensorType, TupleType
from strategy.workload import Workload

CALL_S = 1e-9  # a call of an empty function
_MARGIN = 2  # for faster clocks, and algorithms with fewer multiplications (Strassen's)

# Per CPU core and cycle: two fused multiply-adds of 64 bytes, and two stores. The target's vectors are no bound,
# as libraries choose their code by the CPU. Matrix units (AMX) multiply eight times as many narrow
# numbers.
_CORE_HZ = 6e9
_CORE_BYTES = 2 * 64
_MATRIX_UNIT = 8
# Per GPU multiprocessor and cycle: 8192 operations on float16 with tensor cores, and one store of 128 bytes. No
# GPU has more than 256 of them; records of a target may be from smaller devices.
_GPU_HZ = 3e9
_GPU_CORES = 256
_GPU_OPERATIONS = 16384  # per byte of an operand
_GPU_BYTES = 128


def least_seconds(workload: Workload, target: Target) -> float:
    """The bound for one call of a workload on a target.

    For operators that are not installed, and kinds of targets other than CPUs and CUDA, only the time of an empty call
    is known.
    """
    peak = _peak(workload, target)
    if peak is None or find_op(workload.op) is None:
        return CALL_S
    operations_per_s, bytes_per_s = peak
    return max(
        CALL_S, _least_flops(workload) / operations_per_s, _written_bytes(workload) / bytes_per_s
    )


def _peak(workload: Workload, target: Target) -> tuple[float, float] | None:
    """Operations and written bytes per second, margin included."""
    width = min((dtype_bytes(i.tensor.dtype) for i in workload.inputs), default=1)
    if target.kind == "cuda":
        cycles = _MARGIN * _GPU_HZ * _GPU_CORES
        return cycles * _GPU_OPERATIONS / width, cycles * _GPU_BYTES
    if target.is_cpu:
        cycles = _MARGIN * _CORE_HZ * target.threads
        narrow = _MATRIX_UNIT if width <= 2 else 1
        return cycles * 2 * _CORE_BYTES / width * narrow, cycles * _CORE_BYTES
    return None


def _least_flops(workload: Workload) -> int:
    """Operations of the algorithm with the fewest."""
    count = workload.operator.get_attr("FLeastFlops")
    if count is None:
        return workload.flops or 0
    return int(count(workload.attr_node, workload.input_types, workload.out_type))


def _written_bytes(workload: Workload) -> int:
    """Bytes of the outputs; with an epilogue, one byte per element."""
    out = workload.out_type
    fields = out.fields if isinstance(out, TupleType) else (out,)
    tensors = [t for t in fields if isinstance(t, TensorType)]
    return sum(math.prod(t.concrete_shape) * (1 if workload.epilogue else dtype_bytes(t.dtype)) for t in tensors)
