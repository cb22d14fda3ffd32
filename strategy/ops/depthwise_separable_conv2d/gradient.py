"""The gradient of depthwise_separable_conv2d: those of the operators that it joins."""

from __future__ import annotations

from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.layout import block_of


@register_gradient("depthwise_separable_conv2d")
def gradient(orig: Call, grad: Expr) -> list[Expr]:
    """Through both convolutions, with the image between computed anew."""
    attrs = orig.attrs
    data, depthwise, bias, pointwise = orig.args
    (channels,), block = bias.tensor_type.concrete_shape, block_of(attrs.data_layout)
    sums = call(
        "conv2d", data, depthwise, strides=attrs.strides, padding=attrs.padding, dilation=attrs.dilation,
        groups=channels, data_layout=attrs.data_layout,
    )
    shaped = call("reshape", bias, newshape=(1, channels // block, 1, 1, block))
    steps = [sums, call("add", sums, shaped)]
    if attrs.activation == "relu6":
        steps.append(call("clip", steps[-1], a_min=0.0, a_max=6.0))
    elif attrs.activation != "none":
        steps.append(call(attrs.activation, steps[-1]))
    product = call("conv2d", steps[-1], pointwise, data_layout=attrs.data_layout, out_layout=attrs.out_layout)
    grad, of_pointwise = _slopes(product, grad)
    for step in steps[:1:-1]:
        (grad,) = _slopes(step, grad)
    grad, of_shaped = _slopes(steps[1], grad)
    (of_bias,) = _slopes(shaped, of_shaped)
    return [*_slopes(sums, grad), of_bias, of_pointwise]


def _slopes(node: Call, grad: Expr) -> list[Expr]:
    found: list[Expr] = node.op.get_attr("FPrimalGradient")(node, grad)
    return found
