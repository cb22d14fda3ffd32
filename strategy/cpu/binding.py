"""Values that are bound to a name (Let) where an expression uses them more than once.

Chains of elementary functions are inlined: each use would repeat all of what it is from, and each use there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_BITS = "plevel.bits"
_CALLED = frozenset(f"tirx.{name}" for name in "call_pure_extern cos log pow sin".split())  # of the C library
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

    def count(call: Any) -> None:
        met.extend([call] * (_MANY_NODES if getattr(call.op, "name", "") in _CALLED else 1))

    while pending:
        made = pending.pop().op
        if isinstance(made, te.ComputeOp) and _BITS in made.attrs:
            continue
        if str(made.output(0).dtype) == "bfloat16":  # which TVM does not lower within what is bound once
            return 0
        if isinstance(made, te.ComputeOp) and not made.reduce_axis:
            for value in made.body if len(met) < _MANY_NODES else ():
                structural_walk(value, [(ir.Expr, met.append), (ir.Call, count)])
            pending += list(made.input_tensors)
    return len(met)


def store_names(module: Any) -> Any:
    """Keep the values that are bound to names in local buffers, of which LLVM makes registers.

    TVM's code generator has its analyzer replace each name by its value, and those within it: what a chain of n
    functions takes grows as with 10ⁿ.
    """
    import tvm
    from tvm import tirx
    from tvm_ffi import structural_map

    kinds = [(kind, _stored) for kind in (tirx.BufferStore, tirx.Evaluate)]
    functions = {name: structural_map(function, kinds) for name, function in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _stored(statement: Any) -> Any:
    """The statement after those that store its bound values; itself where a choice may leave out one of them."""
    from tvm import DataType, ir, tirx
    from tvm_ffi import structural_map, structural_walk

    bound: list[Any] = []
    choices: list[Any] = []
    structural_walk(statement, [(tirx.Let, bound.append)])
    structural_walk(statement, [(ir.Call, lambda call: choices.append(call) if _is_choice(call) else None)])
    if not bound or choices:
        return statement
    bound = list({let.var: let for let in bound}.values())
    places = {}
    for let in bound:
        kind, zero = DataType(str(let.var.ty.dtype)), tirx.const(0, "int32")
        buffer = tirx.decl_buffer([kind.lanes], str(kind.with_lanes(1)), let.var.name, scope="local")
        places[let.var] = buffer, [tirx.Ramp(zero, 1, kind.lanes) if kind.lanes > 1 else zero]

    def read(variable: Any) -> Any:
        return tirx.BufferLoad(*places[variable]) if variable in places else variable

    def flat(code: Any) -> Any:
        return structural_map(structural_map(code, [(tirx.Let, lambda let: let.body)]), [(tirx.Var, read)])

    stores: list[Any] = []
    while bound:
        names = [let.var for let in bound]
        let = next(let for let in bound if not has_names(let.value, names))
        bound = [other for other in bound if not other.same_as(let)]
        buffer, index = places[let.var]
        stores += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, flat(let.value), index)]
    return tirx.SeqStmt([*stores, flat(statement)])


def _is_choice(call: Any) -> bool:
    return getattr(call.op, "name", "").endswith(".if_then_else")


def has_names(expression: Any, variables: Sequence[Any]) -> bool:
    """True if the expression is of one of the variables."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []

    def look(variable: Any) -> None:
        if any(map(variable.same_as, variables)):
            found.append(True)

    structural_walk(expression, [(tirx.Var, look)])
    return bool(found)
