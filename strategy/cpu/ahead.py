"""Prefetch of packed weights: while the tiles of one panel are computed, the next panel comes into the second level.

The first tile of a panel reads it from memory, or from the last level where other layers have driven it out, and waits
for it; the other tiles find it in a cache, and leave the memory idle. The next panel lies right behind, so each step of
a tile prefetches as much of it as the tiles together need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.schedule import dtype_bytes
from strategy.target import Target
from strategy.tir import change_functions, find, has_names

LINE_BYTES = 64
_TILE, _TURNS, _STEPS = "plevel.tile", "plevel.turns", "plevel.steps"
_SYMBOL = "plevel_prefetch"
# LLVM's code of `prefetch`. Of the intrinsic's memory LLVM assumes more, and stores all sums at each step.
PREFETCH = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr hidden i32 @{_SYMBOL}(ptr %a) alwaysinline nounwind memory(inaccessiblemem: readwrite) {{
  call void @llvm.prefetch.p0(ptr %a, i32 0, i32 2, i32 1) nounwind memory(inaccessiblemem: readwrite)
  ret i32 0
}}
"""


def prefetch(element: Any) -> Any:
    """The call that brings the line of an element into the second level."""
    from tvm import tirx

    return tirx.call_extern("int32", _SYMBOL, tirx.address_of(element))


def fits_ahead(panel_bytes: int, target: Target) -> bool:
    """Return whether two panels leave a quarter of the second level."""
    return 2 * panel_bytes <= target.l2_bytes // 4 * 3


def prefetch_panels(
    sch: Any, tile: Any, steps: Any, *, panel: int, step: int, tiles: int, dtype: str, around: Sequence[Any] = ()
) -> None:
    """Have each turn of a loop over the steps of scheduled tiles prefetch a part of the next panel.

    Args:
        tile: the loop over tiles around it.
        panel: elements of a panel; 0 if its rows lie apart, and each turn reads one.
        step: elements that a turn reads of it.
        tiles: those computed of a panel one after the other; 1 if `tile` does not count them.
        around: the other loops over a panel, from the outermost, where it has turns of several.
    """
    turns = int(sch.get(steps).extent) if around else 1
    for loop in reversed(around):
        if (extent := int(sch.get(loop).extent)) > 1:  # an annotated loop of one turn would stay
            sch.annotate(loop, _TURNS, turns)
        turns *= extent
    sch.annotate(steps, "pragma_import_llvm", PREFETCH)
    if tiles > 1:
        sch.annotate(tile, _TILE, 1)
    sch.annotate(steps, _STEPS, [panel, step, tiles, LINE_BYTES // dtype_bytes(dtype)])


def insert_prefetches(module: Any) -> Any:
    """Insert the prefetches of annotated loops of a module with flat buffers."""
    return change_functions(module, _inserted)


def _inserted(function: Any) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_map

    loops = find(function, tirx.For)
    tiles = [loop for loop in loops if _TILE in loop.annotations]
    around = [(loop.loop_var, int(loop.annotations[_TURNS])) for loop in loops if _TURNS in loop.annotations]

    def change(loop: Any) -> Any:
        if _STEPS not in loop.annotations:
            return loop
        calls = _calls(loop, tiles[0].loop_var if tiles else None, around)
        annotations = {name: value for name, value in loop.annotations.items() if name != _STEPS}
        body = tirx.SeqStmt([*calls, loop.body]) if calls else loop.body
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)

    return structural_map(function, [(tirx.For, change)])


def _calls(loop: Any, tile: Any, around: Sequence[tuple[Any, int]]) -> list[Any]:
    """The prefetches of a turn of the loop over steps.

    Args:
        tile: counts a panel's tiles; None if it has one.
        around: the variables of other loops over a panel, with the turns of each of their own.
    """
    from tvm import tirx

    panel, step, tiles, line = (int(number) for number in loop.annotations[_STEPS])
    load, others = _panel_load(loop)
    if load is None:
        return []
    (index,), (size,) = load.indices, load.source.shape
    if isinstance(index, tirx.Ramp):
        index = index.base
    begin = _at_zero(index, [loop.loop_var, *(v for v, _ in around), *others] if panel else others)
    turn = sum((v * turns for v, turns in around), loop.loop_var)
    return [
        tirx.Evaluate(prefetch(tirx.BufferLoad(load.source, [place])))
        for ahead in places_ahead(turn, 0 if tile is None else tile, panel, step, tiles, line)
        # Behind the last panel there is none.
        for place in [tirx.min(begin + ahead, size - 1)]
    ]


def places_ahead(turn: Any, tile: Any, panel: int, step: int, tiles: int, line: int) -> list[Any]:
    """The places, from a panel's begin, that a turn prefetches: all together, each `line` of the next panel.

    Of rows that lie apart (`panel` is 0), from the begin of the turn's row, which goes on with the next panel.
    """
    if not panel:
        lines = -(-step // line)
        return [step + (tile % lines if tiles >= lines else i) * line for i in range(1 if tiles >= lines else lines)]
    place = panel + tile * (panel // tiles) + turn * step // tiles
    return [place + line * i for i in range(-(-step // (tiles * line)))]


def _panel_load(loop: Any) -> tuple[Any, list[Any]]:
    """The load of a vector of the weight in a loop over steps, None without one; and the variables of loops in it."""
    from tvm import ir, tirx

    loops = find(loop.body, tirx.For)
    variables = [inner.loop_var for inner in loops]
    for inner in loops:
        if inner.kind == tirx.ForKind.VECTORIZED and isinstance(inner.body, tirx.BufferStore):
            store = inner.body
            for load in find(store.value, ir.TensorLoad):
                if not load.source.same_as(store.buffer) and has_names(load.indices[0], [inner.loop_var]):
                    return load, variables
    # An instruction takes a vector of the weight, and a word of the data.
    for store in find(loop.body, tirx.BufferStore):
        loads = [load for load in find(store.value, ir.TensorLoad) if not load.source.same_as(store.buffer)]
        vectors = [load for load in loads if isinstance(load.indices[0], tirx.Ramp)]
        if vectors:
            return max(vectors, key=lambda load: int(load.indices[0].lanes)), variables
    return None, []


def _at_zero(index: Any, variables: list[Any]) -> Any:
    """An index where all these variables are zero."""
    from tvm import tirx
    from tvm_ffi import structural_map

    def zero(v: Any) -> Any:
        return tirx.const(0, str(v.ty.dtype)) if any(v.same_as(other) for other in variables) else v

    return structural_map(index, [(tirx.Var, zero)])
