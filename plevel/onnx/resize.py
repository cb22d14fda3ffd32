"""Images of ONNX at another size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from plevel.onnx.node import Node, constant, register
from strategy.expr import Expr
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.normal import extents


@register("Resize", "Upsample")
def _resize(
    node: Node, x: Expr, roi: Expr | None = None, scales: Expr | None = None, sizes: Expr | None = None
) -> Expr:
    if node.version < 11:  # no regions of interest
        roi, scales = None, roi
    for name in ("antialias", "exclude_outside"):
        if node.get(name, 0):
            raise NetworkError(f"{name} = 1: plevel resizes without it, export the model with 0")
    rank = len(extents(x))
    axes = [a % rank for a in node.get("axes", range(rank))]
    factors: list[float | None] = [None] * rank
    wanted = list(extents(x))
    if sizes is None:
        for axis, f in _for_each(axes, "scales", node.get("scales") if scales is None else constant(scales, "scales")):
            factors[axis], wanted[axis] = float(f), math.floor(np.float32(wanted[axis]) * np.float32(f))
    else:
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            raise NetworkError(f"keep_aspect_ratio_policy {policy!r}: export the sizes it leads to, with 'stretch'")
        for axis, extent in _for_each(axes, "sizes", constant(sizes, "sizes")):
            wanted[axis] = int(extent)
    if tuple(wanted[:2]) != extents(x)[:2]:
        raise NetworkError("it resizes the batch or channels: plevel resizes height and width only")
    mode = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric")
    if mode == "pytorch_half_pixel":
        for axis in range(2, rank):
            if wanted[axis] == 1:  # the first pixel in place of the middle one
                x, factors[axis] = layer.take_slice(x, axis, 0, 1), None
    if mode in ("pytorch_half_pixel", "half_pixel_symmetric"):  # which differ where scales are no ratios of sizes
        mode = "half_pixel"
    method = {"nearest": "nearest_neighbor"}.get(node.get("mode", "nearest"), node.get("mode"))
    alpha, start = float(node.get("cubic_coeff_a", -0.75)), "round_prefer_floor" if node.version >= 11 else "floor"

    def resized(x: Expr, axes: set[int], rounding: str) -> Expr:
        size = [wanted[i] if i in axes else n for i, n in enumerate(extents(x))]
        scale = [f if i in axes else None for i, f in enumerate(factors)]
        return layer.resize(
            x, size[2:], scale[2:], method=method, coordinate_transformation_mode=mode, rounding_method=rounding,
            cubic_alpha=alpha,
        )  # fmt: skip

    older = node.version < 11 and method == "nearest_neighbor"
    fewer = {i for i in range(2, rank) if older and wanted[i] < extents(x)[i]}
    if fewer:  # rounded up by ONNX Runtime, unlike those that grow
        x = resized(x, fewer, "ceil")
    if tuple(wanted) == extents(x):
        return x
    return resized(x, set(range(2, rank)) - fewer, node.get("nearest_mode", start))


def _for_each(axes: Sequence[int], name: str, given: Any) -> list[tuple[int, Any]]:
    """Each axis with its entry."""
    count = 0 if given is None else len(given)
    if count != len(axes):
        raise NetworkError(f"{name} has {count} entries for {len(axes)} axes: give one for each")
    return list(zip(axes, given, strict=True))
