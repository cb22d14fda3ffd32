"""max_pool2d: the largest element of each window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import REQUIRED, Attrs, field
from strategy.caller import caller
from strategy.cpu.pool2d import register_pool2d_rows
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.layout import (
    LAYOUTS,
    PLAIN,
    in_layouts,
    laid_out,
    laid_out_array,
    plain,
    plain_array,
    require_layout,
)
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_op,
    register_reference,
    register_terms,
)
from strategy.ops.layout_transform import by_plain
from strategy.ops.window import distances, padding_sides, sides_to_end, windowed_extents, windows
from strategy.order import largest, lowest, sort_key
from strategy.pattern import in_float32
from strategy.reference import widened
from strategy.shape_func import like_shape_func, register_shape_func
from strategy.type_relation import require_dtype_of, require_float, require_nonempty, require_number
from strategy.types import TensorType, Type, may_equal

# Windows that begin in padding, of which it is asked whether they meet an image smaller than their dilation.
_MOST_STARTS = 2**16


class MaxPool2DAttrs(Attrs):
    """Attributes of max_pool2d. One number stands for both axes, or all sides."""

    pool_size: tuple[int, int] = distances(REQUIRED, "Height and width of the window")
    strides: tuple[int, int] = distances((1, 1), "Steps of the window")
    dilation: tuple[int, int] = distances()
    padding: tuple[int, int, int, int] = padding_sides()
    ceil_mode: bool = field(False, "Windows that begin in the image, or before it, may end beyond it and its padding")
    layout: str = field(PLAIN, "The order of the data's axes, and of the result's", choices=LAYOUTS)

    def sides(self, shape: Sequence[Any]) -> tuple[int, int, int, int]:
        """The padding of images of a shape, with what `ceil_mode` needs below and to the right."""
        if not self.ceil_mode:
            return self.padding
        image = [int(n) for n in shape[2:]]
        top, left, bottom, right = sides_to_end(image, self.pool_size, self.strides, self.dilation, self.padding)
        return (top, left, bottom, right)


def max_pool2d_rel(types: Sequence[Type], attrs: MaxPool2DAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, number of windows down, across], in the order of the layout."""
    data = reporter.known(0)
    require_number(reporter, 0, data)
    reporter.assign(1, _pooled(attrs, reporter, 0, data))
    return True


def _pooled(attrs: MaxPool2DAttrs, reporter: TypeReporter, index: int, data: TensorType) -> TensorType:
    """The type of what is pooled from `data`, the argument at `index`; checks that windows fit."""
    shape = require_layout(reporter, index, data, attrs.layout).shape
    require_nonempty(reporter, index, data, [attrs.layout.index(axis) for axis in "HW"])
    known = not attrs.ceil_mode or all(d.is_constant for d in shape[2:])
    reporter.check(known, index, "ceil_mode needs images of constant height and width")
    out = _extents(attrs, shape)
    for axis, extent in enumerate(out[2:]):
        reporter.check(extent >= 1, index, f"is smaller than the window {attrs.pool_size} with its padding")
        # A window that lies in the padding alone would have no largest element.
        reach = (attrs.pool_size[axis] - 1) * attrs.dilation[axis]
        sides = max(attrs.padding[axis], attrs.padding[2 + axis])
        reporter.check(sides <= reach, index, f"padding {attrs.padding} is wider than the window")
        size, gap = shape[2 + axis], attrs.dilation[axis]
        met = not size.is_constant or gap <= int(size)  # a step within a window does not pass over the image
        if not met:
            step = attrs.strides[axis]
            starts = range(-attrs.padding[axis], 0, step)[: min(int(extent), gap // math.gcd(gap, step))]
            met = len(starts) <= _MOST_STARTS and all(start % gap < int(size) for start in starts)
        reporter.check(met, index, f"a window of dilation {attrs.dilation} lies in padding {attrs.padding} alone")
    return TensorType(laid_out(out, attrs.layout), data.dtype)


def max_pool2d_backward_rel(types: Sequence[Type], attrs: MaxPool2DAttrs, reporter: TypeReporter) -> bool:
    """The type of the data, from which the gradient's elements were taken."""
    grad, data = reporter.known(0), reporter.known(1)
    reporter.check(attrs.layout == PLAIN, 1, f"layout {attrs.layout}: gradients are of images of {PLAIN}")
    require_float(reporter, 1, data)
    require_dtype_of(reporter, 0, 1)
    expected = _pooled(attrs, reporter, 1, data)
    reporter.check(may_equal(grad, expected), 0, f"what is pooled is {expected}")
    reporter.assign(2, data)
    return True


(
    register_op("max_pool2d")
    .describe("The largest element of each window; padding never is the largest.")
    .add_argument("data", "Tensor", "[batch, channels, height, width], in the order of the layout")
    .set_attrs_type(MaxPool2DAttrs)
    .set_support_level(2)
    .add_type_rel("MaxPool2D", max_pool2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,2,6,9]"}, {"pool_size": [2, 3], "strides": [2, 1], "padding": [1, 1]})
    .example({"data": "float32[1,2,6,9]"}, {"pool_size": 3, "strides": 2, "padding": [1, 0], "ceil_mode": True})
    .example({"data": "float32[2,6,9,19]"}, {"pool_size": [2, 3], "strides": [2, 1], "padding": 1, "layout": "NHWC"})
    .example({"data": "float32[1,2,6,9,8]"}, {"pool_size": 3, "strides": 2, "padding": 1, "layout": "NCHW8c"})
)
(
    register_op("max_pool2d_backward")
    .describe(
        "The gradient of max_pool2d: that of each window at its largest element, shared out among equals."
    )
    .add_argument("grad", "Tensor", "The gradient of what was pooled.")
    .add_argument("data", "Tensor", "[batch, channels, height, width]")
    .set_attrs_type(MaxPool2DAttrs)
    .set_support_level(10)
    .add_type_rel("MaxPool2DBackward", max_pool2d_backward_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example(
        {"grad": "float32[1,2,4,9]", "data": "float32[1,2,6,9]"},
        {"pool_size": [2, 3], "strides": [2, 1], "padding": [1, 1]},
    )
    .example(
        {"grad": "float32[1,2,4,4]", "data": "float32[1,2,6,9]"},
        {"pool_size": 3, "strides": 2, "padding": [1, 0], "ceil_mode": True},
    )
)


@register_compute("max_pool2d")
@in_float32
@in_layouts
def compute_max_pool2d(attrs: MaxPool2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    return [_pool(attrs, inputs[0])]


def _pool(attrs: MaxPool2DAttrs, data: Any) -> Any:
    """The largest element of each window of a TE tensor."""
    from tvm import te, tirx

    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    padding = attrs.sides(data.shape)
    top, left, *_ = padding
    _, _, height, width = data.shape
    y, x = (te.reduce_axis((0, n), name=name) for n, name in zip(attrs.pool_size, "yx", strict=True))
    reducer, end = largest(), lowest(str(data.dtype))

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        row, column = h * stride_h + y * dilation_h - top, w * stride_w + x * dilation_w - left
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        found = data(n, c, row, column)
        return reducer(tirx.if_then_else(inside, found, end) if any(padding) else found, axis=[y, x])

    return te.compute(_extents(attrs, data.shape), element, name="max_pool2d")


def _extents(attrs: MaxPool2DAttrs, shape: Sequence[Any]) -> list[Any]:
    """The shape of what is pooled from a shape of numbers, expressions or dimensions."""
    return [*shape[:2], *windowed_extents(attrs, shape[2:], attrs.pool_size, attrs.sides(shape))]


@register_compute("max_pool2d_backward")
@in_float32
def compute_max_pool2d_backward(attrs: MaxPool2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """Each element gathers from the windows that it is the largest of."""
    from tvm import te, tirx

    grad, data = inputs
    _, _, height, width = data.shape
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    top, left, *_ = attrs.padding
    zero = tirx.const(0, data.dtype)
    # Integers in the elements' order, so that NaN is the largest, and equal to itself.
    keys = te.compute(data.shape, lambda *i: sort_key(data(*i)), name="keys")
    pooled = _pool(attrs, keys)

    def steps() -> list[Any]:
        return [te.reduce_axis((0, n), name=name) for n, name in zip(attrs.pool_size, "yx", strict=True)]

    def element(n: Any, c: Any, place: tuple[Any, Any], step: Sequence[Any], value: Any, outside: Any) -> Any:
        row = place[0] * stride_h + step[0] * dilation_h - top
        column = place[1] * stride_w + step[1] * dilation_w - left
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return tirx.if_then_else(inside, value(keys(n, c, row, column)), outside)

    def equals(n: Any, c: Any, h: Any, w: Any) -> Any:
        def counted(x: Any) -> Any:
            return tirx.Cast(data.dtype, x == pooled(n, c, h, w))

        return te.sum(element(n, c, (h, w), second, counted, zero), axis=second)

    def gathered(n: Any, c: Any, h: Any, w: Any) -> Any:
        row, column = h + top - third[0] * dilation_h, w + left - third[1] * dilation_w
        place = (n, c, row // stride_h, column // stride_w)
        inside = tirx.all(
            row >= 0, row % stride_h == 0, row // stride_h < grad.shape[2],
            column >= 0, column % stride_w == 0, column // stride_w < grad.shape[3],
        )
        share = tirx.Select(keys(n, c, h, w) == pooled(*place), grad(*place) / count(*place), zero)
        return te.sum(tirx.if_then_else(inside, share, zero), axis=third)

    second, third = steps(), steps()
    count = te.compute(grad.shape, equals, name="count")
    return [te.compute(data.shape, gathered, name="max_pool2d_backward")]


@register_reference("max_pool2d")
def reference_max_pool2d(attrs: MaxPool2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = plain_array(widened(inputs[0]), attrs.layout)
    lowest = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    view = windows(data, attrs.pool_size, attrs.strides, attrs.dilation, attrs.sides(data.shape), lowest)
    return laid_out_array(view.max(axis=(-2, -1)), attrs.layout)


@register_reference("max_pool2d_backward")
def reference_max_pool2d_backward(attrs: MaxPool2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, data = map(widened, inputs)
    padding = attrs.sides(data.shape)
    how = (attrs.pool_size, attrs.strides, attrs.dilation, padding)
    view = windows(data, *how, -np.inf)
    most = view.max(axis=(-2, -1), keepdims=True)
    taken = (view == most) | (np.isnan(view) & np.isnan(most))
    taken &= windows(np.ones_like(data), *how) == 1
    share = np.where(taken, (grad / taken.sum(axis=(-2, -1)))[..., None, None], 0)
    top, left, bottom, right = padding
    padded = np.pad(np.zeros_like(data), ((0, 0), (0, 0), (top, bottom), (left, right)))
    for y, x in np.ndindex(attrs.pool_size):
        rows = slice(y * attrs.dilation[0], None, attrs.strides[0])
        columns = slice(x * attrs.dilation[1], None, attrs.strides[1])
        part = padded[:, :, rows, columns][:, :, : grad.shape[2], : grad.shape[3]]
        part += share[..., y, x]
    return padded[:, :, top : top + data.shape[2], left : left + data.shape[3]]


register_plain_schedule("pool", "max_pool2d", "max_pool2d_backward")
# An element may be the largest of as many windows as reach it.
register_terms("max_pool2d_backward", lambda attrs, inputs, out_type: math.prod(attrs.pool_size))


@register_shape_func("max_pool2d", False)
def max_pool2d_shape_func(attrs: MaxPool2DAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(laid_out(_extents(attrs, plain(inputs[0], attrs.layout)), attrs.layout))]


register_shape_func("max_pool2d_backward", False, like_shape_func)
register_pool2d_rows("max_pool2d", mean=False)


@register_gradient("max_pool2d")
@by_plain
def max_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad where the largest elements were, shared out where several are equal]."""
    return [Call("max_pool2d_backward", [grad, orig.args[0]], orig.attrs)]


max_pool2d = caller("max_pool2d")
