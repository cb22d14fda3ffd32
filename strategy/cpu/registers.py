"""Sums of a tile on the stack, from where LLVM takes them into registers.

TVM takes memory of a pool for a buffer of vectors. There LLVM has to clear it before a loop and to write it behind one,
though nothing reads it any more.
"""

from __future__ import annotations

import math
from typing import Any

from strategy.schedule import dtype_bytes
from strategy.tir import change_functions

_MOST_BYTES = 4096  # twice those of all registers
_LEFT = "disable_lower_builtin"  # TVM's name for an allocation that is left to LLVM


def keep_on_stack(module: Any) -> Any:
    """Put the small buffers of scope `local` on the stack, where their size is constant."""
    from tvm import tirx
    from tvm_ffi import structural_map

    def kept(allocation: Any) -> Any:
        buffer = allocation.buffer
        if buffer.scope() != "local" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
            return allocation
        if math.prod(int(extent) for extent in buffer.shape) * _bytes(str(buffer.dtype)) > _MOST_BYTES:
            return allocation
        return tirx.AllocBuffer(buffer, {**allocation.annotations, _LEFT: tirx.const(True, "bool")})

    return change_functions(module, lambda function: structural_map(function, [(tirx.AllocBuffer, kept)]))


def _bytes(dtype: str) -> int:
    """Bytes of a number or of a vector, as `float32x16`."""
    name, _, lanes = dtype.partition("x")
    return dtype_bytes(name) * int(lanes or 1)
