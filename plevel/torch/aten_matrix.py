"""Inverses, systems of linear equations and determinants of ATen as calls of plevel's, of small matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from plevel.torch.aten import register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.elimination import pivots, solve
from strategy.network.rewriter import extents


@register("linalg_inv_ex.default")
def _inverse(matrix: Expr, **_: Any) -> tuple[Expr]:
    return (solve(matrix, Constant(np.eye(extents(matrix)[-1], dtype=matrix.tensor_type.dtype))),)


@register("_linalg_solve_ex.default")
def _solution(matrix: Expr, right: Expr, *, left: bool = True, **_: Any) -> tuple[Expr]:
    """The right side is vectors if it has the shape of the matrices without their last axis."""
    is_vector = len(extents(right)) == 1 or extents(right) == extents(matrix)[:-1]
    columns = layer.reshape(right, (*extents(right), 1)) if is_vector else right
    found = solve(matrix, columns) if left else layer.swap(solve(layer.swap(matrix), layer.swap(columns)))
    return (layer.reshape(found, extents(found)[:-1]) if is_vector else found,)


@register("_linalg_det.default")
def _determinant(matrix: Expr) -> tuple[Expr]:
    return (call("prod", pivots(matrix), axis=(-1,), keepdims=False),)


@register("_linalg_slogdet.default")
def _logarithm_of_determinant(matrix: Expr) -> tuple[Expr, Expr]:
    """The determinant's sign, and the logarithm of its size."""
    found = pivots(matrix)
    sign = call("prod", call("sign", found), axis=(-1,), keepdims=False)
    return sign, call("sum", call("log", call("abs", found)), axis=(-1,), keepdims=False)
