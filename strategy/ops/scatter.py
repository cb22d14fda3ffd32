"""scatter writes elements into the places of a row that indices name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.caller import caller
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, register_compute, register_op, register_reference
from strategy.ops.broadcast import equal, where
from strategy.ops.elemwise import cast, ones_like, zeros_like
from strategy.ops.gather import GatherAttrs, as_int64, int64_array, scatter_add_rel
from strategy.pattern import register_reduce_schedule
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.types import Type

(
    register_op("scatter")
    .describe("The data, with each update in the place that its index along an axis says, the last of several.")
    .add_argument("data", "Tensor", "The tensor that is written into, of numbers.")
    .add_argument(
        "indices", "Tensor",
        "Integers, with the extents of the data but along the axis; those below 0, or beyond it, write nowhere.",
    )
    .add_argument("updates", "Tensor", "The value to write for each index; of several for a place, the last.")
    .set_attrs_type(GatherAttrs)
    .set_support_level(10)
    .add_type_rel("Scatter", scatter_add_rel)
    .set_attr("TOpPattern", TOpPattern.kCommReduce)
    .example({"data": "float32[5,19]", "indices": "int32[5,7]", "updates": "float32[5,7]"}, {"axis": 1})
    .example({"data": "float32[5,19]", "indices": "int64[7,19]", "updates": "float32[7,19]"})
)


@register_compute("scatter")
def compute_scatter(attrs: GatherAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    """For each element, the last of all updates of its row that are for it."""
    from tvm import te, tirx

    data, indices, updates = inputs
    axis = attrs.axis % len(data.shape)
    k = te.reduce_axis((0, indices.shape[axis]), name="k")

    def of(index: Sequence[Any], place: Any) -> list[Any]:
        return [*index[:axis], place, *index[axis + 1 :]]

    def last(*i: Any) -> Any:
        mine = as_int64(indices(*of(i, k))) == tirx.Cast("int64", i[axis])
        return te.max(tirx.Select(mine, tirx.Cast("int64", k), tirx.const(-1, "int64")), axis=k)

    writer = te.compute(data.shape, last, name="writer")

    def written(*i: Any) -> Any:
        update = updates(*of(i, tirx.max(writer(*i), tirx.const(0, "int64"))))
        return tirx.if_then_else(writer(*i) >= 0, update, data(*i))

    return [te.compute(data.shape, written, name="scatter")]


@register_reference("scatter")
def reference_scatter(attrs: GatherAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, updates = widened(inputs[0]).copy(), widened(inputs[2])
    axis, places = attrs.axis % data.ndim, int64_array(inputs[1])
    within = (places >= 0) & (places < data.shape[axis])
    index = list(np.indices(updates.shape))
    index[axis] = places
    data[tuple(i[within] for i in index)] = updates[within]  # the last of several, as NumPy says
    return data


register_reduce_schedule("scatter")
register_shape_func("scatter", False, elemwise_shape_func)


@register_gradient("scatter")
def scatter_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [grad where nothing is written, grad of the updates that are the last of theirs]."""
    data, indices, updates = orig.args
    axis, nothing = orig.attrs.axis, zeros_like(updates)
    turn = call("cumsum", ones_like(cast(indices, "int64")), axis=axis, exclusive=True)
    none = call("negative", ones_like(cast(zeros_like(data), "int64")))
    writers = call("gather", call("scatter", none, indices, turn, axis=axis), indices, axis=axis)
    taken = call("gather", grad, indices, axis=axis)
    return [call("scatter", grad, indices, nothing, axis=axis), None, where(equal(writers, turn), taken, nothing)]


scatter = caller("scatter")
