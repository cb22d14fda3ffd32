"""Regions of images as small images of one size, for detectors, as importers of models share it."""

from __future__ import annotations

from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.layer import number
from strategy.network.rewriter import extents


def roi_align(
    x: Expr, boxes: Expr, of: Expr, *, size: tuple[int, int], samples: int, scale: float, aligned: bool
) -> Expr:
    """The means of samples between pixels, which lie evenly in each of a region's parts.

    All samples are taken from one image, in which those of the batch stand one below the other. A sample further than a
    pixel beyond its image is 0.

    Args:
        x: [batch, channels, height, width].
        boxes: [regions, 4], of x, y, x, y.
        of: [regions], the place in the batch of each region's image.
        size: height and width of the parts.
        samples: their number down each part, and across it.
        scale: the size of a unit of the boxes, in pixels.
        aligned: the centre of the first pixel is at ½; else at 0, and regions have at least a pixel down and across.

    Returns:
        [regions, channels, height, width], of the dtype of x.
    """
    dtype = x.tensor_type.dtype
    x, boxes, of = (v if v.tensor_type.dtype == "float32" else call("cast", v, dtype="float32") for v in (x, boxes, of))
    (batch, channels, *image), (regions, _) = extents(x), extents(boxes)
    (height, width), (down, across) = image, size
    places = [_samples(boxes, axis, size[1 - axis], samples, scale, aligned) for axis in (1, 0)]
    seen, near = [], []
    for place, extent in zip(places, image, strict=True):
        end = layer.count(extent, place)
        within = call("logical_and", call("less_equal", number(-1, place), place), call("less_equal", place, end))
        seen.append(within)
        last = layer.count(extent - 1, place)
        near.append(call("minimum", call("maximum", place, number(0, place)), last))
    rows, columns = down * samples, across * samples
    row = call("add", near[0], call("multiply", layer.reshape(of, (regions, 1)), layer.count(height, near[0])))
    pair = []
    for coordinate, beside in (
        (_coordinate(near[1], width), (regions, 1, columns)), (_coordinate(row, batch * height), (regions, rows, 1)),
    ):
        wide = layer.broadcast(layer.reshape(coordinate, beside), (regions, rows, columns))
        pair.append(layer.reshape(wide, (1, regions * rows, columns, 1)))
    tall = layer.reshape(layer.transpose(x, (1, 0, 2, 3)), (1, channels, batch * height, width))
    found = call("grid_sample", tall, layer.concatenate(pair, 3), align_corners=True)
    pairs = layer.reshape(seen[0], (regions, rows, 1)), layer.reshape(seen[1], (regions, 1, columns))
    inside = call("logical_and", *pairs)
    found = call("where", layer.reshape(inside, (1, 1, regions * rows, columns)), found, number(0, found))
    means = call("avg_pool2d", found, pool_size=(samples, samples), strides=(samples, samples))
    parts = layer.transpose(layer.reshape(means, (channels, regions, down, across)), (1, 0, 2, 3))
    return parts if dtype == "float32" else call("cast", parts, dtype=dtype)


def _samples(boxes: Expr, axis: int, parts: int, samples: int, scale: float, aligned: bool) -> Expr:
    """The places along an axis of an image, [regions, parts · samples], of the samples of each region."""
    ends = (layer.take_slice(boxes, 1, place, place + 1) for place in (axis, axis + 2))
    begin, end = (call("multiply", v, number(scale, v)) for v in ends)
    extent = call("subtract", end, begin)
    if aligned:
        begin = call("subtract", begin, number(0.5, begin))
    else:
        extent = call("maximum", extent, number(1, extent))
    each = layer.steps(0, parts * samples, 1, "float32")
    middles = call("multiply", call("add", each, number(0.5, each)), number(1 / (parts * samples), each))
    return call("add", begin, call("multiply", extent, middles))


def _coordinate(place: Expr, extent: int) -> Expr:
    """The place from -1 to 1 between the first pixel of an axis and the last."""
    last = layer.clip(layer.count(extent - 1, place), 1, None)
    twice = call("multiply", place, number(2, place))
    return call("subtract", call("divide", twice, last), number(1, place))
