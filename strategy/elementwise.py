"""`elementwise.cpu`: operators whose output elements depend on one element of each input, with a tunable schedule.

The innermost axes of all tensors are one loop where they lie together in memory. That loop runs by several vectors a
step; tasks are parts of the outer loops, or of that loop where there are few outer turns. A result that the last-level
cache cannot hold beside what it is of may be written past the caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.streaming import can_stream, stream_stores
from strategy.schedule import STAGE, Outs, dtype_bytes, integer, lanes_of, new_schedule
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.tir import has_names
from strategy.types import TensorType

# Number of elements from which threads pay.
PARALLEL_FROM = 1 << 14


def space(attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Vector width, vectors of a step, the number of parallel tasks, and the kind of stores of a large result."""
    narrowest = min((t.dtype for t in (*inputs, out_type)), key=dtype_bytes)
    full = lanes_of(target, narrowest)
    is_large = 2 * out_type.size * dtype_bytes(out_type.dtype) > target.l3_bytes
    streams = is_large and can_stream(out_type.dtype, target)
    return _space(full, lanes_of(target, out_type.dtype), target.threads, out_type.size, streams)


@lru_cache(maxsize=1024)
def _space(most: int, full: int, threads: int, size: int, streams: bool) -> ConfigSpace:
    lanes = sorted({n for n in (full // 4, full // 2, full, most) if 1 <= n <= max(size, 1)} or {1})
    counts = sorted({1, *(t for t in (2, 4, 8, 16, 32, 64) if t < threads), threads, 4 * threads})

    def fallback() -> dict[str, Any]:
        return {
            "lanes": max(n for n in lanes if n <= full or n == lanes[0]), "vectors": 1,
            "tasks": threads if size >= PARALLEL_FROM else 1, **({"stores": "streamed"} if streams else {}),
        }

    stores = [Knob("stores", ("cached", "streamed"))] if streams else []
    return ConfigSpace(
        [Knob("lanes", lanes), Knob("vectors", (1, 2, 4, 8)), Knob("tasks", counts), *stores],
        [knob("lanes") * knob("vectors") <= max(size, lanes[-1])],
        derived={"width": knob("lanes") * knob("vectors")},
        fallback=fallback,
    )


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Inline all but the output; tasks in parallel, vectors inside."""
    sch = new_schedule(outs)
    (block,) = inline_injective(sch)
    loops = fuse_contiguous(sch, block, sch.get_loops(block))
    if not loops:
        return sch
    *outer, inner = loops
    tasks, lanes = integer(config, "tasks"), integer(config, "lanes")
    step = lanes * integer(config, "vectors")
    rows, columns = math.prod(int(sch.get(i).extent) for i in outer), int(sch.get(inner).extent)
    if rows >= tasks:
        task = sch.split(sch.fuse(*outer), [tasks, None])[0] if outer else None
    else:
        task, inner = sch.split(inner, [None, -(-columns * rows // (tasks * step)) * step])
        sch.reorder(*outer, task, inner)
        task = sch.fuse(*outer, task)
    steps, several, lane = sch.split(inner, [None, step // lanes, lanes])
    sch.unroll(several)
    sch.vectorize(lane)
    if tasks > 1:
        sch.parallel(task)
    written = str(sch.get(block).writes[0].source.dtype)  # an epilogue may have another
    if config.get("stores") == "streamed" and can_stream(written, target):
        # A loop with an annotation is not divided into parts, as `steps` may be below.
        stream_stores(sch, sch.add_unit_loop(steps) if task is None else task, written, lanes)
    whole = columns // step
    if rows >= tasks and 0 < whole < int(sch.get(steps).extent):
        sch.loop_partition(steps, [whole, None])
    return sch


def inline_injective(schedule: Any) -> list[Any]:
    """Inline all possible blocks that are no marked stage; return the rest, in order."""
    from tvm.s_tir.schedule import ScheduleError

    root = schedule.get_sblock("root")
    remain = []
    for block in schedule.get_child_blocks(root):
        if STAGE in schedule.get(block).annotations:
            remain.append(block)
            continue
        try:
            schedule.compute_inline(block)
        except ScheduleError:  # an output, a reduction, or a call of a library
            remain.append(block)
    return remain


def fuse_contiguous(schedule: Any, block: Any, loops: Sequence[Any]) -> list[Any]:
    """Fuse the two innermost loops if every access is contiguous along both, or along neither.

    Short innermost axes, such as those of a small image, then fill vectors. Returns the remaining loops. For three
    loops, TVM would not recognise the contiguity.
    """
    found = schedule.get(block)
    extents = [schedule.get(loop).extent for loop in loops[-2:]]
    variables = [v.var for v in found.iter_vars][-2:]
    if len(loops) < 2 or not _lie_together(found, variables, extents):
        return list(loops)
    return [*loops[:-2], schedule.fuse(*loops[-2:])]


def _lie_together(block: Any, inner: Sequence[Any], sizes: Sequence[Any]) -> bool:
    """Return whether every access is contiguous along the two inner axes, of these sizes, or along none of them."""
    from tvm import tirx

    if not all(isinstance(e, tirx.IntImm) and int(e) >= 1 for e in sizes):
        return False

    for access in [*block.reads, *block.writes]:
        places = list(access.region)
        if not any(has_names(p.min, inner) for p in places):
            continue
        shape = list(access.source.shape)[-2:]
        together = (
            len(places) >= 2
            and not any(has_names(p.min, inner) for p in places[:-2])
            and all(p.min.same_as(v) for p, v in zip(places[-2:], inner, strict=True))
            and all(isinstance(n, tirx.IntImm) and int(n) == int(e) for n, e in zip(shape, sizes, strict=True))
        )
        if not together:
            return False
    return True
