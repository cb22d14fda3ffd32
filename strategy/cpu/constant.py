"""Vectors of one number of bfloat16, which TVM leaves as they are where it makes words of all others."""

from __future__ import annotations

from typing import Any

from strategy.tir import change_functions


def broadcast_bits(module: Any) -> Any:
    """Broadcast numbers of bfloat16 by their bits."""
    return change_functions(module, _with_bits)


def _with_bits(function: Any) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_map

    def of_bits(vector: Any) -> Any:
        if str(vector.value.ty.dtype) != "bfloat16":
            return vector
        bits = tirx.Broadcast(tirx.reinterpret("uint16", vector.value), vector.lanes)
        return tirx.reinterpret(str(vector.ty.dtype), bits)

    return structural_map(function, [(tirx.Broadcast, of_bits)])
