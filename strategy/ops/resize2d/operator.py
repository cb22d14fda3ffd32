"""resize2d: an image at another size, by the nearest pixel or by interpolation, as Relay's image.resize2d.

A pixel of the result is at (i + ½) · in / out - ½ of the image (`half_pixel`), at i · in / out (`asymmetric`), or at
i · (in - 1) / (out - 1) (`align_corners`): a fraction, whose whole part is computed exactly. Pixels beyond an edge are
those at the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Call, Constant, Expr
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_op,
    register_reference,
    register_terms,
)
from strategy.ops.matmul import matmul
from strategy.ops.window import pair
from strategy.pattern import in_float32, register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_float, require_nonempty, require_number, require_rank
from strategy.types import TensorType, Type

_METHODS = ("nearest_neighbor", "linear", "cubic")
_ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class Resize2DAttrs(Attrs):
    """Attributes of resize2d."""

    size: tuple[int, int] = field(description="Height and width of the result", lower=1, form=pair)
    method: str = field("linear", "Interpolation between neighbours", choices=_METHODS)
    coordinate_transformation_mode: str = field(
        "half_pixel", "The place in the image of a pixel of the result",
        choices=("half_pixel", "align_corners", "asymmetric"),
    )
    rounding_method: str = field("round_prefer_floor", "The nearest of two pixels, as ONNX's", choices=_ROUNDING)
    cubic_alpha: float = field(-0.75, "The coefficient of cubic interpolation")


def resize2d_rel(types: Sequence[Type], attrs: Resize2DAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] gives [n, c, *size]."""
    data = reporter.known(0)
    require_rank(reporter, 0, data, 4, "[batch, channels, height, width]")
    (require_number if attrs.method == "nearest_neighbor" else require_float)(reporter, 0, data)
    require_nonempty(reporter, 0, data, (2, 3))
    reporter.assign(1, TensorType([*data.shape[:2], *attrs.size], data.dtype))
    return True


(
    register_op("resize2d")
    .describe("An image at another size, by the nearest pixel or by interpolation, as Relay's image.resize2d.")
    .add_argument("data", "Tensor", "[batch, channels, height, width]")
    .set_attrs_type(Resize2DAttrs)
    .set_support_level(5)
    .add_type_rel("Resize2D", resize2d_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[1,2,5,7]"}, {"size": [9, 19]})
    .example({"data": "float32[1,2,5,7]"}, {"size": [3, 19], "coordinate_transformation_mode": "align_corners"})
    .example({"data": "float32[1,2,5,7]"}, {"size": [10, 3], "method": "cubic"})
    .example(
        {"data": "float32[1,2,5,7]"},
        {"size": [10, 21], "method": "cubic", "coordinate_transformation_mode": "asymmetric"},
    )
    .example(
        {"data": "float32[1,2,5,7]"},
        {"size": [10, 19], "method": "nearest_neighbor", "rounding_method": "floor",
         "coordinate_transformation_mode": "asymmetric"},
    )
    .example({"data": "float32[1,2,5,7]"}, {"size": 6, "method": "nearest_neighbor"})
)


def neighbours(attrs: Resize2DAttrs, axis: int, index: Any, extent: Any, dtype: str) -> list[tuple[Any, Any]]:
    """The neighbours along an axis of pixel `index` of the result, and their weights; of TE expressions and arrays.

    They may lie beyond the edges. The weight of an only one is None.
    """
    size, mode = attrs.size[axis], attrs.coordinate_transformation_mode
    over, under = index * extent, size
    if mode == "half_pixel":
        over, under = (2 * index + 1) * extent - size, 2 * size
    elif mode == "align_corners":
        over, under = index * (extent - 1), max(size - 1, 1)
    if attrs.method == "nearest_neighbor":
        return [(_nearest(over, under, attrs.rounding_method), None)]
    first = over // under
    f = (over - first * under).astype(dtype) / under
    if attrs.method == "linear":
        return [(first, 1 - f), (first + 1, f)]
    # Factored: as polynomials of the distance, weights near zero would be differences of numbers near 10.
    a, g = attrs.cubic_alpha, 1 - f

    def near(d: Any, rest: Any) -> Any:
        return rest * (1 + d - (a + 2) * d * d)

    return [(first - 1, a * f * g * g), (first, near(f, g)), (first + 1, near(g, f)), (first + 2, a * g * f * f)]


def _nearest(over: Any, under: int, rounding: str) -> Any:
    """The whole number nearest to a fraction."""
    if rounding == "floor":
        return over // under
    if rounding == "ceil":
        return -(-over // under)
    if rounding == "round_prefer_ceil":
        return (2 * over + under) // (2 * under)
    return -((under - 2 * over) // (2 * under))


def inside(place: Any, extent: Any) -> Any:
    """A TE index, or that of the edge beyond which it lies."""
    from tvm import tirx

    return tirx.max(tirx.min(place, extent - 1), 0)


def interpolate(read: Any, neighbours: Sequence[tuple[Any, Any]]) -> Any:
    """The weighted sum of what is read at the neighbours."""
    values = [read(place) if weight is None else read(place) * weight for place, weight in neighbours]
    return sum(values[1:], values[0])


@register_compute("resize2d")
@in_float32
def compute_resize2d(attrs: Resize2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te

    (data,) = inputs
    *_, height, width = data.shape

    def element(n: Any, c: Any, y: Any, x: Any) -> Any:
        rows, columns = (
            neighbours(attrs, axis, index.astype("int64"), extent, data.dtype)
            for axis, (index, extent) in enumerate(((y, height), (x, width)))
        )

        def across(row: Any) -> Any:
            return interpolate(lambda column: data(n, c, inside(row, height), inside(column, width)), columns)

        return interpolate(across, rows)

    return [te.compute((*data.shape[:2], *attrs.size), element, name="resize2d")]


@register_terms("resize2d")
def resize2d_terms(attrs: Resize2DAttrs, inputs: Sequence[TensorType], out_type: Type) -> int:
    return {"nearest_neighbor": 1, "linear": 4, "cubic": 16}[attrs.method]


@register_reference("resize2d")
def reference_resize2d(attrs: Resize2DAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    found = widened(inputs[0])
    for axis in range(2):
        extent, across = found.shape[2 + axis], (-1, 1) if axis == 0 else (-1,)
        places = neighbours(attrs, axis, np.arange(attrs.size[axis]), extent, "float64")
        parts = [
            found.take(place.clip(0, extent - 1), 2 + axis) * (1 if weight is None else weight.reshape(across))
            for place, weight in places
        ]
        found = sum(parts[1:], parts[0])
    return found


register_injective_schedule("resize2d")
register_shape_func("resize2d", False, lambda attrs, inputs: [(*inputs[0][:2], *attrs.size)])


@register_gradient("resize2d")
def resize2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad, by the transposed matrices of both axes]."""
    import numpy as np

    attrs, data = orig.attrs, orig.args[0].tensor_type
    down, across = np.zeros((attrs.size[0], int(data.shape[2]))), np.zeros((attrs.size[1], int(data.shape[3])))
    for axis, matrix in enumerate((down, across)):
        size, extent = matrix.shape
        for place, weight in neighbours(attrs, axis, np.arange(size), extent, "float64"):
            np.add.at(matrix, (np.arange(size), place.clip(0, extent - 1)), 1 if weight is None else weight)
    left, right = (Constant(np.ascontiguousarray(m).astype(data.dtype)) for m in (down.T, across))
    return [matmul(left, matmul(grad, right))]


resize2d = caller("resize2d")
