"""grouped_dense: types, NumPy reference, gradient and Python function.

As PyTorch's `grouped_mm` and JAX's `ragged_dot`, with each weight as in `dense`. A row is of the first group whose end
is behind it, so any ends are valid: those out of order, negative or beyond the rows never reach other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.caller import caller
from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.op import (
    TOpPattern,
    TypeReporter,
    register_compute,
    register_flops,
    register_op,
    register_reference,
)
from strategy.ops.batch_matmul.operator import batch_matmul
from strategy.ops.dense import dense_flops
from strategy.ops.elemwise import ones_like
from strategy.ops.reshape import expand_dims
from strategy.pattern import in_float32, register_reduce_schedule
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    require_dtype_of,
    require_float,
    require_nonempty,
    require_rank,
    require_shape,
)
from strategy.types import TensorType, Type


def grouped_dense_rel(types: Sequence[Type], attrs: Attrs, reporter: TypeReporter) -> bool:
    """[m, k] by [g, n, k] and [g] gives [m, n]."""
    data, weight, ends = (reporter.tensor(i) for i in range(3))
    if data is None or weight is None:
        return False
    for index, (given, rank, form) in enumerate(((data, 2, "[m, k]"), (weight, 3, "[g, n, k]"))):
        require_rank(reporter, index, given, rank, form)
        require_nonempty(reporter, index, given)
    require_float(reporter, 0, data)
    require_dtype_of(reporter, 1, 0)
    (m, k), (groups, n, depth) = data.shape, weight.shape
    reporter.check(depth == k, 1, f"its last dimension must be that of {reporter.name(0)}, {k.value or k}")
    if ends is None:
        reporter.assign(2, TensorType([groups], "int32"))
    else:
        reporter.check(ends.dtype == "int32", 2, "expected int32: cast it first")
        expected = f"expected the end of each group, [{groups.value or groups}]"
        require_shape(reporter, 2, ends.shape, (groups,), expected)
    reporter.assign(3, TensorType([m, n], data.dtype))
    return True


(
    register_op("grouped_dense")
    .describe(
        "The product of each row with the transposed weight of its group. Rows of a group lie side by side, and the "
        "groups one after the other; rows behind the last group are 0. As PyTorch's grouped_mm and JAX's ragged_dot."
    )
    .add_argument("data", "Tensor", "[m, k]")
    .add_argument("weight", "Tensor", "[g, n, k], of the dtype of the data")
    .add_argument("ends", "Tensor", "int32 [g]: the row behind each group, of which the first behind a row is its own")
    .set_support_level(11)
    .add_type_rel("GroupedDense", grouped_dense_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .set_attr("TEnds", "ends")
    .example({"data": "float32[2,19]", "weight": "float32[5,21,19]", "ends": "int32[5]"})
    .example({"data": "float32[23,16]", "weight": "float32[3,32,16]", "ends": "int32[3]"})
    .example({"data": "float16[5,8]", "weight": "float16[2,6,8]", "ends": "int32[2]"})
    .example({"data": "bfloat16[13,30]", "weight": "bfloat16[2,37,30]", "ends": "int32[2]"})
)


@register_compute("grouped_dense")
@in_float32
def compute_grouped_dense(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import te, tirx

    data, weight, ends = inputs
    (m, k), (groups, n, _) = data.shape, weight.shape
    g, r = te.reduce_axis((0, groups), name="g"), te.reduce_axis((0, k), name="r")

    def group(i: Any) -> Any:
        # Unsigned, as TVM widens a signed minimum, which the threads of a GPU then cannot join.
        first = tirx.if_then_else(ends[g].astype(str(i.ty.dtype)) > i, g, groups)
        return te.min(first.astype("uint32"), axis=g)

    own = te.compute((m,), group, name="own")

    def term(i: Any, j: Any) -> Any:
        of = own[i].astype(str(i.ty.dtype))
        product = data[i, r] * weight[tirx.min(of, groups - 1), j, r]
        return te.sum(tirx.if_then_else(of < groups, product, tirx.const(0, data.dtype)), axis=r)

    return [te.compute((m, n), term, name="grouped_dense")]


@register_reference("grouped_dense")
def reference_grouped_dense(attrs: Attrs, inputs: Sequence[Any]) -> Any:
    """In float64."""
    import numpy as np

    data, weight = (np.asarray(x, np.float64) for x in inputs[:2])
    found = np.zeros((len(data), weight.shape[1]))
    begin = 0
    for own, last in zip(weight, np.asarray(inputs[2]), strict=True):
        end = min(max(int(last), begin), len(data))
        found[begin:end] = data[begin:end] @ own.T
        begin = end
    return found


register_flops("grouped_dense", dense_flops)
register_shape_func("grouped_dense", False, lambda attrs, inputs: [(inputs[0][0], inputs[1][1])])
register_reduce_schedule("grouped_dense")


@register_gradient("grouped_dense")
def grouped_dense_grad(orig: Call, grad: Expr) -> list[Expr | None]:
    """Return [the product of grad with the weights transposed, gradᵀ · data of each group, None]."""
    data, weight, ends = orig.args
    places = call("cumsum", call("max", ones_like(data), axis=1), axis=0, dtype="int32", exclusive=True)
    before = call("less", places, expand_dims(ends, axis=1))
    nth = call("cumsum", call("cast", before, dtype="int32"), axis=0)
    is_own = expand_dims(call("logical_and", before, call("equal", nth, ones_like(nth))), axis=2)
    # Both are masked, as 0 times an infinity in another group's row is NaN.
    slopes, rows = (call("where", is_own, value, call("zeros_like", value)) for value in (grad, data))
    dweight = batch_matmul(slopes, rows, transpose_a=True, transpose_b=False)
    return [grouped_dense(grad, call("transpose", weight, axes=(0, 2, 1)), ends), dweight, None]


grouped_dense = caller("grouped_dense")
