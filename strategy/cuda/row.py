"""Rows on a GPU: functions with reductions along an axis whose results are used along it (softmax, norms).

A row is read once and kept by several threads, which make all reductions together. If their number divides it,
each keeps its elements in registers, and the threads of a warp share sums without a barrier. Other rows are kept
in shared memory if they fit.
"""

from __future__ import annotations

from typing import Any

from strategy.condition import Clause
from strategy.cuda.limit import STATIC_SHARED_BYTES, DeviceLimits
from strategy.cuda.schedule import reduction_loops
from strategy.elementwise import inline_injective
from strategy.schedule import Outs, ScheduleError, dtype_bytes, integer, new_schedule
from strategy.space import Config, ConfigSpace, Knob, knob

_SHARED = "shared"


# Beside a row that is kept in shared memory, the results of its reductions find room.
_KEPT_BYTES = STATIC_SHARED_BYTES - 4096
_KEPT_ELEMENTS = 64  # by a thread, in registers
_SIZES = (32, 64, 128, 256, 512, 1024)


def row_space(
    limits: DeviceLimits, rows: int | None, length: int | None, dtype: str, loaded: str
) -> ConfigSpace:
    """Threads of a row, vector width, unrolling, and the memory that keeps a row.

    `keep` is shared memory; `registers` those of the threads, with `rows` rows in a block.

    Args:
        rows: how many there are, and `length` of each; None where it is symbolic.
        dtype: in which a row is computed, and kept in shared memory where it fits.
        loaded: in which it is read, and kept in registers.
    """
    fits = length is not None and length * dtype_bytes(dtype) <= _KEPT_BYTES
    held = [] if length is None else [
        (threads, vector)
        for threads in _SIZES
        for vector in (8, 4, 2, 1)
        if length % (threads * vector) == 0
        and vector * dtype_bytes(loaded) <= 16
        and length <= threads * _KEPT_ELEMENTS
    ]
    most = 2 * (length or 1 << 20)
    sizes = [t for t in _SIZES if t == 32 or t < most]
    threads, vector, unroll, side, keep, registers = (
        knob(name) for name in ("threads", "vector", "unroll", "rows", "keep", "registers")
    )
    constraints: list[Clause] = [
        threads * side <= limits.threads,
        # Rows of one block have a warp each: it needs no barrier that others must reach, too.
        (side == 1) | (threads == limits.warp),
        (side == 1) | (registers == 1),
        (registers == 0) | (unroll + keep == 0),
    ]
    if length is not None:
        constraints += [
            (registers == 0) | (length % (threads * vector) == 0),
            (registers == 0) | (threads * _KEPT_ELEMENTS >= length),
        ]
    return ConfigSpace(
        [
            Knob("threads", sizes),
            Knob("vector", [1, 2, 4, 8] if dtype_bytes(loaded) == 2 else [1, 2, 4]),
            Knob("unroll", [0, 16, 64, 256]),
            Knob("keep", [False, True] if fits else [False]),
            Knob("registers", [False, True] if held else [False]),
            Knob("rows", [r for r in (1, 2, 4, 8) if rows is not None and rows % r == 0] or [1]),
        ],
        constraints,
        fallback=lambda: _fallback(rows, length, held, limits)
        or {
            "threads": min(sizes[-1], 256), "vector": 1, "unroll": 0, "keep": fits,
            "registers": False, "rows": 1,
        },
    )


def _fallback(
    rows: int | None, length: int | None, held: list[tuple[int, int]], limits: DeviceLimits
) -> dict[str, Any]:
    """The fewest threads with at most 32 elements each (8 if rows are few), by the widest accesses."""
    if not held:
        return {}
    most = 32 if rows is None or rows >= 4 * limits.multiprocessors else 8
    few = [pair for pair in held if (length or 0) <= most * pair[0]] or held
    threads, vector = min(few, key=lambda pair: (pair[0], -pair[1]))
    side = 1
    if threads == limits.warp and rows is not None:
        side = next(r for r in (4, 2, 1) if rows % r == 0)
    return {
        "threads": threads, "vector": vector, "unroll": 0, "keep": False, "registers": True,
        "rows": side,
    }


def schedule_rows(outs: Outs, axis: int, config: Config) -> Any:
    """Make one kernel of reductions over an axis of the output and the elements computed from them.

    Raises:
        ScheduleError: a part of the function is no reduction over this axis.
    """
    sch = new_schedule(outs)
    *reductions, output = inline_injective(sch)
    if not reductions or reduction_loops(sch, output)[1]:
        raise ScheduleError(
            "this is no function of rows: reductions, and then an output of their axis"
        )
    if config["registers"]:
        return _keep_in_registers(sch, outs, axis, [*reductions, output], config)
    threads, vector, unroll = (integer(config, n) for n in ("threads", "vector", "unroll"))
    loops = sch.get_loops(output)
    others = [loop for i, loop in enumerate(loops) if i != axis] or [sch.add_unit_loop(loops[0])]
    sch.reorder(*others, loops[axis])
    row = sch.fuse(*others)
    sch.bind(row, "blockIdx.x")
    _spread(sch, loops[axis], threads, min(vector, 4))
    for block in reversed(reductions):
        sch.set_scope(block, 0, _SHARED)
        sch.compute_at(block, row, preserve_unit_loops=True)
        _spread(sch, sch.get_loops(block)[-1], threads, 1)
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
    """Read the first parameter once, into shared memory, for all blocks of a row."""
    copied = _copy(sch, outs, blocks, _SHARED)
    sch.compute_at(copied, row, preserve_unit_loops=True)
    _, *inner = sch.get_loops(copied)
    _spread(sch, sch.fuse(*inner), threads, min(vector, 4))


def _copy(sch: Any, outs: Outs, blocks: list[Any], scope: str) -> Any:
    """The block that copies the first parameter to where all others read it."""
    first = outs.args[0].name
    reads = [
        (block, index)
        for block in blocks
        for index, region in enumerate(sch.get(block).reads)
        if str(region.source.name) == first
    ]
    return sch.cache_read(*reads[0], scope, consumer_blocks=[block for block, _ in reads])


def _keep_in_registers(
    sch: Any, outs: Outs, axis: int, blocks: list[Any], config: Config
) -> Any:
    """A row by `threads` threads, with its elements and its reductions in registers."""
    from tvm import s_tir, tirx

    threads, vector, rows = (integer(config, n) for n in ("threads", "vector", "rows"))
    copied = _copy(sch, outs, blocks, "local")

    def cut(axis: int) -> Any:
        """Split the axis into three, innermost: turns, threads and lanes."""

        def places(*at: Any) -> Any:
            e = at[axis]
            rest = [a for i, a in enumerate(at) if i != axis % len(at)]
            return (*rest, e // (threads * vector), e // vector % threads, e % vector)

        return places

    def spread(block: Any) -> Any:
        """A block's three loops over a row on threads; returns that over lanes."""
        turn, thread, lanes = sch.get_loops(block)[-3:]
        sch.bind(thread, "threadIdx.x")
        sch.unroll(turn)
        return lanes

    *reductions, output = blocks
    sch.transform_layout(copied, ("write", 0), cut(axis))
    for block in (copied, *blocks):
        ndim = len(sch.get_loops(block))
        at = -1 if block in reductions else axis
        sch.transform_block_layout(
            block, tirx.IndexMap.from_func(cut(at), ndim=ndim, index_dtype="int64")
        )
    *others, turn, _, _ = sch.get_loops(output)
    row, beside = sch.split(sch.fuse(*(others or [sch.add_unit_loop(turn)])), [None, rows])
    sch.bind(row, "blockIdx.x")
    sch.bind(beside, "threadIdx.y")
    # Of eight lanes of two bytes: values that are computed are vectors of four at most.
    more, lanes = sch.split(spread(output), [None, min(vector, 4)])
    sch.unroll(more)
    sch.vectorize(lanes)
    for block in reversed(reductions):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, beside, preserve_unit_loops=True)
        turn, thread, lanes = sch.get_loops(block)[-3:]
        # TVM joins threads over loops of terms alone, and a loop of one is none of them.
        serial = sorted((turn, lanes), key=lambda loop: int(sch.get(loop).extent) > 1)
        sch.reorder(*serial, thread)
        for loop in serial:
            sch.unroll(loop)
        sch.bind(thread, "threadIdx.x")
    sch.compute_at(copied, beside, preserve_unit_loops=True)
    sch.vectorize(spread(copied))
    sch.annotate(beside, "pragma_unroll_explicit", 0)
    # So that TVM sees which place of the copy is the thread's own, and keeps that alone.
    return s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod))
