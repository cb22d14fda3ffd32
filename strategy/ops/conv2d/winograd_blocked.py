"""`conv2d_nchwc_winograd_2x2.cpu` and `…_4x4.cpu`: winograd's algorithm of blocked images, in vectors of channels.

As `winograd.py`, but the transforms take the channels of a block as their lanes, so that images of any size fill them;
at each point of the transform, the product is that of `blocked.py` for windows of one pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    best_tile_of,
    block_knob,
    largest_divisor,
    register_constraint,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.layout import block_of, plain_type
from strategy.ops.conv2d.blocked import lanes_of_block, schedule_blocks, schedule_padding
from strategy.ops.conv2d.layout import plain_inputs, plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros
from strategy.ops.conv2d.product import BLOCKS, Geometry
from strategy.ops.conv2d.transform import KERNEL, Transform, combine, weight_columns
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    store_tile,
    vectorize,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_ORDER = Knob("order", ["points", "channels"])


def space(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The tile of the products, unrolling, and how they are grouped into tasks, by points or by channels."""
    plain = plain_type(out_type, attrs.result_layout)
    geometry = Geometry.of(plain_inputs(attrs, inputs), plain)
    lanes = lanes_of_block(attrs, inputs[0].dtype, target)
    tiles = int(geometry.batch) * transform.count(int(plain.shape[2])) * transform.count(int(plain.shape[3]))
    widths = tuple(v * lanes for v in VECTORS if v == 1 or (v - 1) * lanes < geometry.out_channels)
    high, wide = up_to("rows", ROWS, tiles), Knob("width", widths, "layout")

    def fallback() -> dict[str, Any]:
        rows, width = best_tile_of(
            tiles, geometry.out_channels, lanes, target.vector_registers, target.multiply_adds
        )
        rows = max(r for r in ROWS if r <= min(rows, tiles))  # a tile may have more rows than there are
        count = -(-tiles // rows)
        return {
            "rows": rows,
            "width": width,
            "unroll": 4,
            "o_block": 1,
            "p_block": largest_divisor(BLOCKS, count, count),
            "order": "points",
        }

    return ConfigSpace(
        [
            high,
            wide,
            up_to("unroll", (1, 2, 4, 8, 16), block_of(attrs.data_layout)),
            block_knob("o_block", BLOCKS, geometry.out_channels, wide),
            block_knob("p_block", BLOCKS, tiles, high),
            _ORDER,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(geometry.out_channels, "width", "o_block"),
            whole_blocks(tiles, "rows", "p_block"),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )


def prepare(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight in the transformed domain: [alpha, alpha, ceil(o / width), c / block, block, width]."""
    width, alpha, block = integer(config, "width"), transform.alpha, block_of(attrs.data_layout)

    def apply(given: Any) -> Any:
        columns = weight_columns(transform, plain_weight(attrs, given), width)
        *_, channels, padded = (int(extent) for extent in columns.shape)
        return compute_stage(
            "weight_transform", (alpha, alpha, padded // width, channels // block, block, width),
            lambda i, j, panel, outer, inner, lane: combine(
                transform.weight,
                j,
                [columns[i, x, outer * block + inner, panel * width + lane] for x in range(KERNEL)],
            ),
        )

    return {1: apply}


def compute(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution of [n, c / block, h, w, block] with a weight that `prepare` has transformed."""
    from tvm import te, tirx

    data, weight = inputs
    batch, out_blocks, out_h, out_w, out_block = out_type.concrete_shape
    blocks, block, dtype = int(data.shape[1]), int(data.shape[4]), str(data.dtype)
    tile, alpha = transform.tile, transform.alpha
    down, across = transform.count(out_h), transform.count(out_w)
    tiles, rows, width = batch * down * across, integer(config, "rows"), integer(config, "width")
    top, left, _, _ = attrs.padding
    # Whole tiles: zeros beyond the data, whose results are not stored.
    missing = (down * tile + 2 - int(data.shape[2]) - top, across * tile + 2 - int(data.shape[3]) - left)
    padded = pad_zeros(data, (top, left, max(0, missing[0]), max(0, missing[1])))
    columns = compute_stage(
        "data_columns", (batch, blocks, down, across * tile + 2, alpha, block),
        lambda n, o, y, x, i, c: combine(transform.data, i, [padded[n, o, y * tile + a, x, c] for a in range(alpha)]),
    )
    data_transform = compute_stage(
        "data_transform", (alpha, alpha, blocks, batch, down, across, block),
        lambda i, j, o, n, y, x, c: combine(
            transform.data, j, [columns[n, o, y, x * tile + b, i, c] for b in range(alpha)]
        ),
    )
    outer, inner = te.reduce_axis((0, blocks), name="c"), te.reduce_axis((0, block), name="i")

    def term(i: Any, j: Any, t: Any, o: Any) -> Any:
        if tiles % rows:
            t = tirx.min(t, tiles - 1)
        number = data_transform[i, j, outer, t // (down * across), t // across % down, t % across, inner]
        return te.sum(number * weight[i, j, o // width, outer, inner, o % width], axis=[outer, inner])

    channels = out_blocks * out_block
    sums = compute_stage("tiles", (alpha, alpha, round_up(tiles, rows), round_up(channels, width)), term)
    product = compute_stage(
        "product", (alpha, alpha, out_blocks, tiles, out_block),
        lambda i, j, o, t, c: sums[i, j, t, o * out_block + c],
    )
    inverse = compute_stage(
        "inverse", (batch, out_blocks, down, across, alpha, tile, out_block),
        lambda n, o, y, x, b, i, c: combine(
            transform.inverse, i, [product[a, b, o, (n * down + y) * across + x, c] for a in range(alpha)]
        ),
    )

    def gather(n: Any, o: Any, h: Any, w: Any, c: Any) -> Any:
        values = [inverse[n, o, h // tile, w // tile, b, h % tile, c] for b in range(alpha)]
        return combine(transform.inverse, w % tile, values).astype(dtype)

    return [te.compute((batch, out_blocks, out_h, out_w, out_block), gather, name="conv2d_winograd")]


def schedule(transform: Transform, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Padding and transform of the data by blocks, products by tiles, then the inverse by blocks."""
    sch, stages, output = start_schedule(outs)
    dtype = accumulator(str(outs.args[0].dtype))
    lanes = lanes_of_block(attrs, dtype, target)
    if "padded" in stages:
        schedule_padding(sch, stages["padded"], lanes_of(target, dtype))
    if "weight_transform" in stages:
        for name in ("weight_columns", "weight_transform"):
            _, _, *loops, _ = sch.get_loops(stages[name])
            sch.parallel(loops[0])
    _schedule_data(sch, stages, min(lanes_of(target, dtype), block_of(attrs.data_layout)))
    _schedule_product(sch, stages, lanes, config)
    _schedule_output(sch, stages["inverse"], output, transform, lanes)
    return sch


def _schedule_data(sch: Any, stages: dict[str, Any], lanes: int) -> None:
    """Blocks in parallel; for each row of tiles both transforms, one after the other."""
    i, j, o, n, y, x, c = sch.get_loops(stages["data_transform"])
    sch.reorder(n, o, y, x, i, j, c)
    sch.compute_at(stages["data_columns"], y, preserve_unit_loops=True)
    sch.parallel(sch.fuse(n, o, y))
    vectorize(sch, c, lanes)
    sch.unroll(i)
    sch.unroll(j)
    *_, points, channels = sch.get_loops(stages["data_columns"])
    vectorize(sch, channels, lanes)
    sch.unroll(points)


def _schedule_product(sch: Any, stages: dict[str, Any], lanes: int, config: Config) -> None:
    """Tasks of tiles × channels at one point of the transform, in parallel."""
    tiles, product = stages["tiles"], stages["product"]
    block = int(sch.get(product).writes[0].source.shape[4])
    sch.transform_block_layout(product, lambda i, j, o, t, c: (i, j, t, o * block + c))
    sch.set_scope(tiles, 0, "local")
    i, j, t, o, outer, inner = sch.get_loops(tiles)
    p_task, p_tile, rows = sch.split(t, [None, integer(config, "p_block"), integer(config, "rows")])
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), integer(config, "width")])
    tasks = (i, j, o_task, p_task) if config["order"] == "points" else (o_task, p_task, i, j)
    sch.reorder(*tasks, panel, p_tile, rows, columns, outer, inner)
    sch.reverse_compute_at(product, p_tile, preserve_unit_loops=True)
    sch.parallel(sch.fuse(*tasks))
    schedule_blocks(sch, tiles, (rows, columns, outer, inner), lanes, integer(config, "unroll"))
    store_tile(sch, product, lanes)


def _schedule_output(sch: Any, inverse: Any, output: Any, transform: Transform, lanes: int) -> None:
    """Blocks in parallel; for each tile the inverse transform down, then across."""
    n, o, h, w, c = sch.get_loops(output)
    y, row = sch.split(h, [None, transform.tile])
    x, column = sch.split(w, [None, transform.tile])
    sch.reorder(n, o, y, x, row, column, c)
    sch.compute_at(inverse, x, preserve_unit_loops=True)
    sch.set_scope(inverse, 0, "local")
    sch.parallel(sch.fuse(n, o, y))
    *_, points, rows, channels = sch.get_loops(inverse)
    for loop in (c, channels):
        vectorize(sch, loop, lanes)
    for loop in (row, column, points, rows):
        sch.unroll(loop)
