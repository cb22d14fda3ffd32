"""Products of matrices on tensor cores, in tiles of 16 × 16 that warps hold as fragments.

The computation is that of `strategy/cuda/matmul.py`, with operands in float16 or bfloat16.
"""

from __future__ import annotations

from typing import Any

from strategy.condition import Clause
from strategy.cuda.limit import STATIC_SHARED_BYTES, DeviceLimits
from strategy.cuda.matmul import Loops, block_sizes
from strategy.cuda.schedule import compares
from strategy.cuda.wmma import SHARED, TILE, register_wmma
from strategy.schedule import find_stages, integer
from strategy.space import Config, ConfigSpace, Knob, knob


def tensor_space(limits: DeviceLimits, m: int | None, n: int, k: int) -> ConfigSpace:
    """Block and warp shapes for `schedule_tensor_core`; m is None where it is symbolic."""
    block_m, block_n, block_k, warp_m, warp_n = (
        knob(name) for name in ("block_m", "block_n", "block_k", "warp_m", "warp_n")
    )
    warps = (block_m // warp_m) * (block_n // warp_n)
    # Beside the operands, a strip of each warp's sums, which is static.
    strip = (block_m // warp_m) * TILE * block_n * 4
    shared = (block_m + block_n) * (block_k + 16) * 2 * knob("stages") + strip
    constraints: list[Clause] = [
        block_m % warp_m == 0,
        block_n % warp_n == 0,
        warps >= 1,
        warps * limits.warp <= limits.threads,
        strip <= STATIC_SHARED_BYTES,
        shared <= limits.shared_bytes,
        # Sums of a warp, 32 bits each, over its lanes.
        warp_m * warp_n <= 128 * limits.warp,
        warps * (warp_m * warp_n + (warp_m + warp_n) * TILE + 40 * limits.warp) <= limits.registers,
    ]
    rows = 64 if m is None else m
    return ConfigSpace(
        [
            Knob("block_m", block_sizes(rows)),
            Knob("block_n", block_sizes(n)),
            Knob("block_k", [16, 32, 64]),
            Knob("warp_m", [16, 32, 64]),
            Knob("warp_n", [16, 32, 64]),
            Knob("vector", [1, 2, 4, 8]),
            Knob("stages", [1, 2]),
        ],
        constraints,
        derived={
            "warps": warps,
            "sums": warp_m * warp_n // limits.warp,
            "shared": shared,
            "reuse": block_m * block_n / (block_m + block_n),
        },
        fallback=lambda: _tensor_fallback(rows, n, k, limits),
    )


def _tensor_fallback(m: int, n: int, k: int, limits: DeviceLimits) -> dict[str, int]:
    for block in (128, 64, 32, 16):
        high, wide = min(block, block_sizes(m)[-1]), min(block, block_sizes(n)[-1])
        if -(-m // high) * -(-n // wide) >= limits.multiprocessors or block == 16:
            break
    vector = next(v for v in (8, 4, 2, 1) if k % v == 0)
    return {
        "block_m": high, "block_n": wide, "block_k": 32, "warp_m": max(16, high // 2),
        "warp_n": max(16, wide // 2), "vector": vector, "stages": 1,
    }


def schedule_tensor_core(
    sch: Any, loops: Loops, config: Config, *, a_along_k: bool = True, b_along_k: bool = True
) -> None:
    """Blocks of warps, each with tiles of 16 × 16 sums in its fragments; as `schedule_tiled`."""
    stages = find_stages(sch)
    names = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "vector", "stages")
    block_m, block_n, block_k, warp_m, warp_n, vector, depth = (integer(config, n) for n in names)
    rows, columns = block_m // warp_m, block_n // warp_n
    if not (a_along_k and b_along_k):
        # Places that are found by division are vectors of indices, of which CUDA has four at most.
        vector = min(vector, 4)
    wmma = register_wmma(str(sch.get(stages["a"]).writes[0].source.dtype))

    def spread(loop: Any, vector: int) -> None:
        """Run a loop on all threads of the block, each on vectors as wide as it can, of `vector` at most."""
        each = int(sch.get(loop).extent) // (rows * columns * 32)
        _, y, z, lane, lanes = sch.split(
            loop, [None, rows, columns, 32, _divisor(vector, max(1, each))]
        )
        sch.bind(y, "threadIdx.y")
        sch.bind(z, "threadIdx.z")
        sch.bind(lane, "threadIdx.x")
        sch.vectorize(lanes)

    product = stages["product"]
    left = sch.cache_read(product, 0, "wmma.matrix_a")
    right = sch.cache_read(product, 1, "wmma.matrix_b")
    staged = sch.cache_write(product, 0, "wmma.accumulator")

    batch, i, j = loops
    block_i, strip, i = sch.split(i, [None, warp_m // TILE, rows * TILE])
    block_j, j = sch.split(j, [None, block_n])
    sch.reorder(batch, block_i, block_j, strip, i, j)
    sch.bind(batch, "blockIdx.z")
    sch.bind(block_i, "blockIdx.y")
    sch.bind(block_j, "blockIdx.x")
    flat = sch.fuse(i, j)
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    spread(flat, min(vector, 4) if compares(sch, output) else vector)
    # A strip of sums at a time goes through shared memory, where threads find their elements.
    sch.set_scope(staged, 0, "shared")
    sch.compute_at(staged, strip, preserve_unit_loops=True)
    si, sj = sch.get_loops(staged)[-2:]
    wi, i16 = sch.split(si, [rows, TILE])
    wj, fj, j16 = sch.split(sj, [columns, None, TILE])
    sch.reorder(wi, wj, fj, i16, j16)
    sch.bind(wi, "threadIdx.y")
    sch.bind(wj, "threadIdx.z")
    sch.compute_at(product, block_j, preserve_unit_loops=True)
    *_, pi, pj, step = sch.get_loops(product)
    outer, middle, k16 = sch.split(step, [None, block_k // TILE, TILE])
    fi2, wi, pi16 = sch.split(pi, [None, rows, TILE])
    wj, fj2, pj16 = sch.split(pj, [columns, None, TILE])
    sch.reorder(wi, wj, outer, middle, fi2, fj2, pi16, pj16, k16)
    sch.bind(wi, "threadIdx.y")
    sch.bind(wj, "threadIdx.z")
    # A strip's rows lie apart from the next one's: one is loaded at a time, the columns all at once.
    for block, fragment, at, along_k, role in (
        (stages["a"], left, fi2, a_along_k, "a"), (stages["b"], right, middle, b_along_k, "b")
    ):
        sch.compute_at(fragment, at, preserve_unit_loops=True)
        r, s = sch.get_loops(fragment)[-2:]
        r_outer, r16 = sch.split(r, [None, TILE])
        s_outer, s16 = sch.split(s, [None, TILE])
        sch.reorder(r_outer, s_outer, r16, s16)
        sch.set_scope(block, 0, SHARED)
        sch.compute_at(block, outer, preserve_unit_loops=True)
        sch.storage_align(block, 0, 1, 32, 8)
        row, k = sch.get_loops(block)[-2:]
        if not along_k:
            sch.reorder(k, row)
        spread(sch.fuse(row, k) if along_k else sch.fuse(k, row), vector)
        sch.tensorize(r16, wmma[f"load_{role}"])
    start = sch.decompose_reduction(product, outer)
    sch.tensorize(sch.get_loops(start)[-2], wmma["fill"])
    sch.tensorize(pi16, wmma["multiply"])
    sch.tensorize(i16, wmma["store"])
    if depth > 1:
        sch.annotate(outer, "software_pipeline_stage", [0, 0, 1])
        sch.annotate(outer, "software_pipeline_order", [0, 1, 2])


def _divisor(wanted: int, extent: int) -> int:
    """The largest power of two up to `wanted` that divides `extent`."""
    while wanted > 1 and extent % wanted:
        wanted //= 2
    return wanted
