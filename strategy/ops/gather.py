"""gather takes an element of a row at each place; scatter_add, its opposite, adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_condition,
    register_op,
    register_reference,
)
from strategy.ops.elemwise import zeros_like
from strategy.pattern import in_float32, register_injective_schedule, register_reduce_schedule
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, like_shape_func, register_shape_func
from strategy.type_relation import normal_axis, require_dtype_of, require_nonempty, require_number
from strategy.types import TensorType, Type

MOST_INDEX = 1 << 62  # beyond any extent, and less than what TVM takes for the largest number


class GatherAttrs(Attrs):
    """Attributes of gather and scatter_add."""

    axis: int = field(0, "The axis that is indexed")


def _check_indices(reporter: TypeReporter, attrs: GatherAttrs, data: TensorType, indices: TensorType) -> None:
    """The indices are integers, with the extents of the data but along the axis."""
    axis = normal_axis(reporter, 0, attrs.axis, data.ndim)
    require_nonempty(reporter, 0, data, [axis])
    reporter.check(indices.dtype.startswith(("int", "uint")), 1, "expected integers: cast it first")
    reporter.check(indices.ndim == data.ndim, 1, f"expected the rank of data, {data}")
    for i, (a, b) in enumerate(zip(indices.shape, data.shape, strict=True)):
        reporter.check(i == axis or a == b, 1, f"axis {i} differs from that of data, {data}")


def gather_rel(types: Sequence[Type], attrs: GatherAttrs, reporter: TypeReporter) -> bool:
    """The shape of the indices, the dtype of the data."""
    data, indices = reporter.known(0), reporter.known(1)
    _check_indices(reporter, attrs, data, indices)
    reporter.assign(2, TensorType(indices.shape, data.dtype))
    return True


def scatter_add_rel(types: Sequence[Type], attrs: GatherAttrs, reporter: TypeReporter) -> bool:
    """The type of the data; the updates have the shape of the indices."""
    data, indices, updates = (reporter.tensor(i) for i in range(3))
    if data is None or indices is None:
        return False
    require_number(reporter, 0, data)
    _check_indices(reporter, attrs, data, indices)
    expected = TensorType(indices.shape, data.dtype)
    if updates is None:
        reporter.assign(2, expected)
    else:
        require_dtype_of(reporter, 2, 0)
        reporter.check(str(updates) == str(expected), 2, f"expected an update for each index: {expected}")
    reporter.assign(3, data)
    return True


(
    register_op("gather")
    .describe("At each place, the element of its row along an axis that an index names, as ONNX's GatherElements.")
    .add_argument("data", "Tensor", "The tensor that is indexed.")
    .add_argument(
        "indices", "Tensor",
        "Integers, with the extents of the data but along the axis; negative ones count from the end, others beyond it "
        "take the nearest.",
    )
    .set_attrs_type(GatherAttrs)
    .set_support_level(3)
    .add_type_rel("Gather", gather_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,19]", "indices": "int32[5,7]"}, {"axis": 1})
    .example({"data": "float32[5,19]", "indices": "int32[3,19]"})
    .example({"data": "float32[5,19]", "indices": "int32[5,48]"}, {"axis": 1})
)
(
    register_op("scatter_add")
    .describe("The data, with each update added where its index along an axis says, as Relay's.")
    .add_argument("data", "Tensor", "The tensor that is added to.")
    .add_argument("indices", "Tensor", "Integers, as of gather.")
    .add_argument("updates", "Tensor", "The values to add, for each index.")
    .set_attrs_type(GatherAttrs)
    .set_support_level(10)
    .add_type_rel("ScatterAdd", scatter_add_rel)
    .set_attr("TOpPattern", TOpPattern.kCommReduce)
    .example({"data": "float32[5,19]", "indices": "int32[5,7]", "updates": "float32[5,7]"}, {"axis": 1})
    .example({"data": "float32[5,19]", "indices": "int64[7,19]", "updates": "float32[7,19]"})
    .example({"data": "float32[2,19]", "indices": "int64[2,70]", "updates": "float32[2,70]"}, {"axis": 1})
)


def as_int64(index: Any) -> Any:
    """A TE index as int64, which has no numbers beyond 2⁶³: TVM takes what was unsigned for no less than 0."""
    from tvm import tirx

    if str(index.ty.dtype) == "uint64":
        index = tirx.min(index, tirx.const(MOST_INDEX, "uint64"))
    return tirx.Cast("int64", index)


def int64_array(indices: Any) -> Any:
    """An array of indices as `as_int64` has each."""
    import numpy as np

    indices = np.asarray(indices)
    return (np.minimum(indices, MOST_INDEX) if indices.dtype == np.uint64 else indices).astype(np.int64)


def place_of(index: Any, extent: Any) -> Any:
    """The place in 0 … extent - 1 that a TE index names."""
    from tvm import tirx

    index, extent = as_int64(index), tirx.Cast("int64", tirx.convert(extent))
    index = tirx.Select(index < 0, index + extent, index)
    return tirx.max(tirx.min(index, extent - 1), tirx.const(0, "int64"))


def _with(index: Sequence[Any], axis: int, place: Any) -> list[Any]:
    return [*index[:axis], place, *index[axis + 1 :]]


@register_compute("gather")
def compute_gather(attrs: GatherAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te

    data, indices = inputs
    axis = attrs.axis % len(data.shape)
    extent = data.shape[axis]
    return [te.compute(indices.shape, lambda *i: data(*_with(i, axis, place_of(indices(*i), extent))), name="gather")]


@register_compute("scatter_add")
@in_float32
def compute_scatter_add(attrs: GatherAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """For each element, the sum of all updates of its row that are for it: in parallel, in any order of indices."""
    from tvm import te, tirx

    data, indices, updates = inputs
    axis = attrs.axis % len(data.shape)
    k = te.reduce_axis((0, indices.shape[axis]), name="k")

    def added(*i: Any) -> Any:
        at = _with(i, axis, k)
        mine = place_of(indices(*at), data.shape[axis]) == i[axis]
        return te.sum(tirx.if_then_else(mine, updates(*at), tirx.const(0, data.dtype)), axis=k)

    total = te.compute(data.shape, added, name="added")
    return [te.compute(data.shape, lambda *i: data(*i) + total(*i), name="scatter_add")]


def _places(attrs: GatherAttrs, data: Any, indices: Any) -> Any:
    import numpy as np

    extent = data.shape[attrs.axis]
    places = int64_array(indices)
    return np.where(places < 0, places + extent, places).clip(0, max(extent - 1, 0))


@register_reference("gather")
def reference_gather(attrs: GatherAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data = widened(inputs[0])
    return np.take_along_axis(data, _places(attrs, data, inputs[1]), attrs.axis)


@register_reference("scatter_add")
def reference_scatter_add(attrs: GatherAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, updates = widened(inputs[0]).copy(), widened(inputs[2])
    places = list(np.indices(updates.shape))
    places[attrs.axis] = _places(attrs, data, inputs[1])
    with np.errstate(all="ignore"):
        np.add.at(data, tuple(places), updates)
    return data


@register_condition("scatter_add")
def scatter_add_condition(attrs: GatherAttrs, inputs: Sequence[Any]) -> Any:
    """Many updates may go to one element, and none to most."""
    import numpy as np

    data, indices, updates = inputs
    return 1 + reference_scatter_add(attrs, [np.zeros(np.shape(data)), indices, np.ones(np.shape(updates))])


register_injective_schedule("gather")
register_reduce_schedule("scatter_add")
register_shape_func("gather", False, like_shape_func)
register_shape_func("scatter_add", False, elemwise_shape_func)


@register_gradient("gather")
def gather_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [grad, added where each element was taken from]."""
    data, indices = orig.args
    return [Call("scatter_add", [zeros_like(data), indices, grad], orig.attrs), None]


register_gradient("scatter_add", lambda orig, grad: [grad, None, Call("gather", [grad, orig.args[1]], orig.attrs)])


gather = caller("gather")
scatter_add = caller("scatter_add")
