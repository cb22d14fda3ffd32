"""Values that are bound to a name (Let) where an expression uses them more than once.

Chains of elementary functions are inlined: each use would repeat all of what it is from, and each use there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.schedule import STAGE
from strategy.tir import change_functions, find, has_names

CHOICE, REINTERPRET = ".if_then_else", ".reinterpret"  # how the names of the calls end
LOAD = "te.tensor_load"  # the call that an element of a TE tensor is
_CALLED = frozenset(f"tirx.{name}" for name in "call_pure_extern cos log pow sin".split())  # of the C library
# TVM replaces names of these by their values, as each may be an index: their bits are bound, as those of another dtype.
# It simplifies the operators around a bound value several times, and all that is within again: so each operator binds.
INDICES = {"int32": "float32", "int64": "float64"}
_MANY_NODES = 30  # an elementary function has more, what is cheap to repeat has fewer


def keep(tensor: Any, value: Any, use: Callable[[Any], Any]) -> Any:
    """`use(value)` of an element of a TE tensor, bound once if much is inlined there."""
    return use(value) if _nodes(tensor) < _MANY_NODES else _bind(value, use)


def share(value: Any, use: Callable[[Any], Any]) -> Any:
    """`use(value)` of an expression that takes long to compute, bound once on CPUs."""
    return _bind(value, use) if is_cpu() else use(value)


def keep_each(tensors: Sequence[Any], values: Sequence[Any], use: Callable[..., Any]) -> Any:
    """`use(*values)` of elements of TE tensors at one index, as by `keep`; one that is given twice is bound once."""

    def kept(*done: Any) -> Any:
        if len(done) == len(tensors):
            return use(*done)
        tensor = tensors[len(done)]
        for other, value in zip(tensors, done, strict=False):
            if other.same_as(tensor):
                return kept(*done, value)
        return keep(tensor, values[len(done)], lambda value: kept(*done, value))

    return kept()


def _bind(value: Any, use: Callable[[Any], Any]) -> Any:
    from tvm import tirx

    dtype = str(value.ty.dtype)
    if dtype not in INDICES:
        once = tirx.Var("once", dtype)
        return tirx.Let(once, value, use(once))
    once = tirx.Var("once", INDICES[dtype])
    return tirx.Let(once, tirx.reinterpret(INDICES[dtype], value), use(tirx.reinterpret(dtype, once)))


def is_inlined(tensor: Any) -> bool:
    """Return whether a TE tensor is computed where its elements are read: no input, sum or stage of a schedule."""
    from tvm import te

    made = tensor.op
    return isinstance(made, te.ComputeOp) and not made.reduce_axis and STAGE not in made.attrs


def _nodes(tensor: Any) -> int:
    """The number of expressions that an element of a TE tensor has once what it is from is inlined where it is used.

    Up to `_MANY_NODES`; 0 where nothing can be bound.
    """
    from tvm import ir
    from tvm_ffi import structural_walk

    met: dict[Any, int | None] = {}  # of each operation; None as there is bfloat16

    def count(read: Any) -> int | None:
        made, inlined = read.op, is_inlined(read)
        # TVM does not lower what is bound once of bfloat16, but for elements that `read_bits` reads.
        if str(made.output(0).dtype) == "bfloat16" and (inlined or not is_cpu()):
            return None
        if not inlined:
            return 0
        for source in made.input_tensors:
            if source.op not in met:
                met[source.op] = count(source)
            if met[source.op] is None:
                return None
        if any(met[source.op] == _MANY_NODES for source in made.input_tensors):
            return _MANY_NODES
        found: list[int] = []

        def call(value: Any) -> None:
            name = getattr(value.op, "name", "")
            found.append(_MANY_NODES if name in _CALLED else 1 + (met[value.args[0].op] or 0 if name == LOAD else 0))

        for value in made.body:
            structural_walk(value, [(ir.Call, call), (ir.Expr, lambda _: found.append(1))])
        return min(sum(found), _MANY_NODES)

    return count(tensor) or 0


def is_cpu() -> bool:
    """True while computes are for a CPU."""
    import tvm

    target = tvm.target.Target.current(allow_none=True)
    return target is not None and target.kind.name == "llvm"


def read_bits(module: Any) -> Any:
    """Read arguments of bfloat16 by their bits, which TVM takes for whole numbers within what is bound to a name."""
    return change_functions(module, _with_bits)


def _with_bits(function: Any) -> Any:
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    if not find(function, tirx.Let):
        return function
    own = [allocation.buffer for allocation in find(function, tirx.AllocBuffer)]  # of which TVM makes float32

    def wide(cast: Any) -> Any:
        value = cast.value
        if str(cast.ty.dtype) != "float32" or str(value.ty.dtype) != "bfloat16":
            return cast
        is_argument = isinstance(value, ir.TensorLoad) and not any(map(value.source.same_as, own))
        if not is_argument and not _is_call(value, REINTERPRET):
            return cast
        bits = tirx.reinterpret("uint16", value).astype("uint32")
        return tirx.reinterpret("float32", bits << tirx.const(16, "uint32"))

    return structural_map(function, [(tirx.Cast, wide)])


def loop_over_scalars(module: Any) -> Any:
    """Make serial each vector loop with a bound name and a call that has no vector form.

    TVM makes those serial too, but fails if a factor of a product is a scalar with a bound name: it then visits the
    factor twice, and takes the second visit for another value of the name.
    """
    return change_functions(module, _with_serial_loops)


def _with_serial_loops(function: Any) -> Any:
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    if not find(function, tirx.Let):
        return function

    def is_scalar(call: Any) -> bool:
        if _is_call(call, CHOICE) or _is_call(call, REINTERPRET):
            return False
        return not (isinstance(call.op, ir.Op) and call.op.get_attr("TVectorizable"))

    def serial(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.VECTORIZED or not find(loop, tirx.Let):
            return loop
        if not any(map(is_scalar, find(loop, ir.Call))):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return structural_map(function, [(tirx.For, serial)])


def repeat_conditions(module: Any) -> Any:
    """Repeat common subexpressions with vectors of conditions as numbers, in place of names for them.

    TVM's analyzer takes the bounds of what a name is bound to, and fails as it makes one number of such a vector.
    """
    return change_functions(module, _with_conditions)


def _with_conditions(function: Any) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_map

    def counts(value: Any) -> bool:
        return any(str(cast.value.ty.dtype).startswith("boolx") for cast in find(value, tirx.Cast))

    found = {bind.var: bind.value for bind in find(function, tirx.Bind) if counts(bind.value)}
    if not found:
        return function

    def repeated(variable: Any) -> Any:
        return structural_map(found[variable], [(tirx.Var, repeated)]) if variable in found else variable

    def dropped(bind: Any) -> Any:
        return tirx.Evaluate(0) if bind.var in found else bind

    return structural_map(structural_map(function, [(tirx.Bind, dropped)]), [(tirx.Var, repeated)])


def store_names(module: Any) -> Any:
    """Keep the values that are bound to names in local buffers, of which LLVM makes registers.

    TVM's code generator has its analyzer replace each name by its value, and those within it: what a chain of n
    functions takes grows as with 10ⁿ.
    """
    from tvm import tirx
    from tvm_ffi import structural_map

    kinds = [(kind, _stored) for kind in (tirx.BufferStore, tirx.Evaluate)]
    return change_functions(module, lambda function: structural_map(function, kinds))


def _stored(statement: Any) -> Any:
    """The statement after those that store its bound values; itself where a choice may leave out one of them."""
    from tvm import DataType, ir, tirx
    from tvm_ffi import structural_map

    bound = list({let.var: let for let in find(statement, tirx.Let)}.values())
    choices = [call for call in find(statement, ir.Call) if _is_call(call, CHOICE)]
    if not bound or any(find(choice, tirx.Let) for choice in choices):
        return statement
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


def _is_call(value: Any, end: str) -> bool:
    return getattr(getattr(value, "op", None), "name", "").endswith(end)
