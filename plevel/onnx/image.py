"""Operators of ONNX over images: convolutions, pools, samples, and channels as space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plevel.onnx.node import OPERATORS, Node, Operator, register
from plevel.onnx.operator import folded
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.normal import extents

OPERATORS |= {
    "Conv": lambda node, x, weight, bias=None: layer.convolution(x, weight, bias, **windows(node, x, weight)),
    "DepthToSpace": lambda node, x: call(
        "depth_to_space", x, block_size=node.get("blocksize"), mode=node.get("mode", "DCR")
    ),
    "MaxPool": lambda node, x: _pool(node, x, "max_pool2d"),
    "AveragePool": lambda node, x: _pool(
        node, x, "avg_pool2d", count_include_pad=bool(node.get("count_include_pad", 0))
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
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.get("output_shape"):
        raise NetworkError("it has auto_pad or output_shape: export it with pads")
    return layer.transposed_convolution(
        x, weight, bias, strides=strides, padding=node.get("pads", [0] * (2 * rank)), dilation=dilation,
        output_padding=node.get("output_padding", [0] * rank), groups=node.get("group", 1),
    )  # fmt: skip


@register("GridSample")
def _grid_sample(node: Node, x: Expr, grid: Expr) -> Expr:
    if len(extents(x)) != 4:
        raise NetworkError(f"an image of {len(extents(x)) - 2} dimensions is sampled: plevel has two")
    methods = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest_neighbor"}  # of version 16
    mode, dtype = node.get("mode", "linear"), x.tensor_type.dtype
    grid = grid if grid.tensor_type.dtype == dtype else call("cast", grid, dtype=dtype)
    return call(
        "grid_sample", x, grid, method=methods.get(mode, mode), padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )  # fmt: skip


@register("LRN")
def _local_response_norm(node: Node, x: Expr) -> Expr:
    """Each channel by a sum of squares of those around it, of which more stand behind it."""
    size, channels = node.require("size"), extents(x)[1]
    around = ((0, 0), ((size - 1) // 2, size // 2), *((0, 0),) * (len(extents(x)) - 2))
    squares = call("pad", call("multiply", x, x), pad_width=around)
    first, *more = (layer.take_slice(squares, 1, i, i + channels) for i in range(size))
    found = folded("add", first, more)
    scaled = call("multiply", found, number(node.get("alpha", 1e-4) / size, x))
    base = call("add", scaled, number(node.get("bias", 1.0), x))
    return call("divide", x, call("power", base, number(node.get("beta", 0.75), x)))


def _pool(node: Node, x: Expr, name: str, **attrs: Any) -> Expr:
    size = node.require("kernel_shape")
    strides, dilation = (node.get(n, [1] * len(size)) for n in ("strides", "dilations"))
    if node.get("auto_pad", "NOTSET").startswith("SAME") and (
        max(dilation) > 1
        or (name == "avg_pool2d" and any((-(-n // s) - 1) * s + k <= n - 2 for n, s, k in zip(
            extents(x)[2:], strides, size, strict=True
        )))
    ):  # fmt: skip
        raise NetworkError(
            "auto_pad of dilated windows, or of an average of windows that leave gaps, which ONNX Runtime pads "
            "otherwise than ONNX says: export it with pads"
        )
    padding = _pads(node, x, size, strides, dilation)
    return layer.pool(
        name, x, size=size, strides=strides, padding=padding, dilation=dilation,
        ceil_mode=bool(node.get("ceil_mode", 0)), **attrs,
    )  # fmt: skip


def _global_pool(name: str) -> Operator:
    return lambda node, x: call(name, x, axis=tuple(range(-1, 1 - len(extents(x)), -1)), keepdims=True)


OPERATORS["GlobalAveragePool"], OPERATORS["GlobalMaxPool"] = _global_pool("mean"), _global_pool("max")
