"""Alignment of the stack to cache lines, so that no vector that registers cannot hold crosses one.

LLVM decides on the alignment before it knows of these vectors, and then puts them where the stack happens to be: a
vector of 64 bytes that crosses two lines is stored and read back at several times the cost. A variable that is a line
makes it align the stack.
"""

from __future__ import annotations

from typing import Any

from strategy.tir import change_functions

_SYMBOL = "plevel_align"
_CODE = f"""
define linkonce_odr hidden i32 @{_SYMBOL}() alwaysinline nounwind {{
  %p = alloca i8, align 64
  call void asm sideeffect "", "r"(ptr %p)
  ret i32 0
}}
"""


def align_stack(module: Any) -> Any:
    """Align the stack of each function of a module, and of what runs in parallel, which LLVM has as functions."""
    return change_functions(module, _aligned)


def _aligned(function: Any) -> Any:
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def with_line(body: Any) -> Any:
        return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("int32", _SYMBOL)), body])

    def change(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        body = with_line(loop.body)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)

    body = with_line(structural_map(function.body, [(tirx.For, change)]))
    return function.with_body(tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", ir.StringImm(_CODE), body))
