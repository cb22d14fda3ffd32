"""grid_sample: an image at places that a grid names, as ONNX's GridSample and PyTorch's grid_sample.

Coordinates from -1 to 1 span the image: the centres of its outermost pixels (`align_corners`), or their outer edges.
One formula serves TE, NumPy, and the graph of which the gradient is taken.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.cpu.widened import NARROW
from strategy.expr import Call, Expr, Tuple, call, const
from strategy.gradient import GradientError, gradient, register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_condition,
    register_op,
    register_reference,
    register_terms,
)
from strategy.ops.broadcast import less_equal, maximum, minimum, where
from strategy.ops.elemwise import abs as absolute
from strategy.ops.elemwise import cast, floor
from strategy.ops.elemwise import round as nearest
from strategy.ops.gather_nd import gather_nd
from strategy.ops.reshape import squeeze
from strategy.ops.strided_slice import strided_slice
from strategy.ops.transpose import transpose
from strategy.pattern import in_float32, register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    require_dtype_of,
    require_float,
    require_nonempty,
    require_rank,
    require_shape,
)
from strategy.types import Dim, TensorType, Type

_CUBIC = -0.75  # the coefficient of cubic interpolation


class GridSampleAttrs(Attrs):
    """Attributes of grid_sample."""

    method: str = field(
        "linear", "The interpolation between the pixels around a place",
        choices=("nearest_neighbor", "linear", "cubic"),
    )
    padding_mode: str = field(
        "zeros", "Pixels beyond the edges: zeros, the pixels at the edges, or the image mirrored there",
        choices=("zeros", "border", "reflection"),
    )
    align_corners: bool = field(False, "-1 and 1 are the centres of the outermost pixels, not their edges")


def grid_sample_rel(types: Sequence[Type], attrs: GridSampleAttrs, reporter: TypeReporter) -> bool:
    """[n, c, h, w] at [n, rows, columns, 2] gives [n, c, rows, columns], and so with three axes."""
    data, grid = reporter.known(0), reporter.known(1)
    rank = data.ndim - 2
    reporter.check(rank in (2, 3), 0, "an image has two dimensions or three behind its batch and channels")
    require_rank(reporter, 1, grid, rank + 2, f"[batch, …, {rank}]")
    require_float(reporter, 0, data)
    require_dtype_of(reporter, 1, 0)
    require_nonempty(reporter, 0, data, range(2, rank + 2))
    ends = [grid.shape[0], grid.shape[-1]]
    wanted = f"it has the batch of data first, and {rank} coordinates last"
    require_shape(reporter, 1, ends, [data.shape[0], Dim(rank)], wanted)
    reporter.assign(2, TensorType([*data.shape[:2], *grid.shape[1:-1]], data.dtype))
    return True


(
    register_op("grid_sample")
    .describe("An image at the places that a grid names, as ONNX's GridSample.")
    .add_argument("data", "Tensor", "[batch, channels, height, width], or [batch, channels, depth, height, width]")
    .add_argument(
        "grid", "Tensor",
        "[batch, rows, columns, 2], of the dtype of data: the place in x, then in y, of each element, from -1 to 1 "
        "across the image; or [batch, planes, rows, columns, 3], with the place in z last. NaN gives NaN by cubic, and "
        "by linear with zeros around; else it is a place beyond the edges, and by other paddings than zeros that of "
        "the first pixel. Infinity is as NaN, but the last pixel's, or the first one's, by border",
    )
    .set_attrs_type(GridSampleAttrs)
    .set_support_level(5)
    .add_type_rel("GridSample", grid_sample_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[2,3,5,7]", "grid": "float32[2,4,19,2]"})
    .example(
        {"data": "float32[1,2,5,7]", "grid": "float32[1,4,9,2]"},
        {"method": "cubic", "padding_mode": "reflection"},
    )
    .example(
        {"data": "float32[1,2,5,7]", "grid": "float32[1,4,9,2]"},
        {"method": "nearest_neighbor", "padding_mode": "border", "align_corners": True},
    )
    .example({"data": "float32[1,2,5,7]", "grid": "float32[1,4,9,2]"}, {"padding_mode": "reflection"})
    .example({"data": "float32[1,2,3,5,7]", "grid": "float32[1,2,4,9,3]"})
    .example(
        {"data": "float32[2,1,3,5,7]", "grid": "float32[2,3,2,9,3]"},
        {"method": "nearest_neighbor", "padding_mode": "border", "align_corners": True},
    )
)


@dataclass(frozen=True)
class _Kind:
    """Functions of one kind of numbers. `where` chooses by what `less_equal` gives."""

    floor: Callable[[Any], Any]
    round: Callable[[Any], Any]
    abs: Callable[[Any], Any]
    max: Callable[[Any, Any], Any]  # the second where the first is NaN
    min: Callable[[Any, Any], Any]
    less_equal: Callable[[Any, Any], Any]
    where: Callable[[Any, Any, Any], Any]
    number: Callable[[float], Any]

    def within(self, place: Any, last: Any) -> Any:
        """A place, or the edge beyond which it lies; 0 of NaN."""
        return self.min(self.max(place, self.number(0)), last)


def _mirrored(kind: _Kind, attrs: GridSampleAttrs, place: Any, extent: Any) -> Any:
    """A place, mirrored at the edges until it lies between them; 0 of NaN and infinity."""
    low = kind.number(0 if attrs.align_corners else -0.5)
    span = extent - kind.number(1) if attrs.align_corners else extent
    # At least 1, as two edges at one place are no way apart, and TVM refuses to divide by a zero that it knows.
    away, round_trip = place - low, kind.max(kind.number(2) * span, kind.number(1))
    rest = away - round_trip * kind.floor(away / round_trip)
    return kind.within(low + (span - kind.abs(span - rest)), extent - kind.number(1))


def _padded(kind: _Kind, attrs: GridSampleAttrs, place: Any, extent: Any) -> Any:
    """The place whose pixel stands for one that may be beyond the edges."""
    if attrs.padding_mode == "border":
        return kind.within(place, extent - kind.number(1))
    return _mirrored(kind, attrs, place, extent) if attrs.padding_mode == "reflection" else place


def _neighbours(kind: _Kind, attrs: GridSampleAttrs, coordinate: Any, extent: Any) -> list[tuple[Any, Any]]:
    """The whole places along an axis around a coordinate, and their weights. The weight of an only one is None."""
    one, half = kind.number(1), kind.number(0.5)
    if attrs.align_corners:
        place = (coordinate + one) * (half * (extent - one))
    else:
        place = (coordinate + one) * (half * extent) - half
    if attrs.method == "cubic":
        first = kind.floor(place)
        f, a = place - first, kind.number(_CUBIC)
        g = one - f

        def near(d: Any, rest: Any) -> Any:
            return rest * (one + d - kind.number(_CUBIC + 2) * d * d)

        weights = (a * f * g * g, near(f, g), near(g, f), a * g * f * f)
        places = [_padded(kind, attrs, first + kind.number(i), extent) for i in range(-1, 3)]
        return list(zip(places, weights, strict=True))
    place = _padded(kind, attrs, place, extent)
    if attrs.method == "nearest_neighbor":
        return [(kind.round(place), None)]
    first = kind.floor(place)
    return [(first, one - (place - first)), (first + one, place - first)]


def _sample(
    kind: _Kind, attrs: GridSampleAttrs, coordinates: Sequence[Any], image: Sequence[Any], read: Callable[..., Any]
) -> Any:
    """The weighted sum of the pixels around a place of an image, both [(depth,) height, width].

    The function `read` gives the pixels within the image.
    """
    axes = [_neighbours(kind, attrs, at, n) for at, n in zip(coordinates, image, strict=True)]

    def pixel(*places: Any) -> Any:
        lasts = [n - kind.number(1) for n in image]
        found = read(*(kind.within(place, last) for place, last in zip(places, lasts, strict=True)))
        if attrs.padding_mode == "zeros":
            for place, last in zip(places, lasts, strict=True):
                for low, high in ((kind.number(0), place), (place, last)):
                    found = kind.where(kind.less_equal(low, high), found, kind.number(0))
        return found

    def along(*places: Any) -> Any:
        """The sum over the axes behind those along which the places are given."""
        if len(places) == len(axes):
            return pixel(*places)
        return _sum([(along(*places, at), w) for at, w in axes[len(places)]])

    return along()


def _sum(values: Sequence[tuple[Any, Any]]) -> Any:
    found = [value if weight is None else value * weight for value, weight in values]
    return sum(found[1:], found[0])


@register_compute("grid_sample")
@in_float32
def compute_grid_sample(attrs: GridSampleAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te, tirx

    data, grid = inputs
    kind = _Kind(
        tirx.floor, tirx.nearbyint, tirx.abs, tirx.max, tirx.min, operator.le, tirx.Select,
        lambda value: tirx.const(value, data.dtype),
    )
    image = tuple(tirx.Cast(data.dtype, tirx.convert(n)) for n in data.shape[2:])

    rank = len(image)

    def element(n: Any, c: Any, *i: Any) -> Any:
        def read(*places: Any) -> Any:
            # TVM sees by integers that they are within the image.
            whole = (place.astype("int32") for place in places)
            inside = (tirx.max(tirx.min(p, e - 1), 0) for p, e in zip(whole, data.shape[2:], strict=True))
            return data(n, c, *inside)

        return _sample(kind, attrs, [grid(n, *i, rank - 1 - axis) for axis in range(rank)], image, read)

    return [te.compute((*data.shape[:2], *grid.shape[1:-1]), element, name="grid_sample")]


@register_terms("grid_sample")
def grid_sample_terms(attrs: GridSampleAttrs, inputs: Sequence[TensorType], out_type: Type) -> int:
    rank: int = inputs[0].ndim - 2
    return int({"nearest_neighbor": 1, "linear": 2, "cubic": 4}[attrs.method] ** rank)


@register_condition("grid_sample")
def grid_sample_condition(attrs: GridSampleAttrs, inputs: Sequence[Any]) -> float:
    """A place is rounded in proportion to the image's extent, as a fused multiplication and addition does not."""
    return 1 if attrs.method == "nearest_neighbor" else max(inputs[0].shape[2:])


@register_reference("grid_sample")
def reference_grid_sample(attrs: GridSampleAttrs, inputs: Sequence[Any]) -> Any:
    """Places as a kernel rounds them: which pixels are near may depend on the last bit."""
    import numpy as np

    data, grid = inputs
    grid = grid if grid.dtype == np.float64 else widened(grid).astype(np.float32)
    images = np.moveaxis(widened(data), 1, -1)
    rank = data.ndim - 2
    batch = np.arange(len(images)).reshape(-1, *(1,) * rank)
    kind = _Kind(
        np.floor, np.rint, np.abs, lambda a, b: np.where(a > b, a, b), np.minimum, operator.le, np.where,
        grid.dtype.type,
    )

    def read(*places: Any) -> Any:
        return images[batch, *(place[..., 0].astype(np.int64) for place in places)]

    image = tuple(grid.dtype.type(n) for n in images.shape[1:-1])
    place = np.split(grid[..., ::-1], rank, -1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = _sample(kind, attrs, place, image, read)
    return np.moveaxis(found, -1, 1)


register_injective_schedule("grid_sample")
register_shape_func("grid_sample", False, lambda attrs, inputs: [(*inputs[0][:2], *inputs[1][1:-1])])


@register_gradient("grid_sample")
def grid_sample_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return the gradients of data and grid, of the same sum of pixels, gathered one by one."""
    data, grid = orig.args
    if not data.tensor_type.is_constant:
        raise GradientError("grid_sample: its gradient needs constant extents")
    dtype = data.tensor_type.dtype
    if dtype in NARROW:
        # Of places that are rounded to so few bits, other pixels would be near.
        wide = call("grid_sample", cast(data, "float32"), cast(grid, "float32"), **orig.attrs.to_json())
        return gradient(cast(wide, dtype), [data, grid], grad, partial=True)
    kind = _Kind(floor, nearest, absolute, maximum, minimum, less_equal, where, lambda value: const(value, dtype))
    last = data.tensor_type.ndim - 1
    images = transpose(data, (0, *range(2, last + 1), 1))

    def read(*places: Expr) -> Expr:
        whole = call("stack", Tuple([cast(squeeze(place, axis=last), "int32") for place in places]), axis=0)
        return gather_nd(images, whole, batch_dims=1)

    image = [const(int(n), dtype) for n in data.tensor_type.shape[2:]]
    place = [strided_slice(grid, (i,), (i + 1,), axes=(last,)) for i in reversed(range(len(image)))]
    found = _sample(kind, orig.attrs, place, image, read)
    return gradient(transpose(found, (0, last, *range(1, last))), [data, grid], grad, partial=True)


grid_sample = caller("grid_sample")
