"""Masked vector accesses: what keeps the edges of a tile as fast as its middle.

TVM's own vectoriser turns a vector loop with a bound check in it into scalar branches, which costs
a fifth of the speed of shapes that no tile divides, and four times their compile time. This pass
runs before it and rewrites

    for v in vectorized(16):
        if row < m and column + v < n:
            out[base + v] = f(acc[v], bias[column + v])

into one store (and loads) under a lane mask, which AVX-512 and SVE have as instructions and which
LLVM expands elsewhere. Loops that it does not understand are left to TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


class _NotVectorizable(Exception):
    """This loop is left as it is."""


def mask_vector_loops(module: Any) -> Any:
    """The module with its bound-checked vector loops masked; for modules with flat buffers."""
    import tvm
    from tvm import tirx
    from tvm_ffi import structural_map

    functions = {
        name: structural_map(function, [(tirx.For, _masked)])
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _masked(loop: Any) -> Any:
    """The loop as a masked statement, or itself."""
    from tvm import tirx

    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    conditions: list[Any] = []
    body = loop.body
    while isinstance(body, tirx.IfThenElse) and body.else_case is None:
        conditions += _conjuncts(body.condition)
        body = body.then_case
    if not isinstance(body, tirx.BufferStore):
        return loop
    lanes = _Lanes(loop.loop_var, int(loop.extent))
    scalar = [c for c in conditions if not lanes.varies(c)]
    try:
        bounds = [lanes.mask(c) for c in conditions if lanes.varies(c)]
        if not bounds and not _has_bounded_value(body.value, lanes):
            return loop
        statement = lanes.store(body, bounds)
    except _NotVectorizable:
        return loop
    for condition in reversed(scalar):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def _conjuncts(condition: Any) -> list[Any]:
    from tvm import tirx

    if isinstance(condition, tirx.And):
        return _conjuncts(condition.a) + _conjuncts(condition.b)
    return [condition]


def _has_bounded_value(value: Any, lanes: _Lanes) -> bool:
    from tvm import ir
    from tvm_ffi import structural_walk

    found: list[bool] = []

    def look(call: Any) -> None:
        if _is_if_then_else(call) and lanes.varies(call.args[0]):
            found.append(True)

    structural_walk(value, [(ir.Call, look)])
    return bool(found)


def _is_if_then_else(call: Any) -> bool:
    return getattr(call.op, "name", "") in ("tirx.if_then_else", "prim.if_then_else")


class _Lanes:
    """A vector loop's variable, and the vector forms of expressions over it."""

    def __init__(self, variable: Any, count: int) -> None:
        from tvm import sym

        self.variable = variable
        self.count = count
        self.analyzer = sym.Analyzer()

    def varies(self, expression: Any) -> bool:
        """Whether the expression differs between lanes."""
        from tvm import tirx
        from tvm_ffi import structural_walk

        found: list[bool] = []

        def look(variable: Any) -> None:
            if variable.same_as(self.variable):
                found.append(True)

        structural_walk(expression, [(tirx.Var, look)])
        return bool(found)

    def base(self, index: Any) -> Any:
        """What `index` is in lane 0, for an index that grows by one per lane."""
        from tvm import tirx
        from tvm_ffi import structural_map

        zero = tirx.const(0, str(self.variable.ty.dtype))
        at_zero = structural_map(
            index, [(tirx.Var, lambda v: zero if v.same_as(self.variable) else v)]
        )
        if not self.analyzer.can_prove(index - at_zero == self.variable):
            raise _NotVectorizable
        return self.analyzer.simplify(at_zero)

    def mask(self, condition: Any) -> Any:
        """The lanes where a condition of the form `a + lane < b` holds."""
        from tvm import tirx

        if not isinstance(condition, tirx.LT) or self.varies(condition.b):
            raise _NotVectorizable
        # Counting lanes, not indices, keeps the comparison in 32 bits whatever the indices have.
        left = tirx.min(condition.b - self.base(condition.a), self.count).astype("int32")
        return tirx.Ramp(tirx.const(0, "int32"), 1, self.count) < tirx.Broadcast(left, self.count)

    def store(self, store: Any, bounds: list[Any]) -> Any:
        from tvm import tirx

        if len(store.indices) != 1:
            raise _NotVectorizable
        index = tirx.Ramp(self.base(store.indices[0]), 1, self.count)
        value = self.vector(store.value, bounds)
        if not bounds:
            return tirx.BufferStore(store.buffer, value, [index])
        return tirx.Evaluate(tirx.op.masked_store(store.buffer, value, index, _all(bounds)))

    def vector(self, expression: Any, bounds: list[Any]) -> Any:
        """The expression over all lanes; loads touch only the lanes within `bounds`."""
        from tvm import ir, tirx

        if not self.varies(expression):
            return tirx.Broadcast(expression, self.count)
        again: Callable[[Any], Any] = partial(self.vector, bounds=bounds)
        if isinstance(expression, ir.TensorLoad):
            return self._load(expression, bounds)
        if isinstance(expression, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div | tirx.Max | tirx.Min):
            return type(expression)(again(expression.a), again(expression.b))
        if isinstance(expression, tirx.Cast):
            dtype = str(expression.ty.dtype)
            return tirx.Cast(f"{dtype}x{self.count}", again(expression.value))
        if isinstance(expression, ir.Call) and _is_if_then_else(expression):
            condition, inside, outside = expression.args
            if not self.varies(condition):
                raise _NotVectorizable
            masks = [self.mask(c) for c in _conjuncts(condition) if self.varies(c)]
            if len(masks) != len(_conjuncts(condition)):
                raise _NotVectorizable
            return tirx.Select(_all(masks), self.vector(inside, bounds + masks), again(outside))
        raise _NotVectorizable

    def _load(self, load: Any, bounds: list[Any]) -> Any:
        from tvm import tirx

        if len(load.indices) != 1:
            raise _NotVectorizable
        index = tirx.Ramp(self.base(load.indices[0]), 1, self.count)
        # Accumulators are whole: reading them under a mask would keep them out of registers.
        if not bounds or load.source.scope() == "local":
            return tirx.BufferLoad(load.source, [index])
        dtype = str(load.source.dtype)
        return tirx.op.masked_load(f"{dtype}x{self.count}", load.source, index, _all(bounds))


def _all(masks: list[Any]) -> Any:
    from tvm import tirx

    result = masks[0]
    for mask in masks[1:]:
        result = tirx.And(result, mask)
    return result
