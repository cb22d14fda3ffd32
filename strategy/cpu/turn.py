"""Turning a tile: rows of whole vectors become columns, by shuffles of registers.

Each step puts the even lanes of neighbouring vectors first, then the odd ones, and so moves the lowest bit of an
element's place to the top: after as many steps as a lane's number has bits, the rows' number is below the lanes'.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_TYPES = {"float32": "float", "float64": "double"}


def turned_width(rows: int, lanes: int) -> int:
    """The distance of a turned tile's columns: whole vectors, the last one of as few lanes as hold what is left."""
    whole = rows // lanes * lanes
    return whole + (_ceil_power(rows - whole) if rows > whole else 0)


def turn(sch: Any, task: Any, column: Any, rank: int, rows: int, lanes: int, dtype: str) -> None:
    """Replace the loops from `column` on, of `lanes` columns and `rows`, that write a transposed tile by shuffles.

    Args:
        task: a loop around.
        rank: the dimensions of what is written.
    """
    sch.annotate(task, "pragma_import_llvm", _source(rows, lanes, dtype))
    sch.tensorize(column, _intrinsic(rows, lanes, dtype, rank))


def _symbol(rows: int, lanes: int, dtype: str) -> str:
    return f"plevel_turn_{rows}x{lanes}_{dtype}"


@cache
def _source(rows: int, lanes: int, dtype: str) -> str:
    """LLVM code of a function of (tile, its stride, turned tile, its stride)."""
    kind = _TYPES[dtype]
    code: list[str] = []
    for first in range(0, rows, lanes):
        code += _turn_part(first, min(rows - first, lanes), lanes, kind)
    lines = "\n".join(f"  {line}" for line in code)
    return "\n".join([
        f"define linkonce_odr hidden i32 @{_symbol(rows, lanes, dtype)}(ptr %a, i64 %s, ptr %b, i64 %t) "
        "alwaysinline nounwind {",
        lines, "  ret i32 0", "}", "",
    ])  # fmt: skip


def _turn_part(first: int, rows: int, lanes: int, kind: str) -> list[str]:
    """Load `rows` vectors from row `first` on, turn them, and store them."""
    high, size, vector = _ceil_power(rows), {"float": 4, "double": 8}[kind], f"<{lanes} x {kind}>"
    code, names = [], []
    for row in range(rows):
        at = f"%r{first + row}"
        code += [
            f"{at}o = mul i64 %s, {first + row}", f"{at}p = getelementptr {kind}, ptr %a, i64 {at}o",
            f"{at} = load {vector}, ptr {at}p, align {size}",
        ]  # fmt: skip
        names.append(at)
    names += ["poison"] * (high - rows)
    step = 0
    span = 1
    while span < lanes:
        found = []
        for odd in (0, 1):
            mask = ", ".join(f"i32 {2 * lane + odd}" for lane in range(lanes))
            for k in range(0, max(high, 2), 2):
                after = names[k + 1] if high > 1 else "poison"
                name = f"%f{first}s{step}o{odd}k{k}"
                code.append(f"{name} = shufflevector {vector} {names[k]}, {vector} {after}, <{lanes} x i32> <{mask}>")
                found.append(name)
        names, step, span = found, step + 1, span * 2
    return code + _store_part(first, rows, lanes, kind, names)


def _store_part(first: int, rows: int, lanes: int, kind: str, names: list[str]) -> list[str]:
    high, size = _ceil_power(rows), {"float": 4, "double": 8}[kind]
    code, part = [], f"<{high} x {kind}>"
    for lane in range(lanes):
        at = f"%f{first}c{lane}"
        begin = lane * high % lanes
        mask = ", ".join(f"i32 {begin + i}" for i in range(high))
        vector = f"<{lanes} x {kind}>"
        code += [
            f"{at} = shufflevector {vector} {names[lane * high // lanes]}, {vector} poison, <{high} x i32> <{mask}>",
            f"{at}o = mul i64 %t, {lane}", f"{at}q = getelementptr {kind}, ptr %b, i64 {at}o",
            f"{at}p = getelementptr {kind}, ptr {at}q, i64 {first}",
        ]  # fmt: skip
        code.append(f"store {part} {at}, ptr {at}p, align {size}")
    return code


def _ceil_power(count: int) -> int:
    return 1 << (count - 1).bit_length()


@cache
def _intrinsic(rows: int, lanes: int, dtype: str, rank: int) -> str:
    """The registered name of the function and what it computes."""
    from tvm import script
    from tvm.s_tir import TensorIntrin
    from tvm.script import tirx

    head = f"""
@T.prim_func(s_tir=True)
def main(a: T.handle, b: T.handle) -> None:
    s = T.int64()
    t = T.int64()
    A = T.match_buffer(a, ({rows}, {lanes}), "{dtype}", strides=[s, 1], offset_factor=1)
    B = T.match_buffer(b, ({lanes}, {rows}), "{dtype}", strides=[t, 1], offset_factor=1)
    with T.sblock("root"):
        T.reads(A[0:{rows}, 0:{lanes}])
        T.writes(B[0:{lanes}, 0:{rows}])
"""
    meaning = f"""
        for i, j in T.grid({lanes}, {rows}):
            with T.sblock("turned"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vj, vi]
"""
    # Columns lie as far apart as whole vectors of them.
    code = f"""
        T.sblock_attr({{"buffer_dim_align": [[0, {rank - 2}, {turned_width(rows, lanes)}, 0]]}})
        T.evaluate(T.call_extern(
            "int32", "{_symbol(rows, lanes, dtype)}", T.address_of(A[0, 0]), s, T.address_of(B[0, 0]), t
        ))
"""
    name = f"{_symbol(rows, lanes, dtype)}_{rank}"
    TensorIntrin.register(name, script.from_source(head + meaning, {"T": tirx}), script.from_source(head + code, {"T": tirx}))
    return name
