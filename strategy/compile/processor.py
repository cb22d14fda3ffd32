"""Names of processors that code can be built for, as LLVM knows them."""

from __future__ import annotations

from functools import cache

from strategy.suggestion import suggest
from strategy.target import Target


def unknown_processor(target: Target) -> str:
    """The message on a target whose processor LLVM does not know; empty if it does.

    TVM would only warn, and build for a generic one.
    """
    return _unknown(target.arch, target.triple) if target.kind == "llvm" and target.arch else ""


@cache
def _unknown(arch: str, triple: str) -> str:
    import tvm
    from tvm.target import codegen

    triple = triple or codegen.llvm_get_system_triple()
    if codegen.llvm_is_valid_cpu(arch, triple):
        return ""
    known = codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    return f"LLVM knows no -mcpu={arch:.40} of {triple:.80}{suggest(arch, map(str, known))}: see `llc -mcpu=help`"
