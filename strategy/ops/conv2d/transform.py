"""The transforms of winograd's convolutions, and how TE computes apply them.

The points of F(4×4, 3×3) are 0, ±2/3, ±3/2 and ∞: with the usual 0, ±1, ±2 its errors exceed what a
float32 convolution may be off, with these they are a quarter of that (after Barabasz et al., "Error
Analysis and Improving the Accuracy of Winograd Convolution", 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strategy.cpu.tile import round_up
from strategy.schedule import compute_stage, zero_beyond

Matrix = tuple[tuple[float, ...], ...]

KERNEL = 3


@dataclass(frozen=True)
class Transform:
    """F(tile×tile, 3×3): rows of a matrix are what is computed, columns what it is computed from."""

    tile: int
    data: Matrix
    weight: Matrix
    inverse: Matrix

    @property
    def alpha(self) -> int:
        """The points along one axis."""
        return self.tile + KERNEL - 1

    def count(self, extent: int) -> int:
        """Number of tiles that cover an axis of the output."""
        return -(-extent // self.tile)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """One of this file's functions of implementations, for this transform."""
        return partial(function, self)


def _of_points(a: float, b: float) -> Transform:
    """F(4×4, 3×3) by Toom and Cook's method for the points 0, a, -a, b, -b and ∞."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * aa * (aa - bb)), 1 / (2 * bb * (bb - aa))
    return Transform(
        4,
        data=(
            (aa * bb, 0, -(aa + bb), 0, 1, 0),
            (0, -a * bb, -bb, a, 1, 0),
            (0, a * bb, -bb, -a, 1, 0),
            (0, -b * aa, -aa, b, 1, 0),
            (0, b * aa, -aa, -b, 1, 0),
            (0, aa * bb, 0, -(aa + bb), 0, 1),
        ),
        weight=(
            (1 / (aa * bb), 0, 0),
            (scale_a, scale_a * a, scale_a * aa),
            (scale_a, -scale_a * a, scale_a * aa),
            (scale_b, scale_b * b, scale_b * bb),
            (scale_b, -scale_b * b, scale_b * bb),
            (0, 0, 1),
        ),
        inverse=(
            (1, 1, 1, 1, 1, 0),
            (0, a, -a, b, -b, 0),
            (0, aa, aa, bb, bb, 0),
            (0, a * aa, -a * aa, b * bb, -b * bb, 1),
        ),
    )


F2 = Transform(
    2,
    data=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    weight=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    inverse=((1, 1, 1, 0), (0, 1, -1, -1)),
)
F4 = _of_points(2 / 3, 3 / 2)


def combine(matrix: Matrix, row: Any, values: Sequence[Any]) -> Any:
    """Row `row` of a constant matrix times a vector; the row is only known at run time."""
    from tvm import tirx

    result = _weighted(matrix[0], values)
    for index in range(1, len(matrix)):
        result = tirx.Select(row == index, _weighted(matrix[index], values), result)
    return result


def _weighted(weights: Sequence[float], values: Sequence[Any]) -> Any:
    terms = [v if w == 1 else v * w for w, v in zip(weights, values, strict=True) if w]
    return sum(terms[1:], terms[0])


def weight_columns(transform: Transform, weight: Any, multiple: int, block: int = 1) -> Any:
    """The stage of a weight [o, c, 3, 3] that is transformed down: [alpha, 3, c, o].

    With zeros to a `multiple` of o and whole blocks of c.
    """
    out_channels, channels = (int(extent) for extent in weight.shape[:2])

    def entry(i: Any, x: Any, c: Any, o: Any) -> Any:
        numbers = (weight[o, c, y, x] for y in range(KERNEL))
        whole = (zero_beyond(zero_beyond(n, c, channels, block), o, out_channels, multiple) for n in numbers)
        return combine(transform.weight, i, list(whole))

    shape = (transform.alpha, KERNEL, round_up(channels, block), round_up(out_channels, multiple))
    return compute_stage("weight_columns", shape, entry)


def coefficient(matrix: Matrix, column: int, row: Any, dtype: str) -> Any:
    """An entry of a constant matrix whose row is only known at run time."""
    from tvm import tirx

    result = tirx.const(matrix[0][column], dtype)
    for index in range(1, len(matrix)):
        result = tirx.Select(row == index, tirx.const(matrix[index][column], dtype), result)
    return result

