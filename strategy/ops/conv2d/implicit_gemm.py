"""`conv2d_nchw_implicit_gemm.cuda`: a product of the weight with windows that are never stored.

The depth of the product counts channels fastest: where they fill whole steps, a step reads one place of
the window, and what is found by division is found once for each step, not for each element. The weight
is packed in that order, its output channels side by side, as threads load them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import Product, compute_product
from strategy.cuda.schedule import bind_flat
from strategy.cuda.tiled import loops_of_parts, schedule_tiled, tiled_space
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.schedule import Outs, compute_stage, find_stages, integer, join_epilogue, new_schedule
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType


def extents(inputs: Sequence[TensorType], out_type: TensorType) -> tuple[int, int, int]:
    """The product's: output channels, places of all images, and the depth."""
    batch, channels, height, width = out_type.concrete_shape
    _, depth, window_h, window_w = inputs[1].concrete_shape
    return channels, batch * height * width, depth * window_h * window_w


def padded(attrs: Conv2DAttrs, data: Any, n: Any, c: Any, y: Any, x: Any) -> Any:
    """The data at a place of the padded image: zero in the padding."""
    from tvm import tirx

    top, left, bottom, right = attrs.padding
    tests = []
    if top or bottom:
        tests += [y >= top, y - top < data.shape[2]]
    if left or right:
        tests += [x >= left, x - left < data.shape[3]]
    value = data[n, c, y - top, x - left]
    return tirx.if_then_else(tirx.all(*tests), value, tirx.const(0, data.dtype)) if tests else value


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Blocks, threads, loads, and parts of the depth."""
    m, n, k = extents(inputs, out_type)
    return tiled_space(
        limits_of(target), inputs[0].dtype, m, n, k, along_k=False, vector=4 if m % 4 == 0 else 1
    )


def prepare(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight [o, c, kh, kw] as [kh, kw, c, o]."""

    def pack(weight: Any) -> Any:
        out_channels, channels, height, width = weight.shape
        return compute_stage(
            "packed_weight", (height, width, channels, out_channels), lambda y, x, c, o: weight[o, c, y, x]
        )

    return {1: pack}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product with a weight that `prepare` has packed, read back as [n, o, h, w]."""
    data, weight = inputs
    batch, out_channels, rows, columns = out_type.concrete_shape
    height, width, channels, _ = (int(e) for e in weight.shape)
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    block_k = integer(config, "block_k")

    def place(turn: Any, within: Any) -> tuple[Any, Any, Any]:
        if channels % block_k:
            step = turn * block_k + within
            return step // channels // width, step // channels % width, step % channels
        pixel = turn // (channels // block_k)
        return pixel // width, pixel % width, turn % (channels // block_k) * block_k + within

    def of_weight(batch: Any, o: Any, *step: Any) -> Any:
        y, x, c = place(*step)
        return weight[y, x, c, o]

    def of_windows(batch: Any, at: Any, *step: Any) -> Any:
        n, h, w = at // (rows * columns), at // columns % rows, at % columns
        y, x, c = place(*step)
        return padded(
            attrs, data, n, c, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w
        )

    product = compute_product(
        Product(1, out_channels, batch * rows * columns, channels * height * width),
        of_weight, of_windows, str(data.dtype), config, turns=True,
    )
    return [as_image(product, out_type)]


def as_image(product: Any, out_type: TensorType) -> Any:
    """A product [1, o, places] as [n, o, h, w]."""
    from tvm import te

    _, _, rows, columns = shape = out_type.concrete_shape
    return te.compute(
        shape,
        lambda n, o, h, w: product[0, o, (n * rows + h) * columns + w].astype(out_type.dtype),
        name="conv2d",
    )


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_tiled`; neighbouring threads load neighbouring places of the image."""
    sch = new_schedule(outs)
    packed = find_stages(sch).get("packed_weight")
    if packed is not None:
        bind_flat(sch, sch.get_loops(packed))
    loops = loops_of_parts(sch) or loops_of_places(sch)
    schedule_tiled(sch, loops, config, a_along_k=False, b_along_k=False, b_lanes=1)
    return sch


def loops_of_places(sch: Any) -> tuple[Any, Any, Any]:
    """One batch, channels, and places: of the loops [n, o, h, w] of the output."""
    output = join_epilogue(sch)
    _, _, rows, columns = (int(sch.get(loop).extent) for loop in sch.get_loops(output))
    # The block itself counts places: fused loops alone leave a division that TVM cannot see through.
    sch.transform_block_layout(output, lambda n, o, h, w: (o, (n * rows + h) * columns + w))
    channel, place = sch.get_loops(output)
    return sch.add_unit_loop(channel), channel, place
