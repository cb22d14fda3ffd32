"""Operators of ONNX over images: convolutions, pools, samples, and channels as space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from plevel.onnx.node import OPERATORS, Node, Operator, constant, register
from plevel.onnx.operator import folded
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.deform import deformable_convolution
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.pool import largest_places, pool, sum_pool
from strategy.network.rewriter import extents
from strategy.network.roi_align import roi_align
from strategy.network.scatter import write_elements

OPERATORS |= {
    "Conv": lambda node, x, weight, bias=None: layer.convolution(x, weight, bias, **windows(node, x, weight)),
    "DepthToSpace": lambda node, x: call(
        "depth_to_space", x, block_size=node.get("blocksize"), mode=node.get("mode", "DCR")
    ),
    "AveragePool": lambda node, x: pool(
        "avg_pool2d", x, count_include_pad=bool(node.get("count_include_pad", 0)), **_pooled(node, x)
    ),
}


@register("SpaceToDepth")
def _space_to_depth(node: Node, x: Expr) -> Expr:
    size = node.require("blocksize")
    if node.get("mode", "DCR") == "DCR":
        return call("space_to_depth", x, block_size=size)
    n, channels, height, width = extents(x)
    blocks = layer.reshape(x, (n, channels, height // size, size, width // size, size))
    turned = layer.transpose(blocks, (0, 1, 3, 5, 2, 4))
    return layer.reshape(turned, (n, channels * size * size, height // size, width // size))


def _pads(node: Node, x: Expr, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The padding: all begins, then all ends."""
    auto, rank = node.get("auto_pad", "NOTSET"), len(window)
    if auto == "NOTSET":
        return list(node.get("pads", [0] * (2 * rank)))
    if auto == "VALID":
        return [0] * (2 * rank)
    begins, ends = [], []
    for extent, size, stride, step in zip(extents(x)[2:], window, strides, dilation, strict=True):
        covered = (-(-extent // stride) - 1) * stride + (size - 1) * step + 1
        padding = max(covered - extent, 0)
        less, more = padding // 2, padding - padding // 2
        begins.append(less if auto == "SAME_UPPER" else more)
        ends.append(more if auto == "SAME_UPPER" else less)
    return begins + ends


def windows(node: Node, x: Expr, weight: Expr) -> dict[str, Any]:
    """The attributes of a convolution."""
    rank = len(extents(x)) - 2
    strides, dilation = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    padding = _pads(node, x, extents(weight)[2:], strides, dilation)
    return {"strides": strides, "padding": padding, "dilation": dilation, "groups": node.get("group", 1)}


@register("ConvTranspose")
def _conv_transpose(node: Node, x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    rank = len(extents(x)) - 2
    strides, dilation = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    added, auto = node.get("output_padding", [0] * rank), node.get("auto_pad", "NOTSET")
    padding = [0] * (2 * rank) if auto == "VALID" else node.get("pads", [0] * (2 * rank))
    wanted = node.get("output_shape")
    if wanted or auto.startswith("SAME"):
        sizes = wanted[-rank:] if wanted else [n * s for n, s in zip(extents(x)[2:], strides, strict=True)]
        whole = [
            s * (n - 1) + o + (k - 1) * d + 1
            for n, k, s, d, o in zip(extents(x)[2:], extents(weight)[2:], strides, dilation, added, strict=True)
        ]
        gone = [w - size for w, size in zip(whole, sizes, strict=True)]
        if min(gone) < 0 and not wanted:
            raise NetworkError(
                f"an output of {sizes}, where its windows reach {whole}, which ONNX Runtime makes smaller than ONNX "
                "says: export it with pads"
            )
        added = [o + max(0, -n) for o, n in zip(added, gone, strict=True)]
        gone = [max(0, n) for n in gone]
        less, more = [n // 2 for n in gone], [n - n // 2 for n in gone]
        padding = less + more if auto == "SAME_UPPER" else more + less
    return layer.transposed_convolution(
        x, weight, bias, strides=strides, padding=padding, dilation=dilation, output_padding=added,
        groups=node.get("group", 1),
    )


@register("Col2Im")
def _columns_to_image(node: Node, x: Expr, shape: Expr, window: Expr) -> Expr:
    """A transposed convolution, in whose windows each place has a channel of its own."""
    image, size = (constant(v, what).tolist() for v, what in ((shape, "image_shape"), (window, "block_shape")))
    rank, places = len(size), math.prod(size)
    strides, dilation = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    padding = node.get("pads", [0] * (2 * rank))
    reach = [n + padding[i] + padding[rank + i] - (size[i] - 1) * dilation[i] - 1 for i, n in enumerate(image)]
    counts = [n // s + 1 for n, s in zip(reach, strides, strict=True)]
    batch, channels, _ = extents(x)
    if places < 1 or channels % places:
        raise NetworkError(f"blocks of {places} elements from {channels} rows: give a multiple")
    each = np.eye(places, dtype=x.tensor_type.dtype).reshape(places, 1, *size)
    return layer.transposed_convolution(
        layer.reshape(x, (batch, channels, *counts)), Constant(np.tile(each, (channels // places, *(1,) * (rank + 1)))),
        None, strides=strides, padding=padding, dilation=dilation, groups=channels // places,
        output_padding=[n - (c - 1) * s for n, c, s in zip(reach, counts, strides, strict=True)],
    )


@register("LpPool")
def _lp_pool(node: Node, x: Expr) -> Expr:
    """The root of a sum of powers, which has zeros beyond the image."""
    order = node.get("p", 2)
    powers = call("multiply", x, x) if order == 2 else call("abs", x)
    powers = powers if order in (1, 2) else call("power", powers, number(order, x))
    total = sum_pool(powers, **_pooled(node, x))
    return total if order == 1 else call("sqrt", total) if order == 2 else call("power", total, number(1 / order, x))


@register("GlobalLpPool")
def _global_lp_pool(node: Node, x: Expr) -> Expr:
    order, axes = node.get("p", 2), tuple(range(2, len(extents(x))))
    powers = call("multiply", x, x) if order == 2 else call("power", call("abs", x), number(order, x))
    total = call("sum", powers, axis=axes, keepdims=True)
    return call("sqrt", total) if order == 2 else call("power", total, number(1 / order, x))


@register("GridSample", "com.microsoft.GridSample")
def _grid_sample(node: Node, x: Expr, grid: Expr) -> Expr:
    if len(extents(x)) not in (4, 5):
        raise NetworkError(f"an image of {len(extents(x)) - 2} dimensions is sampled: plevel has two and three")
    methods = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest_neighbor"}  # of version 16
    mode, dtype = node.get("mode", "linear"), x.tensor_type.dtype
    grid = grid if grid.tensor_type.dtype == dtype else call("cast", grid, dtype=dtype)
    return call(
        "grid_sample", x, grid, method=methods.get(mode, mode), padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )


@register("RoiAlign")
def _roi_align(node: Node, x: Expr, boxes: Expr, of: Expr) -> Expr:
    samples, mode = node.get("sampling_ratio", 0), node.get("mode", "avg")
    if samples < 1 or mode != "avg":
        raise NetworkError(
            f"sampling_ratio {samples}, mode {mode!r}: plevel has means of a fixed number of samples, give one above 0"
        )
    start = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 16 else "output_half_pixel")
    return roi_align(
        x, boxes, of, size=(node.get("output_height", 1), node.get("output_width", 1)), samples=samples,
        scale=node.get("spatial_scale", 1.0), aligned=start == "half_pixel",
    )


@register("DeformConv")
def _deformable_convolution(
    node: Node, x: Expr, weight: Expr, offsets: Expr, bias: Expr | None = None, mask: Expr | None = None
) -> Expr:
    if len(extents(x)) != 4:
        raise NetworkError(f"a deformable convolution of {len(extents(x)) - 2} dimensions: plevel has two")
    return deformable_convolution(
        x, weight, offsets, mask, bias, strides=node.get("strides", [1, 1]), padding=node.get("pads", [0] * 4)[:2],
        dilation=node.get("dilations", [1, 1]), groups=node.get("group", 1), offset_groups=node.get("offset_group", 1),
    )


@register("LRN")
def _local_response_norm(node: Node, x: Expr) -> Expr:
    """Each channel by a sum of squares of those around it, of which more stand behind it."""
    size, channels = node.require("size"), extents(x)[1]
    before, behind = (min(n, channels) for n in ((size - 1) // 2, size // 2))  # what is further away is 0
    around = ((0, 0), (before, behind), *((0, 0),) * (len(extents(x)) - 2))
    squares = call("pad", call("multiply", x, x), pad_width=around)
    first, *more = (layer.take_slice(squares, 1, i, i + channels) for i in range(before + behind + 1))
    found = folded("add", first, more)
    scaled = call("multiply", found, number(node.get("alpha", 1e-4) / size, x))
    base = call("add", scaled, number(node.get("bias", 1.0), x))
    return call("divide", x, call("power", base, number(node.get("beta", 0.75), x)))


@register("MaxPool")
def _max_pool(node: Node, x: Expr) -> Expr | tuple[Expr, Expr]:
    """The pool, and where it is named the place of each element in the whole tensor."""
    about = _pooled(node, x)
    found = pool("max_pool2d", x, **about)
    if node.count == 1:
        return found
    places = largest_places(x, by_columns=bool(node.get("storage_order", 0)), **about)
    return found, call("add", places, _begins(extents(x)))


def _begins(shape: Sequence[int]) -> Expr:
    """The place of each image's first element in a tensor [batch, channels, …]."""
    images = layer.reshape(layer.steps(0, shape[0] * shape[1], 1, "int64"), (*shape[:2], *(1,) * (len(shape) - 2)))
    return call("multiply", images, number(math.prod(shape[2:]), images))


@register("MaxUnpool")
def _max_unpool(node: Node, x: Expr, places: Expr, shape: Expr | None = None) -> Expr:
    """Zeros, with the elements at places in the whole tensor, each in its own image."""
    size, image = node.require("kernel_shape"), extents(x)[2:]
    rank = len(size)
    strides, padding = node.get("strides", [1] * rank), node.get("pads", [0] * (2 * rank))
    whole = [
        (n - 1) * step + k - padding[i] - padding[rank + i]
        for i, (n, step, k) in enumerate(zip(image, strides, size, strict=True))
    ]
    if shape is not None and constant(shape, "output_shape").tolist()[2:] != whole:
        raise NetworkError(
            f"output_shape other than {whole}, to which ONNX Runtime counts places, unlike what ONNX says: export it "
            "without, and Pad behind it"
        )
    own = (*extents(x)[:2], *whole)
    within = call("subtract", places, _begins(own))
    rows, (written, area) = math.prod(own[:2]), (math.prod(image), math.prod(whole))
    into = layer.filled(0, (rows, area), x.tensor_type.dtype)
    flat = (layer.reshape(v, (rows, written)) for v in (within, x))
    return layer.reshape(write_elements(into, 1, *flat), own)


def _pooled(node: Node, x: Expr) -> dict[str, Any]:
    """The attributes of a pool."""
    size = node.require("kernel_shape")
    strides, dilation = (node.get(n, [1] * len(size)) for n in ("strides", "dilations"))
    if node.get("auto_pad", "NOTSET").startswith("SAME") and (
        max(dilation) > 1
        or any((-(-n // s) - 1) * s + k <= n - 2 for n, s, k in zip(extents(x)[2:], strides, size, strict=True))
    ):
        raise NetworkError(
            "auto_pad of dilated windows, or of windows that leave gaps, which ONNX Runtime pads otherwise than ONNX "
            "says: export it with pads"
        )
    padding = _pads(node, x, size, strides, dilation)
    return {
        "size": size, "strides": strides, "padding": padding, "dilation": dilation,
        "ceil_mode": bool(node.get("ceil_mode", 0)),
    }


def _global_pool(name: str) -> Operator:
    return lambda node, x: call(name, x, axis=tuple(range(-1, 1 - len(extents(x)), -1)), keepdims=True)


OPERATORS["GlobalAveragePool"], OPERATORS["GlobalMaxPool"] = _global_pool("mean"), _global_pool("max")
