"""`conv2d_nchw_winograd_lines.cpu` and that of NCHWc: winograd's algorithm for some lines of tiles after the other.

As `winograd_channels.py`, but a task takes its lines of F(4×4, 3×3) through all stages: what lies between stays in the
second level of its core, however large the image is, and the weight is read once for each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    best_tile_of,
    register_constraint,
    round_up,
    up_to,
)
from strategy.knob import divisors
from strategy.layout import plain_type
from strategy.ops.conv2d.blocked import schedule_blocks
from strategy.ops.conv2d.layout import plain_inputs
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.product import Geometry
from strategy.ops.conv2d.transform import F4, Transform, combine
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
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    start_schedule,
    store_tile,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

__all__ = ["TRANSFORM", "compute", "is_offered", "pays", "prepare", "schedule", "space"]

TRANSFORM = 190  # as that of winograd_channels.py
_LEAST = 16  # pixels of a line
_READS = 10  # of the weight in tasks take as long as one of the image between the stages


def is_offered(attrs: Conv2DAttrs, plain: TensorType) -> bool:
    """Return whether an image has lines of more than a vector, and is none of every d-th pixel."""
    return attrs.dilation == (1, 1) and int(plain.shape[3]) >= _LEAST


def pays(attrs: Conv2DAttrs, weight: TensorType, plain: TensorType, target: Target) -> bool:
    """Return whether the second level holds the weight, or each task reads it in less time than the stages take.

    These write the transformed image and read it again, which is slow once it leaves the second levels.
    """
    size, weight_bytes = dtype_bytes(accumulator(plain.dtype)), weight_bytes_of(F4, weight)
    out_channels, channels, *_ = weight.concrete_shape
    image_bytes = F4.alpha**2 * count_tiles(F4, attrs, plain) * (channels + out_channels) * size
    if weight_bytes <= target.l2_bytes:
        return True
    tasks = count_tiles(F4, attrs, plain) // (F4.count(int(plain.shape[3])) * _lines(F4, attrs, weight, plain, target))
    return image_bytes > 2 * target.threads * target.l2_bytes and tasks * weight_bytes <= _READS * image_bytes


def _lines(transform: Transform, attrs: Conv2DAttrs, weight: TensorType, plain: TensorType, target: Target) -> int:
    """The lines of an untuned task, of which the second level holds half, and of which there are several for a core."""
    out_channels, channels, *_ = weight.concrete_shape
    batch, _, height, width = plain.concrete_shape
    down, size = transform.count(height), dtype_bytes(accumulator(plain.dtype))
    line = transform.alpha**2 * transform.count(width) * (channels + out_channels) * size
    busy = [n for n in divisors(down) if batch * down // n >= 4 * target.threads]
    return max([n for n in busy if n * line <= target.l2_bytes // 2], default=1)


def space(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The tile of the products, unrolling, and the lines of tiles of a task."""
    plain = plain_type(out_type, attrs.result_layout)
    geometry = Geometry.of(plain_inputs(attrs, inputs), plain)
    dtype = inputs[0].dtype
    lanes = output_lanes(attrs, dtype, target)
    down, across = (transform.count(int(extent)) for extent in plain.shape[2:])
    widths = tuple(v * lanes for v in VECTORS if v == 1 or (v - 1) * lanes < geometry.out_channels)
    high, wide = up_to("rows", ROWS, down * across), Knob("width", widths, "layout")

    def fallback() -> dict[str, Any]:
        lines = _lines(transform, attrs, plain_inputs(attrs, inputs)[1], plain, target)
        tiles = lines * across
        rows, width = best_tile_of(tiles, geometry.out_channels, lanes, target.vector_registers, target.multiply_adds)
        return {"rows": max(r for r in ROWS if r <= min(rows, tiles)), "width": width, "unroll": 4, "lines": lines}

    return ConfigSpace(
        [
            high,
            wide,
            up_to("unroll", (1, 2, 4, 8, 16), input_block(attrs, dtype)),
            Knob("lines", divisors(down)),
        ],
        [register_constraint(target.vector_registers, lanes)],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )


def compute(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution of [n, c, h, w], or [n, c / block, h, w, block], by a weight that `prepare` has transformed."""
    from tvm import te, tirx

    data, weight = inputs
    lines, rows, width = integer(config, "lines"), integer(config, "rows"), integer(config, "width")
    form = Tiles.of(transform, attrs, weight, out_type, lines)
    tile, alpha, across = transform.tile, transform.alpha, form.across
    tiles = lines * across
    columns = form.columns(data)
    data_transform = compute_stage(
        "data_transform", (form.images, form.parts, alpha, alpha, form.blocks, lines, across, form.block),
        lambda n, g, i, j, o, y, x, c: combine(
            transform.data, j, [columns[n, g, o, y, x * tile + b, i, c] for b in range(alpha)]
        ),
    )
    outer, inner = te.reduce_axis((0, form.blocks), name="c"), te.reduce_axis((0, form.block), name="i")

    def term(n: Any, g: Any, i: Any, j: Any, t: Any, o: Any) -> Any:
        if tiles % rows:
            t = tirx.min(t, tiles - 1)
        number = data_transform[n, g, i, j, outer, t // across, t % across, inner]
        return te.sum(number * weight[i, j, o // width, outer, inner, o % width], axis=[outer, inner])

    outermost = (form.images, form.parts, alpha, alpha)
    padded = (round_up(tiles, rows), round_up(form.out_blocks * form.out_block, width))
    sums = compute_stage("tiles", (*outermost, *padded), term)
    product = compute_stage(
        "product", (*outermost, form.out_blocks, tiles, form.out_block),
        lambda n, g, i, j, o, t, c: sums[n, g, i, j, t, o * form.out_block + c],
    )
    return form.result(
        lambda a, b, n, o, y, x, c: product[n, y // lines, a, b, o, y % lines * across + x, c], str(data.dtype)
    )


def schedule(transform: Transform, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Lines of tiles in parallel: their transform, the products point by point, and the inverse."""
    sch, stages, output = start_schedule(outs)
    dtype = accumulator(str(outs.args[0].dtype))
    lanes = output_lanes(attrs, dtype, target)
    schedule_weight(sch, stages)
    tiles, product, data = stages["tiles"], stages["product"], stages["data_transform"]
    block = int(sch.get(product).writes[0].source.shape[6])
    sch.transform_block_layout(product, lambda n, g, i, j, o, t, c: (n, g, i, j, t, o * block + c))
    (n, group, _, line, *_), tile = start_result(sch, stages, output, (transform.tile, integer(config, "lines")))
    for stage in (product, tiles, data, stages["data_columns"]):
        sch.compute_at(stage, group, preserve_unit_loops=True)
    task = sch.fuse(n, group)
    schedule_image(sch, stages, lanes_of(target, dtype), task)
    *_, i, j, o, y, x, c = sch.get_loops(data)
    sch.reorder(o, y, x, i, j, c)
    schedule_data(sch, stages, (y, i, j, c), min(lanes_of(target, dtype), input_block(attrs, dtype)))
    schedule_result(sch, stages, output, tile, lanes, line)
    sch.parallel(task)
    _schedule_product(sch, tiles, product, lanes, config)
    return sch


def _schedule_product(sch: Any, tiles: Any, product: Any, lanes: int, config: Config) -> None:
    """At one point after the other, a panel of the weight by all tiles of the task."""
    sch.set_scope(tiles, 0, "local")
    *_, i, j, t, o, outer, inner = sch.get_loops(tiles)
    p_tile, rows = sch.split(t, [None, integer(config, "rows")])
    panel, columns = sch.split(o, [None, integer(config, "width")])
    sch.reorder(i, j, panel, p_tile, rows, columns, outer, inner)
    sch.reverse_compute_at(product, p_tile, preserve_unit_loops=True)
    schedule_blocks(sch, tiles, (rows, columns, outer, inner), lanes, integer(config, "unroll"))
    store_tile(sch, product, lanes)
