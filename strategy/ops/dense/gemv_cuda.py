"""`dense_gemv.cuda`: few rows of data, for which the weight is read once; threads side by side along k.

Each thread multiplies a vector of some columns of the weight with all rows of its block, and what it has
summed is joined with the other threads of those columns at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.tile import Extents
from strategy.cuda.limit import DeviceLimits, limits_of
from strategy.cuda.matmul import Product, compute_product
from strategy.schedule import Outs, dtype_bytes, integer, start_schedule
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

ROWS = 16
_ROWS_OF_SYMBOLIC = 4
_SIZES = (32, 64, 128, 256, 512)


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """Threads along k, columns of a block and of a thread, rows of a block, and how much a thread reads."""
    limits, extents = limits_of(target), Extents.of(inputs)
    n, k, size = extents.n, extents.k, dtype_bytes(inputs[0].dtype)
    m = int(extents.m) if extents.m.is_constant else _ROWS_OF_SYMBOLIC
    threads, columns, each, rows = (knob(name) for name in ("threads", "columns", "each", "rows"))
    vectors = [v for v in (1, 2, 4, 8) if v * size <= 16]
    return ConfigSpace(
        [
            Knob("threads", [t for t in _SIZES if t == 32 or t < 2 * k]),
            Knob("columns", [1, 2, 4, 8, 16]),
            Knob("each", [1, 2, 4, 8]),
            Knob("rows", [r for r in (1, 2, 4, 8, 16) if r < 2 * m]),
            Knob("vector", vectors),
        ],
        [
            threads * columns <= limits.threads,
            rows * each <= 64,
            # Beside its sums a thread holds what it has read, and addresses.
            threads * columns * (rows * each + (each + 1) * knob("vector") + 24)
            <= limits.registers,
        ],
        derived={"block": threads * columns, "sums": rows * each},
        fallback=functools.partial(_fallback, m, n, k, vectors, limits),
    )


def _fallback(m: int, n: int, k: int, vectors: list[int], limits: DeviceLimits) -> dict[str, int]:
    """Columns for a thread as the rows make worth it, and as many threads as keep the device busy."""
    rows = next(r for r in (1, 2, 4, 8, 16) if r >= min(m, ROWS))
    each = 1 if rows == 1 else 2 if rows == 2 else 4
    vector = max(v for v in vectors if k % v == 0)
    threads = 32
    while (
        threads < 256
        and 2 * threads * vector <= k
        and n // each * threads < 256 * limits.multiprocessors
    ):
        threads *= 2
    return {
        "threads": threads, "columns": max(1, 128 // threads), "each": each, "rows": rows,
        "vector": vector,
    }


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product, padded to whole turns of all threads."""
    threads, columns, each, vector = (
        integer(config, name) for name in ("threads", "columns", "each", "vector")
    )
    blocks = {"block_m": config["rows"], "block_n": columns * each, "block_k": threads * vector}
    return compute_padded(inputs, out_type, Config(blocks))


def compute_padded(inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product, padded to whole blocks, and the part of it that is wanted."""
    from tvm import te

    data, weight = inputs
    (m, k), n = data.shape, int(weight.shape[0])
    m = int(m) if out_type.shape[0].is_constant else m
    product = compute_product(
        Product(1, m, n, int(k)),
        lambda batch, i, step: data[i, step],
        lambda batch, j, step: weight[j, step],
        str(data.dtype),
        config,
    )
    return [te.compute((m, n), lambda i, j: product[0, i, j].astype(out_type.dtype), name="dense")]


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """A block has some columns of some rows, and `threads` threads for each few of them."""
    sch, stages, output = start_schedule(outs)
    product = stages["product"]
    threads, columns, each, rows, vector = (
        integer(config, name) for name in ("threads", "columns", "each", "rows", "vector")
    )
    # A thread first sums its own part, for all rows and columns at once; then threads are joined.
    _, x, _ = sch.split(sch.get_loops(product)[-1], [None, threads, vector])
    sums = sch.rfactor(x, 0)
    i, j = sch.get_loops(output)
    block_i, i = sch.split(i, [None, rows])
    block_j, j = sch.split(j, [None, columns * each])
    sch.reorder(block_i, block_j, i, j)
    outputs = i, j
    sch.bind(block_i, "blockIdx.y")
    sch.bind(block_j, "blockIdx.x")
    sch.set_scope(product, 0, "shared")
    sch.compute_at(product, block_j, preserve_unit_loops=True)
    x, _, i, j = sch.get_loops(product)[-4:]
    y, column = sch.split(j, [columns, each])
    sch.reorder(y, i, column, x)
    unrolled = [i, column]
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, block_j, preserve_unit_loops=True)
    x, _, i, j, turn, lane = sch.get_loops(sums)[-6:]
    y, column = sch.split(j, [columns, each])
    sch.reorder(y, x, turn, i, column, lane)
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    _, y, x = sch.split(sch.fuse(*outputs), [None, columns, threads])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    for operand, at in ((stages["b"], turn), (stages["a"], i)):
        sch.set_scope(operand, 0, "local")
        sch.compute_at(operand, at, preserve_unit_loops=True)
        row, lanes = sch.get_loops(operand)[-2:]
        sch.unroll(row)
        sch.vectorize(lanes)
    sch.decompose_reduction(sums, turn)
    for loop in (*unrolled, i, column, lane):
        sch.unroll(loop)
    sch.annotate(block_j, "pragma_unroll_explicit", 0)
    return sch
