"""AMX, the matrix unit of Intel's processors: sums of products of tiles of up to 16 rows of 64 bytes.

A block of sums is an array of tiles, kept in the unit's eight tile registers over the whole of k, beside one column of
the data's tiles and one of the weight's. Tile shapes are a state of the thread: each task of a parallel loop loads it
first and releases it last. Linux gives the registers only to a process that has asked, which every function does
before all else; where that fails, the function returns an error (`strategy.cpu.amx_tasks`).
"""
# Over 300 lines: one function for each form of a block's operands, and what they share.

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from strategy.cpu.amx_code import (
    LANES,
    LINE_BYTES,
    WORD_BYTES,
    Block,
)
from strategy.cpu.dot import Dot
from strategy.target import Target
from strategy.tir import register_intrinsic

TASK = "plevel.amx"  # of a loop, whose turns have these shapes of tiles
TILE = "plevel.amx_tile"  # of a loop over blocks of one panel
PART = "plevel.amx_part"  # of a loop over parts of k
_OPERANDS = {
    ("bfloat16", "bfloat16"): "bf16ps", ("int8", "int8"): "bssd", ("int8", "uint8"): "bsud",
    ("uint8", "int8"): "busd", ("uint8", "uint8"): "buud",
}


@dataclass(frozen=True)
class Window:
    """The places of an image [h, w, c] that a block reads for a pixel, with the steps of its neighbours.

    With `pixel`, the numbers of a pixel, the image is [h, w c], and one place of a line is a row of the window. Of an
    image of words it is those of a pixel: the image is [h c, w], and one place is a column of the window. With `line`,
    the words of a line, an image of words is [c, h w].
    """

    kernel_h: int
    kernel_w: int
    strides: tuple[int, int]
    dilation: tuple[int, int]
    pixel: int = 0
    line: int = 0


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


def use_tiles(sch: Any, sums: Any, block: Block, dtype: str, task: Any, tile: Any, part: Any = None) -> None:
    """Replace the four innermost loops of the block of sums: rows, columns, words, and numbers of a word.

    Args:
        dtype: that of the data as they are read, numbers side by side.
        task: the parallel loop around it.
        tile: the loop over blocks of one panel, if they are computed one after the other.
        part: the loop over parts of k, if the block adds them.
    """
    if tile is not None:
        sch.annotate(tile, TILE, 1)
    if part is not None:
        sch.annotate(part, PART, 1)
    _replace(sch, sums, sch.get_loops(sums)[-4], block, task, _intrinsic(block, dtype), part)


def use_tiles_of_words(sch: Any, sums: Any, block: Block, task: Any) -> None:
    """Replace the three innermost loops of the block of sums: rows, columns, and words of both operands.

    The first is [steps, rows, words], the second [columns / lanes, words, lanes].
    """
    _replace(sch, sums, sch.get_loops(sums)[-3], block, task, _intrinsic_of_words(block))


def use_tiles_of_windows(sch: Any, sums: Any, block: Block, window: Window, dtype: str, task: Any) -> None:
    """Replace the innermost loops of the block of sums: lines, pixels, columns, places of the window, words, numbers.

    Loops over one line, row or column of the window are left out.
    """
    loops = 4 + (block.lines > 1) + (window.kernel_h > 1) + (window.kernel_w > 1)
    _replace(sch, sums, sch.get_loops(sums)[-loops], block, task, _intrinsic_of_windows(block, window, dtype))


def use_tiles_of_image(sch: Any, sums: Any, block: Block, window: Window, task: Any) -> None:
    """Replace the innermost loops of the block of sums: rows, lines, pixels, places of the window, words.

    The data are [steps, rows, words], the weight words of an image [h, c, w]. Loops over one line, row or column of the
    window are left out.
    """
    assert block.image is not None
    loops = 3 + (block.image.lines > 1) + (window.kernel_h > 1) + (window.kernel_w > 1)
    _replace(sch, sums, sch.get_loops(sums)[-loops], block, task, _intrinsic_of_image(block, window))


def _replace(
    sch: Any, sums: Any, rows: Any, block: Block, task: Any, intrinsic: str, part: Any = None
) -> None:
    """Replace the loops of the block of sums from `rows` on by the registered code."""
    zeros = sch.decompose_reduction(sums, rows if part is None else part)
    sch.tensorize(sch.get_loops(zeros)[-sum(extent > 1 for extent in _shape_of_sums(block))], _no_zeros(block))
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
    shape = _shape_of_sums(block)
    axes = [f"i{axis}" for axis, extent in enumerate(shape) if extent > 1]  # TVM drops a loop over one
    extents = [extent for extent in shape if extent > 1]
    places = ", ".join(f"v{axis}" if extent > 1 else "0" for axis, extent in enumerate(shape))
    head = f"""
@T.prim_func(s_tir=True)
def main(C: T.Buffer({shape}, "{block.dot.sums}", offset_factor=1, scope="{_scope(block)}")) -> None:
    with T.sblock("root"):
        T.reads()
        T.writes(C[{_ranges(shape)}])
"""
    meaning = f"""
        for {", ".join(axes)} in T.grid(*{extents}):
            with T.sblock("zero"):
                {", ".join(f"v{axis[1:]}" for axis in axes)} = T.axis.remap("{"S" * len(axes)}", [{", ".join(axes)}])
                C[{places}] = T.cast(0, "{block.dot.sums}")
"""
    name = f"plevel_amx_no_zeros_{'_'.join(map(str, shape))}_{block.dot.sums}_{_scope(block)}"
    return register_intrinsic(name, head, meaning, """
        T.evaluate(0)
""")


def _scope(block: Block) -> str:
    """The scope of the sums: of a block, or of a task."""
    return "global" if block.adds else "local"


def _shape_of_sums(block: Block) -> tuple[int, ...]:
    """[lines,] rows and columns of a block, or rows, lines and columns."""
    if block.image:
        return block.rows, block.image.lines, block.width // block.image.lines
    if block.lines > 1:
        return block.lines, block.rows // block.lines, block.width
    return block.rows, block.width


def _ranges(shape: Sequence[int]) -> str:
    return ", ".join(f"0:{extent}" for extent in shape)


def _number(dot: Dot, text: str, kept: str, meant: str) -> str:
    """A number of dtype `meant`, of whose bits a buffer of `kept` is, in the dtype of the sums."""
    read = text if kept == meant else f"T.reinterpret({text}, dtype='{meant}')"
    return f"T.cast({read}, '{dot.sums}')"


def _total(kept: Container[str], *terms: tuple[str, int]) -> str:
    """The sum of axes, those that are kept, times numbers."""
    return " + ".join(f"v{n} * {by}" if by > 1 else f"v{n}" for n, by in terms if n in kept) or "0"


@cache
def _intrinsic_of_windows(block: Block, window: Window, dtype: str) -> str:
    """The registered name of the block's code and what it computes of an image [h, w, c] of `dtype`."""
    dot, group, sums = block.dot, block.dot.group, _shape_of_sums(block)
    (down, across), (apart_h, apart_w) = window.strides, window.dilation
    lines, rows = block.lines, block.rows // block.lines
    depth = block.all_steps * block.words // (window.kernel_h * window.kernel_w)
    shape: tuple[int, ...] = ((lines - 1) * down + (window.kernel_h - 1) * apart_h + 1,)
    if window.pixel:
        shape += ((rows - 1) * across * window.pixel + depth * group,)
    else:
        shape += ((rows - 1) * across + (window.kernel_w - 1) * apart_w + 1, depth * group)
    packed = (window.kernel_h * window.kernel_w * depth, block.width, group)
    axes = {"i": lines, "r": rows, "j": block.width, "y": window.kernel_h, "x": window.kernel_w, "c": depth, "t": group}
    kept = {name: extent for name, extent in axes.items() if extent > 1 or name in "rjct"}

    total = partial(_total, kept)
    line = total(("i", down), ("y", apart_h))
    if window.pixel:
        place = f"{line}, {total(('r', across * window.pixel), ('c', group), ('t', 1))}"
    else:
        place = f"{line}, {total(('r', across), ('x', apart_w))}, {total(('c', group), ('t', 1))}"
    step = total(("y", window.kernel_w * depth), ("x", depth), ("c", 1))
    out = ", ".join(f"v{name}" for name in kept if name in "irj")
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer({shape}, "{dtype}", offset_factor=1),
    B: T.Buffer({packed}, "{dot.packed}", offset_factor=1),
    C: T.Buffer({sums}, "{dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[{_ranges(sums)}], A[{_ranges(shape)}], B[{_ranges(packed)}])
        T.writes(C[{_ranges(sums)}])
"""
    kinds = "".join("S" if name in "irj" else "R" for name in kept)
    meaning = f"""
        for {", ".join(kept)} in T.grid({", ".join(map(str, kept.values()))}):
            with T.sblock("update"):
                {", ".join(f"v{name}" for name in kept)} = T.axis.remap("{kinds}", [{", ".join(kept)}])
                C[{out}] = C[{out}] + {_number(dot, f"A[{place}]", dtype, dot.data)} * (
                    {_number(dot, f"B[{step}, vj, vt]", dot.packed, dot.weight)})
"""
    zeros = ", ".join("0" for _ in sums)
    first = ", ".join("0" for _ in shape)
    code = f"""
        T.evaluate(T.call_extern("int32", "{block.symbol}",
            T.address_of(A[{first}]), T.address_of(B[0, 0, 0]), T.address_of(C[{zeros}]), 0))
"""
    steps = "_".join(
        str(n) for n in (window.kernel_h, window.kernel_w, *window.strides, *window.dilation, window.pixel)
    )
    return register_intrinsic(f"{block.symbol}_windows_{steps}_{dtype}", head, meaning, code)


@cache
def _intrinsic_of_image(block: Block, window: Window) -> str:
    """The registered name of the block's code and what it computes of the words of an image.

    The image is [h, c, w], [h c, w] or [c, h w]; with a stride along lines the phases of a line come before w.
    """
    assert block.image is not None
    sums, lines, words = _shape_of_sums(block), block.image.lines, block.steps * block.words
    (down, _), (apart_h, apart_w), phases = window.strides, window.dilation, block.phases[0]
    packed = (window.kernel_h * window.kernel_w * block.steps, block.rows, block.words)
    shape: tuple[int, ...]
    if window.pixel:
        shape = ((lines - 1) * down * window.pixel + words,)
    else:
        shape = ((lines - 1) * down + (window.kernel_h - 1) * apart_h + 1, words)
    last = sums[-1] + (window.kernel_w - 1) * apart_w // phases
    shape += (phases, last) if phases > 1 else (last,)
    if window.line:
        shape = (words, last + (window.kernel_h - 1) * apart_h * window.line)
    axes = {"i": block.rows, "h": lines, "w": sums[-1], "y": window.kernel_h, "x": window.kernel_w, "c": words}
    kept = {name: extent for name, extent in axes.items() if extent > 1 or name in "iwc"}
    places = window.kernel_h * window.kernel_w
    step = f"vc // {block.words} * {places} + {_total(kept, ('y', window.kernel_w), ('x', 1))}"
    if window.pixel:
        place = _total(kept, ("h", down * window.pixel), ("c", 1))
    else:
        place = f"{_total(kept, ('h', down), ('y', apart_h))}, vc"
    if window.line:
        place = f"vc, {_total(kept, ('w', 1), ('y', apart_h * window.line), ('x', apart_w))}"
    elif phases > 1:
        column = _total(kept, ("x", apart_w))
        place += f", ({column}) % {phases}, vw + ({column}) // {phases}"
    else:
        place += f", {_total(kept, ('w', 1), ('x', apart_w))}"
    out = ", ".join(f"v{name}" if name in kept else "0" for name in "ihw")
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer({packed}, "int32", offset_factor=1),
    B: T.Buffer({shape}, "int32", offset_factor=1),
    C: T.Buffer({sums}, "{block.dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[{_ranges(sums)}], A[{_ranges(packed)}], B[{_ranges(shape)}])
        T.writes(C[{_ranges(sums)}])
"""
    kinds = "".join("S" if name in "ihw" else "R" for name in kept)
    meaning = f"""
        for {", ".join(kept)} in T.grid({", ".join(map(str, kept.values()))}):
            with T.sblock("update"):
                {", ".join(f"v{name}" for name in kept)} = T.axis.remap("{kinds}", [{", ".join(kept)}])
                C[{out}] = C[{out}] + product(A[{step}, vi, vc % {block.words}], B[{place}])
"""
    zeros = ", ".join("0" for _ in sums)
    first = ", ".join("0" for _ in shape)
    code = f"""
        T.evaluate(T.call_extern("int32", "{block.symbol}",
            T.address_of(A[0, 0, 0]), T.address_of(B[{first}]), T.address_of(C[{zeros}]), 0))
"""
    steps = (window.kernel_h, window.kernel_w, down, *window.dilation, window.pixel, window.line)
    name = f"{block.symbol}_windows_{'_'.join(map(str, steps))}"
    return register_intrinsic(name, head, meaning, code, product=block.dot.product)


@cache
def _intrinsic(block: Block, dtype: str) -> str:
    """The registered name of the block's code and what it computes, for data of `dtype`."""
    dot, group = block.dot, block.dot.group
    apart = block.step_words != block.words  # a tile's rows lie side by side
    shape = (block.steps, block.rows, block.words * group) if apart else (block.rows, block.steps * block.words * group)
    place = f"vr // {block.words}, vi, vr % {block.words} * {group} + vt" if apart else f"vi, vr * {group} + vt"
    depth = block.steps * block.words

    zeros = ", ".join("0" for _ in shape)
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer({shape}, "{dtype}", offset_factor=1),
    B: T.Buffer(({depth}, {block.width}, {group}), "{dot.packed}", offset_factor=1),
    C: T.Buffer(({block.rows}, {block.width}), "{dot.sums}", offset_factor=1, scope="{_scope(block)}"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{block.rows}, 0:{block.width}], A[{_ranges(shape)}], B[0:{depth}, 0:{block.width}, 0:{group}])
        T.writes(C[0:{block.rows}, 0:{block.width}])
"""
    meaning = f"""
        for i, j, r, t in T.grid({block.rows}, {block.width}, {depth}, {group}):
            with T.sblock("update"):
                vi, vj, vr, vt = T.axis.remap("SSRR", [i, j, r, t])
                C[vi, vj] = C[vi, vj] + {_number(dot, f"A[{place}]", dtype, dot.data)} * (
                    {_number(dot, "B[vr, vj, vt]", dot.packed, dot.weight)})
"""
    code = f"""
        T.evaluate(T.call_extern("int32", "{block.symbol}",
            T.address_of(A[{zeros}]), T.address_of(B[0, 0, 0]), T.address_of(C[0, 0]), {"0, " * block.adds}0))
"""
    return register_intrinsic(f"{block.symbol}_{dtype}", head, meaning, code)
