"""conv2d: types, NumPy reference, and Python function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Expr, call
from strategy.layout import (
    LAYOUTS,
    PLAIN,
    laid_out,
    laid_out_array,
    plain,
    plain_array,
    plain_type,
    require_blocks,
    require_layout,
)
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_flops,
    register_least_flops,
    register_op,
    register_reference,
    register_terms,
)
from strategy.ops.window import distances, padding_sides, pair, windowed_extents, windows
from strategy.reference import summed
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    SUMS,
    require_dtype_of,
    require_nonempty,
    require_number,
    require_rank,
    sum_dtype,
)
from strategy.types import Dim, TensorType, Type

DATA, KERNEL = PLAIN, "OIHW"  # the layouts of a convolution that names none


def permuted(values: Sequence[Any], given: str, wanted: str) -> tuple[Any, ...]:
    """Values of axes, from the order of one layout in that of another."""
    return tuple(values[given.index(axis)] for axis in wanted)


def permuted_type(kind: TensorType, given: str, wanted: str) -> TensorType:
    return kind if given == wanted else TensorType(permuted(kind.shape, given, wanted), kind.dtype)


class Conv2DAttrs(Attrs):
    """Attributes of conv2d. One number stands for both axes, or all sides."""

    strides: tuple[int, int] = distances((1, 1), "Steps of the window")
    padding: tuple[int, int, int, int] = padding_sides()
    dilation: tuple[int, int] = distances()
    groups: int = field(1, "Input channels are split into this many groups", lower=1)
    channels: int | None = field(None, "Output channels, for a weight without a type", lower=1)
    kernel_size: tuple[int, int] | None = field(None, "Window, for a weight without a type", lower=1, form=pair)
    data_layout: str = field(DATA, "Layout of the data", choices=LAYOUTS)
    kernel_layout: str = field(
        KERNEL, "Order of the axes of the weight, with I the channels of a group", choices=(KERNEL, "HWIO", "OHWI")
    )
    out_layout: str | None = field(None, "Layout of the result; default: that of the data", choices=LAYOUTS)
    out_dtype: str | None = field(
        None, "Data type of the sums and the output; default: that of the data", choices=SUMS
    )

    @property
    def result_layout(self) -> str:
        return self.out_layout or self.data_layout

    def to_json(self) -> dict[str, Any]:
        """The attributes without those that others or a known type of the weight determine, for unique keys."""
        data = super().to_json()
        if self.out_layout == self.data_layout:
            data.pop("out_layout", None)
        return {k: v for k, v in data.items() if k not in ("channels", "kernel_size")}


def conv2d_rel(types: Sequence[Type], attrs: Conv2DAttrs, reporter: TypeReporter) -> bool:
    """The convolution of numbers of one dtype."""
    data = reporter.tensor(0)
    if data is not None:
        require_number(reporter, 0, data)
    shape = convolved(attrs, reporter)
    if data is None or shape is None:
        return False
    require_dtype_of(reporter, 1, 0)
    reporter.assign(2, TensorType(shape, sum_dtype(reporter, 0, data, attrs.out_dtype)))
    return True


def convolved(
    attrs: Conv2DAttrs, reporter: TypeReporter, weight_dtype: str | None = None
) -> tuple[Dim, ...] | None:
    """[n, c, h, w] by [o, c / groups, kh, kw] gives [n, o, windows down, across], in the order of the layouts.

    A weight without a type gets it from `channels` and `kernel_size`, in `weight_dtype` (default: that of the data).
    None while a type is unknown.
    """
    data, weight = reporter.tensor(0), reporter.tensor(1)
    if data is not None:
        data = require_layout(reporter, 0, data, attrs.data_layout)
        fits = data.shape[1] % attrs.groups == 0
        reporter.check(fits, 0, f"its channels do not divide into {attrs.groups} groups")
        if weight is None and attrs.channels is not None and attrs.kernel_size is not None:
            shape = (attrs.channels, data.shape[1] // attrs.groups, *attrs.kernel_size)
            given = TensorType(shape, weight_dtype or data.dtype)
            weight = permuted_type(given, KERNEL, attrs.kernel_layout)
            reporter.assign(1, weight)
    if weight is not None:
        axes = permuted(("out channels", "channels / groups", "height", "width"), KERNEL, attrs.kernel_layout)
        require_rank(reporter, 1, weight, 4, f"[{', '.join(axes)}]")
        weight = permuted_type(weight, attrs.kernel_layout, KERNEL)
        if attrs.channels is not None:
            reporter.check(weight.shape[0] == attrs.channels, 1, f"channels is {attrs.channels}")
        for extent, size in zip(weight.shape[2:], attrs.kernel_size or (), strict=False):
            reporter.check(extent == size, 1, f"kernel_size is {attrs.kernel_size}")
        fits = weight.shape[0] % attrs.groups == 0
        reporter.check(fits, 1, f"its output channels do not divide into {attrs.groups} groups")
    if data is None or weight is None:
        return None
    require_nonempty(reporter, 0, data)
    require_nonempty(reporter, 1, weight)
    fits = weight.shape[1] * attrs.groups == data.shape[1]
    reporter.check(fits, 1, f"does not fit {reporter.name(0)}, {reporter.tensor(0)}, in {attrs.groups} groups")
    out = windowed_extents(attrs, data.shape[2:], weight.shape[2:])
    for extent in out:
        reporter.check(extent >= 1, 0, f"is smaller than {reporter.name(1)}, {reporter.tensor(1)}, with its padding")
    require_blocks(reporter, 1, weight.shape[0], attrs.result_layout)
    return tuple(laid_out((data.shape[0], weight.shape[0], *out), attrs.result_layout))


(
    register_op("conv2d")
    .describe("Two-dimensional convolution, as neural networks call it.")
    .add_argument("data", "Tensor", "[batch, channels, height, width], or as data_layout says")
    .add_argument("weight", "Tensor", "[out channels, channels / groups, height, width], or as kernel_layout says")
    .set_attrs_type(Conv2DAttrs)
    .set_support_level(2)
    .add_type_rel("Conv2D", conv2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,3,6,9]", "weight": "float32[4,3,3,3]"}, {"padding": 1})
    .example({"data": "float32[1,3,6,9]", "weight": "float32[4,3,1,1]"})
    .example(
        {"data": "float32[1,6,9,3]", "weight": "float32[3,3,3,4]"},
        {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    )
    .example(
        {"data": "float32[1,6,9,20]", "weight": "float32[3,3,1,20]"},
        {"padding": 1, "groups": 20, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    )
    .example({"data": "float32[1,3,6,9]", "weight": "float32[4,3,3,3]"}, {"kernel_layout": "OHWI"})
    .example(
        {"data": "float32[1,2,8,17,8]", "weight": "float32[16,16,3,3]"}, {"padding": 1, "data_layout": "NCHW8c"}
    )
    .example(
        {"data": "float32[1,3,6,9]", "weight": "float32[32,3,3,3]"}, {"strides": 2, "out_layout": "NCHW16c"}
    )
    .example(
        {"data": "float32[1,1,6,9,16]", "weight": "float32[16,1,3,3]"},
        {"padding": 1, "groups": 16, "data_layout": "NCHW16c"},
    )
    .example({"data": "int8[1,3,6,9]", "weight": "int8[4,3,3,3]"}, {"out_dtype": "int32"})
    .example({"data": "float32[1,4,6,9]", "weight": "float32[4,1,3,3]"}, {"groups": 4})
    .example({"data": "int8[1,4,6,9]", "weight": "int8[4,1,3,3]"}, {"groups": 4, "out_dtype": "int64"})
    .example({"data": "float32[1,4,6,9]", "weight": "float32[6,2,3,3]"}, {"groups": 2, "strides": 2})
    .example({"data": "float32[1,16,8,8]", "weight": "float32[4,16,3,3]"})
    .example({"data": "float32[1,16,7,17]", "weight": "float32[17,16,3,3]"}, {"padding": 1})
    .example({"data": "float16[1,16,8,8]", "weight": "float16[4,16,3,3]"})
    .example({"data": "float16[1,16,8,8]", "weight": "float16[4,16,3,3]"}, {"out_dtype": "float32"})
    .example({"data": "bfloat16[1,6,9,7]", "weight": "bfloat16[21,6,3,3]"}, {"padding": 1})
    .example(
        {"data": "bfloat16[1,9,7,6]", "weight": "bfloat16[21,3,3,6]"},
        {"padding": 1, "data_layout": "NHWC", "kernel_layout": "OHWI"},
    )
)


@register_reference("conv2d")
def reference_conv2d(attrs: Conv2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, weight = (summed(x, attrs.out_dtype) for x in inputs)
    data = plain_array(data, attrs.data_layout)
    weight = weight.transpose(permuted(range(4), attrs.kernel_layout, KERNEL))
    view = windows(data, weight.shape[2:], attrs.strides, attrs.dilation, attrs.padding)
    n, c, h, w = view.shape[:4]
    view = view.reshape(n, attrs.groups, c // attrs.groups, h, w, *weight.shape[2:])
    grouped = weight.reshape(attrs.groups, -1, *weight.shape[1:])
    found = np.einsum("ngchwyx,gocyx->ngohw", view, grouped, optimize=True).reshape(n, -1, h, w)
    return laid_out_array(found, attrs.result_layout)


@register_flops("conv2d")
def flops_conv2d(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    _, channels, height, width = permuted_type(inputs[1], attrs.kernel_layout, KERNEL).concrete_shape
    return 2 * out_type.size * channels * height * width


@register_terms("conv2d")
def terms_conv2d(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    """Terms of the sums; four times as many, for twice the tolerance, where winograd's transforms round as well."""
    _, channels, *window = permuted_type(inputs[1], attrs.kernel_layout, KERNEL).concrete_shape
    winograd = tuple(window) == (3, 3) and attrs.strides == (1, 1)
    return channels * math.prod(window) * (4 if winograd else 1)


def least_flops(attrs: Conv2DAttrs, data: TensorType, weight: TensorType, out: TensorType) -> int:
    """A lower bound: operations of one position of the window per output, without padding.

    That is the limit of winograd's algorithms for large tiles; F(4×4, 3×3) saves four of nine places.
    """
    batch, channels, *extents = out.concrete_shape
    places = (
        min(extent, inner // stride)
        for extent, inner, stride in zip(
            extents, data.concrete_shape[2:], attrs.strides, strict=True
        )
    )
    return 2 * batch * channels * weight.concrete_shape[1] * math.prod(places)


@register_least_flops("conv2d")
def least_flops_conv2d(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    data, out = plain_type(inputs[0], attrs.data_layout), plain_type(out_type, attrs.result_layout)
    return least_flops(attrs, data, permuted_type(inputs[1], attrs.kernel_layout, KERNEL), out)


@register_shape_func("conv2d", False)
def conv2d_shape_func(attrs: Conv2DAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    data = plain(inputs[0], attrs.data_layout)
    weight = permuted(inputs[1], attrs.kernel_layout, KERNEL)
    out = windowed_extents(attrs, data[2:], weight[2:])
    return [tuple(laid_out((data[0], weight[0], *out), attrs.result_layout))]


def conv2d(
    data: Expr,
    weight: Expr,
    strides: int | tuple[int, int] = (1, 1),
    padding: int | tuple[int, ...] = (0, 0),
    dilation: int | tuple[int, int] = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | tuple[int, int] | None = None,
    out_dtype: str | None = None,
    data_layout: str = DATA,
    kernel_layout: str = KERNEL,
    out_layout: str | None = None,
) -> Expr:
    """Two-dimensional convolution, as neural networks call it (a correlation).

    Args:
        data: [batch, channels, height, width], or as `data_layout` says.
        weight: [out channels, channels / groups, height, width], or as `kernel_layout` says.
        strides: steps of the window.
        padding: zeros around the data: one number, (vertical, horizontal), or (top, left, bottom,
            right).
        dilation: distance of the window's elements.
        groups: input and output channels are split into this many groups, each of which reads its own
            input channels only; as many as channels is a depthwise convolution.
        channels: number of output channels; needed if the weight has no type.
        kernel_size: height and width of the window; needed if the weight has no type.
        out_dtype: data type of the sums and the result; needed for integers of 8 and 16 bits.
        data_layout: "NCHW", "NHWC", "NCHW8c" or "NCHW16c", the layout of the data.
        kernel_layout: "OIHW", "HWIO" or "OHWI", the order of the axes of the weight, which has no blocks.
        out_layout: the layout of the result; default: that of the data.
    """
    return call(
        "conv2d", data, weight, strides=strides, padding=padding, dilation=dilation, groups=groups,
        channels=channels, kernel_size=kernel_size, out_dtype=out_dtype, data_layout=data_layout,
        kernel_layout=kernel_layout, out_layout=out_layout,
    )
