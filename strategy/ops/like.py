"""broadcast_to_like: a broadcast to the shape of another tensor, whose extents may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.caller import caller
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import collapse_sum_like
from strategy.pattern import broadcast_place, extents_of, register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import like_shape_func, register_shape_func
from strategy.type_relation import broadcast_shape, require_shape
from strategy.types import TensorType, Type


def broadcast_to_like_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """The shape of the second input, the dtype of the first."""
    data, like = reporter.known(0), reporter.known(1)
    whole = TensorType(like.shape, data.dtype)
    fits = broadcast_shape(reporter, 0, data, whole)
    require_shape(reporter, 0, fits, whole.shape, f"does not broadcast to {reporter.name(1)}, {like}")
    reporter.assign(2, whole)
    return True


(
    register_op("broadcast_to_like")
    .describe("The input, broadcast to the shape of another tensor.")
    .add_argument("data", "Tensor", "The input tensor.")
    .add_argument("shape_like", "Tensor", "The tensor whose shape the result has; its elements are not read.")
    .set_support_level(10)
    .add_type_rel("BroadcastToLike", broadcast_to_like_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[5,1]", "shape_like": "float32[3,5,19]"})
)


@register_compute("broadcast_to_like")
def compute_broadcast_to_like(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te, topi

    data = inputs[0]

    def element(*index: Any) -> Any:
        return data(*broadcast_place(data.shape, index))

    return [te.compute(extents_of(out_type, inputs), element, name="broadcast_to_like", tag=topi.tag.INJECTIVE)]


@register_reference("broadcast_to_like")
def reference_broadcast_to_like(attrs: Attrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return np.broadcast_to(widened(inputs[0]), np.shape(inputs[1]))


register_shape_func("broadcast_to_like", False, like_shape_func)
register_injective_schedule("broadcast_to_like")
register_gradient("broadcast_to_like", lambda orig, grad: [collapse_sum_like(grad, orig.args[0]), None])


broadcast_to_like = caller("broadcast_to_like")
