"""avg_pool2d and global_avg_pool2d: the mean of each window, and of each whole image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu.pool2d import register_pool2d_rows
from strategy.expr import Call, Expr, call, const
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import divide
from strategy.ops.elemwise import ones_like
from strategy.ops.max_pool2d import (
    MaxPool2DAttrs,
    max_pool2d_rel,
    max_pool2d_shape_func,
    schedule_pool,
)
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape, reshape_like
from strategy.ops.window import windows
from strategy.pattern import in_float32, register_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_float, require_rank
from strategy.types import Dim, TensorType, Type


class AvgPool2DAttrs(MaxPool2DAttrs):
    """Attributes of avg_pool2d. One number stands for both axes, or all sides."""

    count_include_pad: bool = field(False, "Whether padding counts, as zeros")


def avg_pool2d_rel(types: Sequence[Type], attrs: AvgPool2DAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, number of windows down, across]."""
    data = reporter.tensor(0)
    if data is not None:
        require_float(reporter, 0, data)
    return max_pool2d_rel(types, attrs, reporter)


def global_avg_pool2d_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, 1, 1]."""
    data = reporter.tensor(0)
    if data is None:
        return False
    require_rank(reporter, 0, data, 4, "[batch, channels, height, width]")
    require_float(reporter, 0, data)
    reporter.check(data.shape[2] >= 1, 0, "an image without elements has no mean")
    reporter.check(data.shape[3] >= 1, 0, "an image without elements has no mean")
    reporter.assign(1, TensorType((*data.shape[:2], Dim(1), Dim(1)), data.dtype))
    return True


(
    register_op("avg_pool2d")
    .describe("The mean of each window.")
    .add_argument("data", "Tensor", "[batch, channels, height, width]")
    .set_attrs_type(AvgPool2DAttrs)
    .set_support_level(2)
    .add_type_rel("AvgPool2D", avg_pool2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,2,6,9]"}, {"pool_size": [2, 3], "strides": [2, 1], "padding": [1, 1]})
)
(
    register_op("global_avg_pool2d")
    .describe("The mean of each image.")
    .add_argument("data", "Tensor", "[batch, channels, height, width]")
    .set_support_level(2)
    .add_type_rel("GlobalAvgPool2D", global_avg_pool2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,2,6,9]"})
)


@register_compute("avg_pool2d")
@in_float32
def compute_avg_pool2d(attrs: AvgPool2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [
        topi.nn.pool2d(
            inputs[0], list(attrs.pool_size), list(attrs.strides), list(attrs.dilation),
            list(attrs.padding), "avg", count_include_pad=attrs.count_include_pad,
        )
    ]  # fmt: skip


@register_compute("global_avg_pool2d")
@in_float32
def compute_global_avg_pool2d(attrs: Attrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import topi

    return [topi.nn.global_pool(inputs[0], "avg")]


@register_reference("avg_pool2d")
def reference_avg_pool2d(attrs: AvgPool2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    def sums(data: Any) -> Any:
        view = windows(data, attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
        return view.sum(axis=(-2, -1))

    data = widened(inputs[0])
    whole = attrs.pool_size[0] * attrs.pool_size[1]
    return sums(data) / (whole if attrs.count_include_pad else sums(np.ones_like(data)))


@register_reference("global_avg_pool2d")
def reference_global_avg_pool2d(attrs: Attrs, inputs: Sequence[Any]) -> Any:
    return widened(inputs[0]).mean(axis=(2, 3), keepdims=True)


register_shape_func("avg_pool2d", False, max_pool2d_shape_func)


@register_shape_func("global_avg_pool2d", False)
def global_avg_pool2d_shape_func(
    attrs: Attrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    return [(*inputs[0][:2], 1, 1)]


for _name in ("avg_pool2d", "global_avg_pool2d"):
    register_schedule(_name, schedule_pool)

register_pool2d_rows("avg_pool2d", mean=True)


@register_gradient("avg_pool2d")
def avg_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad / count of each window, summed over the windows that an element is in].

    The gradient of a convolution with a window of ones is the same.
    """
    import numpy as np

    data, attrs = orig.args[0], orig.attrs
    assert isinstance(attrs, AvgPool2DAttrs)
    dtype, how = data.tensor_type.dtype, {n: getattr(attrs, n) for n in ("strides", "dilation", "padding")}
    share = grad * const(1 / (attrs.pool_size[0] * attrs.pool_size[1]), dtype)
    if not attrs.count_include_pad:
        share = share / avg_pool2d(ones_like(data), attrs.pool_size, **how, count_include_pad=True)
    images, window = (-1, 1, 0, 0), const(np.ones((1, 1, *attrs.pool_size)), dtype)
    spread = call("conv2d_backward_data", reshape(share, images), window, reshape(data, images), **how)
    return [reshape_like(spread, data)]


@register_gradient("global_avg_pool2d")
def global_avg_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad / count, broadcast to the images]."""
    ones = ones_like(orig.args[0])
    return [divide(grad, reduce_sum(ones, (2, 3), keepdims=True)) * ones]


def avg_pool2d(
    data: Expr,
    pool_size: int | tuple[int, int],
    strides: int | tuple[int, int] = (1, 1),
    dilation: int | tuple[int, int] = (1, 1),
    padding: int | tuple[int, ...] = (0, 0),
    count_include_pad: bool = False,
) -> Expr:
    """The mean of each window.

    Args:
        data: a floating-point tensor [batch, channels, height, width].
        pool_size: height and width of the window.
        strides: steps of the window.
        dilation: distance of the window's elements.
        padding: one number, (vertical, horizontal), or (top, left, bottom, right).
        count_include_pad: whether padding counts, as zeros.
    """
    return call(
        "avg_pool2d", data, pool_size=pool_size, strides=strides, dilation=dilation,
        padding=padding, count_include_pad=count_include_pad,
    )  # fmt: skip


def global_avg_pool2d(data: Expr) -> Expr:
    """The mean of each image, as an image of one element.

    Args:
        data: a floating-point tensor [batch, channels, height, width].
    """
    return call("global_avg_pool2d", data)
