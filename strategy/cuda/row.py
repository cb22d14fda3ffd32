"""Rows on a GPU: functions that reduce along one axis and use the results along it (softmax, norms).

One block of threads takes a row, or a few short ones: every reduction is made by all of its threads,
its result stays in shared memory, and the row is written at once.
"""

from __future__ import annotations

from typing import Any

from strategy.cuda.limit import STATIC_SHARED_BYTES, DeviceLimits
from strategy.cuda.schedule import reduction_loops
from strategy.pattern import element_bytes, inline_injective
from strategy.schedule import Outs, ScheduleError, integer, new_schedule
from strategy.space import Config, ConfigSpace, Knob, knob

_SHARED = "shared"


# Beside a row that is kept in shared memory, the results of its reductions find room.
_KEPT_BYTES = STATIC_SHARED_BYTES - 4096


def row_space(limits: DeviceLimits, length: int | None, dtype: str) -> ConfigSpace:
    """Threads of a row, elements that each takes side by side, unrolling, and whether a row is kept.

    Args:
        length: of a row; None where it is symbolic.
        dtype: in which a row is computed, and kept in shared memory where it fits.
    """
    fits = length is not None and length * element_bytes(dtype) <= _KEPT_BYTES
    most = 2 * (length or 1 << 20)
    sizes = [t for t in (32, 64, 128, 256, 512, 1024) if t == 32 or t < most]
    fallback = {"threads": min(sizes[-1], 256), "vector": 1, "unroll": 0, "keep": fits}
    return ConfigSpace(
        [
            Knob("threads", sizes),
            Knob("vector", [1, 2, 4]),
            Knob("unroll", [0, 16, 64, 256]),
            Knob("keep", [False, True] if fits else [False]),
        ],
        [knob("threads") <= limits.threads],
        fallback=fallback,
    )


def schedule_rows(outs: Outs, axes: tuple[int, ...], config: Config) -> Any:
    """Makes one kernel of reductions over the `axes` of the output, and of what is computed from them.

    Raises:
        ScheduleError: a part of the function is no reduction over these axes.
    """
    sch = new_schedule(outs)
    *reductions, output = inline_injective(sch)
    if not reductions or reduction_loops(sch, output)[1]:
        raise ScheduleError(
            "this is no function of rows: reductions, and then an output of their axes"
        )
    threads, vector, unroll = (integer(config, n) for n in ("threads", "vector", "unroll"))
    loops = sch.get_loops(output)
    along = [loops[a] for a in axes]
    others = [loop for i, loop in enumerate(loops) if i not in axes] or [
        sch.add_unit_loop(loops[0])
    ]
    sch.reorder(*others, *along)
    row = sch.fuse(*others)
    sch.bind(row, "blockIdx.x")
    _spread(sch, sch.fuse(*along), threads, vector)
    for block in reversed(reductions):
        sch.set_scope(block, 0, _SHARED)
        sch.compute_at(block, row, preserve_unit_loops=True)
        terms = sch.get_loops(block)[-len(axes) :]
        _spread(sch, sch.fuse(*terms), threads, 1)
    if config["keep"]:
        _keep(sch, outs, [*reductions, output], row, threads, vector)
    if unroll:
        sch.annotate(row, "pragma_auto_unroll_max_step", unroll)
        sch.annotate(row, "pragma_unroll_explicit", 0)
    return sch


def _spread(sch: Any, loop: Any, threads: int, vector: int) -> None:
    _, thread, lanes = sch.split(loop, [None, threads, vector])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)


def _keep(sch: Any, outs: Outs, blocks: list[Any], row: Any, threads: int, vector: int) -> None:
    """Reads the first parameter once, into shared memory, for all blocks of a row."""
    first = outs.args[0].name
    reads = [
        (block, index)
        for block in blocks
        for index, region in enumerate(sch.get(block).reads)
        if str(region.source.name) == first
    ]
    block, index = reads[0]
    copied = sch.cache_read(block, index, _SHARED, consumer_blocks=[b for b, _ in reads])
    sch.compute_at(copied, row, preserve_unit_loops=True)
    _, *inner = sch.get_loops(copied)
    _spread(sch, sch.fuse(*inner), threads, vector)
