"""Names of processors and triples that code can be built for, as LLVM knows them."""

from __future__ import annotations

from functools import cache

from strategy.suggestion import suggest
from strategy.target import Target

_OF_HOSTS = ("x86_64-linux-gnu", "aarch64-linux-gnu")  # the triples of workers' hosts


def unknown_processor(target: Target) -> str:
    """The message on a target whose processor or triple LLVM does not know; empty if it does.

    TVM would only warn, and build for a generic processor; with an unknown triple the process would crash.
    """
    return _unknown(target.arch, target.triple) if target.kind == "llvm" and (target.arch or target.triple) else ""


def misnamed_processor(target: Target) -> str:
    """As `unknown_processor`, unless another host than this may be meant: the message if LLVM has the name for none."""
    if target.kind != "llvm" or not target.arch or target.triple:
        return unknown_processor(target)
    return "" if any(not _unknown(target.arch, triple) for triple in _OF_HOSTS) else unknown_processor(target)


@cache
def _unknown(arch: str, triple: str) -> str:
    import tvm
    from tvm.target import codegen

    triple = triple or codegen.llvm_get_system_triple()
    if arch and codegen.llvm_is_valid_cpu(arch, triple):
        return ""
    if not codegen.llvm_is_valid_cpu("generic", triple):  # all CPUs' triples have it
        return f"LLVM knows no -mtriple={triple:.80}: expected one such as x86_64-linux-gnu or aarch64-linux-gnu"
    if not arch:
        return ""
    known = codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    return f"LLVM knows no -mcpu={arch:.40} of {triple:.80}{suggest(arch, map(str, known))}: see `llc -mcpu=help`"
