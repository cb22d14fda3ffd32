"""Schedules for GPUs by pattern: elementwise blocks over flat threads, reductions by several threads.

They support any function of TE computes, epilogues included; possible blocks are inlined, and each remaining block
becomes one kernel.
"""

from __future__ import annotations

import math
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.limit import DeviceLimits, limits_of
from strategy.elementwise import inline_injective
from strategy.generic_func import GenericFunc
from strategy.pattern import (
    PLAIN_VERSION,
    register_schedule,
    schedule_broadcast,
    schedule_injective,
    schedule_plain_cpu,
    schedule_reduce,
)
from strategy.schedule import Outs, ScheduleError, dtype_bytes, new_schedule
from strategy.target import Target
from strategy.tir import find, reads_along

_THREADS = 256
_VECTOR_BYTES = 16
# From this many terms for each of few sums, one block per sum leaves most of the device idle.
_LONG = 1 << 15


@schedule_injective.register(["cuda", "gpu"])
@schedule_broadcast.register(["cuda", "gpu"])
@schedule_reduce.register(["cuda", "gpu"])
def schedule_plain_cuda(attrs: Attrs, outs: Outs, target: Target) -> Any:
    """Inline elementwise blocks; bind every other block to the device's threads."""
    sch = new_schedule(outs)
    blocks = inline_injective(sch)
    for block in blocks:
        if not sch.get_loops(block):  # a tensor without dimensions
            sch.add_unit_loop(block)
    for block in blocks:
        bind_block(sch, block, limits_of(target))
    return sch


def register_plain_schedule(pattern: str, *names: str, version: int = PLAIN_VERSION) -> None:
    """Register `PATTERN.cpu` and `PATTERN.cuda`, the plain schedules of any compute, for operators."""
    schedule = GenericFunc(f"schedule_{pattern}")
    schedule.register("cpu", schedule_plain_cpu)
    schedule.register(["cuda", "gpu"], schedule_plain_cuda)
    for name in names:
        register_schedule(name, schedule, version=version)


def bind_block(sch: Any, block: Any, limits: DeviceLimits) -> None:
    """Make one block a kernel."""
    spatial, reduced = reduction_loops(sch, block)
    empty = next((loop for loop in spatial if _constant(sch, loop) == 0), None)
    if empty is not None:  # TVM divides by the extents of loops that it fuses
        sch.reorder(empty, *(loop for loop in [*spatial, *reduced] if not loop.same_as(empty)))
        bind_flat(sch, [empty])
    elif reduced and len(sch.get(block).writes) == 1:
        bind_reduction(sch, block, limits)
    elif reduced:
        # Of several values at once (an index and its element): threads could not join their parts.
        spatial = spatial or [sch.add_unit_loop(reduced[0])]
        sch.reorder(*spatial, *reduced)
        bind_flat(sch, spatial)
    else:
        bind_flat(sch, sch.get_loops(block), lanes=lanes_of_block(sch, block))


def bind_flat(sch: Any, loops: list[Any], threads: int = _THREADS, lanes: int = 1) -> Any:
    """Run loops over their elements, one vector of `lanes` by each thread; return the threads' loop."""
    if not loops:
        raise ScheduleError("the function has no loops: nothing can be bound to a device's threads")
    inner = _constant(sch, loops[-1])
    if len(loops) > 1 and (inner is None or inner % lanes):
        # Places that are found by division are vectors of indices, of which CUDA has four at most.
        lanes = min(lanes, 4)
    flat = sch.fuse(*loops)
    extent = _constant(sch, flat)
    if extent is None or extent % lanes:
        lanes = 1
    if extent is not None:
        threads = min(threads, max(32, _power_of_two(-(-extent // lanes))))
    block, thread, vector = sch.split(flat, [None, threads, lanes])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if lanes > 1:
        sch.vectorize(vector)
    return thread


def bind_reduction(sch: Any, block: Any, limits: DeviceLimits) -> None:
    """Schedule a reduction by neighbouring threads: along contiguous memory if reduced, else over outputs.

    Few and long sums take two kernels or three: parts by many blocks, then their sums.
    """
    spatial, reduced = reduction_loops(sch, block)
    along = reads_along(sch.get(block), reduced=True)
    terms, kept = _product(sch, reduced), _product(sch, spatial)
    if not (kept and terms and terms >= _LONG and kept * 32 <= limits.multiprocessors):
        _bind_sums(sch, block, spatial, reduced, along, limits)
        return
    parts = _power_of_two(min(4 * limits.multiprocessors // kept, terms // _THREADS))
    if terms % parts:
        # TVM joins no threads where a condition couples their terms to the part: all would add to one element at once.
        # So threads first sum terms of their own, to a power of two of them.
        own = _power_of_two(min(8 * _THREADS * limits.multiprocessors // kept, terms // 8))
        _, part = sch.split(sch.fuse(*reduced), [None, own])
        *outer, inner, part = sch.get_loops(sch.rfactor(part, 0))
        sch.reorder(*outer, part, inner)
        bind_flat(sch, [*outer, part])
        along, reduced = True, sch.get_loops(block)[-1:]
        if own <= _LONG:
            _bind_sums(sch, block, sch.get_loops(block)[:-1], reduced, along, limits)
            return
    part, _ = sch.split(sch.fuse(*reduced), [parts, None])
    first = sch.rfactor(part, 0)
    *outer, inner = sch.get_loops(first)
    _bind_sums(sch, first, outer, [inner], along, limits)
    *outer, inner = sch.get_loops(block)
    _bind_sums(sch, block, outer, [inner], True, limits)


def _bind_sums(
    sch: Any, block: Any, spatial: list[Any], reduced: list[Any], along: bool, limits: DeviceLimits
) -> None:
    terms, kept = _product(sch, reduced), _product(sch, spatial)
    if not spatial:
        spatial = [sch.add_unit_loop(reduced[0])]
    sch.reorder(*spatial, *reduced)
    outer, inner = sch.fuse(*spatial), sch.fuse(*reduced)
    busy = kept is None or kept >= 8 * limits.multiprocessors
    if along:
        x = max(32, min(_THREADS if busy else 1024, _power_of_two(terms or 32)))
        y = max(1, _THREADS // x) if busy else 1
        block_x, thread_y = sch.split(outer, [None, y])
        _, thread_x = sch.split(inner, [None, x])
        sch.bind(thread_x, "threadIdx.x")
    else:
        block_x, thread_x = sch.split(outer, [None, _THREADS if busy else 32])
        sch.bind(thread_x, "threadIdx.x")
        y = 1 if busy or not terms else min(32, _power_of_two(-(-terms // 4)))
        _, thread_y = sch.split(inner, [None, y])
    sch.bind(block_x, "blockIdx.x")
    if y > 1:
        sch.bind(thread_y, "threadIdx.y")


def reduction_loops(sch: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """The loops over a block's elements, and those over the terms of each."""
    from tvm import tirx

    loops = sch.get_loops(block)
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    if not kinds:
        return loops, []
    if len(loops) != len(kinds):
        raise ScheduleError(f"{sch.get(block).name_hint} is already scheduled")
    spatial = [loop for loop, k in zip(loops, kinds, strict=True) if k == tirx.IterVar.DataPar]
    return spatial, [
        loop for loop, k in zip(loops, kinds, strict=True) if k != tirx.IterVar.DataPar
    ]


def lanes_of_block(sch: Any, block: Any) -> int:
    """The number of elements of one access of a thread: 1 if a dtype has no such vectors."""
    found = sch.get(block)
    dtypes = {str(r.source.dtype) for r in (*found.reads, *found.writes)}
    if not dtypes <= {"float32", "int32", "float16", "float64"} or _chooses_load(found.body):
        return 1
    lanes = _VECTOR_BYTES // max(dtype_bytes(d) for d in dtypes) if len(dtypes) == 1 else 1
    return min(lanes, 4) if compares(sch, block) else lanes


def compares(sch: Any, block: Any) -> bool:
    """True if a block compares elements: CUDA's vectors of the results have at most four lanes."""
    from tvm import tirx

    kinds = (tirx.Select, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
    return bool(find(sch.get(block).body, *kinds))


def _chooses_load(body: Any) -> bool:
    """True if places decide which element is read, alone or with elements.

    TVM simplifies the index of each choice by its condition, and vectors read both: outside of the buffer, too.
    """
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def places(condition: Any) -> bool:
        bare = structural_map(condition, [(ir.TensorLoad, lambda load: tirx.const(0, str(load.ty.dtype)))])
        return bool(find(bare, tirx.Var))

    def loads(choice: Any) -> bool:
        return any(find(value, ir.TensorLoad) for value in (choice.true_value, choice.false_value))

    return any(loads(choice) and places(choice.condition) for choice in find(body, tirx.Select))


def _constant(sch: Any, loop: Any) -> int | None:
    from tvm import tirx

    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def _product(sch: Any, loops: list[Any]) -> int | None:
    extents = [_constant(sch, loop) for loop in loops]
    return None if None in extents else math.prod(e for e in extents if e is not None)


def _power_of_two(value: int) -> int:
    """Round up to a power of two."""
    return 1 << max(0, value - 1).bit_length()
