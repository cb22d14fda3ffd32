"""`conv2d_nchw_taps.cpu`: direct convolution by one tap of the window and one block of channels at a time.

A tap is a product of its weights with the shifted image. The sums of a task stay in the second level of the cache, and
the weights of a tap and a block of channels in the first, over all tiles of the task. A tile that a tap sees outside of
the image alone is left out: of a large dilation these are half of all.

As in `conv2d_nchw_spatial_pack.cpu`, output channels are in the vector lanes, and a finished tile is turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.skipping import skip_zero_terms
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    block_knob,
    largest_divisor,
    register_constraint,
    round_up,
    tile_share,
    up_to,
    whole_blocks,
    width_knob,
)
from strategy.cpu.turn import turn, turned_width
from strategy.ops.conv2d.axis import Axis
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import copy_by_vectors, pad_zeros, put_in_order
from strategy.ops.conv2d.product import BLOCKS, Geometry, split_groups
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    find_stages,
    integer,
    lanes_of,
    unroll_tile,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_PARTS = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 28, 32)
_COPIED = Knob("copied", [False, True])
_LEAST = 16  # channels of a block
_DEEP = 1280  # of a window of one pixel


def _axes(attrs: Conv2DAttrs, image: Sequence[Any], geometry: Geometry) -> tuple[Axis, Axis]:
    """Rows and columns."""
    extents = zip(image, (geometry.out_h, geometry.out_w), (geometry.kernel_h, geometry.kernel_w), strict=True)
    steps = zip(attrs.strides, attrs.dilation, attrs.padding[:2], strict=True)
    down, across = (
        Axis(int(extent), out, window, *step) for (extent, out, window), step in zip(extents, steps, strict=True)
    )
    return down, across


def is_offered(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> bool:
    """Return whether the window sees something of the image."""
    axes = _axes(attrs, inputs[0].shape[2:], Geometry.of(inputs, out_type))
    return all(axis.seen(1) for axis in axes)


def pays(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> bool:
    """Return whether channels fill a vector and a block of a dilated window, or are very many of a window of one pixel.

    Others then copy padding or divide the image into many small ones, or their panels leave the first level.
    """
    out_channels, channels, *window = inputs[1].concrete_shape
    is_dilated = any(d > 1 and size > 1 for d, size in zip(attrs.dilation, window, strict=True))
    least = _LEAST if is_dilated else _DEEP if (*window, *attrs.strides) == (1, 1, 1, 1) else math.inf
    return channels >= least and out_channels // attrs.groups >= lanes_of(target, inputs[0].dtype)


def space(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels of a line × `width` channels, `depth` channels of a block, and `parts` of an image's lines.

    The image is read where it lies, or `copied`, as it is where a tile sees a part of its padding.
    """
    geometry = Geometry.of(inputs, out_type)
    lanes, size = lanes_of(target, inputs[0].dtype), dtype_bytes(inputs[0].dtype)
    own, out_h, out_w = geometry.out_channels, geometry.out_h, geometry.out_w
    high, wide = up_to("rows", ROWS, out_w), width_knob(lanes, own)
    depths = [d for d in divisors(geometry.channels) if d >= min(_LEAST, geometry.channels)]
    parts = Knob("parts", [p for p in _PARTS if out_h % p == 0])

    def fallback() -> dict[str, Any]:
        offered = [
            (r, v)
            for r in ROWS if high.has(r)
            for v in VECTORS if wide.has(v * lanes) and r * v + v + 1 <= target.vector_registers
        ]
        down, across = _axes(attrs, inputs[0].shape[2:], geometry)

        def cycles(tile: tuple[int, int]) -> float:
            rows, vectors = tile
            share = tile_share(rows, rows, vectors, target.multiply_adds)
            return across.seen(rows) * -(-own // (vectors * lanes)) * rows * vectors / share

        rows, vectors = min(offered, key=cycles)
        width = vectors * lanes
        panels, pixels = -(-own // width), out_h * int(round_up(out_w, rows))
        threads = max(target.threads // (geometry.groups * geometry.batch), 1)
        # All threads read what they do not divide among them: the image or the weight.
        divided = largest_divisor(_PARTS, out_h, threads) if own * down.window * across.window < pixels else 1
        kept = target.l2_bytes // 2 // (pixels // divided * width * size)
        return {
            "rows": rows,
            "width": width,
            "depth": min(depths, key=lambda d: abs(math.log(d * width * size / (target.l1d_bytes // 3)))),
            "o_block": largest_divisor(BLOCKS, panels, min(kept, -(-panels * divided // threads))),
            "parts": divided,
            "copied": True,
        }

    return ConfigSpace(
        [
            wide,
            high,
            Knob("depth", depths, "layout"),
            block_knob("o_block", BLOCKS, own, wide),
            parts,
            _COPIED,
        ],
        [register_constraint(target.vector_registers, lanes), whole_blocks(own, "width", "o_block")],
        derived={
            "accumulators": accumulators(lanes),
            "panel_bytes": knob("width") * knob("depth") * size,
        },
        fallback=fallback,
    )


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(o / width), c / depth, kh, kw, depth, width], of each group."""
    width, depth, groups = integer(config, "width"), integer(config, "depth"), attrs.groups

    def pack(weight: Any) -> Any:
        out_channels, channels, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        own = out_channels // groups
        panels = -(-own // width)

        def read(panel: Any, block: Any, y: Any, x: Any, c: Any, lane: Any) -> Any:
            o = panel % panels * width + lane
            return zero_beyond(weight[panel // panels * own + o, block * depth + c, y, x], o, own, width)

        shape = (groups * panels, channels // depth, kernel_h, kernel_w, depth, width)
        return compute_stage("weight_tiles", shape, read)

    return {1: pack}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The sums of a tile over a block of channels at each tap, their sum [n, g, h, w, o], and those of the output.

    Lines are of whole tiles.
    """
    from tvm import te, tirx

    data, weight = inputs
    panels, blocks, kernel_h, kernel_w, depth, width = (int(extent) for extent in weight.shape)
    rows, dtype = integer(config, "rows"), str(data.dtype)
    out_channels, out_h, out_w = (int(extent) for extent in out_type.shape[1:])
    own, per_group = out_channels // attrs.groups, panels // attrs.groups
    geometry = Geometry(data.shape[0], attrs.groups, blocks * depth, own, kernel_h, kernel_w, out_h, out_w)
    down, across = _axes(attrs, data.shape[2:], geometry)
    left, right = across.padding(rows)
    image = pad_zeros(data, (0, left, 0, right))
    if image is data and config["copied"]:
        image = compute_stage("padded", data.shape, lambda *i: data[i])
    c = te.reduce_axis((0, depth), name="c")

    def term(b: Any, y: Any, x: Any, n: Any, g: Any, h: Any, w: Any, o: Any) -> Any:
        number = image[n, g * geometry.channels + b * depth + c, down.place(h, y), across.place(w, x) + left]
        return te.sum(number * weight[g * per_group + o // width, b, y, x, c, o % width], axis=c)

    shape = (geometry.batch, attrs.groups, out_h, round_up(out_w, rows), round_up(own, width))
    tiles = compute_stage("tiles", (blocks, kernel_h, kernel_w, *shape), term)
    b, y, x = (te.reduce_axis((0, n), name=name) for n, name in ((blocks, "b"), (kernel_h, "y"), (kernel_w, "x")))

    def summed(*place: Any) -> Any:
        _, _, h, w, _ = place
        part, conditions = tiles[(b, y, x, *place)], []
        for axis, count, first, tap in ((down, 1, h, y), (across, rows, w // rows * rows, x)):
            if axis.sees_padding(count):
                begin = axis.place(first, tap)
                conditions += [begin + (count - 1) * axis.stride >= 0, begin < axis.image]
        if conditions:
            part = tirx.if_then_else(tirx.all(*conditions), part, tirx.const(0, dtype))
        return te.sum(part, axis=[b, y, x])

    total = compute_stage("total", shape, summed)
    *outer, high, deep = shape
    turned = compute_stage("turned", (*outer, deep, high), lambda n, g, h, o, w: total[n, g, h, w, o])
    full = (geometry.batch, out_channels, out_h, out_w)
    return [te.compute(full, lambda n, o, h, w: turned[n, o // own, h, o % own, w], name="conv2d")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of channels × lines in parallel; in each, blocks of channels, panels, taps, and all tiles of each."""
    out_h, rows, width = int(outs.tensors[0].shape[2]), integer(config, "rows"), integer(config, "width")
    sch, output = split_groups(outs, attrs.groups, lambda h, w: (h, w))
    stages, dtype = find_stages(sch), accumulator(str(outs.args[0].dtype))
    lanes, padded = lanes_of(target, dtype), stages.get("padded")
    if padded is not None:
        put_in_order(sch, padded, channels_last=False)
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    tiles, total, turned = stages["tiles"], stages["total"], stages["turned"]
    sch.set_scope(tiles, 0, "local")
    n, g, h, w, o, block, *taps = sch.get_loops(total)
    part, line = sch.split(h, [None, out_h // integer(config, "parts")])
    tile, high = sch.split(w, [None, rows])
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), width])
    sch.reorder(n, g, o_task, part, block, panel, *taps, line, tile, high, columns)
    sch.compute_at(tiles, tile, preserve_unit_loops=True)
    task = sch.fuse(n, g, o_task, part)
    sch.parallel(task)
    if padded is not None:
        # The part of a block of channels that a task reads comes into its second level.
        sch.compute_at(padded, block, preserve_unit_loops=True)
        copy_by_vectors(sch, padded, lanes)
    skip_zero_terms(sch, tile)
    vectorize(sch, columns, lanes)
    sch.unroll(high)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(total, block))[-1])
    _schedule_turn(sch, task, turned, output, (rows, width, lanes), dtype)
    _schedule_tile(sch, tiles, lanes)
    return sch


def _schedule_turn(sch: Any, task: Any, turned: Any, output: Any, tile: tuple[int, int, int], dtype: str) -> None:
    """Turn the task's tiles one after the other, of `rows` × `width` each, and write them."""
    rows, width, lanes = tile
    if rows == 1:
        sch.compute_inline(turned)
        sch.reverse_compute_at(output, task, preserve_unit_loops=True)
        return
    sch.reverse_compute_at(turned, task, preserve_unit_loops=True)
    o, w = sch.get_loops(turned)[-2:]
    across, w = sch.split(w, [None, rows])
    panel, o = sch.split(o, [None, width])
    sch.reorder(panel, across, o, w)
    sch.reverse_compute_at(output, across, preserve_unit_loops=True)
    vectors, column = sch.split(o, [None, lanes])
    sch.unroll(vectors)
    turn(sch, task, column, 5, rows, lanes, dtype)
    *_, out_o, out_w = sch.get_loops(output)
    vectorize(sch, out_w, min(turned_width(rows, lanes), lanes))
    sch.unroll(out_o)


def _schedule_tile(sch: Any, tiles: Any, lanes: int) -> None:
    high, columns, c = sch.get_loops(tiles)[-3:]
    vectors, lane = sch.split(columns, [None, lanes])
    sch.reorder(c, high, vectors, lane)
    sch.vectorize(lane)
    for loop in (high, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, c))
