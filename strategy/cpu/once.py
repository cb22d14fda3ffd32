"""Prefetch of what is read once: into the first level, past the second, which it would only pass through."""

from __future__ import annotations

from typing import Any

_SYMBOL = "plevel_prefetch_once"
# LLVM's code of `prefetch_once`, whose intrinsic is said to touch no memory, as in `PREFETCH`.
PREFETCH_ONCE = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr hidden i32 @{_SYMBOL}(ptr %a) alwaysinline nounwind memory(inaccessiblemem: readwrite) {{
  call void @llvm.prefetch.p0(ptr %a, i32 0, i32 0, i32 1) nounwind memory(inaccessiblemem: readwrite)
  ret i32 0
}}
"""


def prefetch_once(element: Any) -> Any:
    """The call that brings the line of an element into the first level alone."""
    from tvm import tirx

    return tirx.call_extern("int32", _SYMBOL, tirx.address_of(element))
