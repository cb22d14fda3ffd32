"""`conv2d_nchw_winograd_2x2.cpu`, `…_4x4.cpu` and those of NCHWc: winograd's algorithm in vectors of channels.

As `winograd.py`, but the lanes of the transforms are channels; at each point of the transform, the product is that of
`blocked.py` for windows of one pixel. The stages go over the whole image each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cpu.dot import Dot, find_dot
from strategy.cpu.matrices import find_matrix
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
from strategy.layout import plain_type
from strategy.ops.conv2d.blocked import schedule_blocks
from strategy.ops.conv2d.layout import plain_inputs
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.product import BLOCKS, Geometry
from strategy.ops.conv2d.transform import KERNEL, Transform, combine
from strategy.ops.conv2d.winograd_image import (
    Tiles,
    count_tiles,
    input_block,
    output_lanes,
    prepare,
    schedule_data,
    schedule_image,
    schedule_result,
    schedule_weight,
    start_result,
    weight_bytes_of,
)
from strategy.processor import SLOW_BF16
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    store_tile,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

__all__ = ["TRANSFORM", "compute", "find_rival", "outpaces", "prepare", "schedule", "space", "waits"]

TRANSFORM = 400  # cycles for a tile of a vector of channels, of the image or of the output

_MEMORY = 5  # bytes that come from there in a cycle of a core
_FEW = 2  # pixels for each number of the weight at a point
_ORDER = Knob("order", ["points", "channels"])


def waits(transform: Transform, weight: TensorType, plain: TensorType, target: Target) -> bool:
    """Return whether the products wait for their weight, which is larger than before its transform.

    If it leaves the second level, and there are few pixels, its numbers take longer to come than the multiply-adds that
    are saved.
    """
    batch, _, height, width = plain.concrete_shape
    weight_bytes = weight_bytes_of(transform, weight)
    return weight_bytes > target.l2_bytes and batch * height * width < _FEW * transform.alpha**2


def find_rival(data: TensorType, weight: TensorType, target: Target) -> Dot | None:
    """The target's fastest instruction for products of narrow floats, None where multiply-adds are faster."""
    if data.dtype != "bfloat16" or target.arch in SLOW_BF16:
        return None
    return find_matrix(target, data.dtype, weight.dtype) or find_dot(target, weight.dtype)


def outpaces(
    transform: Transform, attrs: Conv2DAttrs, weight: TensorType, plain: TensorType, dot: Dot, cycles: int,
    target: Target,
) -> bool:
    """Return whether this takes less time in float32 than an instruction takes for all products of narrow floats.

    The transforms, of some `cycles` for a tile of a vector of channels, take the longer beside the products, the fewer
    channels share them. A weight that leaves the second level may come from memory, where other layers have driven it
    out of the last; with an instruction that is a part of it, an eighth for bfloat16.
    """
    batch, out_channels, height, width = plain.concrete_shape
    channels, tiles = int(weight.shape[1]), count_tiles(transform, attrs, plain)
    lanes, at_once = lanes_of(target, accumulator(weight.dtype)), target.multiply_adds
    products = tiles * transform.alpha**2 * channels * out_channels / (lanes * at_once)
    transforms = tiles * (channels + out_channels) / lanes * cycles
    narrow = batch * height * width * KERNEL**2 * channels * out_channels / (dot.lanes * dot.group * at_once)
    weight_bytes = weight_bytes_of(transform, weight)
    waiting = weight_bytes / _MEMORY if weight_bytes > target.l2_bytes else 0
    return products + transforms + waiting < narrow


def space(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The tile of the products, unrolling, and how they are grouped into tasks, by points or by channels."""
    plain = plain_type(out_type, attrs.result_layout)
    geometry = Geometry.of(plain_inputs(attrs, inputs), plain)
    lanes = output_lanes(attrs, inputs[0].dtype, target)
    tiles = count_tiles(transform, attrs, plain)
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
            up_to("unroll", (1, 2, 4, 8, 16), input_block(attrs, inputs[0].dtype)),
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


def compute(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution of [n, c, h, w], or [n, c / block, h, w, block], by a weight that `prepare` has transformed."""
    from tvm import te, tirx

    data, weight = inputs
    form = Tiles.of(transform, attrs, weight, out_type)
    tile, alpha, down, across = transform.tile, transform.alpha, form.down, form.across
    tiles, rows, width = form.images * down * across, integer(config, "rows"), integer(config, "width")
    columns = form.columns(data)
    data_transform = compute_stage(
        "data_transform", (alpha, alpha, form.blocks, form.images, down, across, form.block),
        lambda i, j, o, n, y, x, c: combine(
            transform.data, j, [columns[n, 0, o, y, x * tile + b, i, c] for b in range(alpha)]
        ),
    )
    outer, inner = te.reduce_axis((0, form.blocks), name="c"), te.reduce_axis((0, form.block), name="i")

    def term(i: Any, j: Any, t: Any, o: Any) -> Any:
        if tiles % rows:
            t = tirx.min(t, tiles - 1)
        number = data_transform[i, j, outer, t // (down * across), t // across % down, t % across, inner]
        return te.sum(number * weight[i, j, o // width, outer, inner, o % width], axis=[outer, inner])

    padded = (alpha, alpha, round_up(tiles, rows), round_up(form.out_blocks * form.out_block, width))
    sums = compute_stage("tiles", padded, term)
    product = compute_stage(
        "product", (alpha, alpha, form.out_blocks, tiles, form.out_block),
        lambda i, j, o, t, c: sums[i, j, t, o * form.out_block + c],
    )
    return form.result(
        lambda a, b, n, o, y, x, c: product[a, b, o, (n * down + y) * across + x, c], str(data.dtype)
    )


def schedule(transform: Transform, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """The image and its transform by blocks, products by tiles, then the inverse by blocks."""
    sch, stages, output = start_schedule(outs)
    dtype = accumulator(str(outs.args[0].dtype))
    lanes = output_lanes(attrs, dtype, target)
    schedule_image(sch, stages, lanes_of(target, dtype))
    schedule_weight(sch, stages)
    i, j, o, n, y, x, c = sch.get_loops(stages["data_transform"])
    sch.reorder(n, o, y, x, i, j, c)
    schedule_data(sch, stages, (y, i, j, c), min(lanes_of(target, dtype), input_block(attrs, dtype)))
    sch.parallel(sch.fuse(n, o, y))
    _schedule_product(sch, stages, lanes, config)
    is_turned = "pixels" in stages
    loops, tile = start_result(sch, stages, output, (transform.tile, 1), (1, 1) if is_turned else attrs.dilation)
    task = sch.fuse(*loops)
    schedule_result(sch, stages, output, tile, lanes, task, joins=is_turned and attrs.dilation != (1, 1))
    sch.parallel(task)
    return sch


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
