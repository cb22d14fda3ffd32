"""`conv2d_nchw_winograd_2x2.cpu` and `…_4x4.cpu` of groups: fewer multiplications for 3×3 windows, tiles in the lanes.

F(m×m, 3×3) takes (m + 2)² multiplications for m² outputs where direct takes 9 m²: 4 and 2.25 for one
output. After Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). The weight's
transform is a preparation, done once for a constant weight. Where the window is dilated by d, every d-th row
and column is an image of its own. A tile's rows are output channels of one group. Without groups
`winograd_channels.py` has channels in the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.condition import ceildiv
from strategy.cpu.tile import (
    ROWS,
    accumulators,
    best_tile_of,
    block_knob,
    largest_divisor,
    register_constraint,
    round_up,
    schedule_tile,
    up_to,
    whole_blocks,
    width_knob,
)
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros, pick_phases, schedule_padding
from strategy.ops.conv2d.product import BLOCKS, Geometry
from strategy.ops.conv2d.transform import KERNEL, Transform, coefficient, combine, weight_columns
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_ORDER = Knob("order", ["points", "channels"])


def space(
    transform: Transform,
    attrs: Conv2DAttrs,
    inputs: Sequence[TensorType],
    out_type: TensorType,
    target: Target,
) -> ConfigSpace:
    """The tile of the products, how they are grouped into tasks, and lanes of the transforms.

    The `order` of tasks is by points of the transform, or by output channels.
    """
    geometry = Geometry.of(inputs, out_type)
    out_channels = geometry.groups * geometry.out_channels
    lanes = lanes_of(target, inputs[0].dtype)
    tiles = _tiles(transform, attrs, out_type)

    def fallback() -> dict[str, Any]:
        rows, width = best_tile_of(geometry.out_channels, tiles, lanes, target.vector_registers, target.multiply_adds)
        if geometry.groups > 1:
            rows = largest_divisor(ROWS, geometry.out_channels, rows)
        count = -(-out_channels // rows)
        return {
            "rows": rows,
            "width": width,
            "unroll": largest_divisor((1, 2, 4, 8), geometry.channels, 8),
            "o_block": largest_divisor(BLOCKS, count, count),
            "p_block": 1,
            "order": "points",
        }

    whole = []
    if geometry.groups > 1:
        whole = [ceildiv(geometry.out_channels, knob("rows")) * knob("rows") == geometry.out_channels]
    high, wide = up_to("rows", ROWS, 2 * geometry.out_channels, "layout"), width_knob(lanes, tiles)
    return ConfigSpace(
        [
            high,
            wide,
            up_to("unroll", (1, 2, 4, 8), geometry.channels),
            block_knob("o_block", BLOCKS, out_channels, high),
            block_knob("p_block", BLOCKS, tiles, wide),
            _ORDER,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(out_channels, "rows", "o_block"),
            whole_blocks(tiles, "width", "p_block"),
            *whole,
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )


def _grid(transform: Transform, attrs: Conv2DAttrs, out_type: TensorType) -> tuple[int, int]:
    """Tiles down and across an image of every d-th row and column."""
    down, across = (
        transform.count(-(-int(extent) // d)) for extent, d in zip(out_type.shape[2:], attrs.dilation, strict=True)
    )
    return down, across


def _tiles(transform: Transform, attrs: Conv2DAttrs, out_type: TensorType) -> int:
    """Those of all images."""
    return math.prod((int(out_type.shape[0]), *attrs.dilation, *_grid(transform, attrs, out_type)))


def prepare(
    transform: Transform, attrs: Attrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight [o, c, 3, 3] in the transformed domain: [alpha, alpha, ceil(o / rows), c, rows]."""
    rows, alpha = integer(config, "rows"), transform.alpha

    def apply(weight: Any) -> Any:
        columns = weight_columns(transform, weight, rows)
        *_, channels, padded = (int(extent) for extent in columns.shape)
        return compute_stage(
            "weight_transform", (alpha, alpha, padded // rows, channels, rows),
            lambda i, j, tile, c, row: combine(
                transform.weight, j, [columns[i, x, c, tile * rows + row] for x in range(KERNEL)]
            ),
        )

    return {1: apply}


def compute(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution of [n, c, h, w] with a weight that `prepare` has transformed."""
    from tvm import te

    data, weight = inputs
    batch, out_channels, out_h, out_w = out_type.concrete_shape
    channels, dtype = int(data.shape[1]), str(data.dtype)
    tile, alpha = transform.tile, transform.alpha
    down, across = _grid(transform, attrs, out_type)
    dilation_h, dilation_w = attrs.dilation
    whole, batch = batch, batch * dilation_h * dilation_w
    tiles = batch * down * across
    rows, width = integer(config, "rows"), integer(config, "width")
    top, left, _, _ = attrs.padding
    # Whole tiles: zeros beyond the data, whose results are not stored.
    height, breadth = down * tile + 2, across * tile + 2
    if batch > whole:
        padded = pick_phases(data, attrs, height, breadth)
    else:
        missing = (height - int(data.shape[2]) - top, breadth - int(data.shape[3]) - left)
        padded = pad_zeros(data, (top, left, max(0, missing[0]), max(0, missing[1])))

    columns = compute_stage(
        "data_columns", (batch, channels, down, alpha, breadth),
        lambda n, c, y, i, x: combine(transform.data, i, [padded[n, c, y * tile + a, x] for a in range(alpha)]),
    )
    data_transform = compute_stage(
        "data_transform", (alpha, alpha, channels, batch, down, across),
        lambda i, j, c, n, y, x: combine(
            transform.data, j, [columns[n, c, y, i, x * tile + b] for b in range(alpha)]
        ),
    )
    own = int(weight.shape[3])
    r = te.reduce_axis((0, own), name="r")

    def term(i: Any, j: Any, o: Any, t: Any) -> Any:
        n, y, x = t // (down * across), t // across % down, t % across
        c = r if attrs.groups == 1 else o // (out_channels // attrs.groups) * own + r
        number = zero_beyond(data_transform[i, j, c, n, y, x], t, tiles, width)
        return te.sum(weight[i, j, o // rows, r, o % rows] * number, axis=r)

    sums = compute_stage("tiles", (alpha, alpha, round_up(out_channels, rows), round_up(tiles, width)), term)
    product = compute_stage(
        "product", (alpha, alpha, out_channels, tiles), lambda i, j, o, t: sums[i, j, o, t],
    )
    inverse = compute_stage(
        "inverse", (batch, out_channels, down, tile, alpha, across),
        lambda n, o, y, i, b, x: combine(
            transform.inverse, i, [product[a, b, o, (n * down + y) * across + x] for a in range(alpha)]
        ),
    )

    def gather(n: Any, o: Any, h: Any, w: Any) -> Any:
        terms = [
            coefficient(transform.inverse, b, w % tile, dtype)
            * inverse[n, o, h // tile, h % tile, b, w // tile]
            for b in range(alpha)
        ]
        return sum(terms[1:], terms[0])

    if batch == whole:
        return [te.compute((batch, out_channels, out_h, out_w), gather, name="conv2d_winograd")]
    phases = compute_stage("phases", (batch, out_channels, down * tile, across * tile), gather)

    def join(n: Any, o: Any, h: Any, w: Any) -> Any:
        image = (n * dilation_h + h % dilation_h) * dilation_w + w % dilation_w
        return phases[image, o, h // dilation_h, w // dilation_w]

    return [te.compute((whole, out_channels, out_h, out_w), join, name="conv2d_winograd")]


def schedule(
    transform: Transform, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config
) -> Any:
    """Padding and transform of the data by channels, products by tiles, then the inverse by channels."""
    sch, stages, output = start_schedule(outs)
    full = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    if "padded" in stages:
        schedule_padding(sch, stages["padded"], full)
    if "weight_transform" in stages:
        for name in ("weight_columns", "weight_transform"):
            _, _, *outer, _ = sch.get_loops(stages[name])
            sch.parallel(outer[0])
    _schedule_data(sch, stages, full)
    _schedule_product(sch, stages, full, config)
    _schedule_output(sch, stages["inverse"], stages.get("phases", output), transform, full)
    if "phases" in stages:
        n, o, *_ = sch.get_loops(output)
        sch.parallel(sch.fuse(n, o))
    return sch


def _fitting(lanes: int, extent: int) -> int:
    """Lanes of which a row of `extent` numbers fills more than half."""
    while lanes > 1 and lanes // 2 >= extent:
        lanes //= 2
    return lanes


def _schedule_data(sch: Any, stages: dict[str, Any], full: int) -> None:
    """Channels in parallel; for each row of tiles both transforms, one after the other."""
    block = stages["data_transform"]
    *_, down, across = (int(extent) for extent in sch.get(block).writes[0].source.shape)
    # Products read vectors of tiles, which may be of several images.
    sch.transform_layout(
        block, ("write", 0), lambda i, j, c, n, y, x: (i, j, c, (n * down + y) * across + x)
    )
    i, j, c, n, y, x = sch.get_loops(block)
    sch.reorder(c, n, y, i, j, x)
    sch.compute_at(stages["data_columns"], y, preserve_unit_loops=True)
    sch.parallel(sch.fuse(c, n))
    vectorize(sch, x, _fitting(full, int(sch.get(x).extent)))
    sch.unroll(j)
    *_, rows, x = sch.get_loops(stages["data_columns"])
    sch.reorder(x, rows)
    outer, lane = sch.split(x, [None, _fitting(full, int(sch.get(x).extent))])
    sch.reorder(outer, rows, lane)
    sch.vectorize(lane)
    sch.unroll(rows)


def _schedule_product(sch: Any, stages: dict[str, Any], lanes: int, config: Config) -> None:
    """Tasks of channels × tiles at one point of the transform, in parallel."""
    tiles, product = stages["tiles"], stages["product"]
    sch.set_scope(tiles, 0, "local")
    i, j, o, t, steps = sch.get_loops(tiles)
    o_task, o_tile, rows = sch.split(o, [None, integer(config, "o_block"), integer(config, "rows")])
    p_task, panel, columns = sch.split(t, [None, integer(config, "p_block"), integer(config, "width")])
    if config["order"] == "points":
        sch.reorder(i, j, o_task, p_task, panel, o_tile, rows, columns, steps)
        tasks = (i, j, o_task, p_task)
    else:
        sch.reorder(o_task, p_task, i, j, panel, o_tile, rows, columns, steps)
        tasks = (o_task, p_task, i, j)
    sch.reverse_compute_at(product, o_tile, preserve_unit_loops=True)
    sch.parallel(sch.fuse(*tasks))
    schedule_tile(sch, tiles, product, (rows, columns, steps), lanes, integer(config, "unroll"))


def _schedule_output(sch: Any, inverse: Any, output: Any, transform: Transform, full: int) -> None:
    """Channels in parallel; for each row of tiles the inverse transform down, then across."""
    n, o, h, w = sch.get_loops(output)
    y, _ = sch.split(h, [None, transform.tile])
    sch.compute_at(inverse, y, preserve_unit_loops=True)
    sch.parallel(sch.fuse(n, o))
    lanes = _fitting(full, int(sch.get(w).extent))
    _, lane = sch.split(w, [None, lanes])
    sch.vectorize(lane)
    *_, rows, points, x = sch.get_loops(inverse)
    sch.reorder(points, rows, x)
    vectorize(sch, x, _fitting(full, int(sch.get(x).extent)))
    sch.unroll(rows)
