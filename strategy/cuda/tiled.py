"""Products of matrices in tiles of registers: each thread sums a small tile, over operands in shared memory.

The computation is that of `strategy/cuda/matmul.py`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from strategy.condition import Clause
from strategy.cuda.limit import DeviceLimits
from strategy.cuda.matmul import Loops, accumulator, block_sizes
from strategy.cuda.schedule import bind_flat, lanes_of_block
from strategy.cuda.wmma import SHARED
from strategy.schedule import dtype_bytes, find_stages, integer, join_epilogue
from strategy.space import Config, ConfigSpace, Knob, knob

_ACCESS_BYTES = 16
_SPLITS = (1, 2, 4, 8, 16)


def tiled_space(
    limits: DeviceLimits,
    dtype: str,
    m: int | None,
    n: int,
    k: int,
    *,
    batch: int = 1,
    along_k: bool = True,
    vector: int = 1,
    split: bool = True,
) -> ConfigSpace:
    """Block, thread and load shapes for `schedule_tiled`; m is None where it is symbolic.

    Args:
        batch: number of products; 1 where it is symbolic.
        along_k: whether both operands are contiguous along k.
        vector: maximum elements of an operand in one access, where they are contiguous.
        split: whether the product is one of `compute_product` that may be summed in parts.
    """
    size, loaded = dtype_bytes(accumulator(dtype)), dtype_bytes(dtype)
    block_m, block_n, block_k, thread_m, thread_n = (
        knob(name) for name in ("block_m", "block_n", "block_k", "thread_m", "thread_n")
    )
    threads = (block_m // thread_m) * (block_n // thread_n)
    words = max(1, size // 4)  # registers of one number
    sums = thread_m * thread_n * words
    copied = (block_m + block_n) * block_k
    # One copy in shared memory at two stages too, where the next one waits in registers.
    shared = (copied + block_k * (128 // loaded)) * loaded * (1 + knob("stages") // 3)
    waiting = copied * loaded // 4 // threads
    constraints: list[Clause] = [
        block_m % thread_m == 0,
        block_n % thread_n == 0,
        threads >= limits.warp,
        threads <= limits.threads,
        threads % limits.warp == 0,
        shared <= limits.shared_bytes,
        sums <= 128,
        # Beside its sums a thread holds a row and a column of operands, those that it has loaded for
        # the next step, and addresses.
        threads * (sums + (thread_m + thread_n) * words + waiting + 24) <= limits.registers,
        (block_m * block_k) % threads == 0,
        (block_n * block_k) % threads == 0,
        # All of a step is unrolled, twice.
        thread_m * thread_n * block_k <= 2048,
    ]
    if not along_k:
        # Threads beside each other load a whole step of a tile at once.
        constraints += [threads >= block_m, threads >= block_n]
    rows = 64 if m is None else m
    # With vectors of bytes, TVM's source has instructions that no processor can check.
    vectors = [1, 2, 4] if loaded > 1 else [1]
    splits = [s for s in _SPLITS if s == 1 or (split and k >= 128 * s)]
    return ConfigSpace(
        [
            Knob("block_m", block_sizes(rows)),
            Knob("block_n", block_sizes(n)),
            Knob("block_k", [8, 16, 32]),
            Knob("thread_m", [1, 2, 4, 8]),
            Knob("thread_n", [1, 2, 4, 8]),
            Knob("vector", vectors),
            Knob("stages", [1, 2, 3]),
            Knob("split_k", splits),
        ],
        constraints,
        derived={
            "threads": threads,
            "sums": sums,
            "shared": shared,
            "reuse": block_m * block_n / (block_m + block_n),
        },
        fallback=lambda: _tiled_fallback(
            rows, n, k, batch, splits, min(vector, vectors[-1]), limits
        ),
    )


# A thread's part of a tile, by its number of sums: as square as possible.
_THREADS = {8: (4, 2), 16: (4, 4), 32: (8, 4), 64: (8, 8)}


def _tiled_fallback(
    m: int, n: int, k: int, batch: int, splits: list[int], vector: int, limits: DeviceLimits
) -> dict[str, int]:
    """The tile and the parts of k of least estimated time, in products of a multiprocessor."""

    def cost(high: int, wide: int, parts: int) -> float:
        tiles = batch * -(-m // high) * -(-n // wide)
        if parts > 1 and tiles >= limits.multiprocessors:
            return math.inf
        turns = -(-tiles * parts // limits.multiprocessors)
        # A tile's operands must be loaded too, and parts are stored and added by a second kernel.
        added = (1 << 20) + batch * m * n * parts // 2 if parts > 1 else 0
        return turns * (high * wide + 32 * (high + wide)) * k / parts + added

    sizes = [[size for size in block_sizes(extent) if size <= 128] for extent in (m, n)]
    high, wide, parts = min(itertools.product(*sizes, splits), key=lambda tile: cost(*tile))
    area = high * wide
    thread_m, thread_n = _THREADS[max(8, area // (256 if area >= 8192 else 128))]
    if wide > high:
        thread_m, thread_n = thread_n, thread_m
    block_k = 16 if k > 8 else 8
    return {
        "block_m": high, "block_n": wide, "block_k": block_k, "thread_m": thread_m,
        "thread_n": thread_n, "vector": vector, "stages": 2 if k > block_k else 1, "split_k": parts,
    }


def loops_of_parts(sch: Any) -> Loops | None:
    """The loops over the sums of parts of k, whose totals become a kernel of their own.

    None where k has one part.
    """
    stages = find_stages(sch)
    if "parts" not in stages:
        return None
    output = join_epilogue(sch)
    bind_flat(sch, sch.get_loops(output), lanes=lanes_of_block(sch, output))
    batch, i, j = sch.get_loops(stages["parts"])
    return batch, i, j


# By stages, of a, its tile, b, its tile and the product: how many turns of the loop later than what is
# loaded each one is, and in which order they stand in a turn.
_PIPELINES = {
    2: ([0, 0, 0, 0, 1], [0, 3, 1, 4, 2]),
    3: ([0, 1, 0, 1, 2], [2, 0, 3, 1, 4]),
}


def schedule_tiled(
    sch: Any,
    loops: Loops,
    config: Config,
    *,
    a_along_k: bool = True,
    b_along_k: bool = True,
    b_lanes: int = 4,
) -> None:
    """Blocks of threads, each thread with a tile of sums in its registers; operands in shared memory.

    With `stages` 2 the operands of the next step are loaded into registers while those of this one
    are multiplied, with 3 they are also stored meanwhile, to a second place in shared memory.

    Args:
        loops: over batch, rows and columns of the block that reads the product.
        a_along_k, b_along_k: whether the operand is contiguous along k: neighbouring threads load
            neighbouring elements.
        b_lanes: how many elements of b, at most, a thread may load at once.
    """
    stages = find_stages(sch)
    names = ("block_m", "block_n", "block_k", "thread_m", "thread_n", "stages")
    block_m, block_n, block_k, thread_m, thread_n, depth = (integer(config, n) for n in names)
    product = stages["product"]
    tiles = [sch.cache_read(product, index, SHARED) for index in range(2)]
    chunk = _ACCESS_BYTES // dtype_bytes(str(sch.get(tiles[0]).writes[0].source.dtype))
    down, across = block_m // thread_m, block_n // thread_n
    batch, i, j = loops
    whole = _in_vectors(sch, j, block_n)
    # Lanes of a warp are 4 × 8 where there are so many, in an order in which neighbours, and those
    # two apart, read the same of one of the operands: half of the reads of shared memory are one.
    lanes_n = min(8, across)
    lanes_m = min(32 // lanes_n, down)
    lanes_n = min(32 // lanes_m, across)
    pair = min(2, lanes_n)
    chunk_m, chunk_n = min(chunk, thread_m), min(chunk, thread_n)
    block_i, vi, wi, li, ii = sch.split(
        i, [None, thread_m // chunk_m, down // lanes_m, lanes_m, chunk_m]
    )
    block_j, vj, wj, lj, lk, jj = sch.split(
        j, [None, thread_n // chunk_n, across // lanes_n, lanes_n // pair, pair, chunk_n]
    )
    sch.reorder(batch, block_i, block_j, vi, vj, wi, wj, lj, li, lk, ii, jj)
    sch.bind(batch, "blockIdx.z")
    sch.bind(block_i, "blockIdx.y")
    sch.bind(block_j, "blockIdx.x")
    sch.bind(vi, "vthread.y")
    sch.bind(vj, "vthread.x")
    thread = sch.fuse(wi, wj, lj, li, lk)
    sch.bind(thread, "threadIdx.x")
    if whole:
        sch.vectorize(jj)
    sch.set_scope(product, 0, "local")
    sch.compute_at(product, thread, preserve_unit_loops=True)
    *_, pi, pj, step = sch.get_loops(product)
    outer, inner = sch.split(step, [None, block_k])
    sch.reorder(outer, inner, pi, pj)
    threads, vector = down * across, integer(config, "vector")
    for tile, operand, along_k, most in (
        (tiles[0], stages["a"], a_along_k, vector),
        (tiles[1], stages["b"], b_along_k, min(vector, b_lanes)),
    ):
        sch.compute_at(tile, outer, preserve_unit_loops=True)
        # Rows last: threads read neighbouring rows of one step.
        sch.transform_layout(tile, ("write", 0), lambda b, row, *step: (b, *step, row))
        sch.storage_align(tile, 0, len(sch.get(tile).writes[0].region) - 2, 32, chunk)
        lanes = _spread(sch, tile, threads, most, along_k)
        if depth == 1:
            sch.compute_inline(operand)
        else:
            sch.set_scope(operand, 0, "local")
            sch.compute_at(operand, outer, preserve_unit_loops=True)
            lanes = _spread(sch, operand, threads, most, along_k)
        sch.vectorize(lanes)
    sch.decompose_reduction(product, outer)
    if depth > 1:
        late, order = _PIPELINES[depth]
        sch.annotate(outer, "software_pipeline_stage", late)
        sch.annotate(outer, "software_pipeline_order", order)
    for loop in (inner, pi, pj, ii):
        sch.unroll(loop)
    sch.annotate(thread, "pragma_unroll_explicit", 0)


def _in_vectors(sch: Any, j: Any, block_n: int) -> bool:
    """True if whole tiles are stored contiguously by a vector width that CUDA has."""
    from tvm import tirx

    (block,) = sch.get_child_blocks(j)
    extent, last = sch.get(j).extent, sch.get(block).writes[0].region[-1].min
    return (
        isinstance(extent, tirx.IntImm)
        and int(extent) % block_n == 0
        and isinstance(last, tirx.Var)
        and lanes_of_block(sch, block) > 1
    )


def _spread(sch: Any, block: Any, threads: int, vector: int, along_k: bool) -> Any:
    """Run the loops over a tile, [row, step], on all threads; return the loop over a thread's lanes.

    A thread's rows (steps, if the operand is contiguous along rows) are consecutive, so that what it
    loads is an array without gaps.
    """
    row, *_, step = sch.get_loops(block)[1 - len(sch.get(block).iter_vars) :]
    slow, fast = (row, step) if along_k else (step, row)
    wide, high = (int(sch.get(loop).extent) for loop in (fast, slow))
    vector = min(vector, wide, max(1, wide * high // threads))
    beside = min(threads, wide // vector)
    y, each = sch.split(slow, [threads // beside, None])
    more, x, lanes = sch.split(fast, [None, beside, vector])
    sch.reorder(y, x, each, more, lanes)
    sch.bind(sch.fuse(y, x), "threadIdx.x")
    for loop in (each, more, lanes):
        sch.unroll(loop)
    return lanes
