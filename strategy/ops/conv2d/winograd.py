"""`conv2d_nchw_winograd.cpu`: F(2×2, 3×3), 4 multiplications per output where direct needs 9.

After Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). Larger tiles need
fewer still, but their rounding errors exceed what a float32 convolution may be off. The weight's
transform is a preparation: done once where the weight is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pad_zeros
from strategy.schedule import stage
from strategy.type_relation import certainly
from strategy.types import TensorType, Type

TILE = 2
_ALPHA = TILE + 2


def winograd_condition(attrs: Conv2DAttrs, inputs: Sequence[TensorType]) -> bool:
    """Whether the window is 3×3 without stride, dilation or groups, and the numbers precise enough."""
    data, weight = inputs
    return (
        data.dtype in ("float32", "float64")
        and attrs.strides == attrs.dilation == (1, 1)
        and attrs.groups == 1
        and certainly(weight.shape[2] == 3)
        and certainly(weight.shape[3] == 3)
        # Tiles are counted when the code is made.
        and all(d.is_constant for d in data.shape)
    )


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType]) -> dict[int, Callable[[Any], Any]]:
    """The weight [o, c, 3, 3] in the transformed domain: [alpha, alpha, c, o]."""

    def transform(weight: Any) -> Any:
        from tvm import te

        out_channels, channels, _, _ = weight.shape

        columns = te.compute(
            (_ALPHA, 3, channels, out_channels),
            lambda i, x, c, o: _combine(_WEIGHT, i, [weight[o, c, y, x] for y in range(3)]),
            name="weight_columns",
            attrs=stage("weight_columns"),
        )
        return te.compute(
            (_ALPHA, _ALPHA, channels, out_channels),
            lambda i, j, c, o: _combine(_WEIGHT, j, [columns[i, x, c, o] for x in range(3)]),
            name="weight_transform",
            attrs=stage("weight_transform"),
        )

    return {1: transform}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """The convolution of [n, c, h, w] with a weight that `prepare` has transformed."""
    from tvm import te

    assert isinstance(out_type, TensorType)
    data, weight = inputs
    batch, out_channels, out_h, out_w = out_type.concrete_shape
    channels = data.shape[1]
    tiles_h, tiles_w = -(-out_h // TILE), -(-out_w // TILE)
    per_image = tiles_h * tiles_w
    tiles = batch * per_image
    top, left, _, _ = attrs.padding
    # Whole tiles: what lies beyond the data is zero, and what is computed from it is left out.
    height, width = tiles_h * TILE + 2, tiles_w * TILE + 2
    missing = (height - int(data.shape[2]) - top, width - int(data.shape[3]) - left)
    padded = pad_zeros(data, (top, left, max(0, missing[0]), max(0, missing[1])))

    def column(i: Any, b: Any, c: Any, t: Any) -> Any:
        n, y, x = t // per_image, t // tiles_w % tiles_h * TILE, t % tiles_w * TILE
        return _combine(_DATA, i, [padded[n, c, y + a, x + b] for a in range(_ALPHA)])

    columns = te.compute(
        (_ALPHA, _ALPHA, channels, tiles), column, name="data_columns", attrs=stage("data_columns")
    )
    data_transform = te.compute(
        (_ALPHA, _ALPHA, channels, tiles),
        lambda i, j, c, t: _combine(_DATA, j, [columns[i, b, c, t] for b in range(_ALPHA)]),
        name="data_transform",
        attrs=stage("data_transform"),
    )
    c = te.reduce_axis((0, channels), name="c")
    product = te.compute(
        (_ALPHA, _ALPHA, out_channels, tiles),
        lambda i, j, o, t: te.sum(weight[i, j, c, o] * data_transform[i, j, c, t], axis=[c]),
        name="product",
    )

    rows = te.compute(
        (TILE, _ALPHA, out_channels, tiles),
        lambda i, b, o, t: _combine(_INVERSE, i, [product[a, b, o, t] for a in range(_ALPHA)]),
        name="inverse_columns",
        attrs=stage("inverse_columns"),
    )

    def gather(n: Any, o: Any, h: Any, w: Any) -> Any:
        t = n * per_image + h // TILE * tiles_w + w // TILE
        return _combine(_INVERSE, w % TILE, [rows[h % TILE, b, o, t] for b in range(_ALPHA)])

    return [te.compute((batch, out_channels, out_h, out_w), gather, name="conv2d_winograd")]


# Rows are what is computed, columns what it is computed from.
_DATA = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
_WEIGHT = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
_INVERSE = ((1, 1, 1, 0), (0, 1, -1, -1))


def _combine(matrix: Sequence[Sequence[float]], row: Any, values: Sequence[Any]) -> Any:
    """Row `row` of a constant matrix times a vector; the row is only known at run time."""
    from tvm import tirx

    result = _weighted(matrix[0], values)
    for index in range(1, len(matrix)):
        result = tirx.Select(row == index, _weighted(matrix[index], values), result)
    return result


def _weighted(weights: Sequence[float], values: Sequence[Any]) -> Any:
    terms = [v if w == 1 else v * w for w, v in zip(weights, values, strict=True) if w]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
