"""Tensors of ONNX at another size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from plevel.onnx.node import Node, constant, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.extent import Extent
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.resize import is_ratio, resize
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

_MOST_WEIGHTS = 1 << 24
_MOST_PARTS = 64  # of a symbolic size, in what it is resized to


@register("Resize", "Upsample")
def _resize(
    node: Node, x: Expr, roi: Expr | None = None, scales: Expr | None = None, sizes: Expr | None = None
) -> Expr:
    if node.version < 11:  # no regions of interest
        roi, scales = None, roi
    rank = len(extents(x))
    axes = [a % rank for a in node.get("axes", range(rank))]
    factors: list[float | None] = [None] * rank
    wanted = list(extents(x))
    if sizes is None:
        for axis, f in _for_each(axes, "scales", node.get("scales") if scales is None else constant(scales, "scales")):
            if not (math.isfinite(f) and f > 0):
                raise NetworkError(f"scales: {f:g} of axis {axis}: write a finite number above 0")
            extent = wanted[axis] if wanted[axis] >= PROBED else np.float32(wanted[axis])  # which has no larger ones
            factors[axis], wanted[axis] = float(f), math.floor(extent * np.float32(f).item())
            ratio = Fraction(float(f))
            symbolic = node.sizes.encode(extents(x)[axis]) if node.sizes else None
            if isinstance(symbolic, Extent) and 1 < ratio.denominator <= _MOST_PARTS:
                node.known.append(symbolic * ratio.numerator // ratio.denominator)
    else:
        given = [(a, int(n)) for a, n in _for_each(axes, "sizes", constant(sizes, "sizes"))]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratios = [n / extents(x)[a] for a, n in given]
            scale = min(ratios) if policy == "not_larger" else max(ratios)
            given = [(a, math.floor(extents(x)[a] * scale + 0.5)) for a, _ in given]
            factors = [scale if a in axes else None for a in range(rank)]
        for axis, extent in given:
            wanted[axis] = extent
    start = "round_prefer_floor" if node.version >= 11 else "floor"
    mode = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric")
    kernel = _Kernel(
        node.get("mode", "nearest"), mode, node.get("nearest_mode", start), float(node.get("cubic_coeff_a", -0.75)),
        bool(node.get("antialias", 0)), bool(node.get("exclude_outside", 0)),
    )
    if _is_image(kernel, x, wanted, factors):
        return _image(node, x, wanted, factors, kernel)
    if kernel.method != "nearest" and "float" not in x.tensor_type.dtype:
        raise NetworkError(f"{x.tensor_type.dtype} by mode {kernel.method!r}: plevel resizes floats so, cast it first")
    return _by_weights(node, x, roi, axes, wanted, factors, kernel)


@dataclass(frozen=True)
class _Kernel:
    """The elements that make one at another place, and their weights."""

    method: str
    mode: str
    rounding: str
    alpha: float
    antialias: bool
    exclude_outside: bool

    def places(self, places: np.ndarray) -> np.ndarray:
        """The places of the nearest elements."""
        down, up = np.floor(places), np.ceil(places)
        found: np.ndarray = {
            "floor": down, "ceil": up, "round_prefer_floor": np.ceil(places - np.float32(0.5)),
            "round_prefer_ceil": np.floor(places + np.float32(0.5)),
        }[self.rounding]
        return found

    def weights(self, places: np.ndarray, extent: int, scale: float) -> np.ndarray:
        """The weight of each element of an axis for each of these places between them."""
        narrow = min(scale, 1.0) if self.antialias else 1.0
        reach = math.ceil((1 if self.method == "linear" else 2) / narrow)
        taps = np.floor(places).astype(np.int64)[:, None] + np.arange(-reach, reach + 2)
        distance = np.abs(taps - places.astype(np.float64)[:, None]) * narrow
        each = np.maximum(1 - distance, 0) if self.method == "linear" else self._cubic(distance)
        if self.exclude_outside:
            each = np.where((taps >= 0) & (taps < extent), each, 0)
        found = np.zeros((len(places), extent))
        rows = np.broadcast_to(np.arange(len(places))[:, None], taps.shape)
        np.add.at(found, (rows, taps.clip(0, extent - 1)), each)
        found /= found.sum(1, keepdims=True)
        return found

    def _cubic(self, t: np.ndarray) -> np.ndarray:
        a = self.alpha
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        found: np.ndarray = np.where(t <= 1, near, np.where(t < 2, far, 0))
        return found


def _is_image(kernel: _Kernel, x: Expr, wanted: Sequence[int], factors: Sequence[float | None]) -> bool:
    """Return whether plevel's operators of images resize so."""
    shape = extents(x)
    exact = (
        f is None or is_ratio(f, n, w) or max(n, w) >= PROBED for n, w, f in zip(shape, wanted, factors, strict=True)
    )
    return (
        3 <= len(shape) <= 5 and tuple(wanted[:2]) == shape[:2] and kernel.mode != "tf_crop_and_resize"
        and not kernel.antialias and not kernel.exclude_outside and all(exact)
    )


def _image(node: Node, x: Expr, wanted: list[int], factors: list[float | None], kernel: _Kernel) -> Expr:
    rank, mode = len(extents(x)), kernel.mode
    if mode == "pytorch_half_pixel":
        for axis in range(2, rank):
            if wanted[axis] == 1:  # the first pixel in place of the middle one
                x, factors[axis] = layer.take_slice(x, axis, 0, 1), None
    if mode in ("pytorch_half_pixel", "half_pixel_symmetric"):  # which differ where scales are no ratios of sizes
        mode = "half_pixel"
    method = {"nearest": "nearest_neighbor"}.get(kernel.method, kernel.method)

    def resized(x: Expr, axes: set[int], rounding: str) -> Expr:
        size = [wanted[i] if i in axes else n for i, n in enumerate(extents(x))]
        scale = [f if i in axes else None for i, f in enumerate(factors)]
        return resize(
            x, size[2:], scale[2:], method=method, coordinate_transformation_mode=mode, rounding_method=rounding,
            cubic_alpha=kernel.alpha,
        )

    older = node.version < 11 and method == "nearest_neighbor"
    fewer = {i for i in range(2, rank) if older and wanted[i] < extents(x)[i]}
    if fewer:  # rounded up by ONNX Runtime, unlike those that grow
        x = resized(x, fewer, "ceil")
    if tuple(wanted) == extents(x):
        return x
    return resized(x, set(range(2, rank)) - fewer, kernel.rounding)


def _by_weights(
    node: Node, x: Expr, roi: Expr | None, axes: Sequence[int], wanted: Sequence[int], factors: Sequence[float | None],
    kernel: _Kernel,
) -> Expr:
    """Resize one axis at a time: elements by their places, or products with the weights of all.

    As in ONNX Runtime, what keeps its shape is as it was, whatever the scales, and so is such an axis with `antialias`.
    """
    crops = kernel.mode == "tf_crop_and_resize"
    if tuple(wanted) == extents(x) and not crops:
        return x
    region = dict(zip(axes, constant(roi, "roi").reshape(2, -1).T.tolist(), strict=True)) if crops else {}
    shape, beyond = extents(x), None
    for axis in axes:
        extent, count = shape[axis], wanted[axis]
        scale = factors[axis] or count / extent
        begin, end = region.get(axis, (0.0, 1.0))
        if scale == 1 and count == extent:
            if (begin, end) != (0.0, 1.0):
                raise NetworkError(
                    f"a crop to as many elements as axis {axis} has, which ONNX Runtime leaves as it was, unlike what "
                    "ONNX says: export it with Slice and Resize"
                )
            continue
        if max(extent, count) >= PROBED or extent * count > _MOST_WEIGHTS:
            raise NetworkError(
                f"{extent} elements as {count} by weights of pairs: plevel has at most {_MOST_WEIGHTS} of an axis, and "
                "none of symbolic sizes"
            )
        places = _places(kernel.mode, extent, count, scale, begin, end)
        if kernel.method == "nearest":
            rounded = replace(kernel, rounding="ceil") if node.version < 11 and count < extent else kernel
            near = rounded.places(places).clip(0, extent - 1).astype(np.int64)
            x = call("take", x, Constant(near), axis=axis)
        elif count != extent or not kernel.antialias:
            weights = Constant(kernel.weights(places, extent, scale).astype(x.tensor_type.dtype))
            x = layer.linear_along(x, axis, weights)
        if crops:
            outside = ((places < 0) | (places > extent - 1)).reshape((count, *(1,) * (len(shape) - 1 - axis)))
            beyond = outside if beyond is None else beyond | outside
    if beyond is None or not beyond.any():
        return x
    return call("where", Constant(beyond), number(node.get("extrapolation_value", 0.0), x), x)


def _places(mode: str, extent: int, count: int, scale: float, begin: float, end: float) -> np.ndarray:
    """The place of each element of the result in the axis that it is made of, in float32 as ONNX Runtime's."""
    out, one, half = np.arange(count, dtype=np.float32), np.float32(1), np.float32(0.5)
    last, factor = np.float32(extent - 1), np.float32(scale)
    if mode == "align_corners":
        return out * last / np.float32(max(count - 1, 1))
    if mode == "asymmetric":
        return out / factor
    if mode == "tf_crop_and_resize":
        if count == 1:
            return np.asarray([half * np.float32(begin + end) * last])
        return np.float32(begin) * last + out * np.float32(end - begin) * last / np.float32(count - 1)
    if mode == "pytorch_half_pixel" and count == 1:
        return out
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (out + half) / factor - half
    if mode == "half_pixel_symmetric":
        offset = np.float32(extent / 2) * (one - np.float32(count) / (factor * np.float32(extent)))
        return offset + (out + half) / factor - half
    raise NetworkError(f"coordinate_transformation_mode {mode!r}: plevel has those of version 19 of Resize")


def _for_each(axes: Sequence[int], name: str, given: Any) -> list[tuple[int, Any]]:
    """Each axis with its entry."""
    count = 0 if given is None else len(given)
    if count != len(axes):
        raise NetworkError(f"{name} has {count} entries for {len(axes)} axes: give one for each")
    return list(zip(axes, given, strict=True))
