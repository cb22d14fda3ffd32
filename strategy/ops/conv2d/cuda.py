"""`conv2d` on NVIDIA's GPUs.

conv2d_nchw.cuda                       the sum over the window, a thread for each output
depthwise_conv2d_nchw.cuda             the same, where each channel is by itself
conv2d_nchw_implicit_gemm.cuda         a product of the weight with windows that are never stored
conv2d_nchw_implicit_gemm_tensor.cuda  the same on tensor cores, in float16 and bfloat16
conv2d_nchw_mma.cuda                   the same by mma.sync, from 16 channels on; sm_80 and later
conv2d_nchw_wgmma.cuda                 the same by Hopper's wgmma
conv2d_nchw_winograd.cuda              F(2×2, 3×3), 4 multiplications where direct needs 9
conv2d_cudnn.cuda                      the vendor's, where the target's libs name cudnn
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import schedule_in_place
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import Product, accumulator, compute_product
from strategy.cuda.mma import mma_product, mma_space, takes_mma
from strategy.cuda.schedule import bind_flat, reduction_loops
from strategy.cuda.tensor_core import schedule_tensor_core, tensor_space
from strategy.cuda.wgmma import takes_wgmma, wgmma_product, wgmma_space
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d import cudnn, implicit_gemm, mma, winograd_cuda
from strategy.ops.conv2d.layout import in_any_layout
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.window import windowed_extents
from strategy.schedule import Outs, compute_stage, find_stages, integer, join_epilogue, new_schedule
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.type_relation import certainly
from strategy.types import TensorType

_THREADS = Knob("threads", [32, 64, 128, 256, 512, 1024])
_UNROLL = Knob("unroll", [0, 16, 64, 512])


@in_any_layout
def conv2d_strategy_cuda(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations for NVIDIA's GPUs."""
    strategy = OpStrategy()
    data, weight = inputs
    depthwise = certainly(weight.shape[1] == 1) and certainly(data.shape[1] == attrs.groups)
    name = "depthwise_conv2d_nchw.cuda" if depthwise else "conv2d_nchw.cuda"
    strategy.add_implementation(compute_direct, schedule_direct, name, 5, space=space_of_threads)
    if "cudnn" in target.libs and cudnn.takes(attrs, inputs, out_type):
        strategy.add_implementation(
            cudnn.compute, schedule_in_place, "conv2d_cudnn.cuda", 25,
            space=cudnn.space, library="cudnn", symbolic=False,
        )
    summed = out_type.dtype in (data.dtype, accumulator(data.dtype))
    if not out_type.is_constant or attrs.groups != 1 or not summed:
        return strategy
    strategy.add_implementation(
        implicit_gemm.compute, implicit_gemm.schedule, "conv2d_nchw_implicit_gemm.cuda", 10,
        version=2, space=implicit_gemm.space, prepare=implicit_gemm.prepare,
    )
    if data.dtype in limits_of(target).tensor_cores:
        strategy.add_implementation(
            compute_product_of_windows, schedule_tensors,
            "conv2d_nchw_implicit_gemm_tensor.cuda", 12, space=space_of_tensors,
        )
    if mma.takes(takes_mma, inputs, out_type, limits_of(target)):
        strategy.add_implementation(
            partial(mma.compute, mma_product), mma.schedule, "conv2d_nchw_mma.cuda", 14,
            space=partial(mma.space, mma_space), prepare=mma.prepare,
        )
    if mma.takes(takes_wgmma, inputs, out_type, limits_of(target)):
        strategy.add_implementation(
            partial(mma.compute, wgmma_product), mma.schedule, "conv2d_nchw_wgmma.cuda", 16,
            space=partial(mma.space, wgmma_space), prepare=mma.prepare,
        )
    if (
        data.dtype in ("float32", "float64")
        and weight.concrete_shape[2:] == (3, 3)
        and attrs.strides == attrs.dilation == (1, 1)
    ):
        strategy.add_implementation(
            winograd_cuda.compute, winograd_cuda.schedule, "conv2d_nchw_winograd.cuda", 11,
            version=2, space=winograd_cuda.space, prepare=winograd_cuda.prepare,
        )
    return strategy


# One thread for each output


def space_of_threads(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Threads of a block, and how far the window's loops are unrolled."""
    return ConfigSpace([_THREADS, _UNROLL], fallback={"threads": 256, "unroll": 64})


def compute_direct(
    attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution of [n, c, h, w] with [o, c / groups, kh, kw], zeros read around the data."""
    from tvm import te

    dtype = accumulator(out_type.dtype)
    data, weight = inputs
    out_channels, channels, height, width = (int(e) for e in weight.shape)
    per_group = out_channels // attrs.groups
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    c, y, x = (
        te.reduce_axis((0, e), name=v) for e, v in ((channels, "c"), (height, "y"), (width, "x"))
    )
    rows, columns = windowed_extents(attrs, data.shape[2:], weight.shape[2:])

    def term(n: Any, o: Any, h: Any, w: Any) -> Any:
        channel = c if attrs.groups == 1 else o // per_group * channels + c
        place = (h * stride_h + y * dilation_h, w * stride_w + x * dilation_w)
        value = implicit_gemm.padded(attrs, data, n, channel, *place).astype(dtype)
        return te.sum(value * weight[o, c, y, x].astype(dtype), axis=[c, y, x])

    shape = (data.shape[0], out_channels, rows, columns)
    sums = compute_stage("conv2d", shape, term)
    if dtype == out_type.dtype:
        return [sums]
    return [te.compute(shape, lambda *i: sums[i].astype(out_type.dtype), name="cast")]


def schedule_direct(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Neighbouring threads have neighbouring outputs; each sums its window in a register."""
    sch = new_schedule(outs)
    sums = find_stages(sch)["conv2d"]
    output = join_epilogue(sch)
    alone = sch.get(output).name_hint == sch.get(sums).name_hint
    spatial, reduced = reduction_loops(sch, output)
    thread = bind_flat(sch, spatial, integer(config, "threads"))
    if not alone:
        sch.set_scope(sums, 0, "local")
        sch.compute_at(sums, thread, preserve_unit_loops=True)
        reduced = sch.get_loops(sums)[-3:]
    unroll = integer(config, "unroll")
    if unroll:
        sch.annotate(reduced[0], "pragma_auto_unroll_max_step", unroll)
        sch.annotate(reduced[0], "pragma_unroll_explicit", 0)
    return sch


# The weight [o, c·kh·kw] times the windows [c·kh·kw, n·h·w], on tensor cores


def space_of_tensors(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Blocks, warps and loads."""
    return tensor_space(limits_of(target), *implicit_gemm.extents(inputs, out_type))


def compute_product_of_windows(
    attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The product, read back as [n, o, h, w]."""
    data, weight = inputs
    batch, out_channels, rows, columns = out_type.concrete_shape
    _, channels, height, width = (int(e) for e in weight.shape)
    window = height * width
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation

    def of_weight(batch: Any, o: Any, step: Any) -> Any:
        return weight[o, step // window, step % window // width, step % width]

    def of_windows(batch: Any, place: Any, step: Any) -> Any:
        n, h, w = place // (rows * columns), place // columns % rows, place % columns
        c, y, x = step // window, step % window // width, step % width
        y, x = h * stride_h + y * dilation_h, w * stride_w + x * dilation_w
        return implicit_gemm.padded(attrs, data, n, c, y, x)

    product = compute_product(
        Product(1, out_channels, batch * rows * columns, channels * window),
        of_weight, of_windows, str(data.dtype), config,
    )
    return [implicit_gemm.as_image(product, out_type)]


def schedule_tensors(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """See `schedule_tensor_core`."""
    sch = new_schedule(outs)
    schedule_tensor_core(sch, implicit_gemm.loops_of_places(sch), config, b_along_k=False)
    return sch


get_registered_op("conv2d").get_attr("FTVMStrategy").register(["cuda", "gpu"], conv2d_strategy_cuda)
