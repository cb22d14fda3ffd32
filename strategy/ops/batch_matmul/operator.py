"""batch_matmul: types, NumPy reference, gradient and Python function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs, field
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
from strategy.ops.broadcast import collapse_sum_like
from strategy.pattern import extents_of, in_float32
from strategy.reference import summed
from strategy.shape_func import register_shape_func
from strategy.type_relation import (
    SUMS,
    require_dtype_of,
    require_nonempty,
    require_number,
    require_rank,
    sum_dtype,
)
from strategy.types import TensorType, Type


class BatchMatmulAttrs(Attrs):
    """Attributes of batch_matmul."""

    transpose_a: bool = field(False, "The matrices of x are given transposed")
    transpose_b: bool = field(True, "The matrices of y are given transposed, as weights are")
    out_dtype: str | None = field(
        None, "Data type of the sums and the output; default: that of the data", choices=SUMS
    )


def batch_matmul_rel(types: Sequence[Type], attrs: BatchMatmulAttrs, reporter: TypeReporter) -> bool:
    """[b, m, k] by [b, n, k] gives [b, m, n]; a batch of 1 is used for all of the other."""
    x, y = reporter.tensor(0), reporter.tensor(1)
    for index, (kind, transposed, form) in enumerate(
        ((x, attrs.transpose_a, "[batch, m, k]"), (y, not attrs.transpose_b, "[batch, n, k]"))
    ):
        if kind is not None:
            turned = " with the last two exchanged" if transposed else ""
            require_rank(reporter, index, kind, 3, form + turned)
            require_number(reporter, index, kind)
            require_nonempty(reporter, index, kind)
    if x is None or y is None:
        return False
    require_dtype_of(reporter, 1, 0)
    batch, m, k = x.shape if not attrs.transpose_a else (x.shape[0], x.shape[2], x.shape[1])
    other, n, depth = y.shape if attrs.transpose_b else (y.shape[0], y.shape[2], y.shape[1])
    reporter.check(depth == k, 1, f"does not fit {reporter.name(0)}, {x}: k is {depth} against {k}")
    if (other == 1).decide() is not True:
        if (batch == 1).decide() is True:
            batch = other
        reporter.check(other == batch, 1, f"its batch differs from that of {reporter.name(0)}, {x}")
    reporter.assign(2, TensorType((batch, m, n), sum_dtype(reporter, 0, x, attrs.out_dtype)))
    return True


(
    register_op("batch_matmul")
    .describe(
        "The product of two matrices for each entry of a batch; y is transposed by default."
    )
    .add_argument("x", "Tensor", "[batch, m, k]; [batch, k, m] with transpose_a")
    .add_argument("y", "Tensor", "[batch, n, k]; [batch, k, n] without transpose_b. A batch of 1 is used for all")
    .set_attrs_type(BatchMatmulAttrs)
    .set_support_level(10)
    .add_type_rel("BatchMatmul", batch_matmul_rel)
    .set_attr("TOpPattern", TOpPattern.kOutEWiseFusable)
    .example({"x": "float32[2,3,19]", "y": "float32[2,5,19]"})
    .example({"x": "int8[2,3,19]", "y": "int8[2,5,19]"}, {"out_dtype": "int32"})
    .example({"x": "float16[2,8,8]", "y": "float16[2,8,8]"})
    .example({"x": "bfloat16[2,13,30]", "y": "bfloat16[2,37,30]"})
    .example({"x": "float16[2,8,8]", "y": "float16[2,8,8]"}, {"out_dtype": "float32"})
)


@register_compute("batch_matmul")
@in_float32
def compute_batch_matmul(attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    from tvm import topi

    return [
        topi.nn.batch_matmul(
            *inputs, extents_of(out_type, inputs), out_type.dtype, transpose_a=attrs.transpose_a,
            transpose_b=attrs.transpose_b,
        )
    ]


@register_reference("batch_matmul")
def reference_batch_matmul(attrs: BatchMatmulAttrs, inputs: Sequence[Any]) -> Any:
    x, y = (summed(t, attrs.out_dtype) for t in inputs)
    return (x.swapaxes(1, 2) if attrs.transpose_a else x) @ (y.swapaxes(1, 2) if attrs.transpose_b else y)


@register_flops("batch_matmul")
def flops_batch_matmul(attrs: BatchMatmulAttrs, inputs: Sequence[TensorType], out_type: TensorType) -> int:
    return 2 * out_type.size * int(inputs[0].shape[1 if attrs.transpose_a else 2])


@register_shape_func("batch_matmul", False)
def batch_matmul_shape_func(
    attrs: BatchMatmulAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    x, y = inputs
    return [(max(x[0], y[0]), x[2 if attrs.transpose_a else 1], y[1 if attrs.transpose_b else 2])]


@register_gradient("batch_matmul")
def batch_matmul_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad @ y, x.T @ grad], each in the layout of its input."""
    x, y = orig.args
    if grad.tensor_type.dtype != x.tensor_type.dtype:
        grad = call("cast", grad, dtype=x.tensor_type.dtype)
    ta, tb = orig.attrs.transpose_a, orig.attrs.transpose_b
    if ta:
        dx = batch_matmul(y, grad, transpose_a=tb, transpose_b=True)
    else:
        dx = batch_matmul(grad, y, transpose_a=False, transpose_b=not tb)
    if tb:
        dy = batch_matmul(grad, x, transpose_a=True, transpose_b=ta)
    else:
        dy = batch_matmul(x, grad, transpose_a=not ta, transpose_b=False)
    return [collapse_sum_like(dx, x), collapse_sum_like(dy, y)]


batch_matmul = caller("batch_matmul")
