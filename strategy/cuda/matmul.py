"""Products of matrices on a GPU, in tiles of registers: what dense, batch_matmul and convolutions share.

A product is [batch, m, k] · [batch, n, k]ᵀ, of operands that are read through functions: so an
operand may be a matrix, a padded one, or the windows of an image. Tiles are whole: extents are padded
up to them, with zeros, and what lies beyond is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strategy.condition import Clause
from strategy.cuda.limit import DeviceLimits
from strategy.cuda.wmma import SHARED
from strategy.schedule import find_stages, integer, stage
from strategy.space import Config, ConfigSpace, Knob, knob

Read = Callable[[Any, Any, Any], Any]  # of (batch, row, step)
Loops = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Product:
    """The extents of a product; batch and m may be symbolic, as TE expressions."""

    batch: Any
    m: Any
    n: Any
    k: Any


def accumulator(dtype: str) -> str:
    """The dtype in which products are summed: float32 for narrower floats."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def compute_product(product: Product, a: Read, b: Read, dtype: str, config: Config) -> Any:
    """The product [batch, m, n], padded to whole tiles, in the dtype in which it is summed."""
    from tvm import te, tirx

    sum_dtype = accumulator(dtype)
    block_m, block_n, block_k = (
        integer(config, name) for name in ("block_m", "block_n", "block_k")
    )
    m, n, k = (
        (extent + block - 1) // block * block
        for extent, block in ((product.m, block_m), (product.n, block_n), (product.k, block_k))
    )

    def padded(operand: Read, extent: Any, rows: Any, name: str) -> Any:
        bounds = [(extent, rows), (product.k, k)]

        def read(batch: Any, row: Any, step: Any) -> Any:
            inside = [
                index < found
                for index, (found, whole) in zip((row, step), bounds, strict=True)
                if not (isinstance(found, int) and found == whole)
            ]
            value = operand(batch, row, step)
            if not inside:
                return value
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype))

        return te.compute((product.batch, rows, k), read, name=name, attrs=stage(name))

    left, right = padded(a, product.m, m, "a"), padded(b, product.n, n, "b")
    step = te.reduce_axis((0, k), name="step")
    return te.compute(
        (product.batch, m, n),
        lambda batch, i, j: te.sum(
            left[batch, i, step].astype(sum_dtype) * right[batch, j, step].astype(sum_dtype),
            axis=step,
        ),
        name="product",
        attrs=stage("product"),
    )


_SIZES = (16, 32, 64, 128, 256)


def tiled_space(limits: DeviceLimits, dtype: str, m: int | None, n: int, k: int) -> ConfigSpace:
    """Block, thread and load shapes for `schedule_tiled`; m is None where it is symbolic."""
    size = 8 if dtype in ("float64", "int64") else 4
    loaded = 2 if dtype in ("float16", "bfloat16") else size
    block_m, block_n, block_k, thread_m, thread_n = (
        knob(name) for name in ("block_m", "block_n", "block_k", "thread_m", "thread_n")
    )
    threads = (block_m // thread_m) * (block_n // thread_n)
    sums = thread_m * thread_n * (size // 4)
    constraints: list[Clause] = [
        block_m % thread_m == 0,
        block_n % thread_n == 0,
        thread_m % knob("interleave") == 0,
        thread_n % knob("interleave") == 0,
        threads >= limits.warp,
        threads <= limits.threads,
        threads % limits.warp == 0,
        (block_m + block_n) * block_k * loaded <= limits.shared_bytes,
        sums <= 128,
        # What a thread holds beside its sums: a row and a column of operands, and addresses.
        threads * (sums + thread_m + thread_n + 24) <= limits.registers,
        (block_m * block_k) % threads == 0,
        (block_n * block_k) % threads == 0,
    ]
    rows = 64 if m is None else m
    return ConfigSpace(
        [
            Knob("block_m", block_sizes(rows)),
            Knob("block_n", block_sizes(n)),
            Knob("block_k", [8, 16, 32]),
            Knob("thread_m", [1, 2, 4, 8]),
            Knob("thread_n", [1, 2, 4, 8]),
            Knob("interleave", [1, 2]),
            Knob("vector", [1, 2, 4]),
            Knob("unroll", [0, 64, 512]),
        ],
        constraints,
        derived={
            "threads": threads,
            "sums": sums,
            "shared": (block_m + block_n) * block_k * loaded,
            "reuse": block_m * block_n / (block_m + block_n),
        },
        fallback=lambda: _tiled_fallback(rows, n, limits),
    )


def block_sizes(extent: int) -> list[int]:
    """The sizes of a block that are not twice as large as need be."""
    return [s for s in _SIZES if s < 2 * extent] or [_SIZES[0]]


def _tiled_fallback(m: int, n: int, limits: DeviceLimits) -> dict[str, int]:
    """The largest tile that leaves a block for each multiprocessor, or else a small one."""
    for block in (128, 64, 32):
        high, wide = min(block, block_sizes(m)[-1]), min(block, block_sizes(n)[-1])
        if -(-m // high) * -(-n // wide) >= limits.multiprocessors:
            break
    thread_m, thread_n = max(1, high // 16), max(1, wide // 16)
    return {
        # Every thread loads at least one element of each operand.
        "block_m": high, "block_n": wide, "block_k": 8 if min(high, wide) > 16 else 16,
        "thread_m": thread_m, "thread_n": thread_n,
        "interleave": 2 if min(thread_m, thread_n) == 8 else 1, "vector": 1, "unroll": 64,
    }  # fmt: skip


def schedule_tiled(
    sch: Any, loops: Loops, config: Config, *, a_along_k: bool = True, b_along_k: bool = True
) -> None:
    """Blocks of threads, each thread with a tile of sums in its registers; operands in shared memory.

    Args:
        loops: over batch, rows and columns of the block that reads the product.
        a_along_k, b_along_k: whether the operand lies in memory along k: neighbouring threads load
            what are neighbours there.
    """
    stages = find_stages(sch)
    names = ("block_m", "block_n", "block_k", "thread_m", "thread_n", "interleave", "vector")
    block_m, block_n, block_k, thread_m, thread_n, interleave, vector = (
        integer(config, n) for n in names
    )
    threads = (block_m // thread_m) * (block_n // thread_n)
    batch, i, j = loops
    block_i, vi, ti, ii = sch.split(
        i, [None, interleave, block_m // thread_m, thread_m // interleave]
    )
    block_j, vj, tj, jj = sch.split(
        j, [None, interleave, block_n // thread_n, thread_n // interleave]
    )
    sch.reorder(batch, block_i, block_j, vi, vj, ti, tj, ii, jj)
    sch.bind(batch, "blockIdx.z")
    sch.bind(block_i, "blockIdx.y")
    sch.bind(block_j, "blockIdx.x")
    if interleave > 1:
        sch.bind(vi, "vthread.y")
        sch.bind(vj, "vthread.x")
    thread = sch.fuse(ti, tj)
    sch.bind(thread, "threadIdx.x")
    product = stages["product"]
    sch.set_scope(product, 0, "local")
    sch.compute_at(product, thread, preserve_unit_loops=True)
    *_, pi, pj, step = sch.get_loops(product)
    outer, inner = sch.split(step, [None, block_k])
    sch.reorder(outer, inner, pi, pj)
    for name, along_k in (("a", a_along_k), ("b", b_along_k)):
        _load(sch, stages[name], outer, threads, vector, along_k)
    sch.decompose_reduction(product, outer)
    unroll = integer(config, "unroll")
    if unroll:
        sch.annotate(thread, "pragma_auto_unroll_max_step", unroll)
        sch.annotate(thread, "pragma_unroll_explicit", 1)


def _load(sch: Any, block: Any, at: Any, threads: int, vector: int, along_k: bool) -> None:
    """Copies a tile of an operand into shared memory, k first there, by all threads of the block."""
    # First the scope: what is shared is computed for all threads, not for each.
    sch.set_scope(block, 0, SHARED)
    sch.compute_at(block, at, preserve_unit_loops=True)
    # [batch, row, step] → [batch, step, row]: threads read neighbouring rows of one step.
    sch.transform_layout(block, ("write", 0), lambda b, row, step: (b, step, row))
    sch.storage_align(block, 0, 1, 32, 4)
    row, step = sch.get_loops(block)[-2:]
    if not along_k:
        sch.reorder(step, row)
    flat = sch.fuse(row, step) if along_k else sch.fuse(step, row)
    extent = int(sch.get(flat).extent)
    vector = next(v for v in (vector, 2, 1) if v <= vector and extent % (threads * v) == 0)
    _, thread, lanes = sch.split(flat, [None, threads, vector])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)
