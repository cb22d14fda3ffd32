"""The gradient of dense, and its shape at run time."""

from __future__ import annotations

from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.ops.transpose import transpose


@register_gradient("dense")
def dense_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad @ weight, grad.T @ data]."""
    data, weight = orig.args
    dtype = data.tensor_type.dtype
    if grad.tensor_type.dtype != dtype:
        grad = call("cast", grad, dtype=dtype)
    return [
        call("dense", grad, transpose(weight)),
        call("dense", transpose(grad), transpose(data)),
    ]
