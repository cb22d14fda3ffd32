"""Vectors of one bfloat16 in all lanes, which TVM does not legalise."""

from __future__ import annotations

from typing import Any

from strategy.tir import change_functions


def broadcast_words(module: Any) -> Any:
    """Broadcast words in place of bfloat16s.

    `BF16StorageLegalize` makes words of what is stored and loaded, but leaves the dtype of a Broadcast as it is.
    """
    from tvm import tirx
    from tvm_ffi import structural_map

    return change_functions(module, lambda function: structural_map(function, [(tirx.Broadcast, _of_words)]))


def _of_words(broadcast: Any) -> Any:
    from tvm import tirx

    if str(broadcast.value.ty.dtype) != "bfloat16":
        return broadcast
    words = tirx.Broadcast(tirx.reinterpret("uint16", broadcast.value), broadcast.lanes)
    return tirx.reinterpret(str(broadcast.ty.dtype), words)
