"""Tasks with tiles of AMX: their shapes, the request to Linux, and the place and the rounding of sums."""

from __future__ import annotations

from typing import Any

from strategy.cpu.amx import PART, TASK, TILE
from strategy.cpu.amx_code import BLOCK, LANES, RELEASE, REQUEST, ROUND
from strategy.tir import change_functions, find


def insert_shapes(module: Any) -> Any:
    """Insert what tiles need into a module of packed functions.

    The request, and the shapes around each task; sums begin at a line of the cache, as each row of a tile then is one,
    and are rounded by an instruction.
    """
    return change_functions(module, _with_shapes)


def _aligned(allocation: Any) -> Any:
    """The allocation of sums as one of vectors, to whose size LLVM aligns it: TVM gives numbers 16 bytes at most."""
    from tvm import tirx

    buffer = allocation.buffer
    (extent,) = buffer.shape
    if buffer.scope() != "local" or str(buffer.dtype) not in ("float32", "int32") or int(extent) % LANES:
        return allocation
    dtype = f"{buffer.dtype}x{LANES}"
    vectors = tirx.decl_buffer([int(extent) // LANES], dtype, f"{buffer.name}_vectors", scope="local")
    return tirx.SeqStmt([
        tirx.AllocBuffer(vectors, allocation.annotations), tirx.DeclBuffer(buffer, data=tirx.buffer_data(vectors))
    ])


def _rounded(cast: Any) -> Any:
    """A vector's rounding to the bits of bfloat16 by one instruction, in place of TVM's five.

    It takes subnormal numbers for zero, as the products do.
    """
    from tvm import tirx
    from tvm_ffi import structural_equal

    words, halves, numbers = (f"{name}x{LANES}" for name in ("uint32", "uint16", "float32"))
    if str(cast.ty.dtype) != halves or not isinstance(cast.value, tirx.RShift):
        return cast

    def number(value: int) -> Any:
        return tirx.Broadcast(tirx.const(value, "uint32"), LANES)

    total = cast.value.a
    first = getattr(total, "a", None)
    for bits in (first, getattr(first, "a", None)):
        if bits is None or str(bits.ty.dtype) != words:
            continue
        odd, half = tirx.BitwiseAnd(tirx.RShift(bits, number(16)), number(1)), number(0x7FFF)
        # The forms of TVM and of `strategy.cpu.masking`.
        sums = tirx.Add(bits, tirx.Add(odd, half)), tirx.Add(tirx.Add(bits, half), odd)
        if any(structural_equal(cast.value, tirx.RShift(found, number(16))) for found in sums):
            return tirx.call_extern(halves, ROUND, tirx.reinterpret(numbers, bits))
    return cast


def _with_shapes(function: Any) -> Any:
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def call(symbol: str) -> Any:
        return tirx.call_extern("int32", symbol)

    def placed(body: Any, argument: int, turn: Any) -> Any:
        """Calls of blocks with the turn of a loop as an argument, counted from the last."""

        def with_turn(found: Any) -> Any:
            if not (found.args and str(getattr(found.args[0], "value", "")).startswith(BLOCK)):
                return found
            arguments = list(found.args)
            arguments[argument] = turn.astype("int32")
            return tirx.call_extern("int32", *arguments)

        return structural_map(body, [(ir.Call, with_turn)])

    def change(loop: Any) -> Any:
        body = loop.body
        if TILE in loop.annotations:
            body = placed(body, -1, loop.loop_var)
        if PART in loop.annotations:
            body = placed(body, -2, loop.loop_var)
        if TASK in loop.annotations:
            shapes = str(loop.annotations[TASK])
            body = tirx.SeqStmt([tirx.Evaluate(call(shapes)), body, tirx.Evaluate(call(RELEASE))])
        if body is loop.body:
            return loop
        annotations = {name: value for name, value in loop.annotations.items() if name not in (TASK, TILE, PART)}
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)

    if not any(TASK in loop.annotations for loop in find(function, tirx.For)):
        return function
    changed = structural_map(function, [(tirx.For, change), (tirx.AllocBuffer, _aligned), (tirx.Cast, _rounded)])
    # No assertion: those are left out of code without checks.
    granted = tirx.IfThenElse(call(REQUEST) != 0, tirx.Evaluate(tirx.tvm_throw_last_error()), None)
    return changed.with_body(tirx.SeqStmt([granted, changed.body]))
