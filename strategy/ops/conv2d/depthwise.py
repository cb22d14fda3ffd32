"""`depthwise_conv2d_nchw.cpu`, `depthwise_qconv2d_nchw.cpu`: each output channel sees one input channel.

Nothing sums over channels. Vectors lie along a row of the image; the sums of `rows` × `width` pixels stay in registers
over the window, whose weights are broadcast. bfloat16 and 8-bit integers are widened to float32, whose sums of such
integers are exact, where the image is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from strategy.cpu.tile import largest_divisor, round_up, up_to
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros, place_padding, whole_padding
from strategy.ops.conv2d.product import usual_window
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
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 14)
_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_PAD = Knob("pad", ["tile", "task", "apart", "inline"])
_PAD_WITH_STRIDE = Knob("pad", ["tile", "task", "apart"])
_WINDOW = Knob("window", ["unrolled", "rows", "loops"])


def is_depthwise(attrs: Conv2DAttrs, inputs: Sequence[TensorType]) -> bool:
    """Return whether every group has one input channel."""
    return attrs.groups > 1 and (inputs[0].shape[1] == attrs.groups).decide() is True


def add(strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], name: str) -> None:
    """Add the implementation to a strategy; all but the batch must be known, and sums of integers be exact."""
    data, weight = inputs
    if all(d.is_constant for d in (*data.shape[1:], *weight.shape)) and is_exact(attrs, data, weight):
        strategy.add_implementation(
            compute, schedule, name, 15, version=3, space=space,
            prepare=prepare if data.dtype != accumulator(data.dtype) else None,
        )


def is_exact(attrs: Conv2DAttrs, data: TensorType, weight: TensorType) -> bool:
    """Return whether float32 holds the sums of integers of these types in NCHW and OIHW; floats are rounded anyway."""
    return data.dtype not in _BOUNDS or largest_sum(attrs, data, weight) <= 1 << 24


def largest_sum(attrs: Conv2DAttrs, data: TensorType, weight: TensorType) -> int:
    """The largest magnitude of a sum of products of 8-bit integers, without their zero points."""
    most = prod(weight.concrete_shape[1:])
    for kind, name in ((data, "input"), (weight, "kernel")):
        most *= max(abs(bound - getattr(attrs, f"{name}_zero_point", 0)) for bound in _BOUNDS[kind.dtype])
    return most


_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}


def widened(attrs: Conv2DAttrs, data: Any) -> Any:
    """The TE tensor without its zero point, in the dtype of the sums where it is narrower."""
    from tvm import te

    dtype = str(data.dtype)
    if dtype == accumulator(dtype):
        return data
    zero_point = getattr(attrs, "input_zero_point", 0)
    return te.compute(data.shape, lambda *i: _wide(data(*i), dtype, zero_point), name="widened")


def widened_weight(attrs: Conv2DAttrs, number: Any, dtype: str) -> Any:
    """A number of a weight of `dtype` as `widened` has one of the data."""
    return _wide(number, dtype, getattr(attrs, "kernel_zero_point", 0))


def _wide(number: Any, dtype: str, zero_point: int) -> Any:
    if dtype in ("int8", "uint8"):
        number = number.astype("int32") - zero_point
    return number.astype(accumulator(dtype))


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is widened."""
    dtype = inputs[1].dtype

    def pack(weight: Any) -> Any:
        return compute_stage("wide_weight", weight.shape, lambda *i: widened_weight(attrs, weight(*i), dtype))

    return {1: pack}


def space(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The pixels whose sums are kept, lanes, channels per task, and where the padding is made.

    Rows of tiles pad what they read (`tile`), tasks a channel at a time, all are padded before (`apart`), or
    bounds are checked where the image is read (`inline`). The loops over the window are unrolled, those over
    its rows only, or none.
    """
    channels, out_h, out_w = map(int, out_type.shape[1:])
    full = lanes_of(target, accumulator(inputs[0].dtype))
    lanes = tuple([x for x in (full // 4, full // 2, full) if x >= 1])
    wide = max(1, -(-out_w // full))
    image_bytes = int(inputs[0].shape[2]) * int(inputs[0].shape[3]) * dtype_bytes(accumulator(inputs[0].dtype))
    in_cache = image_bytes < target.capability.get("l1d_bytes", 32 * 1024)

    def fallback() -> dict[str, Any]:
        fitting = min((x for x in lanes if x >= min(out_w, full)), default=full)
        vectors = min(wide, 2)
        rows = max(r for r in _ROWS if out_h % r == 0 and r * vectors <= 8)
        return {
            "lanes": fitting,
            "vectors": vectors,
            "rows": rows,
            "block": largest_divisor(_BLOCKS, channels, channels // (2 * target.threads)),
            "pad": ("task" if in_cache else "tile") if any(attrs.padding) else "apart",
            "window": usual_window("unrolled", inputs[1].concrete_shape[2:], rows * vectors),
        }

    return ConfigSpace(
        [
            up_to("lanes", lanes, full),
            up_to("vectors", (1, 2, 3, 4, 7, 8), -(-out_w // lanes[0])),
            up_to("rows", _ROWS, out_h),
            up_to("block", _BLOCKS, channels),
            _pad_knob(attrs),
            _WINDOW,
        ],
        [knob("rows") * knob("vectors") + 4 <= target.vector_registers],
        derived={"accumulators": knob("rows") * knob("vectors")},
        fallback=fallback,
    )


def _pad_knob(attrs: Conv2DAttrs) -> Knob:
    """Vectors with gaps cannot check their bounds as they are read."""
    if not any(attrs.padding):
        return Knob("pad", ["apart"])
    return _PAD if attrs.strides[1] == 1 else _PAD_WITH_STRIDE


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The convolution of [n, c, h, w] with [c * multiplier, 1, kh, kw]."""
    from tvm import te

    data, weight = inputs
    dtype = str(data.dtype)
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    batch = data.shape[0]
    out_channels, out_h, out_w = map(int, out_type.shape[1:])
    kernel_h, kernel_w = int(weight.shape[2]), int(weight.shape[3])
    multiplier = out_channels // attrs.groups
    tile_h, tile_w = integer(config, "rows"), integer(config, "vectors") * integer(config, "lanes")
    height, width = round_up(out_h, tile_h), round_up(out_w, tile_w)
    padding = whole_padding(attrs, data.shape[2:], (height, width), (kernel_h, kernel_w))
    padded = pad_zeros(widened(attrs, data), padding)
    y = te.reduce_axis((0, kernel_h), name="y")
    x = te.reduce_axis((0, kernel_w), name="x")
    wide = accumulator(dtype)
    tiles = compute_stage(
        "tiles", (batch, out_channels, height, width),
        lambda n, o, h, w: te.sum(
            padded[
                n, o // multiplier, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w
            ].astype(wide)
            * weight[o, 0, y, x].astype(wide),
            axis=[y, x],
        ),
    )
    return [
        te.compute(
            (batch, out_channels, out_h, out_w),
            lambda n, o, h, w: tiles[n, o, h, w].astype(out_type.dtype),
            name="depthwise_conv2d",
        )
    ]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Channels in parallel; in each, one tile of pixels after the other."""
    sch, stages, output = start_schedule(outs)
    tiles, padded = stages["tiles"], stages.get("padded")
    lanes = integer(config, "lanes")
    if "wide_weight" in stages:
        sch.parallel(sch.get_loops(stages["wide_weight"])[0])
    sch.set_scope(tiles, 0, "local")
    n, o, h, w, y, x = sch.get_loops(tiles)
    h_tile, rows = sch.split(h, [None, integer(config, "rows")])
    w_tile, columns = sch.split(w, [None, integer(config, "vectors") * lanes])
    task, channel = sch.split(sch.fuse(n, o), [None, integer(config, "block")])
    sch.reorder(task, channel, h_tile, w_tile, y, x, rows, columns)
    sch.reverse_compute_at(output, w_tile, preserve_unit_loops=True)
    sch.parallel(task)
    place_padding(sch, padded, config, (channel, h_tile), lanes_of(target, accumulator(str(outs.args[0].dtype))))
    _schedule_tile(sch, tiles, output, (y, x, rows, columns), lanes, str(config["window"]))
    return sch


def _schedule_tile(
    sch: Any, block: Any, output: Any, loops: Sequence[Any], lanes: int, window: str
) -> None:
    y, x, rows, columns = loops
    vectors, lane = sch.split(columns, [None, lanes])
    sch.vectorize(lane)
    sch.reorder(y, x, rows, vectors, lane)
    unrolled = {"unrolled": (y, x), "rows": (x,), "loops": ()}[window]
    for loop in (*unrolled, rows, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(block, y))
    store_tile(sch, output, lanes)
