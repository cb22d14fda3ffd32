"""`conv2d_nchw_spatial_pack.cpu`: the sum as it is written, with output channels in the vector lanes.

The weight is packed into panels [ceil(o / width), c, kh, kw, width]; the image is read where it lies,
each number broadcast to all lanes. So small images fill the vectors as well as large ones, and nothing
is unfolded; a finished tile is turned once. The layout is TVM's NCHWc for one tile at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.tile import (
    ROWS,
    accumulator,
    accumulators,
    best_tile_of,
    block_knob,
    largest_divisor,
    register_constraint,
    round_up,
    whole_blocks,
    width_knob,
)
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros, pick_pixels, schedule_padding
from strategy.ops.conv2d.product import BLOCKS, INNER, Geometry, pack_rows
from strategy.schedule import (
    Outs,
    find_stages,
    integer,
    join_epilogue,
    lanes_of,
    new_schedule,
    stage,
    vectorize,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_WINDOW = Knob("window", ["unrolled", "rows", "loops"])


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over the window, and tiles per task."""
    geometry = Geometry.of(inputs, out_type)
    lanes = lanes_of(target, inputs[0].dtype)
    out_w = geometry.out_w
    # A tile is a part of a row of the image, or whole rows.
    fitting = [r for r in ROWS if out_w % r == 0 or (r % out_w == 0 and r <= geometry.pixels)]
    high, wide = Knob("rows", fitting), width_knob(lanes, geometry.out_channels)

    def fallback() -> dict[str, Any]:
        best = [best_tile_of(r, geometry.out_channels, lanes, target.vector_registers) for r in fitting]
        rows, width = max(
            ((r, w) for r, w in best if r in fitting), key=lambda t: (t[0] * t[1], t[1])
        )
        panels, tiles = -(-geometry.out_channels // width), -(-geometry.pixels // rows)
        shared = panels < 2 * target.threads
        return {
            "rows": rows,
            "width": width,
            "window": "rows",
            "o_block": 1,
            "p_block": largest_divisor(BLOCKS, tiles, -(-tiles // target.threads) if shared else tiles),
            "inner": "pixels",
        }

    return ConfigSpace(
        [
            wide,
            high,
            _WINDOW,
            block_knob("o_block", BLOCKS, geometry.out_channels, wide),
            block_knob("p_block", BLOCKS, geometry.pixels, high),
            INNER,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(geometry.out_channels, "width", "o_block"),
            whole_blocks(geometry.pixels, "rows", "p_block"),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )


def prepare(attrs: Attrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(o / width), c, kh, kw, width]."""
    return {1: pack_rows(integer(config, "width"))}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The sums of whole tiles [n, p, o], a copy of them in memory, and what of it is in the output."""
    from tvm import te, tirx

    data, weight = inputs
    geometry = Geometry.of_tensors(data, weight, out_type)
    dtype, out_w, pixels = str(data.dtype), geometry.out_w, geometry.pixels
    rows, width = integer(config, "rows"), integer(config, "width")
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    if geometry.kernel_h == geometry.kernel_w == 1 and attrs.strides != (1, 1):
        padded, stride_h, stride_w = pick_pixels(data, attrs, geometry.out_h, out_w), 1, 1
    else:
        padded = pad_zeros(data, attrs.padding)
    c = te.reduce_axis((0, geometry.channels), name="c")
    y = te.reduce_axis((0, geometry.kernel_h), name="y")
    x = te.reduce_axis((0, geometry.kernel_w), name="x")
    wide = accumulator(dtype)

    def term(n: Any, p: Any, o: Any) -> Any:
        p = p if pixels % rows == 0 else tirx.min(p, pixels - 1)
        number = padded[
            n, c, p // out_w * stride_h + y * dilation_h, p % out_w * stride_w + x * dilation_w
        ]
        return te.sum(
            number.astype(wide) * weight[o // width, c, y, x, o % width].astype(wide), axis=[c, y, x]
        )

    shape = (geometry.batch, round_up(pixels, rows), round_up(geometry.out_channels, width))
    tiles = te.compute(shape, term, name="tiles", attrs=stage("tiles"))
    kept = te.compute(shape, lambda n, p, o: tiles[n, p, o], name="kept", attrs=stage("kept"))
    return [
        te.compute(
            (geometry.batch, geometry.out_channels, geometry.out_h, out_w),
            lambda n, o, h, w: kept[n, h * out_w + w, o].astype(dtype),
            name="conv2d",
        )
    ]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of channels × pixels in parallel; in each, one register tile after the other."""
    sch = new_schedule(outs)
    stages = find_stages(sch)
    output = join_epilogue(sch)
    lanes = lanes_of(target, str(outs.args[0].dtype))
    if "padded" in stages:
        schedule_padding(sch, stages["padded"], lanes)
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    tiles, kept = stages["tiles"], stages["kept"]
    out_w = int(outs.tensors[0].shape[3])
    sch.transform_block_layout(output, lambda n, o, h, w: (n, o, h * out_w + w))
    n, p, o = sch.get_loops(kept)
    p_task, p_tile, rows = sch.split(p, [None, integer(config, "p_block"), integer(config, "rows")])
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), integer(config, "width")])
    inner = (panel, p_tile) if config["inner"] == "pixels" else (p_tile, panel)
    sch.reorder(n, o_task, p_task, *inner, rows, columns)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    sch.compute_at(tiles, inner[1], preserve_unit_loops=True)
    sch.parallel(sch.fuse(n, o_task, p_task))
    sch.set_scope(tiles, 0, "local")
    vectorize(sch, columns, lanes)
    sch.unroll(rows)
    _schedule_tile(sch, tiles, lanes, str(config["window"]))
    return sch


def _schedule_tile(sch: Any, tiles: Any, lanes: int, window: str) -> None:
    rows, columns, c, y, x = sch.get_loops(tiles)[-5:]
    vectors, lane = sch.split(columns, [None, lanes])
    sch.reorder(c, y, x, rows, vectors, lane)
    sch.vectorize(lane)
    unrolled = {"unrolled": (y, x), "rows": (x,), "loops": ()}[window]
    for loop in (*unrolled, rows, vectors):
        sch.unroll(loop)
    start = sch.decompose_reduction(tiles, c)
    *_, start_rows, start_vectors, start_lane = sch.get_loops(start)
    sch.vectorize(start_lane)
    sch.unroll(start_rows)
    sch.unroll(start_vectors)
