"""Turning a tile: rows of whole vectors become columns, by shuffles of registers.

Each step puts the even lanes of neighbouring vectors first, then the odd ones, and so moves the lowest bit of an
element's place to the top: after as many steps as a lane's number has bits, the rows' number is below the lanes'.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from strategy.schedule import ScheduleError
from strategy.tir import register_intrinsic

_TYPES = {"float32": "float", "float64": "double", "int32": "i32"}
_BYTES = {"float": 4, "double": 8, "i32": 4}


def turned_width(rows: int, lanes: int) -> int:
    """The distance of a turned tile's columns: whole vectors, the last one of as few lanes as hold what is left."""
    whole = rows // lanes * lanes
    return whole + (_ceil_power(rows - whole) if rows > whole else 0)


def fit_side_by_side(width: int, rows: int, lanes: int) -> bool:
    """Return whether turned tiles of some `rows`, which divide the `width` of a buffer, write within its columns.

    The last vector of a tile is stored whole: behind the last tile, a column needs room for it.
    """
    apart = turned_width(rows, lanes)
    return width - rows + apart <= -(-width // apart) * apart


def turn(sch: Any, task: Any, column: Any, rank: int, rows: int, lanes: int, dtype: str) -> None:
    """Replace the loops from `column` on, of `lanes` columns and two `rows` or more, that write them transposed.

    Args:
        task: a loop around.
        rank: the dimensions of what is written.

    Raises:
        ScheduleError: `lanes` are no power of two, which the steps take for granted.
    """
    if lanes.bit_count() != 1:
        raise ScheduleError(f"a tile of {lanes} lanes cannot be turned: give a power of two")
    sch.annotate(task, "pragma_import_llvm", _source(rows, lanes, dtype))
    sch.tensorize(column, _intrinsic(rows, lanes, dtype, rank))


def _symbol(rows: int, lanes: int, dtype: str) -> str:
    return f"plevel_turn_{rows}x{lanes}_{dtype}"


@cache
def _source(rows: int, lanes: int, dtype: str) -> str:
    """LLVM code of a function of (tile, its stride, turned tile, its stride)."""
    parts = (_turn_part(first, min(rows - first, lanes), lanes, _TYPES[dtype]) for first in range(0, rows, lanes))
    lines = "\n".join(f"  {line}" for part in parts for line in part)
    name = _symbol(rows, lanes, dtype)
    return f"""
define linkonce_odr hidden i32 @{name}(ptr %a, i64 %s, ptr %b, i64 %t) alwaysinline nounwind {{
{lines}
  ret i32 0
}}
"""


def _turn_part(first: int, rows: int, lanes: int, kind: str) -> list[str]:
    """Load the `rows` from `first` on, at most `lanes`, turn them, and store them."""
    vector, high = f"<{lanes} x {kind}>", _ceil_power(rows)
    code, names = [], [f"%r{first + row}" for row in range(rows)]
    for row, name in enumerate(names, first):
        code += [
            f"{name}.o = mul i64 %s, {row}", f"{name}.p = getelementptr {kind}, ptr %a, i64 {name}.o",
            f"{name} = load {vector}, ptr {name}.p, align {_BYTES[kind]}",
        ]
    names += ["poison"] * (high - rows)
    for step in range(lanes.bit_length() - 1 if high > 1 else 0):
        before, names = names, []
        for odd in (0, 1):
            mask = ", ".join(f"i32 {2 * lane + odd}" for lane in range(lanes))
            for i in range(0, high, 2):
                name = f"%s{first}.{step}.{odd}.{i}"
                pair = f"{vector} {before[i]}, {vector} {before[i + 1]}"
                code.append(f"{name} = shufflevector {pair}, <{lanes} x i32> <{mask}>")
                names.append(name)
    for lane in range(lanes):
        vector_of, begin = divmod(lane * high, lanes)
        mask, name = ", ".join(f"i32 {begin + i}" for i in range(high)), f"%c{first}.{lane}"
        code += [
            f"{name} = shufflevector {vector} {names[vector_of]}, {vector} poison, <{high} x i32> <{mask}>",
            f"{name}.o = mul i64 %t, {lane}", f"{name}.b = add i64 {name}.o, {first}",
            f"{name}.p = getelementptr {kind}, ptr %b, i64 {name}.b",
            f"store <{high} x {kind}> {name}, ptr {name}.p, align {_BYTES[kind]}",
        ]
    return code


def _ceil_power(count: int) -> int:
    return 1 << (count - 1).bit_length()


@cache
def _intrinsic(rows: int, lanes: int, dtype: str, rank: int) -> str:
    """The registered name of the function and what it computes."""
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
    return register_intrinsic(f"{_symbol(rows, lanes, dtype)}_{rank}", head, meaning, code)
