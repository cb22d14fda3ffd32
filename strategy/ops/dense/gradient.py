"""The gradient of dense, and its shape at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.expr import Call, Expr, call
from strategy.gradient import register_gradient
from strategy.ops.transpose import transpose
from strategy.shape_func import register_shape_func


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


@register_shape_func("dense", False)
def dense_shape_func(attrs: Any, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    data, weight = inputs
    return [(data[0], weight[0])]
