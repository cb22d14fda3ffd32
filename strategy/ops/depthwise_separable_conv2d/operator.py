"""depthwise_separable_conv2d: types, NumPy reference, and Python function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.cpu.widened import NARROW
from strategy.expr import Call, Expr, call
from strategy.layout import (
    laid_out,
    laid_out_array,
    plain,
    plain_array,
    require_blocks,
    require_layout,
)
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_flops,
    register_op,
    register_reference,
    register_terms,
)
from strategy.ops.window import distances, padding_sides, windowed_extents, windows
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_dtype_of, require_nonempty, require_rank, require_shape
from strategy.types import Dim, TensorType, Type

BLOCKED = ("NCHW8c", "NCHW16c")
_FLOATS = (*NARROW, "float32", "float64")


class DepthwiseSeparableConv2DAttrs(Attrs):
    """Attributes of depthwise_separable_conv2d; the window is that of the depthwise convolution."""

    strides: tuple[int, int] = distances((1, 1), "Steps of the window")
    padding: tuple[int, int, int, int] = padding_sides()
    dilation: tuple[int, int] = distances()
    activation: str = field("none", "Between both convolutions", choices=("none", "relu", "relu6", "hardswish"))
    data_layout: str = field(description="Layout of the data", choices=BLOCKED)
    out_layout: str = field(description="Layout of the result", choices=BLOCKED)


def depthwise_separable_conv2d_rel(
    types: Sequence[Type], attrs: DepthwiseSeparableConv2DAttrs, reporter: TypeReporter
) -> bool:
    """Images of c channels by [c, 1, kh, kw], plus [c], by [o, c, 1, 1] give images of o channels."""
    data, depthwise, pointwise = (reporter.known(i) for i in (0, 1, 3))
    reporter.check(data.dtype in _FLOATS, 0, f"its dtype must be one of {', '.join(_FLOATS)}")
    require_nonempty(reporter, 0, data)
    plain_data = require_layout(reporter, 0, data, attrs.data_layout)
    channels = plain_data.shape[1]
    require_rank(reporter, 1, depthwise, 4, "[channels, 1, height, width]")
    require_rank(reporter, 3, pointwise, 4, "[out channels, channels, 1, 1]")
    one = Dim(1)
    for index, found, wanted in (
        (1, depthwise, (channels, one, *depthwise.shape[2:])), (3, pointwise, (pointwise.shape[0], channels, one, one)),
    ):
        require_nonempty(reporter, index, found)
        require_dtype_of(reporter, index, 0)
        require_shape(reporter, index, found.shape, wanted, f"does not fit {reporter.name(0)}, {data}")
    reporter.assign(2, TensorType([channels], data.dtype))
    extents = windowed_extents(attrs, plain_data.shape[2:], depthwise.shape[2:])
    for extent in extents:
        reporter.check(extent >= 1, 0, f"is smaller than {reporter.name(1)}, {depthwise}, with its padding")
    require_blocks(reporter, 3, pointwise.shape[0], attrs.out_layout)
    shape = laid_out((plain_data.shape[0], pointwise.shape[0], *extents), attrs.out_layout)
    reporter.assign(4, TensorType(shape, data.dtype))
    return True


(
    register_op("depthwise_separable_conv2d")
    .describe("A depthwise convolution, a bias and an activation, then a pointwise convolution, of blocked images.")
    .add_argument("data", "Tensor", "[batch, channels / block, height, width, block]")
    .add_argument("depthwise_weight", "Tensor", "[channels, 1, height, width]")
    .add_argument("depthwise_bias", "Tensor", "[channels]")
    .add_argument("pointwise_weight", "Tensor", "[out channels, channels, 1, 1]")
    .set_attrs_type(DepthwiseSeparableConv2DAttrs)
    .set_support_level(2)
    .add_type_rel("DepthwiseSeparableConv2D", depthwise_separable_conv2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example(
        {
            "data": "float32[1,2,9,11,16]", "depthwise_weight": "float32[32,1,3,3]",
            "depthwise_bias": "float32[32]", "pointwise_weight": "float32[48,32,1,1]",
        },
        {"padding": 1, "activation": "relu6", "data_layout": "NCHW16c", "out_layout": "NCHW16c"},
    )
    .example(
        {
            "data": "float32[2,3,8,13,8]", "depthwise_weight": "float32[24,1,5,5]",
            "depthwise_bias": "float32[24]", "pointwise_weight": "float32[16,24,1,1]",
        },
        {
            "padding": 2, "strides": 2, "activation": "hardswish", "data_layout": "NCHW8c", "out_layout": "NCHW16c"
        },
    )
    .example(
        {
            "data": "float32[1,1,6,7,16]", "depthwise_weight": "float32[16,1,3,2]",
            "depthwise_bias": "float32[16]", "pointwise_weight": "float32[40,16,1,1]",
        },
        {"data_layout": "NCHW16c", "out_layout": "NCHW8c", "dilation": (1, 2)},
    )
)


@register_reference("depthwise_separable_conv2d")
def reference_depthwise_separable_conv2d(attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, depthwise, bias, pointwise = map(widened, inputs)
    view = windows(
        plain_array(data, attrs.data_layout), depthwise.shape[2:], attrs.strides, attrs.dilation, attrs.padding
    )
    between = np.einsum("nchwyx,cyx->nchw", view, depthwise[:, 0], optimize=True) + bias.reshape(-1, 1, 1)
    if attrs.activation == "hardswish":
        between = between * np.clip(between + 3, 0, 6) / 6
    elif attrs.activation != "none":
        between = np.clip(between, 0, 6 if attrs.activation == "relu6" else None)
    return laid_out_array(np.einsum("nchw,oc->nohw", between, pointwise[:, :, 0, 0], optimize=True), attrs.out_layout)


@register_flops("depthwise_separable_conv2d")
def flops_depthwise_separable_conv2d(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType
) -> int:
    (channels, _, height, width), (out_channels, *_) = inputs[1].concrete_shape, inputs[3].concrete_shape
    return 2 * (out_type.size // out_channels) * channels * (height * width + out_channels)


@register_terms("depthwise_separable_conv2d")
def terms_depthwise_separable_conv2d(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType
) -> int:
    channels, _, height, width = inputs[1].concrete_shape
    return channels * (height * width + 1)


@register_shape_func("depthwise_separable_conv2d", False)
def depthwise_separable_conv2d_shape_func(
    attrs: DepthwiseSeparableConv2DAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    data = plain(inputs[0], attrs.data_layout)
    extents = windowed_extents(attrs, data[2:], inputs[1][2:])
    return [tuple(laid_out((data[0], inputs[3][0], *extents), attrs.out_layout))]


def depthwise_separable_conv2d(
    data: Expr,
    depthwise_weight: Expr,
    depthwise_bias: Expr,
    pointwise_weight: Expr,
    strides: int | tuple[int, int] = (1, 1),
    padding: int | tuple[int, ...] = (0, 0),
    dilation: int | tuple[int, int] = (1, 1),
    activation: str = "none",
    data_layout: str = "NCHW16c",
    out_layout: str = "NCHW16c",
) -> Call:
    """A depthwise convolution, a bias and an activation, then a pointwise (1×1) convolution, of blocked images.

    Args:
        data: float32 or float64 [batch, channels / block, height, width, block].
        depthwise_weight: [channels, 1, height, width], a window for each channel.
        depthwise_bias: [channels], added before the activation.
        pointwise_weight: [out channels, channels, 1, 1].
        strides, padding, dilation: of the depthwise convolution, as of `conv2d`.
        activation: "none", "relu", "relu6" or "hardswish", between both.
        data_layout, out_layout: "NCHW8c" or "NCHW16c".
    """
    return call(
        "depthwise_separable_conv2d", data, depthwise_weight, depthwise_bias, pointwise_weight, strides=strides,
        padding=padding, dilation=dilation, activation=activation, data_layout=data_layout, out_layout=out_layout,
    )
