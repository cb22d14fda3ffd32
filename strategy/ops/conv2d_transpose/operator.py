"""conv2d_transpose: types, NumPy reference, plain compute, gradient and Python function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cuda.schedule import register_plain_schedule
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_flops,
    register_least_flops,
    register_op,
    register_reference,
)
from strategy.ops.conv2d import Conv2DAttrs, conv2d
from strategy.ops.conv2d.gradient import compute_backward_data, reference_backward_data
from strategy.ops.conv2d.operator import least_flops
from strategy.ops.window import distances, padding_sides, pair
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_dtype_of, require_float, require_nonempty, require_rank
from strategy.types import TensorType, Type


class Conv2DTransposeAttrs(Attrs):
    """Attributes of conv2d_transpose. One number stands for both axes, or all sides."""

    strides: tuple[int, int] = distances((1, 1), "Distance in the result of the data's elements")
    padding: tuple[int, int, int, int] = padding_sides("Top, left, bottom, right: cut off the result")
    output_padding: tuple[int, int] = field(
        (0, 0), "Rows and columns more at the end of the result, fewer than strides", lower=0, form=pair
    )
    dilation: tuple[int, int] = distances()
    groups: int = field(1, "Input and output channels are split into this many groups", lower=1)

    def image(self, extents: Sequence[Any], window: Sequence[Any]) -> list[Any]:
        """Height and width of the result: of numbers, or of dimensions."""
        return [
            (extents[i] - 1) * self.strides[i] + (window[i] - 1) * self.dilation[i] + 1
            + self.output_padding[i] - self.padding[i] - self.padding[2 + i]
            for i in range(2)
        ]

    def as_conv2d(self) -> Conv2DAttrs:
        """The attributes of the convolution whose derivative this is."""
        return Conv2DAttrs(
            strides=self.strides, padding=self.padding, dilation=self.dilation, groups=self.groups
        )


def conv2d_transpose_rel(types: Sequence[Type], attrs: Conv2DTransposeAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] by [c, o / groups, kh, kw] gives [n, o, height, width]."""
    data, weight = reporter.tensor(0), reporter.tensor(1)
    for index, kind in enumerate((data, weight)):
        if kind is not None:
            form = ("[batch, channels, height, width]", "[channels, out channels / groups, height, width]")[index]
            require_rank(reporter, index, kind, 4, form)
            require_float(reporter, index, kind)
            require_nonempty(reporter, index, kind)
    if data is None or weight is None:
        return False
    require_dtype_of(reporter, 1, 0)
    reporter.check(weight.shape[0] == data.shape[1], 1, f"its first dimension must be the channels of {data}")
    reporter.check(data.shape[1] % attrs.groups == 0, 0, f"its channels do not divide into {attrs.groups} groups")
    more = all(p < s for p, s in zip(attrs.output_padding, attrs.strides, strict=True))
    reporter.check(more, 0, f"output_padding {attrs.output_padding} must be smaller than strides {attrs.strides}")
    image = attrs.image(data.shape[2:], weight.shape[2:])
    for extent in image:
        reporter.check(extent >= 1, 0, f"padding {attrs.padding} cuts off the whole result")
    reporter.assign(2, TensorType([data.shape[0], weight.shape[1] * attrs.groups, *image], data.dtype))
    return True


(
    register_op("conv2d_transpose")
    .describe("The data spread by the weight, as Relay's nn.conv2d_transpose: a transposed convolution.")
    .add_argument("data", "Tensor", "[batch, channels, height, width]")
    .add_argument("weight", "Tensor", "[channels, out channels / groups, height, width]")
    .set_attrs_type(Conv2DTransposeAttrs)
    .set_support_level(2)
    .add_type_rel("Conv2DTranspose", conv2d_transpose_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "float32[1,3,5,7]", "weight": "float32[3,4,3,3]"}, {"padding": 1})
    .example(
        {"data": "float32[2,4,5,3]", "weight": "float32[4,3,3,2]"},
        {"strides": [2, 3], "padding": [1, 0], "output_padding": [1, 2], "groups": 2},
    )
    .example({"data": "float32[1,3,2,17]", "weight": "float32[3,4,2,2]"}, {"strides": 2})
)


@register_compute("conv2d_transpose")
def compute_conv2d_transpose(attrs: Conv2DTransposeAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    data, weight = inputs
    found: list[Any] = compute_backward_data(attrs.as_conv2d(), [data, weight, weight], out_type)
    return found


@register_reference("conv2d_transpose")
def reference_conv2d_transpose(attrs: Conv2DTransposeAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, weight = inputs
    shape = conv2d_transpose_shape_func(attrs, [np.shape(data), np.shape(weight)])[0]
    return reference_backward_data(attrs.as_conv2d(), [data, weight, np.zeros(shape)])


@register_flops("conv2d_transpose")
def flops_conv2d_transpose(attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    _, own, height, width = inputs[1].concrete_shape
    return 2 * inputs[0].size * own * height * width


@register_least_flops("conv2d_transpose")
def least_flops_conv2d_transpose(
    attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], out_type: TensorType
) -> int:
    return least_flops(attrs.as_conv2d(), out_type, inputs[1], inputs[0])


register_plain_schedule("conv2d_transpose", "conv2d_transpose")


@register_shape_func("conv2d_transpose", False)
def conv2d_transpose_shape_func(
    attrs: Conv2DTransposeAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    data, weight = inputs
    return [(data[0], weight[1] * attrs.groups, *attrs.image(data[2:], weight[2:]))]


@register_gradient("conv2d_transpose")
def conv2d_transpose_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [the convolution of grad, grad correlated with the data]."""
    data, weight = orig.args
    how = orig.attrs.as_conv2d().to_json()
    return [
        conv2d(grad, weight, **how),
        call("conv2d_backward_weight", data, grad, weight, **how),
    ]


conv2d_transpose = caller("conv2d_transpose")
