"""qconv2d: the convolution of 8-bit integers, less their zero points, summed in int32.

As Relay's qnn.conv2d, whose zero points are attributes here; the scales, one for each output channel or one for all,
belong to the `dequantize` or `requantize` that follows. Padding is the data's zero point: zeros of the real numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import field
from strategy.caller import caller
from strategy.cuda.schedule import schedule_plain_cuda
from strategy.generic_func import GenericFunc
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_flops,
    register_op,
    register_reference,
    register_strategy,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d import (
    amx,
    amx_direct,
    amx_nchw,
    amx_nchw_direct,
    depthwise,
    depthwise_nhwc,
    direct,
    dot,
    dot_direct,
    dot_nhwc,
    mmla,
)
from strategy.ops.conv2d.layout import in_any_layout
from strategy.ops.conv2d.operator import (
    Conv2DAttrs,
    conv2d_shape_func,
    convolved,
    flops_conv2d,
    reference_conv2d,
)
from strategy.pattern import schedule_plain_cpu
from strategy.shape_func import register_shape_func
from strategy.target import Target
from strategy.types import TensorType, Type

_NARROW = ("int8", "uint8")


class QConv2DAttrs(Conv2DAttrs):
    """Attributes of qconv2d: those of conv2d, and zero points."""

    input_zero_point: int = field(0, "The value of the data, and its padding, that is zero", lower=-128, upper=255)
    kernel_zero_point: int = field(0, "The value of the weight that stands for zero", lower=-128, upper=255)
    out_dtype: str | None = field(None, "Data type of the sums", choices=("int32",))


def qconv2d_rel(types: Sequence[Type], attrs: QConv2DAttrs, reporter: TypeReporter) -> bool:
    """The convolution in int32; a weight without a type is of int8."""
    for index in range(2):
        given = reporter.tensor(index)
        if given is not None:
            reporter.check(given.dtype in _NARROW, index, f"its dtype must be one of {', '.join(_NARROW)}")
    shape = convolved(attrs, reporter, "int8")
    if shape is None:
        return False
    reporter.assign(2, TensorType(shape, "int32"))
    return True


(
    register_op("qconv2d")
    .describe("Two-dimensional convolution of 8-bit integers, less their zero points, summed in int32.")
    .add_argument("data", "Tensor", "int8 or uint8 [batch, channels, height, width], or as data_layout says")
    .add_argument("weight", "Tensor", "int8 or uint8 [out, channels / groups, height, width], or as kernel_layout says")
    .set_attrs_type(QConv2DAttrs)
    .set_support_level(11)
    .add_type_rel("QConv2D", qconv2d_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"data": "uint8[1,6,9,8]", "weight": "int8[21,6,3,3]"}, {"padding": 1, "input_zero_point": 3})
    .example({"data": "int8[2,8,5,7]", "weight": "int8[6,4,1,1]"}, {"groups": 2, "strides": 2})
    .example({"data": "int8[1,4,6,9]", "weight": "int8[4,1,3,3]"}, {"groups": 4, "kernel_zero_point": -2})
    .example({"data": "uint8[1,6,9,8]", "weight": "uint8[21,6,3,3]"}, {"padding": 1, "kernel_zero_point": 128})
    .example(
        {"data": "uint8[1,6,9,3]", "weight": "int8[3,3,3,4]"},
        {"padding": 1, "input_zero_point": 128, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    )
    .example(
        {"data": "uint8[1,6,9,20]", "weight": "int8[20,3,3,1]"},
        {"padding": 1, "groups": 20, "input_zero_point": 128, "data_layout": "NHWC", "kernel_layout": "OHWI"},
    )
)


@register_reference("qconv2d")
def reference_qconv2d(attrs: QConv2DAttrs, inputs: Sequence[Any]) -> Any:
    """In float64, which is exact and faster than NumPy's product of integers."""
    import numpy as np

    points = (attrs.input_zero_point, attrs.kernel_zero_point)
    data, weight = (np.asarray(x, np.float64) - point for x, point in zip(inputs, points, strict=True))
    return reference_conv2d(attrs, [data, weight]).astype(np.int64).astype(np.int32)


def compute(attrs: QConv2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """The convolution of the integers without their zero points."""
    from tvm import tirx, topi

    points = (attrs.input_zero_point, attrs.kernel_zero_point)
    return direct.compute(
        attrs,
        [topi.cast(x, "int32") - tirx.const(point, "int32") for x, point in zip(inputs, points, strict=True)],
        out_type,
    )


qconv2d_strategy = GenericFunc("qconv2d_strategy")


@qconv2d_strategy.register("cpu")
def qconv2d_strategy_cpu(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations for processors."""
    strategy = _in_any_layout(attrs, inputs, out_type, target)
    dot_nhwc.add(strategy, attrs, inputs, "qconv2d_nhwc_dot.cpu", 14, target)
    mmla.add(strategy, attrs, inputs, "qconv2d", target)
    amx.add(strategy, attrs, inputs, out_type, "qconv2d_nhwc_amx.cpu", target)
    amx_direct.add(strategy, attrs, inputs, out_type, "qconv2d_nhwc_amx_direct.cpu", target)
    depthwise_nhwc.add(strategy, attrs, inputs, "depthwise_qconv2d_nhwc.cpu", 15)
    return strategy


@in_any_layout
def _in_any_layout(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations of NCHW, and those of them that go with any layout."""
    strategy = OpStrategy()
    strategy.add_implementation(compute, schedule_plain_cpu, "qconv2d_nchw.cpu", 5)
    if not depthwise.is_depthwise(attrs, inputs):
        dot.add(strategy, attrs, inputs, "qconv2d_nchw_dot.cpu", 14, target)
        dot_direct.add(strategy, attrs, inputs, out_type, "qconv2d_nchw_dot_direct.cpu", target)
        amx_nchw.add(strategy, attrs, inputs, out_type, "qconv2d_nchw_amx.cpu", target)
        amx_nchw_direct.add(strategy, attrs, inputs, out_type, "qconv2d_nchw_amx_direct.cpu", target)
    else:
        depthwise.add(strategy, attrs, inputs, "depthwise_qconv2d_nchw.cpu")
    return strategy


@qconv2d_strategy.register(["cuda", "gpu"])
@in_any_layout
def qconv2d_strategy_cuda(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementation for NVIDIA's GPUs."""
    strategy = OpStrategy()
    strategy.add_implementation(compute, schedule_plain_cuda, "qconv2d_nchw.cuda", 5)
    return strategy


register_shape_func("qconv2d", False, conv2d_shape_func)
register_flops("qconv2d", flops_conv2d)
register_strategy("qconv2d", qconv2d_strategy)


qconv2d = caller("qconv2d")
