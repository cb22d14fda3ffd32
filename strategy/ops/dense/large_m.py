"""`dense_large_m.cpu`: many rows, blocked for every level of the cache, after GotoBLAS.

A block of the data, `m_block` tiles × `depth` steps, stays in the second-level cache, packed by each task or where it
lies, while panels of the weight stream through the first. Sums over blocks of k are kept per task and stored once, with
the epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import Expr
from strategy.cpu.ahead import prefetch_panels
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    Extents,
    accumulators,
    clamped_row,
    largest_divisor,
    one_order,
    panels,
    register_constraint,
    round_up,
    rows_in_place,
    schedule_tile,
    tile_registers,
    tile_share,
    up_to,
    usual_unroll,
    whole_blocks,
    width_knob,
)
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    pack_by_vectors,
    stage,
    start_schedule,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 32, 48, 64, 96, 128)
_ROWS = Knob("rows", ROWS, "layout")
_BY = Knob("by", ["rows", "steps", "place"], "layout")
_INNER = Knob("inner", ["rows", "panels"])
_AHEAD = Knob("ahead", [False, True])
_UNROLL = Knob("unroll", [1, 2, 4])
_BROUGHT_CYCLES = 8  # of a vector of the weight, from memory or the last level
_COPY_CYCLES = 4  # of a vector of the data that is packed
_NEAR = (128, 192, 256, 384, 512)  # steps of panels that take a first level, or a part of one
_TURN = 4  # steps of a fallback's loop
_USUAL_VECTORS = 4  # of a step: those of a fallback's panel, and its rows


def pays(inputs: Sequence[TensorType], target: Target) -> bool:
    """Return whether a panel over all of k leaves no half of the second level, or its copy of the data is a wider one.

    If neither is so, `dense_pack` takes as long.
    """
    k, dtype = inputs[0].shape[1], inputs[0].dtype
    if dtype != accumulator(dtype) or not k.is_constant:
        return True
    return int(k) * _USUAL_VECTORS * target.vector_bytes > target.l2_bytes // 2


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> ConfigSpace:
    """The space: tile, blocks in m, n and k, packing of the data, the innermost loop of a block, and prefetching.

    The data is packed `by` rows or by steps of k, or read in its place; `inner` names the loop next to the tile: rows
    (a panel stays in the first-level cache) or panels (the data of a tile does). With `ahead` the next panel of a block
    is prefetched meanwhile.
    """
    extents = Extents.of(inputs)
    dtype = accumulator(inputs[0].dtype)
    lanes = lanes_of(target, dtype)
    size = dtype_bytes(dtype)
    most_tiles, wide = -(-extents.rows // 2), width_knob(lanes, extents.n)

    packs = inputs[0].dtype != dtype  # numbers are made wider once, not by each panel

    def blocks(rows: int, vectors: int) -> tuple[float, int, int, int]:
        """The share of the multiply-adds that a tile reaches in its largest blocks; and depth, m_block and n_block."""
        width = vectors * lanes
        tiles, count = -(-extents.rows // rows), -(-extents.n // width)
        # A panel's part stays in the first level, about.
        depth = min(_depths(extents.k), key=lambda d: abs(math.log(d * width * size / target.l1d_bytes)))
        in_cache = target.l2_bytes // 2 // (rows * depth * size)
        m_block = largest_divisor(_BLOCKS, tiles, min(in_cache, most_tiles))
        # Enough tasks for all threads, then as many panels as possible per packed block, or whose sums stay with it.
        each = count // target.threads
        if packs:
            n_block = largest_divisor(_BLOCKS, count, each)
        else:
            sums = target.l2_bytes // 4 // (m_block * rows * width * size)
            n_block = largest_divisor(_BLOCKS, count if count % target.threads else each, min(each, sums))
        # The first panel of a block is not prefetched; the others take half of the time, for what the memory gives.
        waits = _BROUGHT_CYCLES * vectors / m_block * (1 + 1 / n_block) / 2
        if packs:
            waits += _COPY_CYCLES * rows / lanes / n_block
        whole = extents.n / int(round_up(extents.n, width))
        share = whole * tile_share(extents.rows, rows, vectors, target.multiply_adds, waits)
        return share, depth, m_block, n_block

    def fallback() -> dict[str, Any]:
        offered = [v for v in VECTORS if wide.has(v * lanes)]
        high = ROWS[-1] if packs else rows_in_place(extents.k * size, target)
        fitting = [(r, v) for r in ROWS for v in offered if r <= high and r * v + v < tile_registers(target)]
        (_, depth, m_block, n_block), rows, vectors = max((blocks(r, v), r, v) for r, v in fitting)
        return {
            "rows": rows,
            "width": vectors * lanes,
            "depth": depth,
            "m_block": m_block,
            "n_block": n_block,
            "by": "rows" if packs or extents.k % depth else "place",
            "inner": "rows",
            "ahead": m_block > 1,
            "lanes": lanes,
            "unroll": usual_unroll(depth),
        }

    constraints = [
        register_constraint(target.vector_registers, "lanes"),
        whole_blocks(extents.n, "width", "n_block"),
    ]
    if extents.m.is_constant:
        constraints.append(whole_blocks(int(extents.m), "rows", "m_block"))
    return ConfigSpace(
        [
            wide,
            _depth_knob(extents.k),
            _ROWS,
            _BY,
            up_to("m_block", _BLOCKS, most_tiles),
            up_to("n_block", _BLOCKS, -(-extents.n // lanes)),
            _INNER,
            _AHEAD,
            # Half vectors for CPUs that lower their frequency for full ones.
            up_to("lanes", (lanes // 2, lanes), lanes),
            _UNROLL,
        ],
        constraints,
        derived=_derived(size),
        fallback=fallback,
        idle={"inner": one_order(knob("n_block"), knob("m_block"), ahead=True)},
    )


def _depths(k: int) -> list[int]:
    """Steps of a block: those that divide k, and if none of them is near a first level's, of some that end in zeros."""
    whole = [d for d in divisors(k) if d >= min(16, k)]
    if k <= _NEAR[-1] or any(_NEAR[0] <= d <= _NEAR[-1] for d in whole):
        return whole
    # Blocks have about as many steps each, so that few are missing from the last.
    return sorted({*whole, *(int(round_up(-(-k // -(-k // near)), _TURN)) for near in _NEAR)})


@lru_cache(maxsize=1024)
def _depth_knob(k: int) -> Knob:
    return Knob("depth", _depths(k), "layout")


@cache
def _derived(size: int) -> dict[str, Expr]:
    """Bytes of a block and a panel of numbers of `size` bytes."""
    return {
        "accumulators": accumulators("lanes"),
        "data_block_bytes": knob("m_block") * knob("rows") * knob("depth") * size,
        "panel_bytes": knob("width") * knob("depth") * size,
    }


def prepare(attrs: Attrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels per block of k: [k block, panel, depth, width]; the last may end with zeros."""
    return {1: panels(integer(config, "width"), integer(config, "depth"))}


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The data, packed or not, sums per block of k, their sum, and its part within m × n."""
    from tvm import te

    data, weight = inputs
    m, k = data.shape
    n = int(out_type.shape[1])
    rows, width, depth = (integer(config, name) for name in ("rows", "width", "depth"))
    dtype = accumulator(data.dtype)
    row = clamped_row(m)
    padded_m, padded_n = round_up(m, rows * integer(config, "m_block")), round_up(n, width)
    steps = int(round_up(int(k), depth))

    def number(i: Any, s: Any) -> Any:
        return zero_beyond(data[row(i), s], s, int(k), depth).astype(dtype)

    packed: Any = None
    if config["by"] == "rows":
        packed = te.compute(
            (padded_m // rows, rows, steps), lambda tile, i, s: number(tile * rows + i, s),
            name="packed", attrs=stage("data"),
        )
    elif config["by"] == "steps":
        packed = te.compute(
            (padded_m // rows, steps, rows), lambda tile, s, i: number(tile * rows + i, s),
            name="packed", attrs=stage("data"),
        )

    def item(i: Any, s: Any) -> Any:
        if packed is None:
            return number(i, s)
        return packed[i // rows, i % rows, s] if config["by"] == "rows" else packed[i // rows, s, i % rows]

    r, blocks = te.reduce_axis((0, depth), name="r"), steps // depth
    tiles = compute_stage(
        "tiles", (blocks, padded_m, padded_n),
        lambda b, i, j: te.sum(
            item(i, b * depth + r) * weight[b, j // width, r, j % width].astype(dtype), axis=r
        ),
    )
    if blocks == 1:
        return [te.compute((m, n), lambda i, j: tiles[0, i, j].astype(out_type.dtype), name="dense")]
    b = te.reduce_axis((0, blocks), name="b")
    total = compute_stage("total", (padded_m, padded_n), lambda i, j: te.sum(tiles[b, i, j], axis=b))
    return [te.compute((m, n), lambda i, j: total[i, j].astype(out_type.dtype), name="dense")]


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of m_block × n_block tiles in parallel; in each, blocks of k, panels, then rows."""
    sch, stages, output = start_schedule(outs)
    tiles, data = stages["tiles"], stages.get("data")
    lanes = integer(config, "lanes")
    m_factors = [None, integer(config, "m_block"), integer(config, "rows")]
    n_factors = [None, integer(config, "n_block"), integer(config, "width")]
    if "panels" in stages:
        pack_by_vectors(sch, stages["panels"], lanes)
    sch.set_scope(tiles, 0, "local")
    anchor = stages.get("total", tiles)
    *lead, i, j, last = sch.get_loops(anchor)
    m_task, row_tile, rows = sch.split(i, m_factors)
    n_task, panel, columns = sch.split(j, n_factors)
    inner = (panel, row_tile) if config["inner"] == "rows" else (row_tile, panel)
    if anchor is tiles:
        sch.reorder(*lead, n_task, m_task, *inner, rows, columns, last)
        sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
        steps = last
        consumer = output
    else:
        sch.reorder(n_task, m_task, last, *inner, rows, columns)
        sch.reverse_compute_at(output, m_task, preserve_unit_loops=True)
        sch.compute_at(tiles, inner[1], preserve_unit_loops=True)
        vectorize(sch, sch.get_loops(output)[-1], lanes)
        rows, columns, steps = sch.get_loops(tiles)[-3:]
        consumer = anchor
    if data is not None:
        sch.compute_at(data, m_task if anchor is tiles else last, preserve_unit_loops=True)
        _schedule_data(sch, data, lanes, by_rows=config["by"] == "rows")
    sch.parallel(sch.fuse(n_task, m_task))
    schedule_tile(sch, tiles, consumer, (rows, columns, steps), lanes, integer(config, "unroll"))
    if config["ahead"]:
        width = integer(config, "width")
        prefetch_panels(
            sch, inner[1], sch.get_loops(tiles)[-5], panel=width * integer(config, "depth"),
            step=width * integer(config, "unroll"), dtype=str(outs.args[1].dtype),
            tiles=integer(config, "m_block") if config["inner"] == "rows" else 1,
        )
    return sch


def _schedule_data(sch: Any, block: Any, lanes: int, by_rows: bool) -> None:
    """Rows are copied by vectors; steps gather one number per row."""
    inner = sch.get_loops(block)[-1]
    if by_rows:
        _, lane = sch.split(inner, [None, lanes])
        sch.vectorize(lane)
    else:
        sch.unroll(inner)
