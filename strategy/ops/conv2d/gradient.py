"""conv2d_backward_data and conv2d_backward_weight: what the gradient of conv2d is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from strategy.ops.conv2d.operator import DATA, KERNEL, Conv2DAttrs, conv2d, least_flops, permuted
from strategy.ops.conv2d.pad import pad_zeros
from strategy.ops.layout_transform import layout_transform
from strategy.ops.window import windowed_extents, windows
from strategy.pattern import extents_of, in_float32
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    require_dtype_of,
    require_float,
    require_nonempty,
    require_rank,
    require_shape,
)
from strategy.types import TensorType, Type


def _like_rel(types: Sequence[Type], attrs: Conv2DAttrs, reporter: TypeReporter) -> bool:
    """Two images, and the tensor whose type the result has."""
    for name, layout, only in (("data", attrs.data_layout, DATA), ("kernel", attrs.kernel_layout, KERNEL)):
        reporter.check(layout == only, 0, f"{name}_layout is {layout}: transpose to {only}")
    known = [reporter.tensor(i) for i in range(3)]
    for index, kind in enumerate(known):
        if kind is not None:
            require_rank(reporter, index, kind, 4, "as those of conv2d")
            require_float(reporter, index, kind)
            require_nonempty(reporter, index, kind)
            require_dtype_of(reporter, index, 0)
    if known[2] is None:
        return False
    reporter.assign(3, known[2])
    grad = known[0]
    weight, data = known[1:] if reporter.op.name == "conv2d_backward_data" else reversed(known[1:])
    if grad is None or weight is None or data is None:
        return False
    at = 1 if weight is known[1] else 2
    reporter.check(weight.shape[0] % attrs.groups == 0, at, f"does not divide into groups = {attrs.groups}")
    fits = weight.shape[1] * attrs.groups == data.shape[1]
    reporter.check(fits, at, f"does not fit {reporter.name(3 - at)}, {data}, in groups = {attrs.groups}")
    out = windowed_extents(attrs, data.shape[2:], weight.shape[2:])
    wanted = TensorType((data.shape[0], weight.shape[0], *out), data.dtype)
    require_shape(reporter, 0, grad.shape, wanted.shape, f"conv2d gives {wanted}")
    return True


(
    register_op("conv2d_backward_data")
    .describe("The derivative of conv2d with respect to its data.")
    .add_argument("grad", "Tensor", "[batch, out channels, out height, out width]")
    .add_argument("weight", "Tensor", "[out channels, channels / groups, height, width]")
    .add_argument("data", "Tensor", "The data of the convolution, for its type")
    .set_attrs_type(Conv2DAttrs)
    .set_support_level(10)
    .add_type_rel("Conv2DBackward", _like_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"grad": "float32[1,4,4,7]", "weight": "float32[4,3,3,3]", "data": "float32[1,3,6,9]"})
)
(
    register_op("conv2d_backward_weight")
    .describe("The derivative of conv2d with respect to its weight.")
    .add_argument("grad", "Tensor", "[batch, out channels, out height, out width]")
    .add_argument("data", "Tensor", "[batch, channels, height, width]")
    .add_argument("weight", "Tensor", "The weight of the convolution, for its type")
    .set_attrs_type(Conv2DAttrs)
    .set_support_level(10)
    .add_type_rel("Conv2DBackward", _like_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"grad": "float32[1,4,4,7]", "data": "float32[1,3,6,9]", "weight": "float32[4,3,3,3]"})
)


@register_compute("conv2d_backward_data")
@in_float32
def compute_backward_data(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """Each element gathers from the outputs whose window it was in."""
    from tvm import te, tirx

    grad, weight, _ = inputs
    stride_h, stride_w = attrs.strides
    dilation_h, dilation_w = attrs.dilation
    top, left, _, _ = attrs.padding
    out_channels, group_channels, height, width = weight.shape
    per_group = out_channels // attrs.groups
    o = te.reduce_axis((0, per_group), name="o")
    y = te.reduce_axis((0, height), name="y")
    x = te.reduce_axis((0, width), name="x")

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        channel = o if attrs.groups == 1 else c // group_channels * per_group + o
        row, column = h + top - y * dilation_h, w + left - x * dilation_w
        inside = tirx.all(
            row >= 0, row % stride_h == 0, row // stride_h < grad.shape[2],
            column >= 0, column % stride_w == 0, column // stride_w < grad.shape[3],
        )
        value = grad[n, channel, row // stride_h, column // stride_w] * weight[channel, c % group_channels, y, x]
        return te.sum(tirx.if_then_else(inside, value, tirx.const(0, grad.dtype)), axis=[o, y, x])

    return [te.compute(extents_of(out_type, inputs), element, name="conv2d_backward_data")]


@register_compute("conv2d_backward_weight")
@in_float32
def compute_backward_weight(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """Each element sums over the outputs that it had a part in."""
    from tvm import te

    grad, data, _ = inputs
    stride_h, stride_w = attrs.strides
    dilation_h, dilation_w = attrs.dilation
    shape = extents_of(out_type, inputs)
    per_group = shape[0] // attrs.groups
    padded = pad_zeros(data, attrs.padding)
    n = te.reduce_axis((0, grad.shape[0]), name="n")
    h = te.reduce_axis((0, grad.shape[2]), name="h")
    w = te.reduce_axis((0, grad.shape[3]), name="w")
    return [
        te.compute(
            shape,
            lambda o, c, y, x: te.sum(
                grad[n, o, h, w]
                * padded[
                    n,
                    c if attrs.groups == 1 else o // per_group * shape[1] + c,
                    h * stride_h + y * dilation_h,
                    w * stride_w + x * dilation_w,
                ],
                axis=[n, h, w],
            ),
            name="conv2d_backward_weight",
        )
    ]


@register_reference("conv2d_backward_data")
def reference_backward_data(attrs: Conv2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, weight = map(widened, inputs[:2])
    shape = np.shape(inputs[2])
    top, left, bottom, right = attrs.padding
    padded = np.zeros((*shape[:2], shape[2] + top + bottom, shape[3] + left + right), grad.dtype)
    n, _, height, width = grad.shape
    by_group = grad.reshape(n, attrs.groups, -1, height, width)
    for y in range(weight.shape[2]):
        for x in range(weight.shape[3]):
            tap = weight[:, :, y, x].reshape(attrs.groups, -1, weight.shape[1])
            rows = slice(y * attrs.dilation[0], None, attrs.strides[0])
            columns = slice(x * attrs.dilation[1], None, attrs.strides[1])
            part = np.einsum("ngohw,goc->ngchw", by_group, tap).reshape(n, -1, height, width)
            padded[:, :, rows, columns][:, :, :height, :width] += part
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


@register_reference("conv2d_backward_weight")
def reference_backward_weight(attrs: Conv2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    grad, data = map(widened, inputs[:2])
    shape = np.shape(inputs[2])
    view = windows(data, shape[2:], attrs.strides, attrs.dilation, attrs.padding)
    n, _, height, width = grad.shape
    by_group = view.reshape(n, attrs.groups, -1, height, width, *shape[2:])
    grads = grad.reshape(n, attrs.groups, -1, height, width)
    return np.einsum("ngohw,ngchwyx->gocyx", grads, by_group).reshape(shape)


def _convolution_flops(grad: TensorType, weight: TensorType) -> int:
    _, channels, height, width = weight.concrete_shape
    return 2 * grad.size * channels * height * width


register_flops("conv2d_backward_data", lambda attrs, inputs, out_type: _convolution_flops(inputs[0], inputs[1]))
register_flops("conv2d_backward_weight", lambda attrs, inputs, out_type: _convolution_flops(inputs[0], inputs[2]))
register_least_flops(
    "conv2d_backward_data", lambda attrs, inputs, out_type: least_flops(attrs, out_type, inputs[1], inputs[0])
)
register_least_flops(
    "conv2d_backward_weight", lambda attrs, inputs, out_type: least_flops(attrs, inputs[1], inputs[2], inputs[0])
)
register_plain_schedule("conv2d_backward", "conv2d_backward_data", "conv2d_backward_weight")


@register_shape_func("conv2d_backward_data", False)
@register_shape_func("conv2d_backward_weight", False)
def conv2d_backward_shape_func(
    attrs: Conv2DAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The shape of the third input."""
    return [inputs[2]]


@register_gradient("conv2d")
def conv2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad spread by the weight, grad correlated with the data]."""
    attrs = orig.attrs
    how, image, kernel = _attributes(orig), attrs.data_layout, attrs.kernel_layout
    data, weight = _in_layout(orig.args[0], image, DATA), _in_order(orig.args[1], kernel, KERNEL)
    grad = _in_layout(grad, attrs.result_layout, DATA)
    if grad.tensor_type.dtype != data.tensor_type.dtype:
        grad = call("cast", grad, dtype=data.tensor_type.dtype)
    return [
        _in_layout(call("conv2d_backward_data", grad, weight, data, **how), DATA, image),
        _in_order(call("conv2d_backward_weight", grad, data, weight, **how), KERNEL, kernel),
    ]


def _in_layout(value: Expr, given: str, wanted: str) -> Expr:
    return value if given == wanted else layout_transform(value, given, wanted)


def _in_order(value: Expr, given: str, wanted: str) -> Expr:
    return value if given == wanted else call("transpose", value, axes=permuted(range(4), given, wanted))


@register_gradient("conv2d_backward_data")
def backward_data_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [the convolution of grad, its correlation with the outer grad]."""
    out_grad, weight, _ = orig.args
    how = _attributes(orig)
    return [
        conv2d(grad, weight, **how),
        call("conv2d_backward_weight", out_grad, grad, weight, **how),
        None,
    ]


@register_gradient("conv2d_backward_weight")
def backward_weight_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [the convolution with grad as its weight, grad as the weight that spreads]."""
    out_grad, data, _ = orig.args
    how = _attributes(orig)
    return [
        conv2d(data, grad, **how),
        call("conv2d_backward_data", out_grad, grad, data, **how),
        None,
    ]


def _attributes(orig: Call) -> dict[str, Any]:
    attrs = orig.attrs
    return {"strides": attrs.strides, "padding": attrs.padding, "dilation": attrs.dilation, "groups": attrs.groups}
