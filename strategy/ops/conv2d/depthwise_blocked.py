"""`depthwise_conv2d_nchwc.cpu`: each channel of a blocked image by its own window, in vectors of channels.

The sums of `rows` × `columns` pixels of one vector stay in registers over the window, each of whose positions takes one
vector of weights; images of any size and stride fill the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import round_up
from strategy.layout import block_of
from strategy.ops.conv2d.blocked import lanes_of_block, schedule_padding
from strategy.ops.conv2d.depthwise_space import space_of_pixels
from strategy.ops.conv2d.layout import plain_inputs, plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros, place_padding, whole_padding
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    unroll_tile,
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
    window = plain_inputs(attrs, inputs)[1].concrete_shape[2:]
    return space_of_pixels(attrs, window, out_h, out_w, target, lambda d: d >= wanted)


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight [c, 1, kh, kw] is packed into [c / block, kh, kw, block]."""
    block = block_of(attrs.data_layout)

    def pack(given: Any) -> Any:
        weight = plain_weight(attrs, given)
        channels, _, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        return compute_stage(
            "weight_tiles", (channels // block, kernel_h, kernel_w, block),
            lambda outer, y, x, inner: weight[outer * block + inner, 0, y, x],
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
    padded = pad_zeros(data, whole_padding(attrs, data.shape[2:4], (height, width), (kernel_h, kernel_w)))
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    wide = accumulator(dtype)
    tiles = compute_stage(
        "tiles", (batch, blocks, height, width, block),
        lambda n, o, h, w, c: te.sum(
            padded[n, o, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w, c].astype(wide)
            * weight[o, y, x, c].astype(wide),
            axis=[y, x],
        ),
    )
    shape = (batch, blocks, out_h, out_w, block)
    return [te.compute(shape, lambda *i: tiles(*i).astype(dtype), name="depthwise_conv2d")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Parts of blocks in parallel; in each, one tile of pixels after the other."""
    sch, stages, output = start_schedule(outs)
    tiles, padded = stages["tiles"], stages.get("padded")
    dtype = accumulator(str(outs.args[0].dtype))
    lanes = lanes_of_block(attrs, dtype, target)
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
    place_padding(sch, padded, config, (task, h_tile), lanes_of(target, dtype), schedule_padding)
    sch.vectorize(lane)
    for loop in (*{"unrolled": (y, x), "rows": (x,), "loops": ()}[str(config["window"])], rows, columns):
        sch.unroll(loop)
    for block in (sch.decompose_reduction(tiles, y), output):
        unroll_tile(sch, block)
    return sch
