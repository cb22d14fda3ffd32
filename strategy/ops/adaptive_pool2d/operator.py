"""adaptive_avg_pool2d and adaptive_max_pool2d: pooling to an output size, by windows that may differ by a pixel.

As Relay's nn.adaptive_avg_pool2d and nn.adaptive_max_pool2d: window i of o over n pixels is from ⌊i n / o⌋ to
⌈(i + 1) n / o⌉.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import REQUIRED, Attrs, field
from strategy.caller import Caller, caller
from strategy.expr import Call, Constant, Expr
from strategy.gradient import gradient, register_gradient
from strategy.layout import (
    LAYOUTS,
    PLAIN,
    laid_out,
    laid_out_array,
    laid_out_index,
    plain,
    plain_array,
    plain_index,
    require_layout,
)
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.layout_transform import by_plain
from strategy.ops.matmul import matmul
from strategy.ops.reduce import max as reduce_max
from strategy.ops.reshape import reshape
from strategy.ops.take import take
from strategy.ops.window import distances
from strategy.order import largest, lowest
from strategy.pattern import in_float32, register_reduce_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_float, require_nonempty, require_number
from strategy.types import Dim, TensorType, Type


class AdaptivePool2DAttrs(Attrs):
    """Attributes of adaptive pooling. One number stands for both axes."""

    output_size: tuple[int, int] = distances(REQUIRED, "Height and width of the result")
    layout: str = field(PLAIN, "The order of the data's axes, and of the result's", choices=LAYOUTS)


def begin(i: Any, extent: Any, size: int) -> Any:
    """The first pixel of window `i` of `size` over `extent` pixels."""
    return i * extent // size


def end(i: Any, extent: Any, size: int) -> Any:
    """The pixel after the last of window `i`."""
    return ((i + 1) * extent + size - 1) // size


def lengths(extent: int, size: int) -> tuple[int, int]:
    """The extents of the shortest and the longest window, which begin at all remainders of a quotient."""
    divisor = math.gcd(extent, size)
    extent, size = extent // divisor, size // divisor
    return -(-extent // size), -(-(extent + size - 1) // size)


def _longest(extent: Any, size: int) -> Any:
    """The extent of the longest window, or a bound of it where the extent is symbolic."""
    from tvm import tirx

    if isinstance(extent, tirx.IntImm):
        return lengths(int(extent), size)[1]
    return (extent + size - 1) // size + 1


def _register(name: str, description: str, *, mean: bool) -> Caller:
    """Register an operator, and return the function that calls it."""

    def relation(types: Sequence[Type], attrs: AdaptivePool2DAttrs, reporter: TypeReporter) -> bool:
        """[n, c, h, w] gives [n, c, *output_size], in the order of the layout."""
        data = reporter.known(0)
        n, c, *_ = require_layout(reporter, 0, data, attrs.layout).shape
        (require_float if mean else require_number)(reporter, 0, data)
        require_nonempty(reporter, 0, data, [attrs.layout.index(axis) for axis in "HW"])
        shape = (n, c, *(Dim(size) for size in attrs.output_size))
        reporter.assign(1, TensorType(laid_out(shape, attrs.layout), data.dtype))
        return True

    @in_float32
    def compute(attrs: AdaptivePool2DAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
        from tvm import te, tirx

        (data,) = inputs
        n, c, *extents = plain(data.shape, attrs.layout)
        steps = [
            te.reduce_axis((0, _longest(n, size)), name=name)
            for n, size, name in zip(extents, attrs.output_size, "yx", strict=True)
        ]
        identity = tirx.const(0, data.dtype) if mean else lowest(str(data.dtype))

        def pooled(*index: Any) -> Any:
            n, c, *window = plain_index(index, attrs.layout)
            places, inside = [], []
            for i, extent, size, step in zip(window, extents, attrs.output_size, steps, strict=True):
                place = begin(i, extent, size) + step
                inside.append(place < end(i, extent, size))
                places.append(place)
            element = data(*laid_out_index((n, c, *places), attrs.layout))
            value = tirx.if_then_else(tirx.all(*inside), element, identity)
            return te.sum(value, axis=steps) if mean else largest()(value, axis=steps)

        shape = laid_out((n, c, *attrs.output_size), attrs.layout)
        found = te.compute(shape, pooled, name=name)
        if not mean:
            return [found]

        def average(*index: Any) -> Any:
            window = plain_index(index, attrs.layout)[2:]
            counts = [
                end(i, extent, size) - begin(i, extent, size)
                for i, extent, size in zip(window, extents, attrs.output_size, strict=True)
            ]
            return found(*index) / (counts[0] * counts[1]).astype(data.dtype)

        return [te.compute(shape, average, name="average")]

    def reference(attrs: AdaptivePool2DAttrs, inputs: Sequence[Any]) -> Any:
        import numpy as np

        data = plain_array(widened(inputs[0]), attrs.layout)
        found = np.empty((*data.shape[:2], *attrs.output_size), data.dtype)
        for y, x in np.ndindex(attrs.output_size):
            rows, columns = (
                slice(begin(i, n, size), end(i, n, size))
                for i, n, size in zip((y, x), data.shape[2:], attrs.output_size, strict=True)
            )
            window = data[:, :, rows, columns]
            found[:, :, y, x] = window.mean((2, 3)) if mean else window.max((2, 3))
        return laid_out_array(found, attrs.layout)

    def shape_func(attrs: AdaptivePool2DAttrs, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        n, c, *_ = plain(inputs[0], attrs.layout)
        return [tuple(laid_out((n, c, *attrs.output_size), attrs.layout))]

    (
        register_op(name)
        .describe(description)
        .add_argument("data", "Tensor", "[batch, channels, height, width], in the order of the layout")
        .set_attrs_type(AdaptivePool2DAttrs)
        .set_support_level(10)
        .add_type_rel(name, relation)
        .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
        .example({"data": "float32[1,2,7,10]"}, {"output_size": [3, 4]})
        .example({"data": "float32[1,2,4,6]"}, {"output_size": [5, 3]})
        .example({"data": "float32[1,2,7,10,8]"}, {"output_size": [3, 4], "layout": "NCHW8c"})
    )
    register_compute(name, compute)
    register_reference(name, reference)
    register_reduce_schedule(name)
    register_shape_func(name, False, shape_func)

    return caller(name)


adaptive_avg_pool2d = _register(
    "adaptive_avg_pool2d", "The mean of each of so many windows that cover the image.", mean=True
)
adaptive_max_pool2d = _register(
    "adaptive_max_pool2d", "The largest element of each of so many windows that cover the image.", mean=False
)


def _bounds(orig: Call) -> list[list[tuple[int, int]]]:
    """For each axis, where its windows begin and end."""
    attrs, shape = orig.attrs, orig.args[0].tensor_type.shape
    return [
        [(begin(i, int(n), size), end(i, int(n), size)) for i in range(size)]
        for n, size in zip(shape[2:], attrs.output_size, strict=True)
    ]


@register_gradient("adaptive_avg_pool2d")
@by_plain
def adaptive_avg_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad, shared out over each window]."""
    import numpy as np

    data = orig.args[0].tensor_type
    matrices = []
    for axis, windows in enumerate(_bounds(orig)):
        places = np.arange(int(data.shape[2 + axis]))
        rows = [((places >= first) & (places < last)) / (last - first) for first, last in windows]
        matrices.append(np.stack(rows).astype(data.dtype))
    down, across = (Constant(np.ascontiguousarray(m)) for m in (matrices[0].T, matrices[1]))
    return [matmul(down, matmul(grad, across))]


@register_gradient("adaptive_max_pool2d")
@by_plain
def adaptive_max_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad where the largest elements were, shared out where several are equal]."""
    import numpy as np

    (data,) = orig.args
    n, c, _, width = data.tensor_type.concrete_shape
    rows, columns = _bounds(orig)
    windows = [
        [y * width + x for y in range(*row) for x in range(*column)] for row in rows for column in columns
    ]
    longest = max(map(len, windows))
    # A window that is shorter has its first element again.
    places = np.array([w + w[:1] * (longest - len(w)) for w in windows], "int32")
    parts = take(reshape(data, (n, c, -1)), Constant(places), axis=2)
    pooled = reshape(reduce_max(parts, axis=3), (n, c, len(rows), len(columns)))
    return gradient(pooled, [data], grad, partial=True)
