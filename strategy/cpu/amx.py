"""AMX, the matrix unit of Intel's processors: sums of products of tiles of up to 16 rows of 64 bytes.

A block of sums is an array of tiles, kept in the unit's eight tile registers over the whole of k, beside one column of
the data's tiles and one of the weight's. Tile shapes are a state of the thread: each task of a parallel loop loads it
first and releases it last. Linux gives the registers only to a process that has asked, which every function does
before all else; where that fails, the function returns an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from strategy.cpu.amx_code import BLOCK, LANES, LINE_BYTES, RELEASE, REQUEST, WORD_BYTES, Block
from strategy.cpu.dot import Dot
from strategy.target import Target
from strategy.tir import change_functions, find, register_intrinsic

TASK = "plevel.amx"  # of a loop, whose turns have these shapes of tiles
_TILE = "plevel.amx_tile"
_OPERANDS = {
    ("bfloat16", "bfloat16"): "bf16ps", ("int8", "int8"): "bssd", ("int8", "uint8"): "bsud",
    ("uint8", "int8"): "busd", ("uint8", "uint8"): "buud",
}  # fmt: skip


def find_product(target: Target, data: str, weight: str) -> Dot | None:
    """The target's instruction for tiles of these dtypes, None without one."""
    kind = _OPERANDS.get((data, weight))
    sums = "float32" if kind == "bf16ps" else "int32"
    feature = "amx-bf16" if sums == "float32" else "amx-int8"
    if kind is None or not (target.has(feature) and target.has("amx-tile")):
        return None
    return Dot(feature, f"llvm.x86.tdp{kind}", LANES, data, weight, sums)


def lines_ahead(width: int, words: int, blocks: int) -> int:
    """The lines of the next panel that each step brings, where `blocks` are computed of a panel one after the other."""
    return -(-words * width * WORD_BYTES // (LINE_BYTES * blocks))


def use_tiles(sch: Any, sums: Any, block: Block, dtype: str, task: Any, tile: Any) -> None:
    """Replace the four innermost loops of the block of sums: rows, columns, words, and numbers of a word.

    Args:
        dtype: that of the data as they are read, numbers side by side.
        task: the parallel loop around it.
        tile: the loop over blocks of one panel, if they are computed one after the other.
    """
    if tile is not None:
        sch.annotate(tile, _TILE, 1)
    _replace(sch, sums, sch.get_loops(sums)[-4], block, task, _intrinsic(block, dtype))


def use_tiles_of_words(sch: Any, sums: Any, block: Block, task: Any) -> None:
    """Replace the three innermost loops of the block of sums: rows, columns, and words of both operands.

    The first is [steps, rows, words], the second [columns / lanes, words, lanes].
    """
    _replace(sch, sums, sch.get_loops(sums)[-3], block, task, _intrinsic_of_words(block))


def _replace(sch: Any, sums: Any, rows: Any, block: Block, task: Any, intrinsic: str) -> None:
    """Replace the loops of the block of sums from `rows` on by the registered code."""
    zeros = sch.decompose_reduction(sums, rows)
    sch.tensorize(sch.get_loops(zeros)[-2], _no_zeros(block))
    sch.annotate(task, "pragma_import_llvm", block.source)
    sch.annotate(task, TASK, block.shape_symbol)
    sch.tensorize(rows, intrinsic)


@cache
def _intrinsic_of_words(block: Block) -> str:
    """The registered name of the block's code and what it computes, as the sums of `Dot.product`."""
    dot, depth = block.dot, block.steps * block.words
    shape = (block.steps, block.rows, block.words)
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer({shape}, "int32", offset_factor=1),
    B: T.Buffer(({block.columns}, {depth}, {LANES}), "int32", offset_factor=1),
    C: T.Buffer(({block.rows}, {block.width}), "{dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(
            C[0:{block.rows}, 0:{block.width}], A[0:{block.steps}, 0:{block.rows}, 0:{block.words}],
            B[0:{block.columns}, 0:{depth}, 0:{LANES}],
        )
        T.writes(C[0:{block.rows}, 0:{block.width}])
"""
    meaning = f"""
        for i, j, r in T.grid({block.rows}, {block.width}, {depth}):
            with T.sblock("update"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                C[vi, vj] = C[vi, vj] + product(
                    A[vr // {block.words}, vi, vr % {block.words}], B[vj // {LANES}, vr, vj % {LANES}])
"""
    code = f"""
        T.evaluate(T.call_extern("int32", "{block.symbol}",
            T.address_of(A[0, 0, 0]), T.address_of(B[0, 0, 0]), T.address_of(C[0, 0]), 0))
"""
    return register_intrinsic(f"{block.symbol}_words", head, meaning, code, product=dot.product)


@cache
def _no_zeros(block: Block) -> str:
    """The registered name of no code where sums would become zero: the tile registers are, and overwrite them."""
    shape = (block.rows, block.width)
    head = f"""
@T.prim_func(s_tir=True)
def main(C: T.Buffer({shape}, "{block.dot.sums}", offset_factor=1, scope="local")) -> None:
    with T.sblock("root"):
        T.reads()
        T.writes(C[0:{block.rows}, 0:{block.width}])
"""
    meaning = f"""
        for i, j in T.grid(*{shape}):
            with T.sblock("zero"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = T.cast(0, "{block.dot.sums}")
"""
    return register_intrinsic(f"plevel_amx_no_zeros_{block.rows}_{block.width}_{block.dot.sums}", head, meaning, """
        T.evaluate(0)
""")


@cache
def _intrinsic(block: Block, dtype: str) -> str:
    """The registered name of the block's code and what it computes, for data of `dtype`."""
    dot, group = block.dot, block.dot.group
    apart = block.step_words != block.words  # a tile's rows lie side by side
    shape = (block.steps, block.rows, block.words * group) if apart else (block.rows, block.steps * block.words * group)
    place = f"vr // {block.words}, vi, vr % {block.words} * {group} + vt" if apart else f"vi, vr * {group} + vt"
    depth = block.steps * block.words

    def number(text: str, kept: str, meant: str) -> str:
        read = text if kept == meant else f"T.reinterpret({text}, dtype='{meant}')"
        return f"T.cast({read}, '{dot.sums}')"

    ranges = ", ".join(f"0:{extent}" for extent in shape)
    zeros = ", ".join("0" for _ in shape)
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer({shape}, "{dtype}", offset_factor=1),
    B: T.Buffer(({depth}, {block.width}, {group}), "{dot.packed}", offset_factor=1),
    C: T.Buffer(({block.rows}, {block.width}), "{dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{block.rows}, 0:{block.width}], A[{ranges}], B[0:{depth}, 0:{block.width}, 0:{group}])
        T.writes(C[0:{block.rows}, 0:{block.width}])
"""
    meaning = f"""
        for i, j, r, t in T.grid({block.rows}, {block.width}, {depth}, {group}):
            with T.sblock("update"):
                vi, vj, vr, vt = T.axis.remap("SSRR", [i, j, r, t])
                C[vi, vj] = C[vi, vj] + {number(f"A[{place}]", dtype, dot.data)} * (
                    {number("B[vr, vj, vt]", dot.packed, dot.weight)})
"""
    code = f"""
        T.evaluate(T.call_extern("int32", "{block.symbol}",
            T.address_of(A[{zeros}]), T.address_of(B[0, 0, 0]), T.address_of(C[0, 0]), 0))
"""
    return register_intrinsic(f"{block.symbol}_{dtype}", head, meaning, code)


def insert_shapes(module: Any) -> Any:
    """Insert what tiles need into a module of packed functions: the request, and the shapes around each task."""
    return change_functions(module, _with_shapes)


def _with_shapes(function: Any) -> Any:
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def call(symbol: str) -> Any:
        return tirx.call_extern("int32", symbol)

    def change(loop: Any) -> Any:
        body = loop.body
        if _TILE in loop.annotations:
            place = loop.loop_var.astype("int32")

            def placed(found: Any) -> Any:
                is_block = found.args and str(getattr(found.args[0], "value", "")).startswith(BLOCK)
                return tirx.call_extern("int32", *found.args[:-1], place) if is_block else found

            body = structural_map(body, [(ir.Call, placed)])
        if TASK in loop.annotations:
            shapes = str(loop.annotations[TASK])
            body = tirx.SeqStmt([tirx.Evaluate(call(shapes)), body, tirx.Evaluate(call(RELEASE))])
        if body is loop.body:
            return loop
        annotations = {name: value for name, value in loop.annotations.items() if name not in (TASK, _TILE)}
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)

    if not any(TASK in loop.annotations for loop in find(function, tirx.For)):
        return function
    changed = structural_map(function, [(tirx.For, change)])
    # No assertion: those are left out of code without checks.
    granted = tirx.IfThenElse(call(REQUEST) != 0, tirx.Evaluate(tirx.tvm_throw_last_error()), None)
    return changed.with_body(tirx.SeqStmt([granted, changed.body]))
