"""Masked vector accesses, which make the edges of a tile as fast as its interior.

TVM's vectoriser turns a vector loop with a bound check into scalar branches, which costs a fifth of the speed of
shapes that no tile divides, and four times their compile time. This pass runs before it and rewrites

    for v in vectorized(16):
        if row < m and column + v < n:
            out[base + v] = f(acc[v], bias[column + v])

to one store (and loads) under a lane mask, for which AVX-512 and SVE have instructions and which LLVM expands
elsewhere. Loads with small gaps between lanes, as of a window with a stride, become whole vectors and a shuffle
instead of one load per lane. Unsupported loops are left to TVM.
"""
# Over 300 lines: one pass, whose rewrites use each other's analysis.

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, reduce
from typing import Any

from strategy.tir import change_functions, find, has_names

# Calls that are computed lane by lane.
_ELEMENTWISE = frozenset(
    f"tirx.{name}"
    for name in "exp fabs floor log nearbyint pow reinterpret round sqrt".split()
)
_CHOICE = "plevel.choice"
_SAME = "plevel_same"
_NARROW = "plevel_narrow"
# LLVM (to 22 at least) makes a store of one lane, if the mask is constant and the value narrowed to it, one of the wide
# value: beyond the lane, and the buffer. So it must not see that a mask of integers is constant.
_NOT_CONSTANT = f"""
define linkonce_odr hidden i32 @{_SAME}(i32 %x) alwaysinline nounwind {{
  %r = call i32 asm "", "=r,0"(i32 %x)
  ret i32 %r
}}
define linkonce_odr hidden i32 @{_NARROW}(i64 %x) alwaysinline nounwind {{
  %t = trunc i64 %x to i32
  %r = call i32 asm "", "=r,0"(i32 %t)
  ret i32 %r
}}
"""
_FAR = 4  # maximum number of vectors of a shuffled load


class _NotVectorizable(Exception):
    """The loop is not supported and left unchanged."""


def mask_vector_loops(module: Any) -> Any:
    """Mask the bound-checked vector loops of a module with flat buffers."""
    from tvm import tirx
    from tvm_ffi import structural_map

    def masked(function: Any) -> Any:
        return structural_map(function, [(tirx.For, partial(_masked, analyzer=_know_loops(function)))])

    return change_functions(module, masked)


def _know_loops(function: Any) -> Any:
    """An analyzer with the ranges of loop variables."""
    from tvm import sym, tirx
    from tvm.ir import Range

    analyzer = sym.Analyzer()
    for loop in find(function, tirx.For):
        analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    return analyzer


def _masked(loop: Any, analyzer: Any) -> Any:
    """The loop as a masked statement, or itself."""
    from tvm import ir, tirx

    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    conditions: list[Any] = []
    body = loop.body
    while isinstance(body, tirx.IfThenElse) and body.else_case is None:
        conditions += _conjuncts(body.condition)
        body = body.then_case
    if not isinstance(body, tirx.BufferStore):
        return loop
    lanes = _Lanes(loop.loop_var, int(loop.extent), analyzer)
    hidden = not str(body.buffer.dtype).startswith("float")  # see `_NOT_CONSTANT`
    scalar = [c for c in conditions if not lanes.varies(c)]
    try:
        bounds = [lanes.mask(c, hidden=hidden) for c in conditions if lanes.varies(c)]
        if not bounds and not _has_bounded_value(body.value, lanes) and not _has_gap(body.value, lanes):
            return loop
        with ExitStack() as known:
            for condition in scalar:
                known.enter_context(analyzer.constraint_scope(condition))
            statement = lanes.store(body, bounds)
    except _NotVectorizable:
        statement = _counted(body, conditions, lanes) if hidden else None
        if statement is None:
            return loop
        lanes.declared.clear()
    if lanes.declared:
        statement = tirx.SeqStmt([*lanes.declared, statement])
    if _calls(statement, _SAME) or _calls(statement, _NARROW):
        statement = tirx.AttrStmt(loop.loop_var, "pragma_import_llvm", ir.StringImm(_NOT_CONSTANT), statement)
    for condition in reversed(scalar):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def _counted(body: Any, conditions: list[Any], lanes: _Lanes) -> Any:
    """A scalar loop over the lanes in use, None where these are not the first ones.

    LLVM makes masked vectors of a loop of a few turns, too, if it knows their number (`_NOT_CONSTANT`).
    """
    from tvm import tirx

    try:
        limits = [lanes.limit(c) for c in conditions if lanes.varies(c)]
    except _NotVectorizable:
        return None
    if not limits or not all(is_end for is_end, _ in limits):
        return None
    ends = [_narrowed(tirx.max(tirx.min(left, lanes.count), 0)) for _, left in limits]
    turns = tirx.call_pure_extern("int32", _SAME, reduce(tirx.min, ends))
    dtype = str(lanes.variable.ty.dtype)
    return tirx.For(lanes.variable, tirx.const(0, dtype), turns.astype(dtype), tirx.ForKind.SERIAL, body)


def _conjuncts(condition: Any) -> list[Any]:
    from tvm import tirx

    if isinstance(condition, tirx.And):
        return _conjuncts(condition.a) + _conjuncts(condition.b)
    return [condition]


def _has_bounded_value(value: Any, lanes: _Lanes) -> bool:
    from tvm import ir

    return any(_is_if_then_else(call) and lanes.varies(call.args[0]) for call in find(value, ir.Call))


def _has_gap(value: Any, lanes: _Lanes) -> bool:
    """True if a load's lanes are not contiguous, but close enough for whole vectors and a shuffle."""
    from tvm import ir

    found: list[bool] = []
    for load in find(value, ir.TensorLoad):
        if len(load.indices) == 1 and lanes.varies(load.indices[0]):
            try:
                lanes.base(load.indices[0])
            except _NotVectorizable:
                found.append(lanes.distances(load.indices[0]) is not None)
    return bool(found) and all(found)


def _name(call: Any) -> str:
    return getattr(call.op, "name", "")


def _is_if_then_else(call: Any) -> bool:
    return _name(call) in ("tirx.if_then_else", "prim.if_then_else")


class _Lanes:
    """A vector loop's variable, with the vector forms of expressions over it."""

    def __init__(self, variable: Any, count: int, analyzer: Any) -> None:
        self.variable = variable
        self.count = count
        self.analyzer = analyzer
        self.declared: list[Any] = []  # views of buffers that the vector form reads
        self.bound: list[tuple[Any, Any]] = []  # names of values (Let), and those of their vectors

    def varies(self, expression: Any) -> bool:
        """True if the expression differs between lanes."""
        return has_names(expression, [self.variable, *(name for name, _ in self.bound)])

    def base(self, index: Any) -> Any:
        """The value of `index` in lane 0, for an index that grows by one per lane."""
        at_zero = self._at(index, 0)
        if not self.analyzer.can_prove(index - at_zero == self.variable):
            raise _NotVectorizable
        return self.analyzer.simplify(at_zero)

    def distances(self, index: Any) -> list[int] | None:
        """The distance of each lane's index to that of lane 0; None if it varies or is too large."""
        from tvm import tirx

        first = self._at(index, 0)
        found = [self.analyzer.simplify(self._at(index, n) - first) for n in range(self.count)]
        if not all(isinstance(d, tirx.IntImm) and 0 <= int(d) < _FAR * self.count for d in found):
            return None
        return [int(d) for d in found]

    def _at(self, index: Any, lane: int) -> Any:
        from tvm import tirx
        from tvm_ffi import structural_map

        number = tirx.const(lane, str(self.variable.ty.dtype))
        return structural_map(
            index, [(tirx.Var, lambda v: number if v.same_as(self.variable) else v)]
        )

    def mask(self, condition: Any, *, hidden: bool = False) -> Any:
        """The lanes that satisfy a bound on an index: `a + lane < b`, or with ≤, > or ≥.

        Args:
            hidden: LLVM must not find that the mask is a constant with one lane.
        """
        from tvm import tirx

        is_end, first = self.limit(condition)
        # Comparing lanes instead of indices needs only 32 bits.
        hidden = hidden and not (is_end and self._are_several(first))
        first = tirx.min(first, self.count)
        if not self._fits(first):
            first = tirx.max(first, 0)
        if hidden:
            first = tirx.call_pure_extern("int32", _SAME, _narrowed(first))
        ramp = tirx.Ramp(tirx.const(0, "int32"), 1, self.count)
        if is_end:
            return ramp < tirx.Broadcast(_narrowed(first), self.count)
        return ramp >= tirx.Broadcast(_narrowed(tirx.max(first, 0)), self.count)

    def _fits(self, number: Any) -> bool:
        """True if a number of 64 bits provably has no more than 32."""
        return str(number.ty.dtype) == "int32" or self.analyzer.const_int_bound(number).min_value >= -(1 << 31)

    def limit(self, condition: Any) -> tuple[bool, Any]:
        """The lane before which, or from which on, all satisfy a bound on an index, and whether it is before."""
        from tvm import tirx

        kind, index, bound = type(condition), getattr(condition, "a", None), getattr(condition, "b", None)
        mirror = {tirx.LT: tirx.GT, tirx.LE: tirx.GE, tirx.GT: tirx.LT, tirx.GE: tirx.LE}
        if kind not in mirror:
            raise _NotVectorizable
        if self.varies(bound):
            kind, index, bound = mirror[kind], bound, index
        if self.varies(bound):
            raise _NotVectorizable
        first = bound - self.base(index)
        if kind in (tirx.LE, tirx.GT):
            first = first + 1
        return kind in (tirx.LT, tirx.LE), first

    def _are_several(self, left: Any) -> bool:
        """True if `left` lanes, where they are fewer than a vector, are never one."""
        known = self.analyzer.modular_set(left)
        return int(known.coeff) % self.count == 0 and int(known.base) % self.count != 1

    def store(self, store: Any, bounds: list[Any]) -> Any:
        from tvm import tirx

        if len(store.indices) != 1:
            raise _NotVectorizable
        index = tirx.Ramp(self.base(store.indices[0]), 1, self.count)
        if not bounds:
            return tirx.BufferStore(store.buffer, self.vector(store.value, bounds), [index])
        if _is_bfloat16(store.buffer):
            buffer, value = self._words(store.buffer), self._rounded(store.value, bounds)
        else:
            buffer, value = store.buffer, self.vector(store.value, bounds)
        return tirx.Evaluate(tirx.op.masked_store(buffer, value, index, _all(bounds)))

    def vector(self, expression: Any, bounds: list[Any]) -> Any:
        """The expression over all lanes; loads touch only the lanes within `bounds`."""
        from tvm import ir, tirx

        if not self.varies(expression):
            # It is evaluated even if no lane needs it.
            if bounds and not self._reads_within(expression):
                raise _NotVectorizable
            return tirx.Broadcast(expression, self.count)
        again: Callable[[Any], Any] = partial(self.vector, bounds=bounds)
        if isinstance(expression, ir.TensorLoad):
            return self._load(expression, bounds)
        pairs = (
            tirx.Add | tirx.Sub | tirx.Mul | tirx.Div | tirx.Max | tirx.Min
            | tirx.LShift | tirx.RShift | tirx.BitwiseAnd | tirx.BitwiseOr | tirx.BitwiseXor
            | tirx.LT | tirx.LE | tirx.GT | tirx.GE
        )
        if isinstance(expression, pairs):
            return type(expression)(again(expression.a), again(expression.b))
        if isinstance(expression, tirx.Let):
            vector = tirx.Var(expression.var.name, f"{expression.var.ty.dtype}x{self.count}")
            value = again(expression.value)
            self.bound.append((expression.var, vector))
            return tirx.Let(vector, value, again(expression.body))
        if isinstance(expression, tirx.Var):
            for name, vector in self.bound:
                if name.same_as(expression):
                    return vector
        if isinstance(expression, tirx.Cast):
            dtype, value = str(expression.ty.dtype), expression.value
            if bounds and dtype == "float32" and isinstance(value, ir.TensorLoad) and _is_bfloat16(value.source):
                return self._widened(value, bounds)
            return tirx.Cast(f"{dtype}x{self.count}", again(expression.value))
        if isinstance(expression, tirx.Select):
            return self._select(expression, again)
        if isinstance(expression, ir.Call) and _is_if_then_else(expression):
            condition, inside, outside = expression.args
            if not self.varies(condition):
                raise _NotVectorizable
            masks = [
                self.mask(c) if self.varies(c) else tirx.Broadcast(c, self.count)
                for c in _conjuncts(condition)
            ]
            mask = _all(masks)
            inside, outside = self.vector(inside, [*bounds, mask]), self.vector(outside, [*bounds, tirx.Not(mask)])
            return _choose(mask, inside, outside)
        if _is_reinterpreted(expression, "uint16") and isinstance(expression.args[0], ir.TensorLoad):
            load = expression.args[0]
            return self._load(tirx.BufferLoad(self._words(load.source), load.indices), bounds)
        if isinstance(expression, ir.Call) and _name(expression) in _ELEMENTWISE:
            dtype = f"{expression.ty.dtype}x{self.count}"
            return tirx.call_intrin(dtype, expression.op.name, *map(again, expression.args))
        raise _NotVectorizable

    def _select(self, select: Any, again: Callable[[Any], Any]) -> Any:
        """A choice common to all lanes, by comparing numbers, or of constants per lane."""
        from tvm import ir, tirx

        condition = select.condition
        if not self.varies(condition):
            condition = tirx.Broadcast(condition, self.count)
        elif find(condition, ir.TensorLoad) or has_names(condition, [name for name, _ in self.bound]):
            condition = again(condition)
        else:
            known = [self.analyzer.simplify(self._at(select, n)) for n in range(self.count)]
            if not all(isinstance(number, tirx.FloatImm) for number in known):
                raise _NotVectorizable
            return tirx.Shuffle(known, [tirx.const(n, "int32") for n in range(self.count)])
        return _choose(condition, again(select.true_value), again(select.false_value))

    def _load(self, load: Any, bounds: list[Any]) -> Any:
        from tvm import tirx

        # TVM legalises bfloat16 after this pass, and has no masked loads of it.
        if len(load.indices) != 1 or (bounds and _is_bfloat16(load.source)):
            raise _NotVectorizable
        try:
            base = self.base(load.indices[0])
        except _NotVectorizable:
            return self._shuffled(load, bounds)
        index = tirx.Ramp(base, 1, self.count)
        # Vectors within their buffer anyway, as of workspaces of whole ones, go without a mask: accumulators
        # that are read under one stay out of registers.
        if not bounds or self._is_within(base, load.source, self.count):
            return tirx.BufferLoad(load.source, [index])
        dtype = str(load.source.dtype)
        return tirx.op.masked_load(f"{dtype}x{self.count}", load.source, index, _all(bounds))

    def _words(self, buffer: Any) -> Any:
        """A view of a buffer of bfloat16 as words: of those TVM has masked loads and stores."""
        from tvm import tirx

        words = tirx.decl_buffer(buffer.shape, "uint16", f"{buffer.name}_words", scope=buffer.scope())
        self.declared.append(tirx.DeclBuffer(words, data=tirx.buffer_data(buffer)))
        return words

    def _widened(self, load: Any, bounds: list[Any]) -> Any:
        """A masked load of bfloat16 as float32, whose upper half it is."""
        from tvm import tirx

        found = self._load(tirx.BufferLoad(self._words(load.source), load.indices), bounds)
        upper = tirx.LShift(tirx.Cast(f"uint32x{self.count}", found), self._all_lanes(16))
        return tirx.call_intrin(f"float32x{self.count}", "tirx.reinterpret", upper)

    def _rounded(self, value: Any, bounds: list[Any]) -> Any:
        """The words of a number rounded to bfloat16, by float32, to the nearest and to even on a tie, as TVM does.

        Words that are taken for bfloat16 stay as they are.
        """
        from tvm import tirx

        if _is_reinterpreted(value, "bfloat16") and str(value.args[0].ty.dtype) == "uint16":
            return self.vector(value.args[0], bounds)
        if not isinstance(value, tirx.Cast):
            raise _NotVectorizable
        wide = value.value if str(value.value.ty.dtype) == "float32" else tirx.Cast("float32", value.value)
        bits = tirx.call_intrin(f"uint32x{self.count}", "tirx.reinterpret", self.vector(wide, bounds))
        odd = tirx.BitwiseAnd(tirx.RShift(bits, self._all_lanes(16)), self._all_lanes(1))
        rounded = tirx.RShift(tirx.Add(tirx.Add(bits, self._all_lanes(0x7FFF)), odd), self._all_lanes(16))
        return tirx.Cast(f"uint16x{self.count}", rounded)

    def _all_lanes(self, number: int) -> Any:
        from tvm import tirx

        return tirx.Broadcast(tirx.const(number, "uint32"), self.count)

    def _reads_within(self, expression: Any) -> bool:
        """True if all that the expression reads provably lies in its buffers."""
        from tvm import ir

        loads = find(expression, ir.TensorLoad)
        return all(len(x.indices) == 1 and self._is_within(x.indices[0], x.source, 1) for x in loads)

    def _is_within(self, base: Any, buffer: Any, count: int) -> bool:
        """True if `count` elements from `base` provably lie in the buffer, in all iterations of all loops."""
        from tvm import tirx

        (size,) = buffer.shape
        bound = self.analyzer.const_int_bound(base)
        return (
            isinstance(size, tirx.IntImm) and bound.min_value >= 0 and bound.max_value + count <= int(size)
        )

    def _shuffled(self, load: Any, bounds: list[Any]) -> Any:
        """A load of lanes with small gaps: the vectors that contain them, and a shuffle."""
        from tvm import tirx

        distances = self.distances(load.indices[0])
        if distances is None:
            raise _NotVectorizable
        first = self.analyzer.simplify(self._at(load.indices[0], 0))
        dtype = f"{load.source.dtype}x{self.count}"
        reach = max(distances)
        vectors = []
        for start in range(0, reach + 1, self.count):
            index = tirx.Ramp(first + start, 1, self.count)
            if bounds:
                mask = self._wanted(distances, start, _all(bounds))
            elif reach < start + self.count - 1:
                left = tirx.const(reach - start + 1, "int32")
                mask = tirx.Ramp(tirx.const(0, "int32"), 1, self.count) < tirx.Broadcast(left, self.count)
            else:
                vectors.append(tirx.BufferLoad(load.source, [index]))
                continue
            vectors.append(tirx.op.masked_load(dtype, load.source, index, mask))
        return tirx.Shuffle(vectors, [tirx.const(d, "int32") for d in distances])

    def _wanted(self, distances: list[int], start: int, mask: Any) -> Any:
        """The mask of elements of the vector at `start` that active lanes of `mask` need."""
        from tvm import tirx

        nowhere = tirx.Broadcast(tirx.const(False, "bool"), self.count)
        lanes = [[n for n, d in enumerate(distances) if d == start + place] for place in range(self.count)]
        result = None
        for turn in range(max(map(len, lanes))):
            chosen = [found[turn] if turn < len(found) else self.count for found in lanes]
            part = tirx.Shuffle([mask, nowhere], [tirx.const(n, "int32") for n in chosen])
            result = part if result is None else tirx.Or(result, part)
        return nowhere if result is None else result


def _narrowed(number: Any) -> Any:
    """A number that 32 bits hold, in 32 bits.

    TVM moves a conversion to all that a number is made of, and fails at what these bits do not hold.
    """
    from tvm import tirx

    if str(number.ty.dtype) == "int64" and any(abs(int(n)) >= 1 << 31 for n in find(number, tirx.IntImm)):
        return tirx.call_pure_extern("int32", _NARROW, number)
    return number.astype("int32")


def _is_reinterpreted(expression: Any, dtype: str) -> bool:
    from tvm import ir

    is_call = isinstance(expression, ir.Call) and _name(expression) == "tirx.reinterpret"
    return is_call and str(expression.ty.dtype) == dtype


def _is_bfloat16(buffer: Any) -> bool:
    return str(buffer.dtype) == "bfloat16"


def _choose(condition: Any, inside: Any, outside: Any) -> Any:
    """`inside` in the lanes that satisfy the condition; opaque to TVM's passes if it has masked loads.

    Within a Select, the simplifier assumes its condition and drops a mask that repeats it, after which the load
    would access memory outside of its buffer.
    """
    from tvm import tirx

    if not any(_calls(part, "tirx.masked_load") for part in (inside, outside)):
        return tirx.Select(condition, inside, outside)
    dtype = str(inside.ty.dtype)
    if dtype.startswith("bfloat16"):  # TVM legalises it after this pass, but not within calls
        raise _NotVectorizable
    if dtype.startswith("float") and find(inside, tirx.Mul) and find(inside, tirx.Add, tirx.Sub):
        # LLVM (to 22 at least) joins the masks of a choice and of a load to that of one multiply-add, and when it then
        # takes the load out again, for a register, it takes out a whole vector.
        inside = tirx.call_llvm_pure_intrin(dtype, "llvm.arithmetic.fence", inside)
    return tirx.call_pure_extern(dtype, _CHOICE, condition, inside, outside)


def _calls(code: Any, name: str) -> bool:
    """True if the code has a call of an operator, or of a function outside of TVM."""
    from tvm import ir

    def is_meant(call: Any) -> bool:
        first = call.args[0] if len(call.args) else None
        return _name(call) == name or (isinstance(first, ir.StringImm) and first.value == name)

    return any(map(is_meant, find(code, ir.Call)))


def reveal_choices(module: Any) -> Any:
    """Replace each opaque choice by a Select, after the last simplification."""
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def reveal(call: Any) -> Any:
        if _name(call) != "tirx.call_pure_extern" or call.args[0].value != _CHOICE:
            return call
        return tirx.Select(*call.args[1:])

    return change_functions(module, lambda function: structural_map(function, [(ir.Call, reveal)]))


def _all(masks: list[Any]) -> Any:
    from tvm import tirx

    return reduce(tirx.And, masks)
