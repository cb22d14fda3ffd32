"""rotary_embedding: pairs of each vector of a head, turned by the angles of its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.caller import caller
from strategy.expr import Call, Expr
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_compute, register_op, register_reference
from strategy.ops.broadcast import collapse_sum_like
from strategy.ops.elemwise import ones_like, zeros_like
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape
from strategy.pattern import in_float32, register_injective_schedule
from strategy.reference import widened
from strategy.shape_func import elemwise_shape_func, register_shape_func
from strategy.type_relation import require_dtype_of, require_float, require_rank
from strategy.types import TensorType, Type


class RotaryEmbeddingAttrs(Attrs):
    """Attributes of rotary_embedding."""

    interleaved: bool = field(False, "Pairs are neighbours; default: an element and the one half a vector on")


def rotary_embedding_rel(types: Sequence[Type], attrs: RotaryEmbeddingAttrs, reporter: TypeReporter) -> bool:
    """The type of the data [batch, heads, m, d]; cosines and sines are [m, d / 2]."""
    data = reporter.known(0)
    require_rank(reporter, 0, data, 4, "[batch, heads, m, d]")
    require_float(reporter, 0, data)
    reporter.check(data.shape[3] % 2 == 0, 0, "its vectors are no pairs: d is odd")
    half = TensorType([data.shape[2], data.shape[3] // 2], data.dtype)
    for index in (1, 2):
        angle = reporter.tensor(index)
        if angle is None:
            reporter.assign(index, half)
            continue
        require_rank(reporter, index, angle, 2, "[m, d / 2]")
        require_dtype_of(reporter, index, 0)
        for axis in range(2):
            reporter.check(angle.shape[axis] == half.shape[axis], index, f"expected {half}, for data of {data}")
    reporter.assign(3, data)
    return True


(
    register_op("rotary_embedding")
    .describe("Pairs (x, y) of each vector as (x cos - y sin, y cos + x sin), as ONNX's RotaryEmbedding.")
    .add_argument("data", "Tensor", "[batch, heads, m, d]")
    .add_argument("cos", "Tensor", "The cosine of each position's angles, [m, d / 2].")
    .add_argument("sin", "Tensor", "The sine of each position's angles, [m, d / 2].")
    .set_attrs_type(RotaryEmbeddingAttrs)
    .set_support_level(1)
    .add_type_rel("RotaryEmbedding", rotary_embedding_rel)
    .set_attr("TOpPattern", TOpPattern.kInjective)
    .example({"data": "float32[2,2,3,38]", "cos": "float32[3,19]", "sin": "float32[3,19]"})
    .example({"data": "float32[1,2,3,10]", "cos": "float32[3,5]", "sin": "float32[3,5]"}, {"interleaved": True})
)


@register_compute("rotary_embedding")
@in_float32
def compute_rotary_embedding(attrs: RotaryEmbeddingAttrs, inputs: Sequence[Any], out_type: Type) -> list[Any]:
    from tvm import te, tirx

    data, cos, sin = inputs
    half = tirx.max(data.shape[3] // 2, 1)  # of vectors without elements nothing is computed

    def element(b: Any, h: Any, i: Any, j: Any) -> Any:
        second, pair = (j % 2, j // 2) if attrs.interleaved else (j // half, j % half)
        other = pair * 2 + 1 - second if attrs.interleaved else (1 - second) * half + pair
        turned = data[b, h, i, other] * sin[i, pair]
        return data[b, h, i, j] * cos[i, pair] + tirx.Select(second == 0, -turned, turned)

    return [te.compute(data.shape, element, name="rotary_embedding")]


@register_reference("rotary_embedding")
def reference_rotary_embedding(attrs: RotaryEmbeddingAttrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    data, cos, sin = map(widened, inputs)
    first, second = (slice(0, None, 2), slice(1, None, 2)) if attrs.interleaved else (
        slice(0, data.shape[3] // 2), slice(data.shape[3] // 2, None)
    )
    x, y = data[..., first], data[..., second]
    out = np.empty_like(data)
    with np.errstate(all="ignore"):
        out[..., first], out[..., second] = x * cos - y * sin, y * cos + x * sin
    return out


register_injective_schedule("rotary_embedding")
register_shape_func("rotary_embedding", False, elemwise_shape_func)


@register_gradient("rotary_embedding")
def rotary_embedding_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad turned back, grad x + grad y, both turned by a right angle], summed over batch and heads."""
    x, cos, sin = orig.args
    interleaved, half = orig.attrs.interleaved, x.tensor_type.shape[3] // 2

    def paired(node: Expr) -> Expr:
        """The sum of each pair, and over batch and heads."""
        shape = (0, 0, 0, int(half), 2) if interleaved else (0, 0, 0, 2, int(half))
        return collapse_sum_like(reduce_sum(reshape(node, shape), axis=4 if interleaved else 3), cos)

    right = rotary_embedding(x, zeros_like(cos), ones_like(sin), interleaved)
    return [rotary_embedding(grad, cos, -sin, interleaved), paired(grad * x), paired(grad * right)]


rotary_embedding = caller("rotary_embedding")
