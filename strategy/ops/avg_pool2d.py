"""avg_pool2d and global_avg_pool2d: the mean of each window, and of each whole image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.pool2d import register_pool2d_rows, window_count
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Call, Expr, call, const
from strategy.gradient import register_gradient
from strategy.layout import (
    LAYOUTS,
    PLAIN,
    in_layouts,
    laid_out,
    laid_out_array,
    laid_out_index,
    plain,
    plain_array,
    plain_index,
    require_layout,
)
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.elemwise import ones_like
from strategy.ops.layout_transform import by_plain
from strategy.ops.max_pool2d import MaxPool2DAttrs, max_pool2d_rel, max_pool2d_shape_func
from strategy.ops.reduce import shared_out
from strategy.ops.reshape import reshape, reshape_like
from strategy.ops.window import windows
from strategy.pattern import in_float32
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_float
from strategy.types import Dim, TensorType, Type


class AvgPool2DAttrs(MaxPool2DAttrs):
    """Attributes of avg_pool2d. One number stands for both axes, or all sides."""

    count_include_pad: bool = field(False, "Count padding, as zeros")


def avg_pool2d_rel(types: Sequence[Type], attrs: AvgPool2DAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, number of windows down, across]."""
    data = reporter.tensor(0)
    if data is not None:
        require_float(reporter, 0, data)
    return max_pool2d_rel(types, attrs, reporter)


class GlobalPool2DAttrs(Attrs):
    """Attributes of global_avg_pool2d."""

    layout: str = field(PLAIN, "The order of the data's axes, and of the result's", choices=LAYOUTS)


def global_avg_pool2d_rel(types: Sequence[Type], attrs: GlobalPool2DAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, 1, 1], in the order of the layout."""
    data = reporter.known(0)
    n, c, height, width = require_layout(reporter, 0, data, attrs.layout).shape
    require_float(reporter, 0, data)
    reporter.check(height >= 1, 0, "an image without elements has no mean")
    reporter.check(width >= 1, 0, "an image without elements has no mean")
    reporter.assign(1, TensorType(laid_out((n, c, Dim(1), Dim(1)), attrs.layout), data.dtype))
    return True


(
    register_op("avg_pool2d")
    .describe("The mean of each window.")
    .add_argument("data", "Tensor", "[batch, channels, height, width], in the order of the layout")
    .set_attrs_type(AvgPool2DAttrs)
    .set_support_level(2)
    .add_type_rel("AvgPool2D", avg_pool2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,2,6,9]"}, {"pool_size": [2, 3], "strides": [2, 1], "padding": [1, 1]})
    .example({"data": "float32[1,2,6,9]"}, {"pool_size": 3, "strides": 2, "padding": [1, 0], "ceil_mode": True})
    .example(
        {"data": "float32[1,2,6,10]"},
        {"pool_size": 3, "strides": 2, "padding": 1, "ceil_mode": True, "count_include_pad": True},
    )
    .example({"data": "float32[1,6,9,19]"}, {"pool_size": 3, "strides": 2, "padding": 1, "layout": "NHWC"})
)
(
    register_op("global_avg_pool2d")
    .describe("The mean of each image.")
    .add_argument("data", "Tensor", "[batch, channels, height, width], in the order of the layout")
    .set_attrs_type(GlobalPool2DAttrs)
    .set_support_level(2)
    .add_type_rel("GlobalAvgPool2D", global_avg_pool2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,2,6,9]"})
    .example({"data": "float32[1,2,6,9,16]"}, {"layout": "NCHW16c"})
)


@register_compute("avg_pool2d")
@in_float32
@in_layouts
def compute_avg_pool2d(attrs: AvgPool2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx, topi

    data = inputs[0]
    found = topi.nn.pool2d(
        data, list(attrs.pool_size), list(attrs.strides), list(attrs.dilation),
        list(attrs.sides(data.shape)), "avg", count_include_pad=attrs.count_include_pad,
    )
    if not attrs.ceil_mode or not attrs.count_include_pad:
        return [found]
    whole = tirx.const(math.prod(attrs.pool_size), found.dtype)

    def mean(n: Any, c: Any, y: Any, x: Any) -> Any:
        return found(n, c, y, x) * whole / window_count(attrs, data.shape[2:], (y, x), str(found.dtype))

    return [te.compute(found.shape, mean, name="mean")]


@register_compute("global_avg_pool2d")
@in_float32
def compute_global_avg_pool2d(attrs: GlobalPool2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te

    (data,) = inputs
    n, c, *extents = plain(data.shape, attrs.layout)
    steps = [te.reduce_axis((0, extent), name=name) for extent, name in zip(extents, "yx", strict=True)]
    shape = laid_out((n, c, 1, 1), attrs.layout)

    def total(*index: Any) -> Any:
        image = plain_index(index, attrs.layout)[:2]
        return te.sum(data(*laid_out_index((*image, *steps), attrs.layout)), axis=steps)

    sums = te.compute(shape, total, name="global_avg_pool2d")
    count = (extents[0] * extents[1]).astype(data.dtype)
    return [te.compute(shape, lambda *i: sums(*i) / count, name="average")]


@register_reference("avg_pool2d")
def reference_avg_pool2d(attrs: AvgPool2DAttrs, inputs: Sequence[Any]) -> Any:
    data = plain_array(widened(inputs[0]), attrs.layout)
    view = windows(data, attrs.pool_size, attrs.strides, attrs.dilation, attrs.sides(data.shape))
    found = view.sum(axis=(-2, -1)) / _counts(attrs, data.shape)
    return laid_out_array(found, attrs.layout)


def _counts(attrs: AvgPool2DAttrs, shape: Sequence[int]) -> Any:
    """The number of elements of each window's mean, [1, 1, height, width]."""
    import numpy as np

    own, sides = attrs.padding, attrs.sides(shape)
    counted = np.ones((1, 1, *shape[2:]))
    if attrs.count_include_pad:
        counted = np.pad(counted, ((0, 0), (0, 0), (own[0], own[2]), (own[1], own[3])), constant_values=1)
        sides = (0, 0, sides[2] - own[2], sides[3] - own[3])
    return windows(counted, attrs.pool_size, attrs.strides, attrs.dilation, sides).sum(axis=(-2, -1))


@register_reference("global_avg_pool2d")
def reference_global_avg_pool2d(attrs: GlobalPool2DAttrs, inputs: Sequence[Any]) -> Any:
    data = plain_array(widened(inputs[0]), attrs.layout)
    return laid_out_array(data.mean(axis=(2, 3), keepdims=True), attrs.layout)


register_plain_schedule("pool", "avg_pool2d", "global_avg_pool2d")
register_shape_func("avg_pool2d", False, max_pool2d_shape_func)


@register_shape_func("global_avg_pool2d", False)
def global_avg_pool2d_shape_func(
    attrs: GlobalPool2DAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    n, c, *_ = plain(inputs[0], attrs.layout)
    return [tuple(laid_out((n, c, 1, 1), attrs.layout))]


register_pool2d_rows("avg_pool2d", mean=True)


@register_gradient("avg_pool2d")
@by_plain
def avg_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad / count of each window, summed over the windows that an element is in].

    The gradient of a convolution with a window of ones is the same.
    """
    import numpy as np

    attrs, (data,) = orig.attrs, orig.args
    shape, dtype = data.tensor_type.shape, data.tensor_type.dtype
    how: dict[str, Any] = {"strides": attrs.strides, "dilation": attrs.dilation, "padding": attrs.sides(shape)}
    share = grad * const(1 / (attrs.pool_size[0] * attrs.pool_size[1]), dtype)
    if attrs.ceil_mode:
        share = grad / const(_counts(attrs, (1, 1, int(shape[2]), int(shape[3]))), dtype)
    elif not attrs.count_include_pad:
        share = share / avg_pool2d(ones_like(data), attrs.pool_size, **how, count_include_pad=True)
    images, window = (-1, 1, 0, 0), const(np.ones((1, 1, *attrs.pool_size)), dtype)
    spread = call("conv2d_backward_data", reshape(share, images), window, reshape(data, images), **how)
    return [reshape_like(spread, data)]


@register_gradient("global_avg_pool2d")
@by_plain
def global_avg_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad / count, broadcast to the images]."""
    return [shared_out(grad, orig.args[0], (2, 3)) * ones_like(orig.args[0])]


def avg_pool2d(
    data: Expr,
    pool_size: int | tuple[int, int],
    strides: int | tuple[int, int] = (1, 1),
    dilation: int | tuple[int, int] = (1, 1),
    padding: int | tuple[int, ...] = (0, 0),
    count_include_pad: bool = False,
    ceil_mode: bool = False,
    layout: str = PLAIN,
) -> Expr:
    """The mean of each window.

    Args:
        data: a floating-point tensor [batch, channels, height, width], in the order of the layout.
        pool_size: height and width of the window.
        strides: steps of the window.
        dilation: distance of the window's elements.
        padding: one number, (vertical, horizontal), or (top, left, bottom, right).
        count_include_pad: whether padding counts, as zeros.
        ceil_mode: as of max_pool2d; what is beyond the padding never counts.
        layout: as of max_pool2d.
    """
    return call(
        "avg_pool2d", data, pool_size=pool_size, strides=strides, dilation=dilation,
        padding=padding, count_include_pad=count_include_pad, ceil_mode=ceil_mode, layout=layout,
    )


global_avg_pool2d = caller("global_avg_pool2d")
