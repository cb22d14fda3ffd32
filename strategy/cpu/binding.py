"""Values that are bound to a name (Let) where an expression uses them more than once.

Chains of elementary functions are inlined: each use would repeat all of what it is from, and each use there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_BITS = "plevel.bits"
_MANY_NODES = 30  # an elementary function has more, what is cheap to repeat has fewer


def keep(tensor: Any, value: Any, use: Callable[[Any], Any]) -> Any:
    """`use(value)` of an element of a TE tensor, bound once if much is inlined there."""
    from tvm import tirx

    if _nodes(tensor) < _MANY_NODES:
        return use(value)
    once = tirx.Var("once", str(tensor.dtype))
    return tirx.Let(once, value, use(once))


def read_bits(tensor: Any) -> Any:
    """A TE tensor of bfloat16 in float32, by its bits, which may be bound to a name."""
    from tvm import te, tirx, topi

    def wide(*index: Any) -> Any:
        bits = tirx.reinterpret("uint16", tensor(*index)).astype("uint32")
        return tirx.reinterpret("float32", bits << tirx.const(16, "uint32"))

    return te.compute(tensor.shape, wide, name="widened", tag=topi.tag.ELEMWISE, attrs={_BITS: 1})


def _nodes(tensor: Any) -> int:
    """The number of expressions that an element of a TE tensor has once what it is from is inlined, or about."""
    from tvm import ir, te
    from tvm_ffi import structural_walk

    met: list[Any] = []
    pending: list[Any] = [tensor]
    while pending:
        made = pending.pop().op
        if isinstance(made, te.ComputeOp) and _BITS in made.attrs:
            continue
        if str(made.output(0).dtype) == "bfloat16":  # which TVM does not lower within what is bound once
            return 0
        if isinstance(made, te.ComputeOp) and not made.reduce_axis:
            for value in made.body if len(met) < _MANY_NODES else ():
                structural_walk(value, [(ir.Expr, met.append)])
            pending += list(made.input_tensors)
    return len(met)
