"""Branches around the iterations of a loop that add zero to a sum.

A compute says by `if_then_else` which terms are zero. That nothing else needs what such a term is made of is known to
the schedule, which annotates the loop.
"""

from __future__ import annotations

from typing import Any

from strategy.tir import change_functions, find, has_names

_SKIP = "plevel.skip"
_CHOICES = ("tirx.if_then_else", "prim.if_then_else")


def skip_zero_terms(sch: Any, loop: Any) -> None:
    """Skip the iterations of a scheduled loop in which the conditional term of its body, the only one, is zero."""
    sch.annotate(loop, _SKIP, 1)


def insert_branches(module: Any) -> Any:
    """Insert the branches of annotated loops of a module with flat buffers."""
    from tvm import tirx
    from tvm_ffi import structural_map

    return change_functions(module, lambda function: structural_map(function, [(tirx.For, _branched)]))


def _branched(loop: Any) -> Any:
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    if _SKIP not in loop.annotations:
        return loop
    inner = [other.loop_var for other in find(loop.body, tirx.For)]
    conditions = [call.args[0] for call in find(loop.body, ir.Call) if _is_choice(call)]
    body = loop.body
    if conditions and not any(has_names(condition, inner) for condition in conditions):
        taken = structural_map(body, [(ir.Call, lambda call: call.args[1] if _is_choice(call) else call)])
        body = tirx.IfThenElse(conditions[0], taken, None)
    annotations = {name: value for name, value in loop.annotations.items() if name != _SKIP}
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)


def _is_choice(call: Any) -> bool:
    return getattr(call.op, "name", "") in _CHOICES
