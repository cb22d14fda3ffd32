"""Reductions of ATen, norms and distances as calls of plevel's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plevel.torch.aten import (
    OPERATORS,
    Operator,
    along_axis,
    cast,
    dtype_named,
    in_float32,
    register,
    summed,
    truth,
)
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


def _reduce(name: str, **attrs: Any) -> Operator:
    def make(x: Expr, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
        x = cast(x, dtype_named(dtype, summed(x) if name in ("sum", "prod") else x.tensor_type.dtype))
        if not extents(x):  # one element
            return x
        found = list(range(len(extents(x)))) if axes is None or axes == [] else axes
        axis = tuple(found) if isinstance(found, list | tuple) else (found,)
        return call(name, x, axis=axis, keepdims=keepdim, **attrs)

    return make


for _name, _own in {
    "mean.dim": "mean", "mean.default": "mean", "sum.dim_IntList": "sum", "prod.default": "prod",
    "prod.dim_int": "prod",
}.items():
    OPERATORS[f"aten.{_name}"] = _reduce(_own)
for _name in ("max", "min"):
    OPERATORS |= dict.fromkeys((f"aten.a{_name}.default", f"aten.{_name}.default"), along_axis(_reduce(_name)))


def _place_of(name: str) -> Operator:
    def make(x: Expr, axis: int | None = None, keepdim: bool = False) -> Expr:
        return call(name, x, axis=None if axis is None else (axis,), keepdims=keepdim, dtype="int64")

    return along_axis(make)


def _extreme_with_place(name: str) -> Operator:
    def make(x: Expr, axis: int, keepdim: bool = False) -> tuple[Expr, Expr]:
        return call(name, x, axis=(axis,), keepdims=keepdim), _place_of(f"arg{name}")(x, axis, keepdim)

    return along_axis(make)


for _name in ("max", "min"):
    OPERATORS[f"aten.arg{_name}.default"] = _place_of(f"arg{_name}")
    OPERATORS[f"aten.{_name}.dim"] = _extreme_with_place(_name)


@register("var.correction")
@along_axis
def _variance(x: Expr, axes: Any = None, correction: float | None = None, keepdim: bool = False) -> Expr:
    correction = 1 if correction is None else correction
    if correction in (0, 1):
        found: Expr = _reduce("variance", unbiased=correction == 1)(x, axes, keepdim)
    else:
        found = _corrected_variance(x, axes, keepdim, correction)
    return found


@in_float32
def _corrected_variance(x: Expr, axes: Any, keepdim: bool, correction: float) -> Expr:
    """The sum of squared deviations divided by the number of elements less the correction, or by 0 if that is less."""
    found: Expr = _reduce("variance", unbiased=False)(x, axes, keepdim)
    count = layer.count(math.prod(extents(x)) // math.prod(extents(found)), found)
    rest = call("relu", call("subtract", count, number(correction, found)))
    return call("multiply", found, call("divide", count, rest))


@register("var_mean.correction")
def _variance_mean(
    x: Expr, axes: Any = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Expr, Expr]:
    return _variance(x, axes, correction, keepdim), _reduce("mean")(x, axes, keepdim)


@register("linalg_vector_norm.default")
def _vector_norm(x: Expr, order: float = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    x = cast(x, dtype_named(dtype, x.tensor_type.dtype))
    if order == 2:
        found: Expr = _norm(x, axes, keepdim)
    elif order == 0:
        found = _reduce("sum")(cast(call("not_equal", x, number(0, x)), x.tensor_type.dtype), axes, keepdim)
    elif order in (1, math.inf, -math.inf):
        reduced = {1: "sum", math.inf: "max", -math.inf: "min"}[order]
        found = _reduce(reduced)(call("abs", x), axes, keepdim)
    else:
        found = _norm_by_powers(x, axes, keepdim, order)
    return found


@in_float32
def _norm_by_powers(x: Expr, axes: Any, keepdim: bool, order: float) -> Expr:
    total = _reduce("sum")(call("power", call("abs", x), number(order, x)), axes, keepdim)
    return call("power", total, number(1 / order, x))


@in_float32
def _norm(x: Expr, axes: Any, keepdim: bool) -> Expr:
    return call("sqrt", _reduce("sum")(call("multiply", x, x), axes, keepdim))


@register("any.default", "any.dim", "any.dims")
def _any(x: Expr, axes: Any = None, keepdim: bool = False) -> Expr:
    """In uint8 of that dtype, as PyTorch has it."""
    found: Expr = _reduce("any")(truth(x), axes, keepdim)
    return cast(found, "uint8") if x.tensor_type.dtype == "uint8" else found


@register("_cdist_forward.default")
def _distances(x: Expr, y: Expr, order: float, *_: Any) -> Expr:
    """Distances of all pairs of rows."""
    left = layer.reshape(x, (*extents(x)[:-1], 1, extents(x)[-1]))
    right = layer.reshape(y, (*extents(y)[:-2], 1, *extents(y)[-2:]))
    found: Expr = _vector_norm(call("subtract", left, right), order, [-1])
    return found


@register("_pdist_forward.default")
def _distances_within(x: Expr, order: float = 2) -> Expr:
    """Distances of each row and those behind it."""
    rows = extents(x)[0]
    places = map(Constant, np.triu_indices(rows, 1)) if rows < PROBED else _pairs(rows)
    found: Expr = _vector_norm(call("subtract", *(call("take", x, place, axis=0) for place in places)), order, [-1])
    return found


def _pairs(rows: int) -> tuple[Expr, Expr]:
    """The first and the second row of each pair of a symbolic number of them; a pair looks at where all rows begin."""
    row, pair = (layer.steps(0, n, 1, "int64") for n in (rows, rows * (rows - 1) // 2))
    one, two = number(1, row), number(2, row)

    def begin(row: Expr) -> Expr:
        """The first pair of a row: those before have one less each."""
        rest = call("subtract", call("subtract", call("multiply", layer.count(rows, row), two), row), one)
        return call("floor_divide", call("multiply", row, rest), two)

    behind = call("greater_equal", layer.reshape(pair, (-1, 1)), begin(call("add", row, one)))
    first = call("sum", call("cast", behind, dtype="int64"), axis=(1,), keepdims=False)
    second = call("add", call("subtract", pair, begin(first)), call("add", first, one))
    return first, second
