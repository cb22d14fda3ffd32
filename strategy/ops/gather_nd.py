"""gather_nd: elements, or parts, of a tensor by their coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Call, Expr, call, const
from strategy.gradient import GradientError, register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import less, where
from strategy.ops.elemwise import cast, clip
from strategy.ops.gather import int64_array, place_of
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape, reshape_like
from strategy.pattern import register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import register_shape_func
from strategy.type_relation import require_nonempty, require_shape
from strategy.types import TensorType, Type


class GatherNdAttrs(Attrs):
    """Attributes of gather_nd."""

    batch_dims: int = field(0, "The first axes of data that are gone along together with those of indices", lower=0)


def _gathered(attrs: GatherNdAttrs, data: Sequence[Any], indices: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of the result, for shapes of integers or dimensions."""
    return (*indices[1:], *data[attrs.batch_dims + int(indices[0]) :])


def gather_nd_rel(types: Sequence[Type], attrs: GatherNdAttrs, reporter: TypeReporter) -> bool:
    """The indices' shape without the coordinates, then what they leave of the data's."""
    data, indices = reporter.known(0), reporter.known(1)
    batch = attrs.batch_dims
    reporter.check(indices.dtype.startswith(("int", "uint")), 1, "expected integers: cast it first")
    reporter.check(indices.ndim > batch, 1, f"expected the coordinates, then batch_dims = {batch} axes and others")
    reporter.check(indices.shape[0].is_constant, 1, "the number of coordinates, its first extent, must be constant")
    count = int(indices.shape[0])
    reporter.check(1 <= count <= data.ndim - batch, 1, f"has {count} coordinates for the axes of data, {data}")
    remedy = f"its axes behind the coordinates differ from the first batch_dims = {batch} of data, {data}"
    require_shape(reporter, 1, indices.shape[1 : 1 + batch], data.shape[:batch], remedy)
    require_nonempty(reporter, 0, data, range(batch, batch + count))
    reporter.assign(2, TensorType(_gathered(attrs, data.shape, indices.shape), data.dtype))
    return True


(
    register_op("gather_nd")
    .describe("The element, or part, of the data at each place that a vector of coordinates names, as Relay's.")
    .add_argument("data", "Tensor", "The tensor that is indexed.")
    .add_argument("indices", "Tensor", "Integers as of gather; the first axis has one entry for each coordinate.")
    .set_attrs_type(GatherNdAttrs)
    .set_support_level(3)
    .add_type_rel("GatherNd", gather_nd_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,3,19]", "indices": "int32[2,7]"})
    .example({"data": "float32[5,3,19]", "indices": "int32[1,5,4]"}, {"batch_dims": 1})
)


@register_compute("gather_nd")
def compute_gather_nd(attrs: GatherNdAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, topi

    data, indices = inputs
    batch, count, rank = attrs.batch_dims, int(indices.shape[0]), len(indices.shape) - 1

    def element(*i: Any) -> Any:
        places = [place_of(indices(n, *i[:rank]), data.shape[batch + n]) for n in range(count)]
        return data(*i[:batch], *places, *i[rank:])

    shape = _gathered(attrs, [*data.shape], [*indices.shape])
    return [te.compute(shape, element, name="gather_nd", tag=topi.tag.INJECTIVE)]


@register_reference("gather_nd")
def reference_gather_nd(attrs: GatherNdAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, indices, batch = widened(inputs[0]), int64_array(inputs[1]), attrs.batch_dims
    own = np.indices(indices.shape[1:])[:batch]
    extents = np.reshape(data.shape[batch : batch + len(indices)], (-1, *[1] * (indices.ndim - 1)))
    places = np.where(indices < 0, indices + extents, indices).clip(0, np.maximum(extents - 1, 0))
    return data[(*own, *places)]


register_injective_schedule("gather_nd")
register_shape_func("gather_nd", False, lambda attrs, inputs: [_gathered(attrs, *inputs)])


@register_gradient("gather_nd")
def gather_nd_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [grad, added where each element was taken from], by places in the flattened axes."""
    data, indices = orig.args
    if not (data.tensor_type.is_constant and indices.tensor_type.is_constant):
        raise GradientError("gather_nd: its gradient needs constant extents")
    shape, batch = data.tensor_type.concrete_shape, orig.attrs.batch_dims
    count = indices.tensor_type.concrete_shape[0]
    indexed = shape[batch : batch + count]
    form = (count, *[1] * (indices.tensor_type.ndim - 1))
    steps = [math.prod(indexed[n + 1 :]) for n in range(count)]
    extents, strides, last = (
        reshape(const(values, "int64"), form) for values in (indexed, steps, [n - 1 for n in indexed])
    )
    places = cast(indices, "int64")
    places = where(less(places, const(0, "int64")), places + extents, places)
    places = call("minimum", clip(places, 0, max(indexed)), last)
    entries, rest = math.prod(shape[:batch]), math.prod(shape[batch + count :])
    flat = reshape(reduce_sum(places * strides, axis=0), (entries, -1))
    taken = call(
        "take_backward", reshape(grad, (entries, -1, rest)), flat,
        reshape(data, (entries, math.prod(indexed), rest)), axis=1, batch_dims=1,
    )
    return [reshape_like(taken, data), None]


gather_nd = caller("gather_nd")
