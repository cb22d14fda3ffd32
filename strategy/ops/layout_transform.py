"""layout_transform: images in another layout, as Relay's; it refuses channels that blocks of a layout do not divide.

Where the channels of a pixel, or of a block, come to lie together or apart, `layout_transform_tile.cpu` transposes
[channels, pixels] by tiles; else `elementwise.cpu` copies channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.transpose import can_tile, schedule_transposed, space, transposed
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.layout import (
    LAYOUTS,
    PLAIN,
    block_of,
    laid_out,
    laid_out_array,
    laid_out_index,
    laid_out_view,
    plain,
    plain_array,
    plain_index,
    plain_view,
    require_blocks,
    require_layout,
    transform_image,
)
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.op_strategy import OpStrategy
from strategy.pattern import (
    add_elementwise,
    register_cpu_implementations,
    register_injective_schedule,
)
from strategy.reference import widened
from strategy.schedule import Outs, join_epilogue, new_schedule
from strategy.shape_func import register_shape_func
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType, Type


class LayoutTransformAttrs(Attrs):
    """Attributes of layout_transform."""

    src_layout: str = field(description="The layout of the data", choices=LAYOUTS)
    dst_layout: str = field(description="The layout of the result", choices=LAYOUTS)


def layout_transform_rel(types: Sequence[Type], attrs: LayoutTransformAttrs, reporter: TypeReporter) -> bool:
    """The extents of the other layout."""
    data = reporter.known(0)
    found = require_layout(reporter, 0, data, attrs.src_layout)
    require_blocks(reporter, 0, found.shape[1], attrs.dst_layout)
    reporter.assign(1, TensorType(laid_out(found.shape, attrs.dst_layout), data.dtype))
    return True


(
    register_op("layout_transform")
    .describe("Images in another layout, as Relay's layout_transform.")
    .add_argument("data", "Tensor", "Images in src_layout; of NCHW16c [batch, channels / 16, height, width, 16]")
    .set_attrs_type(LayoutTransformAttrs)
    .set_support_level(5)
    .add_type_rel("LayoutTransform", layout_transform_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[2,32,5,7]"}, {"src_layout": "NCHW", "dst_layout": "NCHW16c"})
    .example({"data": "float32[1,3,4,6,8]"}, {"src_layout": "NCHW8c", "dst_layout": "NCHW"})
    .example({"data": "float32[1,5,7,16]"}, {"src_layout": "NHWC", "dst_layout": "NCHW8c"})
    .example({"data": "float32[1,4,5,7,8]"}, {"src_layout": "NCHW8c", "dst_layout": "NCHW16c"})
)


@register_compute("layout_transform")
def compute_layout_transform(attrs: LayoutTransformAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te

    (data,) = inputs
    shape = laid_out(plain(data.shape, attrs.src_layout), attrs.dst_layout)

    def element(*i: Any) -> Any:
        return data(*laid_out_index(plain_index(i, attrs.dst_layout), attrs.src_layout))

    return [te.compute(shape, element, name="layout_transform")]


@register_reference("layout_transform")
def reference_layout_transform(attrs: LayoutTransformAttrs, inputs: Sequence[Any]) -> Any:
    return laid_out_array(plain_array(widened(inputs[0]), attrs.src_layout), attrs.dst_layout)


@register_shape_func("layout_transform", False)
def layout_transform_shape_func(
    attrs: LayoutTransformAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    return [tuple(laid_out(plain(inputs[0], attrs.src_layout), attrs.dst_layout))]


register_injective_schedule("layout_transform")

_ORDER = (0, 1, 3, 2)


def _matrices(attrs: LayoutTransformAttrs, out_type: TensorType) -> tuple[int, int, int, int]:
    """The result as [n, channels / block, channels of a block, pixels], the last two in their order in memory."""
    n, c, h, w = (int(d) for d in plain(out_type.shape, attrs.dst_layout))
    together = attrs.src_layout if attrs.dst_layout == PLAIN else attrs.dst_layout
    block = max(c, 1) if together == "NHWC" else block_of(together)
    return (n, c // block, block, h * w) if attrs.dst_layout == PLAIN else (n, c // block, h * w, block)


def tile_space(
    attrs: LayoutTransformAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The space of tiles of channels and pixels."""
    return space(out_type, *_matrices(attrs, out_type)[2:], target)


def compute_tile(
    attrs: LayoutTransformAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The matrices of channels and pixels transposed in tiles."""
    from tvm import te

    data, shape = plain_view(inputs[0], attrs.src_layout), _matrices(attrs, out_type)
    _, c, height, width = (int(d) for d in plain(out_type.shape, attrs.dst_layout))
    block = c // shape[1]

    def entry(n: Any, o: Any, i: Any, j: Any) -> Any:
        channel, pixel = (j, i) if attrs.dst_layout == PLAIN else (i, j)
        return data(n, o * block + channel, pixel // width, pixel % width)

    turned = [shape[a] for a in _ORDER]
    found = transposed(te.compute(turned, entry, name="view"), _ORDER, shape, config)

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        channel, pixel = c % block, h * width + w
        pair = (channel, pixel) if attrs.dst_layout == PLAIN else (pixel, channel)
        return found(n, c // block, *pair)

    image = te.compute((shape[0], c, height, width), element, name="view")
    return [laid_out_view(image, attrs.dst_layout)]


def schedule_tile(attrs: LayoutTransformAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Blocks of tiles; each within registers."""
    sch = new_schedule(outs)
    output = join_epilogue(sch)
    shape = [int(d) for d in outs.tensors[0].shape]
    _, c, _, width = plain(shape, attrs.dst_layout)
    together = attrs.src_layout if attrs.dst_layout == PLAIN else attrs.dst_layout
    block = c if together == "NHWC" else block_of(together)

    def matrices(n: Any, c: Any, h: Any, w: Any) -> tuple[Any, ...]:
        pair = (c % block, h * width + w) if attrs.dst_layout == PLAIN else (h * width + w, c % block)
        return (n, c // block, *pair)

    transform_image(sch, output, attrs.dst_layout, matrices)
    schedule_transposed(sch, output, _ORDER, config)
    return sch


def _add_tile(strategy: OpStrategy, attrs: Any, inputs: Any, out_type: Any, target: Target) -> None:
    if PLAIN not in (attrs.src_layout, attrs.dst_layout) or attrs.src_layout == attrs.dst_layout:
        add_elementwise(strategy, attrs, inputs, out_type, target)  # channels lie together as they did
    elif can_tile(out_type, _matrices(attrs, out_type)[-1] if out_type.is_constant else 1):
        strategy.add_implementation(
            compute_tile, schedule_tile, "layout_transform_tile.cpu", 12, space=tile_space, symbolic=False
        )


register_cpu_implementations("layout_transform", _add_tile)


@register_gradient("layout_transform")
def layout_transform_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad in the layout of the data]."""
    return [layout_transform(grad, orig.attrs.dst_layout, orig.attrs.src_layout)]


layout_transform = caller("layout_transform")


def by_plain(slope: Callable[[Call, Expr], list[Expr]]) -> Callable[[Call, Expr], list[Expr]]:
    """The gradient of an operator of images of the attribute `layout`, by that of NCHW."""

    @wraps(slope)
    def of_any(orig: Call, grad: Expr) -> list[Expr]:
        layout = getattr(orig.attrs, "layout", PLAIN)
        if layout == PLAIN:
            return slope(orig, grad)
        attrs = type(orig.attrs).from_json({k: v for k, v in orig.attrs.to_json().items() if k != "layout"})
        data, out = (layout_transform(x, layout, PLAIN) for x in (orig.args[0], grad))
        return [layout_transform(found, PLAIN, layout) for found in slope(Call(orig.op, [data], attrs), out)]

    return of_any
