"""`depthwise_conv2d_nhwc.cpu`, `depthwise_qconv2d_nhwc.cpu`: each channel by its own window, channels in the lanes.

The sums of `rows` × `columns` pixels of one vector of channels stay in registers over the window, each of whose places
takes one vector of weights; images of any size and stride fill the lanes. Narrow numbers are widened as
`depthwise.widened` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import round_up
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.depthwise import is_exact, widened, widened_weight
from strategy.ops.conv2d.depthwise_space import space_of_pixels
from strategy.ops.conv2d.layout import plain_inputs, plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import place_padding, whole_padding
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    stage,
    start_schedule,
    unroll_tile,
)
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_LAYOUT = "NHWC"
_INNER = Knob("inner", ["channels", "pixels"])


def add(strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], name: str, plevel: int) -> None:
    """Add the implementation to a strategy where every channel of NHWC gives one; all but the batch must be known."""
    if (attrs.data_layout, attrs.result_layout) != (_LAYOUT, _LAYOUT):
        return
    data, weight = plain_inputs(attrs, inputs)
    known = all(d.is_constant for d in (*data.shape[1:], *weight.shape))
    if known and int(data.shape[1]) == int(weight.shape[0]) == attrs.groups > 1 and is_exact(attrs, data, weight):
        strategy.add_implementation(compute, schedule, name, plevel, space=space, prepare=prepare)


def space(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """As of any pixels, and the order of tiles: all channels of some pixels, or all pixels of a vector."""
    out_h, out_w = int(out_type.shape[1]), int(out_type.shape[2])
    window, threads = plain_inputs(attrs, inputs)[1].concrete_shape[2:], target.threads
    return space_of_pixels(attrs, window, out_h, out_w, target, lambda d: d >= threads and d % threads == 0, [_INNER])


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight [c, 1, kh, kw] is packed into [kh, kw, c] of the dtype of the sums."""

    def pack(given: Any) -> Any:
        weight = plain_weight(attrs, given)
        channels, _, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        return compute_stage(
            "weight_tiles", (kernel_h, kernel_w, channels),
            lambda y, x, c: widened_weight(attrs, weight[c, 0, y, x], str(weight.dtype)),
        )

    return {1: pack}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The convolution of [n, h, w, c] with a weight that `prepare` has packed."""
    from tvm import te, topi

    data, weight = inputs
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    batch, (out_h, out_w, channels) = data.shape[0], (int(d) for d in out_type.shape[1:])
    kernel_h, kernel_w = int(weight.shape[0]), int(weight.shape[1])
    height, width = round_up(out_h, integer(config, "rows")), round_up(out_w, integer(config, "columns"))
    top, left, bottom, right = whole_padding(attrs, data.shape[1:3], (height, width), (kernel_h, kernel_w))
    padded = widened(attrs, data)
    if any((top, left, bottom, right)):
        padded = topi.nn.pad(
            padded, (0, top, left, 0), (0, bottom, right, 0), name="padded", attrs=stage("padded")
        )
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    wide = accumulator(str(data.dtype))
    tiles = compute_stage(
        "tiles", (batch, height, width, channels),
        lambda n, h, w, c: te.sum(
            padded[n, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w, c].astype(wide) * weight[y, x, c],
            axis=[y, x],
        ),
    )
    shape = (batch, out_h, out_w, channels)
    return [te.compute(shape, lambda *i: tiles(*i).astype(out_type.dtype), name="depthwise_conv2d")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Parts of images in parallel; in each, one tile of pixels after the other."""
    sch, stages, output = start_schedule(outs)
    tiles, padded = stages["tiles"], stages.get("padded")
    lanes = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    sch.set_scope(tiles, 0, "local")
    n, h, w, c, y, x = sch.get_loops(tiles)
    task, h_tile, rows = sch.split(h, [integer(config, "tasks"), None, integer(config, "rows")])
    w_tile, columns = sch.split(w, [None, integer(config, "columns")])
    vector, lane = sch.split(c, [None, lanes])
    inner = (vector, h_tile, w_tile) if config["inner"] == "pixels" else (h_tile, w_tile, vector)
    sch.reorder(n, task, *inner, y, x, rows, columns, lane)
    sch.reverse_compute_at(output, inner[-1], preserve_unit_loops=True)
    task = sch.fuse(n, task)
    sch.parallel(task)
    place_padding(sch, padded, config, (task, h_tile), lanes)
    sch.vectorize(lane)
    for loop in (*{"unrolled": (y, x), "rows": (x,), "loops": ()}[str(config["window"])], rows, columns):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, y))
    *_, out_rows, out_columns, out_channels = sch.get_loops(output)
    sch.vectorize(sch.split(out_channels, [None, lanes])[1])
    for loop in (out_rows, out_columns):
        sch.unroll(loop)
    return sch
