"""conv2d, with implementations for different kinds of windows.

    conv2d_nchw.cpu                every window, dtype and grouping, with all dimensions symbolic too
    conv2d_nchw_im2col.cpu         windows unfolded into columns, or read where they lie, then a product
    conv2d_nchw_spatial_pack.cpu   output channels in the lanes, nothing unfolded
    conv2d_nchw_taps.cpu           the same a tap and a block of channels at a time, without those that see padding
    conv2d_nchw_lines.cpu          pixels of a line in the lanes, nothing unfolded, for few output channels of a group
    conv2d_nchw_1x1.cpu            windows of one pixel: a product of what lies there, or is gathered
    conv2d_nchw_dot.cpu            bfloat16 and 8-bit integers by dot-product instructions, windows unfolded
    conv2d_nchw_dot_direct.cpu     the same, output channels in the lanes, unfolded over few channels alone
    conv2d_nchw_mmla.cpu           the same by Arm's matrix instructions, pairs of windows unfolded; also of NHWC
    conv2d_nchw_amx.cpu            the same by AMX, words of neighbouring channels unfolded
    conv2d_nchw_amx_direct.cpu     the same, tiles read from the words of the image
    conv2d_nhwc_dot.cpu            the same of NHWC, unfolded over few channels of bfloat16 alone
    conv2d_nhwc_amx.cpu            the same of NHWC by AMX, windows unfolded
    conv2d_nhwc_amx_direct.cpu     the same, tiles read from the image
    conv2d_nchw_winograd_2x2.cpu, …_4x4.cpu    3×3 without stride, of one group or of groups of several channels
    conv2d_nchw_winograd_lines_4x4.cpu         the same of one group, some lines of tiles after the other
    depthwise_conv2d_nchw.cpu      as many groups as channels
    depthwise_conv2d_nhwc.cpu      the same of NHWC, where each channel gives one

In NHWC there are also the first and the third, as conv2d_nhwc.cpu and conv2d_nhwc_spatial_pack.cpu. With blocks of
channels there are conv2d_nchwc.cpu, of groups of whole blocks conv2d_nchwc_spatial_pack.cpu, of one group winograd's
three, and depthwise_conv2d_nchwc.cpu. Any order of the weight's axes goes with each. A symbolic batch goes with all but
winograd's and those with blocks, and an image of any size with conv2d_nchw_spatial_pack.cpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from strategy.condition import SpecializedCondition
from strategy.cpu import widened
from strategy.cpu.dot import plevel_of
from strategy.generic_func import GenericFunc, get_native_generic_func
from strategy.layout import block_of, plain_type
from strategy.op import register_strategy
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d import (
    amx,
    amx_direct,
    amx_nchw,
    amx_nchw_direct,
    blocked,
    depthwise,
    depthwise_blocked,
    depthwise_nhwc,
    direct,
    dot,
    dot_direct,
    dot_nhwc,
    gradient,
    im2col,
    lines,
    mmla,
    pointwise,
    spatial_pack,
    taps,
    winograd,
    winograd_channels,
    winograd_lines,
)
from strategy.ops.conv2d.layout import in_any_layout, plain_inputs
from strategy.ops.conv2d.operator import Conv2DAttrs, conv2d
from strategy.ops.conv2d.transform import F2, F4, Transform
from strategy.pattern import schedule_plain_cpu
from strategy.schedule import accumulator, lanes_of
from strategy.target import Target
from strategy.types import TensorType

__all__ = ["Conv2DAttrs", "conv2d", "conv2d_strategy", "gradient"]

_NARROW = ("bfloat16", "float16", "int8", "uint8")
_SPATIAL_PACK = "conv2d_nchw_spatial_pack.cpu"
_BLOCKED = "conv2d_nchwc_spatial_pack.cpu"
_MOST_IMAGES = 6  # along an axis, of those that winograd's divide a dilated one into

conv2d_strategy: GenericFunc = get_native_generic_func("conv2d_strategy")


@conv2d_strategy.register("cpu")
def conv2d_strategy_cpu(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """conv2d cpu strategy."""
    strategy = _in_any_layout(attrs, inputs, out_type, target)
    floats = out_type.dtype in ("float32", "float64") and inputs[0].dtype == out_type.dtype
    if inputs[0].dtype in _NARROW or floats:
        depthwise_nhwc.add(strategy, attrs, inputs, "depthwise_conv2d_nhwc.cpu", 15)
    if inputs[0].dtype in _NARROW:
        level = plevel_of(target, inputs[0].dtype, 14)
        dot_nhwc.add(strategy, attrs, inputs, "conv2d_nhwc_dot.cpu", level, target)
        mmla.add(strategy, attrs, inputs, "conv2d", target)
        amx.add(strategy, attrs, inputs, out_type, "conv2d_nhwc_amx.cpu", target)
        amx_direct.add(strategy, attrs, inputs, out_type, "conv2d_nhwc_amx_direct.cpu", target)
    if block_of(attrs.result_layout) == 1 or attrs.data_layout == "NHWC" or not widened.serves(inputs, out_type):
        return strategy
    data, weight = plain_inputs(attrs, inputs)
    if not all(d.is_constant for d in (*data.shape, *weight.shape)):
        return strategy
    found = OpStrategy()
    if depthwise_blocked.is_offered(attrs, data, weight):
        found.add_implementation(
            depthwise_blocked.compute, depthwise_blocked.schedule, "depthwise_conv2d_nchwc.cpu", 15,
            space=depthwise_blocked.space, prepare=depthwise_blocked.prepare,
        )
    elif blocked.is_offered(attrs, weight):
        found.add_implementation(
            blocked.compute, blocked.schedule, _BLOCKED, 12,
            space=blocked.space, prepare=blocked.prepare,
        )
    is_square = weight.concrete_shape[2:] == (3, 3) and attrs.strides == (1, 1)
    if attrs.groups == 1 and is_square and block_of(attrs.data_layout) > 1:
        plain = plain_type(out_type, attrs.result_layout)
        _add_winograds(found, attrs, data, weight, plain, target, "conv2d_nchwc_winograd")
    strategy.extend(widened.for_types(found, inputs, {_BLOCKED: lambda attrs, _: not any(attrs.padding)}))
    return strategy


@in_any_layout
def _in_any_layout(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> OpStrategy:
    """The implementations of NCHW, and those of them that go with any layout."""
    strategy = OpStrategy()
    strategy.add_implementation(direct.compute, schedule_plain_cpu, name="conv2d_nchw.cpu", plevel=5)
    data, weight = inputs
    # Tiles are counted when the code is made: what they divide must be known then.
    if data.dtype in _NARROW:
        if not depthwise.is_depthwise(attrs, inputs):
            dot.add(strategy, attrs, inputs, "conv2d_nchw_dot.cpu", plevel_of(target, data.dtype, 14), target)
            dot_direct.add(strategy, attrs, inputs, out_type, "conv2d_nchw_dot_direct.cpu", target)
            amx_nchw.add(strategy, attrs, inputs, out_type, "conv2d_nchw_amx.cpu", target)
            amx_nchw_direct.add(strategy, attrs, inputs, out_type, "conv2d_nchw_amx_direct.cpu", target)
        else:
            depthwise.add(strategy, attrs, inputs, "depthwise_conv2d_nchw.cpu")
    known = all(d.is_constant for d in (data.shape[1], *weight.shape))
    if not known or not widened.serves(inputs, out_type):
        return strategy
    if depthwise.is_depthwise(attrs, inputs):
        if data.dtype not in _NARROW and all(d.is_constant for d in data.shape[2:]):
            depthwise.add(strategy, attrs, inputs, "depthwise_conv2d_nchw.cpu")
        return strategy
    found = OpStrategy()
    if all(d.is_constant for d in data.shape[2:]):
        _add_products(found, attrs, data, weight, out_type, target)
        if not spatial_pack.fills_tiles(out_type):
            # A tile of a pixel or two reads the whole weight for each.
            found = found.changed(lambda i: replace(i, plevel=9) if i.name == _SPATIAL_PACK else i)
    else:
        _add_spatial_pack(found)
    # A spatial pack broadcasts each number of the image as often as there are panels and places in a window.
    strategy.extend(widened.for_types(found, inputs, {_SPATIAL_PACK: spatial_pack.reads_in_place}))
    return strategy


def _add_products(
    strategy: OpStrategy, attrs: Conv2DAttrs, data: TensorType, weight: TensorType, out_type: TensorType,
    target: Target,
) -> None:
    """Add im2col and what takes the place of it."""
    # On a tie the first is taken.
    unfolds = im2col.pays(weight, out_type, attrs.groups, target)
    strategy.add_implementation(
        im2col.compute, im2col.schedule, "conv2d_nchw_im2col.cpu", 11 if unfolds else 10, version=3,
        space=im2col.space, prepare=im2col.prepare,
    )
    _add_spatial_pack(strategy)
    # On a tie the first is taken, not winograd's.
    if lines.is_offered((data, weight), out_type):
        strategy.add_implementation(
            lines.compute, lines.schedule, "conv2d_nchw_lines.cpu",
            14 if lines.pays((data, weight), out_type, target) else 8, space=lines.space, prepare=lines.prepare,
        )
    (_, _, height, width), (_, _, kernel_h, kernel_w) = data.shape, weight.shape
    # Vectors of pixels cross the lines of a small image, and some of their lanes are idle; those of channels are not.
    small = int(height) * int(width) // (attrs.strides[0] * attrs.strides[1]) <= 14 * 14
    if taps.is_offered(attrs, (data, weight), out_type):
        pixel = int(kernel_h) == int(kernel_w) == 1
        pays = taps.pays(attrs, (data, weight), out_type, target) and not (small and pixel)
        # Its panels stay in the first level.
        level = 13 if pays else 12 if spatial_pack.waits((data, weight), out_type, target) else 9
        strategy.add_implementation(
            taps.compute, taps.schedule, "conv2d_nchw_taps.cpu", 9 if data.dtype in _NARROW else level,
            space=taps.space, prepare=taps.prepare,
        )
    with SpecializedCondition((kernel_h == 1) & (kernel_w == 1)):
        strategy.add_implementation(
            pointwise.compute, pointwise.schedule, "conv2d_nchw_1x1.cpu", 10 if small else 12, version=2,
            space=pointwise.space, prepare=pointwise.prepare,
        )
    # Winograd's tiles go over the images of a batch.
    if not data.shape[0].is_constant or attrs.strides != (1, 1):
        return
    if attrs.groups == 1:
        if weight.concrete_shape[2:] == (3, 3):
            _add_winograds(strategy, attrs, data, weight, out_type, target, "conv2d_nchw_winograd")
    elif weight.concrete_shape[2:] == (3, 3) and min(int(weight.shape[1]), int(weight.shape[0]) // attrs.groups) >= 8:
        # Untuned, what computes each group apart is faster, or not much slower.
        _add_winograd(strategy, winograd, "conv2d_nchw_winograd", F2, 8)
        whole = all(int(n) >= 7 * d for n, d in zip((height, width), attrs.dilation, strict=True))
        if int(weight.shape[1]) >= 16 and whole:
            _add_winograd(strategy, winograd, "conv2d_nchw_winograd", F4, 8)


def _add_winograds(
    strategy: OpStrategy, attrs: Conv2DAttrs, data: TensorType, weight: TensorType, plain: TensorType, target: Target,
    name: str,
) -> None:
    """Add winograd's algorithm for windows of 3×3 and one group, whose output is `plain`."""
    # Dilation divides the image into as many: of less than 4 pixels a tile is idle in part, and one alone is slower
    # than a spatial pack that fills its own. Many images take longer to divide and join than to convolve by taps.
    sides = [int(n) / d for n, d in zip(data.shape[2:], attrs.dilation, strict=True)]
    dilated = [side for side, d in zip(sides, attrs.dilation, strict=True) if d > 1]
    divides = max(attrs.dilation) > _MOST_IMAGES or min(dilated, default=4) < 3
    # Less than a vector of output channels leaves lanes idle.
    idle = int(weight.shape[0]) < lanes_of(target, accumulator(weight.dtype))
    slow = divides or idle or im2col.has_few_channels(weight, attrs.groups)
    usual = {F2: 10 if slow else 11 if min(dilated, default=4) < 4 else 13, F4: 10 if idle else 12 if divides else 14}

    # In NCHW an instruction for narrow floats has implementations at 15.
    rival = winograd_channels.find_rival(data, weight, target) if block_of(attrs.data_layout) == 1 else None

    def outpaces(cycles: int) -> bool:
        return rival is not None and winograd_channels.outpaces(F4, attrs, weight, plain, rival, cycles, target)

    def level(transform: Transform) -> int:
        if winograd_channels.waits(transform, weight, plain, target):
            return 10
        is_fastest = transform is F4 and not idle and attrs.dilation == (1, 1) and outpaces(winograd_channels.TRANSFORM)
        return 16 if is_fastest else usual[transform]

    _add_winograd(strategy, winograd_channels, name, F2, level(F2))
    # Few channels do not average out the rounding of its transforms; small images fill no tile.
    if int(weight.shape[1]) < 16 or min(sides) < 7:
        return
    _add_winograd(strategy, winograd_channels, name, F4, level(F4))
    if winograd_lines.is_offered(attrs, plain):
        pays = not idle and winograd_lines.pays(attrs, weight, plain, target)
        pays = pays and (rival is None or outpaces(winograd_lines.TRANSFORM))
        _add_winograd(strategy, winograd_lines, f"{name}_lines", F4, 17 if pays else 9, version=2)


def _add_spatial_pack(strategy: OpStrategy) -> None:
    strategy.add_implementation(
        spatial_pack.compute, spatial_pack.schedule, _SPATIAL_PACK, 11, version=6,
        space=spatial_pack.space, prepare=spatial_pack.prepare,
    )


def _add_winograd(
    strategy: OpStrategy, module: ModuleType, name: str, transform: Transform, plevel: int, version: int = 4
) -> None:
    strategy.add_implementation(
        transform.bind(module.compute), transform.bind(module.schedule),
        f"{name}_{transform.tile}x{transform.tile}.cpu", plevel, version=version,
        space=transform.bind(module.space), prepare=transform.bind(module.prepare),
    )


register_strategy("conv2d", conv2d_strategy)
