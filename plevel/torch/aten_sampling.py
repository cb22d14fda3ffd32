"""Operators of ATen and torchvision that sample images between their pixels, as calls of plevel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plevel.torch.aten import OPERATORS, Operator, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.deform import deformable_convolution
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.resize import resize
from strategy.network.rewriter import extents
from strategy.network.roi_align import roi_align
from strategy.network.size import PROBED


def _resize(method: str) -> Operator:
    """The overload `vec` of upsample: sizes or scales are None."""

    def make(x: Expr, size: Any, *given: Any) -> Expr:
        *corners, scales = given
        image, unscaled = extents(x)[2:], [None] * (len(extents(x)) - 2)
        sizes = size if size is not None else [int(n * s) for n, s in zip(image, scales, strict=True)]
        if corners == [True]:
            return resize(x, sizes, unscaled, method=method, coordinate_transformation_mode="align_corners")
        return resize(x, sizes, scales or unscaled, method=method)

    return make


@register("upsample_nearest2d.vec")
def _nearest(x: Expr, size: Any, scales: Any) -> Expr:
    """The pixels that PyTorch finds in float32, which for some extents are one before those of whole numbers."""
    image = extents(x)[2:]
    sizes = size if size is not None else [int(n * s) for n, s in zip(image, scales, strict=True)]
    if max(*image, *sizes) >= PROBED:
        for axis, (wanted, scale) in enumerate(zip(sizes, scales or [None] * len(image), strict=True), 2):
            x = x if wanted == extents(x)[axis] else _nearest_at_call(x, axis, wanted, scale)
        return x
    exact = [np.arange(wanted) * n // wanted for n, wanted in zip(image, sizes, strict=True)]
    places = []
    for n, wanted, scale, whole in zip(image, sizes, scales or [None] * len(image), exact, strict=True):
        step = np.float32(1 / scale) if scale else np.float32(n) / np.float32(wanted)
        found = np.minimum((np.arange(wanted, dtype=np.float32) * step).astype(np.int64), n - 1)
        places.append(whole if wanted in (n, 2 * n) else found)
    if all(map(np.array_equal, places, exact)):
        return resize(
            x, sizes, [None] * len(image), method="nearest_neighbor", rounding_method="floor",
            coordinate_transformation_mode="asymmetric",
        )
    for axis, taken in enumerate(places, 2):
        x = call("take", x, Constant(taken), axis=axis)
    return x


def _nearest_at_call(x: Expr, axis: int, wanted: int, scale: float | None) -> Expr:
    """One axis of a symbolic size, or at one."""
    extent = extents(x)[axis]
    if wanted == 2 * extent:
        place = layer.steps(0, wanted, 1, "int64")
        return call("take", x, call("floor_divide", place, number(2, place)), axis=axis)
    place = layer.steps(0, wanted, 1, "float32")
    ratio = call("divide", *(layer.count(n, place) for n in (extent, wanted)))
    step = number(1 / scale, place) if scale else ratio
    return call("take", x, call("cast", call("floor", call("multiply", place, step)), dtype="int64"), axis=axis)


OPERATORS["aten.upsample_bilinear2d.vec"] = _resize("linear")
OPERATORS["aten.upsample_bicubic2d.vec"] = _resize("cubic")


@register("grid_sampler_2d.default", "grid_sampler_3d.default")
def _sample(x: Expr, grid: Expr, interpolation: int, padding: int, align_corners: bool) -> Expr:
    return call(
        "grid_sample", x, grid, method=("linear", "nearest_neighbor", "cubic")[interpolation],
        padding_mode=("zeros", "border", "reflection")[padding], align_corners=align_corners,
    )


def _roi_align(
    x: Expr, boxes: Expr, scale: float, height: int, width: int, samples: int, aligned: bool
) -> Expr:
    if samples < 1:
        raise NetworkError("sampling_ratio -1, by which boxes have as many samples as they are large: give a number")
    of = layer.reshape(layer.take_slice(boxes, 1, 0, 1), extents(boxes)[:1])
    return roi_align(
        x, layer.take_slice(boxes, 1, 1, 5), of, size=(height, width), samples=samples, scale=scale, aligned=aligned
    )


def _deform_conv(
    x: Expr, weight: Expr, offsets: Expr, mask: Expr, bias: Expr, down: int, across: int, above: int, before: int,
    row_gap: int, column_gap: int, groups: int, offset_groups: int, use_mask: bool,
) -> Expr:
    return deformable_convolution(
        x, weight, offsets, mask if use_mask else None, bias, strides=(down, across), padding=(above, before),
        dilation=(row_gap, column_gap), groups=groups, offset_groups=offset_groups,
    )


OPERATORS["torchvision.roi_align.default"] = _roi_align
OPERATORS["torchvision.deform_conv2d.default"] = _deform_conv


def _antialiased(
    kernel: Callable[[np.ndarray], np.ndarray], at_call: Callable[[Expr], Expr] | None = None
) -> Operator:
    """Each pixel by all within the kernel's reach, which is as much longer as the image becomes smaller.

    Args:
        at_call: the kernel of distances that a library computes.
    """

    def make(
        x: Expr, size: Any, align_corners: bool, down: float | None = None, across: float | None = None
    ) -> Expr:
        image, kind = extents(x)[2:], x.tensor_type.dtype
        if "float" not in kind:
            raise NetworkError(f"antialias of {x.tensor_type}: plevel has it of floats")
        for axis, (n, wanted, factor) in enumerate(zip(image, size, (down, across), strict=True), 2):
            if max(n, wanted) >= PROBED:
                if at_call is None or align_corners:
                    raise NetworkError(f"antialias from {n} to {wanted} pixels: export the model with that size fixed")
                along = layer.transpose(_weights_at_call(at_call, n, wanted, factor, kind), (1, 0))
                last = layer.matmul(layer.transpose(x, (0, 1, 5 - axis, axis)), along)
                x = layer.transpose(last, (0, 1, 2, 3) if axis == 3 else (0, 1, 3, 2))
                continue
            step = 1 / factor if factor else n / wanted
            if align_corners:
                step = (n - 1) / (wanted - 1) if wanted > 1 else 0
            away = np.arange(n) + 0.5 - step * (np.arange(wanted)[:, None] + 0.5)
            weights = kernel(np.abs(away) / max(step, 1))
            x = layer.linear_along(x, axis, Constant((weights / weights.sum(1, keepdims=True)).astype(kind)))
        return x

    return make


def _weights_at_call(
    kernel: Callable[[Expr], Expr], extent: int, wanted: int, factor: float | None, dtype: str
) -> Expr:
    """The weights of the pixels of an axis for each of those wanted; one of both extents is symbolic."""
    own, new = (layer.steps(0, n, 1, "float64") for n in (extent, wanted))
    half, one = number(0.5, own), number(1, own)
    step = number(1 / factor, own) if factor else call("divide", layer.count(extent, own), layer.count(wanted, own))
    middles = call("multiply", call("add", new, half), step)
    away = call("abs", call("subtract", call("add", own, half), layer.reshape(middles, (wanted, 1))))
    each = kernel(call("divide", away, call("maximum", step, one)))
    return call("cast", call("divide", each, call("sum", each, axis=(1,), keepdims=True)), dtype=dtype)


def _linear_at_call(away: Expr) -> Expr:
    return call("relu", call("subtract", number(1, away), away))


def _cubic_at_call(away: Expr) -> Expr:
    def times(x: Expr, factor: float) -> Expr:
        return call("multiply", x, number(factor, x))

    def more(x: Expr, summand: float) -> Expr:
        return call("add", x, number(summand, x))

    square = call("multiply", away, away)
    near = more(call("multiply", more(times(away, 1.5), -2.5), square), 1)
    far = more(call("multiply", more(call("multiply", more(times(away, -0.5), 2.5), away), -4), away), 2)
    outer = call("where", call("less", away, number(2, away)), far, number(0, away))
    return call("where", call("less", away, number(1, away)), near, outer)


def _cubic(away: np.ndarray) -> np.ndarray:
    near, far = (1.5 * away - 2.5) * away**2 + 1, ((2.5 - 0.5 * away) * away - 4) * away + 2
    return np.where(away < 1, near, np.where(away < 2, far, 0))


OPERATORS["aten._upsample_bilinear2d_aa.default"] = _antialiased(
    lambda away: np.maximum(1 - away, 0), _linear_at_call
)
OPERATORS["aten._upsample_bicubic2d_aa.default"] = _antialiased(_cubic, _cubic_at_call)
OPERATORS["aten._upsample_lanczos2d_aa.default"] = _antialiased(
    lambda away: np.where(away < 3, np.sinc(away) * np.sinc(away / 3), 0)
)
