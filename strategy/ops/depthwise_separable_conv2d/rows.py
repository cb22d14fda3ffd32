"""`depthwise_separable_conv2d_nchwc.cpu`: rows of the depthwise result that stay in the caches, multiplied at once.

A task computes some rows of all channels between, in vectors of channels, then register tiles of columns × output
channels of their product with the pointwise weight, so that the image between is never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import largest_divisor, round_up, tile_share, up_to
from strategy.layout import block_of, laid_out, plain, plain_index, transform_image
from strategy.ops.conv2d.blocked import schedule_blocks
from strategy.ops.conv2d.pad import copy_by_vectors, pad_zeros, whole_padding
from strategy.ops.conv2d.product import MOST_UNROLLED
from strategy.ops.depthwise_separable_conv2d.operator import DepthwiseSeparableConv2DAttrs
from strategy.order import at_least, at_most
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
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

_ROWS = (1, 2, 4, 7, 8)
_COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 28)
_VECTORS = (1, 2, 3, 4, 6)


def _lanes(attrs: DepthwiseSeparableConv2DAttrs, dtype: str, target: Target) -> int:
    """Those of a vector of one block's channels."""
    return min(lanes_of(target, dtype), block_of(attrs.data_layout))


def space(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Rows of an image that are between both convolutions at a time, and register tiles of columns × channels."""
    _, out_channels, out_h, out_w = (int(d) for d in plain(out_type.shape, attrs.out_layout))
    lanes, block = _lanes(attrs, inputs[0].dtype, target), block_of(attrs.data_layout)
    registers = target.vector_registers
    wide = [v * lanes for v in _VECTORS if v == 1 or (v - 1) * lanes < out_channels]
    whole = knob("columns") * (knob("width") // lanes)

    def fallback() -> dict[str, Any]:
        def share(columns: int, width: int) -> float:
            whole = out_channels / float(round_up(out_channels, width))
            return whole * tile_share(out_w, columns, width // lanes, target.multiply_adds)

        fitting = [
            (c, w) for c in _COLUMNS if c <= min(out_w, 14)
            for w in wide if c * (w // lanes) + w // lanes + 1 <= registers and c + 3 <= registers
        ]
        columns, width = max(fitting, key=lambda tile: share(*tile))
        # Each weight is read once for several rows, where all threads have enough of them.
        rows = 2 if out_h % 2 == 0 and out_h >= 8 * target.threads else 1
        return {
            "columns": columns, "width": width, "rows": rows, "pad": "inline",
            "unroll": largest_divisor((1, 2, 4), block, 4),
        }

    return ConfigSpace(
        [
            Knob("width", wide, "layout"),
            up_to("columns", _COLUMNS, out_w),
            up_to("rows", _ROWS, out_h),
            up_to("unroll", (1, 2, 4, 8, 16), block),
            Knob("pad", ["inline", "rows"] if any(attrs.padding) else ["inline"]),
        ],
        [whole + knob("width") // lanes + 1 <= registers, knob("columns") + 3 <= registers],
        derived={"accumulators": whole},
        fallback=fallback,
    )


def activate(x: Any, name: str) -> Any:
    """The activation of a TE expression."""
    from tvm import tirx

    zero, six, sixth, half, one = (tirx.const(n, str(x.ty.dtype)) for n in (0, 6, 1 / 6, 0.5, 1))
    if name == "hardswish":
        return x * at_most(at_least(x * sixth + half, zero), one)
    if name == "none":
        return x
    return at_most(at_least(x, zero), six) if name == "relu6" else at_least(x, zero)


def prepare(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weights are packed into [c / block, kh, kw, block] and panels [ceil(o / width), c / block, block, width]."""
    width, block = integer(config, "width"), block_of(attrs.data_layout)

    def pack_depthwise(weight: Any) -> Any:
        channels, _, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        return compute_stage(
            "depthwise_tiles", (channels // block, kernel_h, kernel_w, block),
            lambda outer, y, x, inner: weight[outer * block + inner, 0, y, x],
        )

    def pack_pointwise(weight: Any) -> Any:
        out_channels, channels = (int(extent) for extent in weight.shape[:2])

        def read(panel: Any, outer: Any, inner: Any, lane: Any) -> Any:
            o = panel * width + lane
            return zero_beyond(weight[o, outer * block + inner, 0, 0], o, out_channels, width)

        shape = (-(-out_channels // width), channels // block, block, width)
        return compute_stage("weight_tiles", shape, read)

    return {1: pack_depthwise, 3: pack_pointwise}


def compute(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Whole tiles of the depthwise sums, their activation, and the sums of their product, as far as in the output."""
    from tvm import te

    data, depthwise, bias, weight = inputs
    batch, out_channels, out_h, out_w = (int(d) for d in plain(out_type.shape, attrs.out_layout))
    blocks, kernel_h, kernel_w, block = (int(d) for d in depthwise.shape)
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    height, columns = round_up(out_h, integer(config, "rows")), round_up(out_w, integer(config, "columns"))
    padded = pad_zeros(data, whole_padding(attrs, data.shape[2:4], (height, columns), (kernel_h, kernel_w)))
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    sums = compute_stage(
        "sums", (batch, blocks, height, columns, block),
        lambda n, o, h, w, c: te.sum(
            padded[n, o, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w, c] * depthwise[o, y, x, c],
            axis=[y, x],
        ),
    )
    between = compute_stage(
        "between", (batch, blocks, height, columns, block),
        lambda n, o, h, w, c: activate(sums[n, o, h, w, c] + bias[o * block + c], attrs.activation),
    )
    outer, inner = te.reduce_axis((0, blocks), name="c"), te.reduce_axis((0, block), name="i")
    width = integer(config, "width")
    tiles = compute_stage(
        "tiles", (batch, height, columns, round_up(out_channels, width)),
        lambda n, h, w, o: te.sum(
            between[n, outer, h, w, inner] * weight[o // width, outer, inner, o % width], axis=[outer, inner]
        ),
    )

    def element(*index: Any) -> Any:
        n, o, h, w = plain_index(index, attrs.out_layout)
        return tiles[n, h, w, o]

    shape = laid_out((batch, out_channels, out_h, out_w), attrs.out_layout)
    return [te.compute(shape, element, name="depthwise_separable_conv2d")]


def schedule(attrs: DepthwiseSeparableConv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Groups of rows in parallel: of each first all channels between, then one register tile after the other."""
    sch, stages, output = start_schedule(outs)
    tiles, between, sums, padded = (stages.get(name) for name in ("tiles", "between", "sums", "padded"))
    lanes, columns = _lanes(attrs, accumulator(str(outs.args[0].dtype)), target), integer(config, "columns")
    transform_image(sch, output, attrs.out_layout, lambda n, o, h, w: (n, h, w, o))
    for name in ("depthwise_tiles", "weight_tiles"):
        if name in stages:
            sch.parallel(sch.get_loops(stages[name])[0])
    sch.set_scope(tiles, 0, "local")
    sch.set_scope(sums, 0, "local")
    n, h, w, o, *_ = sch.get_loops(tiles)
    group, row = sch.split(h, [None, integer(config, "rows")])
    tile, column = sch.split(w, [None, columns])
    panel, channel = sch.split(o, [None, integer(config, "width")])
    sch.reorder(n, group, panel, row, tile, column, channel)
    sch.reverse_compute_at(output, tile, preserve_unit_loops=True)
    sch.compute_at(between, group, preserve_unit_loops=True)
    sch.parallel(sch.fuse(n, group))
    _schedule_depthwise(sch, between, sums, padded, str(config["pad"]), columns, lanes)
    schedule_blocks(sch, tiles, sch.get_loops(tiles)[-4:], lanes, integer(config, "unroll"))
    store_tile(sch, output, min(lanes, block_of(attrs.out_layout)))
    return sch


def _schedule_depthwise(
    sch: Any, between: Any, sums: Any, padded: Any, pad: str, columns: int, lanes: int
) -> None:
    """The depthwise sums of a tile of columns in registers, then their activation."""
    *_, blocks, row, w, c = sch.get_loops(between)
    tile, column = sch.split(w, [None, columns])
    vector, lane = sch.split(c, [None, lanes])
    sch.reorder(blocks, row, tile, vector, column, lane)
    sch.compute_at(sums, vector, preserve_unit_loops=True)
    if padded is not None and pad == "inline":
        sch.compute_inline(padded)
    elif padded is not None:
        sch.compute_at(padded, blocks, preserve_unit_loops=True)
        copy_by_vectors(sch, padded, lanes)
    sch.vectorize(lane)
    sch.unroll(column)
    *_, w, c, y, x = sch.get_loops(sums)
    sch.reorder(y, x, w, c)
    sch.vectorize(c)
    turns = 1
    for loop in (w, x, y):
        turns *= int(sch.get(loop).extent)
        if turns <= MOST_UNROLLED:
            sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(sums, y), 2)


