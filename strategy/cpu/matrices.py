"""Matrix instructions of Arm's processors: two rows of the data by two of a weight, four sums at a time.

Each row is of twice the neighbours along k that a lane of a dot-product instruction takes. The data are copied so that
two rows lie side by side, as those of a packed weight do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from strategy.cpu.dot import Dot
from strategy.cpu.tile import clamped_row
from strategy.schedule import compute_stage, unroll_tile, zero_beyond
from strategy.target import Target
from strategy.tir import register_intrinsic

_MATRICES = (
    Dot("bf16", "llvm.aarch64.neon.bfmmla", 4, "bfloat16", "bfloat16", "float32", rows=2),
    Dot("i8mm", "llvm.aarch64.neon.smmla.v4i32.v16i8", 4, "int8", "int8", "int32", rows=2),
    Dot("i8mm", "llvm.aarch64.neon.usmmla.v4i32.v16i8", 4, "uint8", "int8", "int32", rows=2),
    Dot("i8mm", "llvm.aarch64.neon.ummla.v4i32.v16i8", 4, "uint8", "uint8", "int32", rows=2),
)


def find_matrix(target: Target, data: str, weight: str) -> Dot | None:
    """The target's matrix instruction for data and weights of some dtypes, None without one."""
    # None takes signed data and unsigned weights.
    offset = 128 if (data, weight) == ("int8", "uint8") else 0
    taken = (data, "int8" if offset else weight)
    found = next((d for d in _MATRICES if (d.data, d.weight) == taken and d.is_of(target)), None)
    return found and replace(found, offset=offset)


def paired(dot: Dot, data: Any, rows: Any, steps: int) -> Any:
    """The data [rows / 2, steps, 2, group], the numbers of two rows that an instruction takes side by side."""
    m, k = data.shape
    row = clamped_row(m)

    def number(pair: Any, step: Any, place: Any, neighbour: Any) -> Any:
        at = step * dot.group + neighbour
        return zero_beyond(dot.keep(data[row(pair * dot.rows + place), at]), at, int(k), dot.group)

    return compute_stage("pairs", (rows // dot.rows, steps, dot.rows, dot.group), number)


def schedule_matrices(sch: Any, dot: Dot, tiles: Any, task: Any, steps: int, unroll: int) -> None:
    """Schedule a tile by a matrix instruction, its four sums side by side.

    Args:
        tiles: the block, whose last loops are rows, columns, `steps` of the sum, and neighbours.
        task: the loop that the tile is in.
        unroll: turns of the last step that are unrolled.
    """
    rows, columns, *outer, group = sch.get_loops(tiles)[-3 - steps :]
    pairs, row = sch.split(rows, [None, dot.rows])
    vectors, column = sch.split(columns, [None, dot.columns])
    outer[-1:] = sch.split(outer[-1], [None, unroll])
    sch.reorder(*outer, pairs, vectors, row, column, group)
    for loop in (outer[-1], pairs, vectors):
        sch.unroll(loop)
    sch.transform_layout(
        tiles, ("write", 0),
        lambda *i: (*i[:-2], i[-2] // dot.rows, i[-1] // dot.columns, i[-2] % dot.rows, i[-1] % dot.columns),
    )
    unroll_tile(sch, sch.decompose_reduction(tiles, outer[0]), 4)
    sch.annotate(task, "pragma_import_llvm", dot.source)
    sch.tensorize(row, _intrinsic_of_matrices(replace(dot, offset=0)))


@cache
def _intrinsic_of_matrices(dot: Dot) -> str:
    """The registered name of the instruction on copied data, and what it computes."""
    group, count = dot.group, dot.columns * dot.group
    rows, columns = (
        f"T.reinterpret({place}, dtype='{dtype}')" if kept != dtype else place
        for place, kept, dtype in (("A[vi, vk]", dot.kept, dot.data), ("B[vj, vk]", dot.packed, dot.weight))
    )
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer(({dot.rows}, {group}), "{dot.kept}", offset_factor=1),
    B: T.Buffer(({dot.columns}, {group}), "{dot.packed}", offset_factor=1),
    C: T.Buffer(({dot.rows}, {dot.columns}), "{dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{dot.rows}, 0:{dot.columns}], A[0:{dot.rows}, 0:{group}], B[0:{dot.columns}, 0:{group}])
        T.writes(C[0:{dot.rows}, 0:{dot.columns}])
"""
    meaning = f"""
        for i in T.serial(0, {dot.rows}):
            for j in T.serial(0, {dot.columns}):
                for k in T.serial(0, {group}):
                    with T.sblock("update"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        C[vi, vj] = C[vi, vj] + T.cast({rows}, "{dot.sums}") * T.cast({columns}, "{dot.sums}")
"""
    code = f"""
        C[0, T.ramp(T.int32(0), 1, {dot.lanes})] = T.call_pure_extern(
            "{dot.sums}x{dot.lanes}", "{dot.symbol}", C.vload([0, 0], "{dot.sums}x{dot.lanes}"),
            T.reinterpret(A.vload([0, 0], "{dot.kept}x{count}"), dtype="int32x{dot.lanes}"),
            T.reinterpret(B.vload([0, 0], "{dot.packed}x{count}"), dtype="int32x{dot.lanes}"),
        )
"""
    return register_intrinsic(dot.symbol, head, meaning, code)
