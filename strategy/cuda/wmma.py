"""Tensor cores through `nvcuda::wmma`: intrinsics for a schedule's 16 × 16 × 16 tiles.

TVM has them in `tvm.s_tir.tensor_intrin.cuda` with many others, which take 25 s to import. These five are made at
their first use, in a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from strategy.tir import register_intrinsic

TILE = 16
SHARED = "shared.dyn"
_SHAPE = f"{TILE}, {TILE}, {TILE}"


@cache
def register_wmma(dtype: str) -> dict[str, str]:
    """Register the intrinsics for operands of `dtype`, summed in float32; their names by role.

    `load_a` reads [m, k], `load_b` reads [n, k], both from dynamic shared memory. `store` writes
    [m, n] to static shared memory: dynamic memory is one buffer, which TVM gives one dtype. `multiply`
    adds the product to the accumulator that `fill` has set to zero.
    """
    operands, sums, stored = (dtype, SHARED), ("float32", "wmma.accumulator"), ("float32", "shared")
    left, right = (dtype, "wmma.matrix_a"), (dtype, "wmma.matrix_b")
    source = f"A.access_ptr('r', ptr_type='{dtype}'), A1"
    to = "C.access_ptr('w', ptr_type='float32'), C1"
    product = "C[vi, vj] + T.Cast('float32', A[vi, vk]) * T.Cast('float32', B[vj, vk])"
    parts = "C.data, place(C, C1), A.data, place(A, A1), B.data, place(B, B1), C.data, place(C, C1)"
    load = f"tvm_load_matrix_sync(C.data, {_SHAPE}, place(C, C1), {source}, '%s_major', dtype='void')"
    fill = f"tvm_fill_fragment(C.data, {_SHAPE}, place(C, C1), T.float32(0), dtype='void')"
    store = f"tvm_store_matrix_sync(A.data, {_SHAPE}, place(A, A1), {to}, 'row_major', dtype='void')"
    found = {
        "load_a": ({"A": operands, "C": left}, "A", "A[vi, vj]", load % "row"),
        "load_b": ({"A": operands, "C": right}, "A", "A[vi, vj]", load % "col"),
        "fill": ({"C": sums}, "", "T.float32(0)", fill),
        "store": ({"A": sums, "C": stored}, "A", "A[vi, vj]", store),
        "multiply": ({"A": left, "B": right, "C": sums}, "CAB", product, f"tvm_mma_sync({parts}, dtype='void')"),
    }
    return {role: _register(f"plevel_wmma_{role}_{dtype}", *what) for role, what in found.items()}


def _register(name: str, tiles: Mapping[str, tuple[str, str]], reads: str, value: str, call: str) -> str:
    """Register the call that writes a value to each place of the tile C.

    Args:
        tiles: the dtype and scope of each.
        reads: the names of those that are read.
    """
    lines = ["@T.prim_func(s_tir=True)", f"def main({', '.join(f'{tile}_: T.handle' for tile in tiles)}) -> None:"]
    for tile, (dtype, scope) in tiles.items():
        kind = f'({TILE}, {TILE}), "{dtype}", align=64, offset_factor={TILE}, scope="{scope}"'
        lines += [
            f"    {tile}1 = T.int32()",
            f"    {tile}0 = T.int32()",
            f"    {tile} = T.match_buffer({tile}_, {kind}, strides=[{tile}1, {tile}0])",
        ]
    read, written = (", ".join(f"{n}[0:{TILE}, 0:{TILE}]" for n in names) for names in (reads, "C"))
    lines += ['    with T.sblock("root"):', f"        T.reads({read})", f"        T.writes({written})"]
    loops, kinds, extents = ("i, j, k", "SSR", _SHAPE) if "B" in tiles else ("i, j", "SS", f"{TILE}, {TILE}")
    meaning = f"""
        for {loops} in T.grid({extents}):
            with T.sblock("tile"):
                v{loops.replace(", ", ", v")} = T.axis.remap("{kinds}", [{loops}])
                C[vi, vj] = {value}
"""
    return register_intrinsic(name, "\n".join(lines), meaning, f"\n        T.evaluate(T.{call})\n", place=_place)


def _place(buffer: Any, stride: Any) -> Any:
    """The index of an operand's fragment in its array: fragments are contiguous."""
    row = buffer.elem_offset // stride // TILE
    return row * (stride // TILE) + buffer.elem_offset % stride // TILE
