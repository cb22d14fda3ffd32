"""Images of one, two and three dimensions at other sizes, as importers of models share it.

Where a size is symbolic, places and weights are computed at the call, as `resize2d` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

_MOST_PARTS = 4096  # of a pixel, in a scale that is no ratio of sizes
_NARROW = ("float16", "bfloat16")


def is_ratio(scale: float, extent: int, wanted: int) -> bool:
    """Return whether a scale, which may be rounded, is the ratio of two extents; of symbolic ones at all sizes."""
    gap = abs(extent * scale - wanted)
    # The second shows what is left of a large number that stands for a size.
    return gap <= 1e-6 * max(extent * scale, wanted) and gap < min(scale, 1) / 4


def resize(x: Expr, size: Sequence[int], scales: Sequence[float | None], **attrs: Any) -> Expr:
    """An image of one, two or three dimensions at another size.

    A scale that is given tells the places of pixels where it is not the sizes' ratio: half of five pixels are two, and
    the middle of the second one is between the third and the fourth. Linearly, an axis that keeps its size stays.
    """
    shape = extents(x)
    if len(shape) == 3:
        found = resize(layer.reshape(x, (*shape[:2], 1, shape[2])), (1, *size), (None, *scales), **attrs)
        return layer.reshape(found, (*shape[:2], size[0]))
    if len(shape) == 5:  # of the planes, then across them
        n, channels, depth, *image = shape
        planes = resize(layer.reshape(x, (n, channels * depth, *image)), size[1:], scales[1:], **attrs)
        area = size[1] * size[2]
        found = resize(layer.reshape(planes, (n, channels, depth, area)), (size[0], area), (scales[0], None), **attrs)
        return layer.reshape(found, (n, channels, *size))
    if len(shape) != 4:
        raise NetworkError(f"an image of {len(shape) - 2} dimensions is resized: plevel has one, two and three")
    ratios = [
        None if scale is None else _ratio(scale, extent, wanted, **attrs)
        for extent, wanted, scale in zip(shape[2:], size, scales, strict=True)
    ]
    if tuple(size) == shape[2:] and not any(ratios):
        return x
    kind = x.tensor_type.dtype
    if "float" not in kind and attrs["method"] != "nearest_neighbor":
        raise NetworkError(f"{kind} between pixels: plevel resizes floats so, cast it first")
    if max(*size, *shape[2:]) < PROBED and not any(ratios):
        return call("resize2d", x, size=tuple(int(n) for n in size), **attrs)
    found = call("cast", x, dtype="float32") if kind in _NARROW else x
    for axis, (wanted, ratio) in enumerate(zip(size, ratios, strict=True), 2):
        found = found if wanted == shape[axis] and ratio is None else _along(found, axis, wanted, ratio, **attrs)
    return call("cast", found, dtype=kind) if kind in _NARROW else found


def _ratio(
    scale: float, extent: int, wanted: int, *, method: str, coordinate_transformation_mode: str = "half_pixel", **_: Any
) -> Fraction | None:
    """A scale that pixels' places depend on; None for the ratio of sizes, which a symbolic one may leave at a call."""
    if coordinate_transformation_mode == "align_corners":  # of the sizes alone
        return None
    found = Fraction(scale).limit_denominator(_MOST_PARTS)
    may_differ = max(extent, wanted) >= PROBED and found.denominator > 1
    if is_ratio(scale, extent, wanted) and not may_differ:
        return None
    if extent == wanted and method == "linear":
        return None
    # By a power of two floats divide without rounding, so that they find the nearest pixel where it is.
    is_exact = found == scale and found.numerator & (found.numerator - 1) == 0
    if not math.isclose(found, scale, rel_tol=1e-6) or (method == "nearest_neighbor" and not is_exact):
        raise NetworkError(f"a scale of {scale:g} for {extent} to {wanted} pixels: give sizes, or a whole ratio")
    return found


def _along(
    x: Expr, axis: int, wanted: int, ratio: Fraction | None, *, method: str,
    coordinate_transformation_mode: str = "half_pixel", rounding_method: str = "round_prefer_floor",
    cubic_alpha: float = -0.75,
) -> Expr:
    """One axis at another size; elements beyond its ends are those at the ends.

    Args:
        ratio: of the new size to the old one, where they are not its terms.
    """
    place = layer.steps(0, wanted, 1, "int64")
    terms = (extents(x)[axis], wanted) if ratio is None else (ratio.denominator, ratio.numerator)
    own, new = (layer.count(n, place) for n in terms)

    def times(value: Expr, factor: int) -> Expr:
        return call("multiply", value, number(factor, value))

    # The place in the axis is the fraction over / under.
    over, under = call("multiply", place, own), new
    if coordinate_transformation_mode == "half_pixel":
        twice = call("add", times(place, 2), number(1, place))
        over, under = call("subtract", call("multiply", twice, own), new), times(new, 2)
    elif coordinate_transformation_mode == "align_corners":
        one = number(1, place)
        over = call("multiply", place, call("subtract", own, one))
        under = call("maximum", call("subtract", new, one), one)
    if method == "nearest_neighbor":
        return call("take", x, _nearest(over, under, rounding_method), axis=axis)
    first = call("floor_divide", over, under)
    rest = call("subtract", over, call("multiply", first, under))
    f = call("divide", *(call("cast", n, dtype=x.tensor_type.dtype) for n in (rest, under)))
    weights = _linear(f) if method == "linear" else _cubic(f, cubic_alpha)
    begin, behind = 1 - len(weights) // 2, (1,) * (len(extents(x)) - 1 - axis)
    parts = [
        call(
            "multiply", call("take", x, call("add", first, number(begin + i, first)), axis=axis),
            layer.reshape(weight, (wanted, *behind)),
        )
        for i, weight in enumerate(weights)
    ]
    return reduce(lambda a, b: call("add", a, b), parts)


def _nearest(over: Expr, under: Expr, rounding: str) -> Expr:
    """The whole number nearest to a fraction."""
    twice, wide = (call("multiply", n, number(2, n)) for n in (over, under))
    if rounding == "floor":
        return call("floor_divide", over, under)
    if rounding == "ceil":
        return call("negative", call("floor_divide", call("negative", over), under))
    if rounding == "round_prefer_ceil":
        return call("floor_divide", call("add", twice, under), wide)
    return call("negative", call("floor_divide", call("subtract", under, twice), wide))


def _linear(f: Expr) -> tuple[Expr, ...]:
    """The weights of the elements before and behind a place at a distance from the first."""
    return call("subtract", number(1, f), f), f


def _cubic(f: Expr, alpha: float) -> tuple[Expr, ...]:
    """The weights of the two elements before and the two behind, factored as in `resize2d`."""
    g = call("subtract", number(1, f), f)

    def far(d: Expr, rest: Expr) -> Expr:
        return call("multiply", call("multiply", d, number(alpha, d)), call("multiply", rest, rest))

    def near(d: Expr, rest: Expr) -> Expr:
        square = call("multiply", call("multiply", d, d), number(alpha + 2, d))
        return call("multiply", rest, call("subtract", call("add", d, number(1, d)), square))

    return far(f, g), near(f, g), near(g, f), far(g, f)
