"""`conv2d_cudnn.cuda`: the vendor's convolution, its forward algorithm the one knob there is.

float32 is multiplied without TF32, narrower floats are summed in float32. What an algorithm takes is
in cuDNN's table of `cudnnConvolutionForward`; what that leaves open, the library says on the device's
host, where such a configuration fails by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.library import LEFT, OUTPUT, RIGHT, call_in_place
from strategy.cuda.program import Convolution
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_FALLBACK = "implicit_precomp_gemm"


def takes(attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> bool:
    """Return whether cuDNN has it: constant shapes, padded alike on opposite sides, of a dtype that it knows."""
    top, left, bottom, right = attrs.padding
    return (
        out_type.is_constant
        and inputs[1].is_constant
        and (top, left) == (bottom, right)
        and inputs[0].dtype == out_type.dtype in ("float16", "bfloat16", "float32", "float64")
    )


def space(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The forward algorithms that may take this window."""
    found = ["implicit_gemm", _FALLBACK, "gemm"]
    window = inputs[1].concrete_shape[2:]
    if attrs.strides == attrs.dilation == (1, 1) and inputs[0].dtype in ("float32", "float16"):
        found += ["fft", "fft_tiling"]
        if window == (3, 3):
            found += ["winograd"]
        if window in ((3, 3), (5, 5)):
            found += ["winograd_nonfused"]
    return ConfigSpace([Knob("algorithm", found)], fallback={"algorithm": _FALLBACK})


def compute(
    attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution by one call of the chosen algorithm."""
    data, weight = (tuple(int(e) for e in tensor.shape) for tensor in inputs)
    call = Convolution(
        data=LEFT, weight=RIGHT, output=OUTPUT, dtype=out_type.dtype,
        data_shape=data, weight_shape=weight, output_shape=out_type.concrete_shape,  # type: ignore[arg-type]
        padding=attrs.padding[:2], strides=attrs.strides, dilation=attrs.dilation,
        groups=attrs.groups, algorithm=str(config["algorithm"]),
    )
    return [call_in_place(call, inputs, out_type.concrete_shape, out_type.dtype, "conv2d")]
