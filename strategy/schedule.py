"""Shared parts of CPU schedules: finding stages, epilogues, and packing.

A compute marks the stages for its schedule with annotations by `stage(...)`, as TVM changes names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strategy.space import Config
from strategy.target import Target

STAGE = "plevel.stage"
VIEW = "plevel.view"  # marks what only reads another tensor in another order, and is inlined


class ScheduleError(ValueError):
    """A schedule does not support the function, such as an epilogue that is not elementwise."""


@dataclass(frozen=True)
class Outs:
    """The outputs of a function, and its parameters in order (outputs last).

    Of a convolution by phases, the groups' results are every `phases`-th row and column of the output.
    """

    tensors: tuple[Any, ...]
    args: tuple[Any, ...]
    phases: tuple[int, int] = (1, 1)


def stage(name: str) -> dict[str, str]:
    """The attributes that mark a `te.compute` as a stage."""
    return {STAGE: name}


def compute_stage(name: str, shape: Any, element: Callable[..., Any]) -> Any:
    """A `te.compute` that is a stage of its name."""
    from tvm import te

    return te.compute(shape, element, name=name, attrs=stage(name))


# An annotation by `tvm.topi` for TVM's tuners. Once an inlined block was named, its digest is another at each lowering.
_LAYOUT_FREE = "layout_free_placeholders"


def new_schedule(outs: Outs) -> Any:
    """A schedule of the function, with the 64-bit indices that fusion needs."""
    from tvm import s_tir, te

    sch = s_tir.Schedule(te.create_prim_func(list(outs.args), index_dtype_override="int64"))
    root = sch.get_sblock(sch.mod["main"].body.block.name_hint)  # the only block, as of an extern, is named by itself
    for block in sch.get_child_blocks(root):
        if _LAYOUT_FREE in sch.get(block).annotations:
            sch.unannotate(block, _LAYOUT_FREE)
    return sch


def find_stages(schedule: Any) -> dict[str, Any]:
    """The marked stages of a function by name, in the order of computation."""
    root = schedule.get_sblock("root")
    marks = ((b, schedule.get(b).annotations.get(STAGE)) for b in schedule.get_child_blocks(root))
    return {str(mark): block for block, mark in marks if mark is not None}


def join_epilogue(schedule: Any) -> Any:
    """Inline the blocks between the stages and the output; return the block that writes it.

    Raises:
        ScheduleError: a block is not elementwise, or there are several outputs.
    """
    from tvm.s_tir.schedule import ScheduleError as TvmScheduleError

    root = schedule.get_sblock("root")
    outputs = schedule.get_output_blocks(root)
    if len(outputs) != 1:
        raise ScheduleError(f"an epilogue has one output here, this function has {len(outputs)}")
    output = outputs[0]
    name = schedule.get(output).name_hint
    for block in schedule.get_child_blocks(root):
        found = schedule.get(block)
        if found.name_hint == name or STAGE in found.annotations:
            continue
        try:
            schedule.compute_inline(block)
        except TvmScheduleError as error:
            raise ScheduleError(f"{found.name_hint} is not elementwise: {error}") from error
    return output


def start_schedule(outs: Outs) -> tuple[Any, dict[str, Any], Any]:
    """A schedule of the function, its stages, and the block of its output with the epilogue."""
    sch = new_schedule(outs)
    return sch, find_stages(sch), join_epilogue(sch)


def vectorize(schedule: Any, loop: Any, lanes: int) -> Any:
    """Vectorise a loop by `lanes` and unroll vectors; return the loop over vectors."""
    outer, inner = schedule.split(loop, [None, lanes])
    schedule.vectorize(inner)
    schedule.unroll(outer)
    return outer


def unroll_tile(schedule: Any, block: Any, depth: int = 3) -> None:
    """Unroll the innermost `depth` loops of a block, but for the last, over lanes, which is vectorised."""
    *unrolled, lane = schedule.get_loops(block)[-depth:]
    schedule.vectorize(lane)
    for loop in unrolled:
        schedule.unroll(loop)


def sum_in_tile(schedule: Any, block: Any, tile: list[Any], steps: Any, unroll: int) -> Any:
    """Sum a tile's elements over `steps`, some of them unrolled; the last of the loops `tile` is over lanes.

    The reduction is decomposed. Returns the loop over what is left of the steps.
    """
    *unrolled, lane = tile
    outer, inner = schedule.split(steps, [None, unroll])
    schedule.reorder(outer, inner, *tile)
    schedule.vectorize(lane)
    for loop in (inner, *unrolled):
        schedule.unroll(loop)
    unroll_tile(schedule, schedule.decompose_reduction(block, outer), len(tile))
    return outer


def store_tile(schedule: Any, block: Any, lanes: int) -> None:
    """Unroll the rows and columns of a tile, columns in vectors of `lanes`."""
    *_, rows, columns = schedule.get_loops(block)
    vectorize(schedule, columns, lanes)
    schedule.unroll(rows)


def pack_by_vectors(schedule: Any, block: Any, lanes: int, *, parallel: bool = True) -> None:
    """Schedule a packing […, k, lane] of rows, in tiles of 16 steps of k, by vectors, and its panels in parallel.

    The tile fits in the first-level cache even if its rows are a page apart.
    """
    *panels, k, lane = schedule.get_loops(block)
    k_outer, k_inner = schedule.split(k, [None, 16])
    lane_outer, lane_inner = schedule.split(lane, [None, lanes])
    schedule.reorder(k_outer, lane_outer, k_inner, lane_inner)
    schedule.vectorize(lane_inner)
    if parallel:
        schedule.parallel(schedule.fuse(*panels))


def zero_beyond(number: Any, place: Any, extent: int, multiple: int) -> Any:
    """A number of a TE tensor whose places go on to a `multiple`: zero where `place` is `extent` or more."""
    from tvm import tirx

    if extent % multiple == 0:
        return number
    return tirx.if_then_else(place < extent, number, tirx.const(0, tirx.convert(number).ty.dtype))


def integer(config: Config, name: str) -> int:
    """The value of an integer knob."""
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScheduleError(f"knob {name} must be an integer, got {value!r:.40}")
    return value


def lanes_of(target: Target, dtype: str) -> int:
    """The number of values of `dtype` in one vector register of the target."""
    return target.vector_bytes // dtype_bytes(dtype)


def accumulator(dtype: str) -> str:
    """The dtype in which floating-point numbers of this dtype, and products, are summed."""
    return "float64" if dtype == "float64" else "float32"


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number in memory; a bool has one."""
    return 1 if dtype == "bool" else int("".join(filter(str.isdigit, dtype))) // 8
