"""Values that are bound to a name (Let) where an expression uses them more than once.

Chains of elementary functions are inlined: each use would repeat all of what it is from, and each use there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MANY_NODES = 30  # an elementary function has more, what is cheap to repeat has fewer


def keep(tensor: Any, value: Any, use: Callable[[Any], Any]) -> Any:
    """`use(value)` of an element of a TE tensor, bound once if much is inlined there."""
    from tvm import tirx

    if _nodes(tensor) < _MANY_NODES:
        return use(value)
    once = tirx.Var("once", str(tensor.dtype))
    return tirx.Let(once, value, use(once))


def _nodes(tensor: Any) -> int:
    """The number of expressions that an element of a TE tensor has once what it is from is inlined, or about."""
    from tvm import ir, te
    from tvm_ffi import structural_walk

    met: list[Any] = []
    pending: list[Any] = [tensor]
    while pending and len(met) < _MANY_NODES:
        made = pending.pop().op
        if str(made.output(0).dtype) == "bfloat16":  # which TVM does not lower within what is bound once
            return 0
        if isinstance(made, te.ComputeOp) and not made.reduce_axis:
            for value in made.body:
                structural_walk(value, [(ir.Expr, met.append)])
            pending += list(made.input_tensors)
    return len(met)
