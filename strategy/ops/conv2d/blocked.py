"""`conv2d_nchwc_spatial_pack.cpu`: direct convolution of blocked images, with output channels in the vector lanes.

The channels of a block lie together: a tile reads those of a pixel from a cache line, each broadcast to all lanes, and
is written as it is. The data may be of NCHW, too, as that of a network's first layer, or of blocks of another size
than the result's. The weight is packed into panels [ceil(o / width), c / block, kh, kw, block, width]. Groups are of
whole blocks, and panels of one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.ahead import fits_ahead, prefetch_panels
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    best_tile_of,
    block_knob,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.layout import block_of, laid_out, plain_index, plain_type, transform_image
from strategy.ops.conv2d.layout import plain_inputs, plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros
from strategy.ops.conv2d.pointwise import leaves_pixels
from strategy.ops.conv2d.product import BLOCKS, INNER, Geometry, idle_window
from strategy.ops.conv2d.task_padding import BY_TASK, have_lines, is_large, tiles_of_task
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    start_schedule,
    store_tile,
    unroll_tile,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_WINDOW = Knob("window", ["unrolled", "rows", "loops"])
_AHEAD = Knob("ahead", [False, True])


def is_offered(attrs: Conv2DAttrs, weight: TensorType) -> bool:
    """Return whether no block of the data, nor of the result, is of two groups, for a weight of OIHW."""
    out_channels, channels, *_ = weight.concrete_shape
    of_data, of_result = block_of(attrs.data_layout), block_of(attrs.result_layout)
    return attrs.groups == 1 or (channels % of_data == 0 and out_channels // attrs.groups % of_result == 0)


def lanes_of_block(attrs: Conv2DAttrs, dtype: str, target: Target) -> int:
    """Those of a vector of one block's channels."""
    return min(lanes_of(target, accumulator(dtype)), block_of(attrs.result_layout))


def space(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over the window and a block, and tiles per task.

    With `ahead` the next panel of the weight is prefetched meanwhile. A large image is padded before all tasks, or
    `by_task`: each then has whole lines, and pads those that it reads.
    """
    plain = plain_inputs(attrs, inputs)
    geometry = Geometry.of(plain, plain_type(out_type, attrs.result_layout))
    own, out_channels = geometry.out_channels, geometry.groups * geometry.out_channels
    pads = geometry.groups == 1 and is_large(attrs, plain[0])
    lanes, block, out_w = lanes_of_block(attrs, inputs[0].dtype, target), block_of(attrs.data_layout), geometry.out_w
    # A tile is a part of a row of the image, or whole rows; of windows of one pixel any pixels.
    fitting = [
        r for r in ROWS
        if r <= geometry.pixels and (_is_flat(attrs, geometry) or out_w % r == 0 or r % out_w == 0)
    ]
    widths = tuple(
        v * lanes for v in VECTORS
        if (v == 1 or (v - 1) * lanes < own) and (geometry.groups == 1 or own % (v * lanes) == 0)
    )
    high, wide = Knob("rows", fitting), Knob("width", widths, "layout")

    def fallback() -> dict[str, Any]:
        registers, multiply_adds = target.vector_registers, target.multiply_adds
        few = [r for r in fitting if r <= 14]
        best = [best_tile_of(r, own, lanes, registers, multiply_adds) for r in few]
        whole = [(r, w) for r, w in best if r in fitting and w in widths]
        rows, width = max(whole, key=lambda t: (t[0] * t[1], t[1]), default=(1, lanes))
        panels, tiles = -(-out_channels // width), -(-geometry.pixels // rows)
        shared = panels < 2 * target.threads
        panel_bytes = geometry.depth * width * dtype_bytes(inputs[0].dtype)
        o_block, p_block = 1, largest_divisor(BLOCKS, tiles, -(-tiles // target.threads) if shared else tiles)
        alone = tiles_of_task(rows, attrs, plain[0], geometry, target) if pads and panels in BLOCKS else 0
        # The whole weight is read for some lines after the other, and stays in the second level.
        by_task = alone > 0 and panels * panel_bytes <= target.l2_bytes // 2
        if by_task:
            o_block, p_block = panels, alone
        return {
            "rows": rows,
            "width": width,
            "window": "loops",
            "unroll": min(block, 4),
            "o_block": o_block,
            "p_block": p_block,
            "inner": "pixels",
            "ahead": panels * panel_bytes >= target.l2_bytes // 2 and fits_ahead(panel_bytes, target),
            **({"by_task": by_task} if pads else {}),
        }

    return ConfigSpace(
        [
            wide,
            high,
            _WINDOW,
            up_to("unroll", (1, 2, 4, 8, 16), block),
            block_knob("o_block", BLOCKS, out_channels, wide),
            block_knob("p_block", BLOCKS, geometry.pixels, high),
            INNER,
            _AHEAD,
            *([BY_TASK] if pads else []),
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(out_channels, "width", "o_block"),
            whole_blocks(geometry.pixels, "rows", "p_block"),
            *([have_lines(geometry)] if pads else []),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={**idle_window(geometry), "inner": one_order(knob("o_block"), knob("p_block"), ahead=True)},
    )


def _is_flat(attrs: Conv2DAttrs, geometry: Geometry) -> bool:
    """Return whether an output reads the pixel at its own place alone."""
    return geometry.kernel_h == geometry.kernel_w == 1 and leaves_pixels(attrs)


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(o / width), c / block, kh, kw, block, width]."""
    width, block = integer(config, "width"), block_of(attrs.data_layout)

    def pack(given: Any) -> Any:
        weight = plain_weight(attrs, given)
        out_channels, channels, kernel_h, kernel_w = (int(extent) for extent in weight.shape)

        def read(panel: Any, outer: Any, y: Any, x: Any, inner: Any, lane: Any) -> Any:
            o = panel * width + lane
            return zero_beyond(weight[o, outer * block + inner, y, x], o, out_channels, width)

        shape = (-(-out_channels // width), channels // block, kernel_h, kernel_w, block, width)
        return compute_stage("weight_tiles", shape, read)

    return {1: pack}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The sums of whole tiles [n, p, o], and what of them is in the output."""
    from tvm import te, tirx

    data, weight = inputs
    batch, out_channels, out_h, out_w = plain_type(out_type, attrs.result_layout).concrete_shape
    block, dtype = block_of(attrs.data_layout), str(data.dtype)
    rows, width = integer(config, "rows"), integer(config, "width")
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    padded = pad_zeros(data, attrs.padding)
    outer, y, x, inner = (
        te.reduce_axis((0, extent), name=name) for extent, name in zip(weight.shape[1:5], "cyxi", strict=True)
    )
    wide, pixels, of_group = accumulator(dtype), out_h * out_w, out_channels // attrs.groups // width

    def term(n: Any, p: Any, o: Any) -> Any:
        if pixels % rows:
            p = tirx.min(p, pixels - 1)
        h, w = p // out_w, p % out_w
        row, column = h * stride_h + y * dilation_h, w * stride_w + x * dilation_w
        first = o // width // of_group * weight.shape[1] if attrs.groups > 1 else 0
        at = (n, first + outer, row, column, *([inner] if block > 1 else []))
        weighted = padded(*at).astype(wide) * weight[o // width, outer, y, x, inner, o % width].astype(wide)
        return te.sum(weighted, axis=[outer, y, x, inner])

    shape = (batch, round_up(pixels, rows), round_up(out_channels, width))
    tiles = compute_stage("tiles", shape, term)

    def element(*index: Any) -> Any:
        n, o, h, w = plain_index(index, attrs.result_layout)
        return tiles[n, h * out_w + w, o].astype(dtype)

    full = laid_out((batch, out_channels, out_h, out_w), attrs.result_layout)
    return [te.compute(full, element, name="conv2d")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of channels × pixels in parallel; in each, one register tile after the other."""
    sch, stages, output = start_schedule(outs)
    layout, out_w = attrs.result_layout, int(outs.tensors[0].shape[3])

    transform_image(sch, output, layout, lambda n, o, h, w: (n, h * out_w + w, o))
    dtype = accumulator(str(outs.args[0].dtype))
    lanes = lanes_of_block(attrs, dtype, target)
    if "padded" in stages and not config.get("by_task"):
        schedule_padding(sch, stages["padded"], lanes_of(target, dtype))
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    tiles = stages["tiles"]
    sch.set_scope(tiles, 0, "local")
    n, p, o, *_ = sch.get_loops(tiles)
    p_task, p_tile, rows = sch.split(p, [None, integer(config, "p_block"), integer(config, "rows")])
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), integer(config, "width")])
    inner = (panel, p_tile) if config["inner"] == "pixels" else (p_tile, panel)
    sch.reorder(n, o_task, p_task, *inner, rows, columns)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    task = sch.fuse(n, o_task, p_task)
    sch.parallel(task)
    if config.get("by_task"):
        sch.compute_at(stages["padded"], task, preserve_unit_loops=True)
        _, _, _, _, *row = sch.get_loops(stages["padded"])
        _, vector = sch.split(sch.fuse(*row), [None, lanes_of(target, dtype)])
        sch.vectorize(vector)
    *around, steps = schedule_blocks(
        sch, tiles, sch.get_loops(tiles)[-6:], lanes, integer(config, "unroll"), str(config["window"])
    )
    if config["ahead"]:
        turns = math.prod(int(sch.get(loop).extent) for loop in (*around, steps))
        step = integer(config, "unroll") * integer(config, "width")
        prefetch_panels(
            sch, inner[1], steps, panel=turns * step, step=step, around=around,
            tiles=integer(config, "p_block") if config["inner"] == "pixels" else 1, dtype=str(outs.args[1].dtype),
        )
    store_tile(sch, output, lanes)
    return sch


def schedule_padding(sch: Any, padded: Any, lanes: int) -> None:
    """Copy blocks, or channels, in parallel, rows by vectors."""
    n, c, _, *row = sch.get_loops(padded)
    _, vector = sch.split(sch.fuse(*row), [None, lanes])
    sch.vectorize(vector)
    sch.parallel(sch.fuse(n, c))


def schedule_blocks(
    sch: Any, tiles: Any, loops: Sequence[Any], lanes: int, unroll: int, unrolled: str = "loops"
) -> list[Any]:
    """Schedule a register tile over blocks of input channels; return the loops over a panel, from the outermost.

    Args:
        loops: its rows, its columns, and those over blocks, the window if there is one, and the channels of a block.
        unrolled: the loops over the window that are unrolled, by the knob `window`.
    """
    rows, columns, outer, *window, inner = loops
    steps, step = sch.split(inner, [None, unroll])
    vectors, lane = sch.split(columns, [None, lanes])
    sch.reorder(outer, *window, steps, step, rows, vectors, lane)
    sch.vectorize(lane)
    by_window = {"unrolled": window, "rows": window[1:], "loops": []}[unrolled]
    for loop in (*by_window, step, rows, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, outer))
    return [outer, *window, steps]
