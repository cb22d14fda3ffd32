"""`depthwise_conv2d_nchwc.cpu`: each channel of a blocked image by its own window, in vectors of channels.

The sums of `rows` × `columns` pixels of one vector stay in registers over the window, each of whose positions takes one
vector of weights; images of any size and stride fill the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import accumulator, round_up
from strategy.layout import block_of
from strategy.ops.conv2d.blocked import lanes_of_block, schedule_padding
from strategy.ops.conv2d.depthwise_space import space_of_pixels
from strategy.ops.conv2d.layout import plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros
from strategy.schedule import (
    Outs,
    find_stages,
    integer,
    join_epilogue,
    lanes_of,
    new_schedule,
    stage,
)
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType


def is_offered(attrs: Conv2DAttrs, data: TensorType, weight: TensorType) -> bool:
    """Return whether every channel of the data [n, c, h, w] gives one of the result, in the same layout."""
    each = int(data.shape[1]) == int(weight.shape[0]) == attrs.groups
    return each and attrs.data_layout == attrs.result_layout


def space(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """As of any pixels; blocks of channels are tasks, too."""
    batch, blocks, out_h, out_w, _ = (int(d) for d in out_type.shape)
    wanted = 1 if batch * blocks % target.threads == 0 else target.threads
    return space_of_pixels(attrs, out_h, out_w, target, lambda d: d >= wanted)


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight [c, 1, kh, kw] is packed into [c / block, kh, kw, block]."""
    block = block_of(attrs.data_layout)

    def pack(given: Any) -> Any:
        from tvm import te

        weight = plain_weight(attrs, given)
        channels, _, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        return te.compute(
            (channels // block, kernel_h, kernel_w, block),
            lambda outer, y, x, inner: weight[outer * block + inner, 0, y, x],
            name="weight_tiles",
            attrs=stage("weight_tiles"),
        )

    return {1: pack}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The convolution of [n, c / block, h, w, block] with a weight that `prepare` has packed."""
    from tvm import te

    data, weight = inputs
    dtype = str(data.dtype)
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    batch, blocks, out_h, out_w, block = (int(d) for d in out_type.shape)
    kernel_h, kernel_w = int(weight.shape[1]), int(weight.shape[2])
    height, width = round_up(out_h, integer(config, "rows")), round_up(out_w, integer(config, "columns"))
    # Whole tiles read this far; what they compute beyond the output is left out.
    top, left, bottom, right = attrs.padding
    bottom = max(bottom, (height - 1) * stride_h + (kernel_h - 1) * dilation_h + 1 - int(data.shape[2]) - top)
    right = max(right, (width - 1) * stride_w + (kernel_w - 1) * dilation_w + 1 - int(data.shape[3]) - left)
    padded = pad_zeros(data, (top, left, bottom, right))
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    wide = accumulator(dtype)
    tiles = te.compute(
        (batch, blocks, height, width, block),
        lambda n, o, h, w, c: te.sum(
            padded[n, o, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w, c].astype(wide)
            * weight[o, y, x, c].astype(wide),
            axis=[y, x],
        ),
        name="tiles",
        attrs=stage("tiles"),
    )
    shape = (batch, blocks, out_h, out_w, block)
    return [te.compute(shape, lambda *i: tiles(*i).astype(dtype), name="depthwise_conv2d")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Parts of blocks in parallel; in each, one tile of pixels after the other."""
    sch = new_schedule(outs)
    output = join_epilogue(sch)
    stages = find_stages(sch)
    tiles, padded = stages["tiles"], stages.get("padded")
    dtype = accumulator(str(outs.args[0].dtype))
    lanes, full = lanes_of_block(attrs, dtype, target), lanes_of(target, dtype)
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    sch.set_scope(tiles, 0, "local")
    n, o, h, w, c, y, x = sch.get_loops(tiles)
    task, h_tile, rows = sch.split(h, [integer(config, "tasks"), None, integer(config, "rows")])
    w_tile, columns = sch.split(w, [None, integer(config, "columns")])
    vector, lane = sch.split(c, [None, lanes])
    sch.reorder(n, o, task, h_tile, w_tile, vector, y, x, rows, columns, lane)
    sch.reverse_compute_at(output, vector, preserve_unit_loops=True)
    task = sch.fuse(n, o, task)
    sch.parallel(task)
    if padded is not None and config["pad"] == "inline":
        sch.compute_inline(padded)
    elif padded is not None and config["pad"] == "apart":
        schedule_padding(sch, padded, full)
    elif padded is not None:
        sch.compute_at(padded, task if config["pad"] == "task" else h_tile, preserve_unit_loops=True)
        sch.vectorize(sch.split(sch.get_loops(padded)[-1], [None, full])[1])
    sch.vectorize(lane)
    for loop in (*{"unrolled": (y, x), "rows": (x,), "loops": ()}[str(config["window"])], rows, columns):
        sch.unroll(loop)
    start = sch.decompose_reduction(tiles, y)
    *_, start_rows, start_columns, start_lane = sch.get_loops(start)
    *_, out_rows, out_columns, out_lane = sch.get_loops(output)
    for loop in (start_lane, out_lane):
        sch.vectorize(loop)
    for loop in (start_rows, start_columns, out_rows, out_columns):
        sch.unroll(loop)
    return sch
