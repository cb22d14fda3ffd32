"""Operators of mixtures of experts, whose rows are in groups of their own weights, as calls of plevel's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plevel.torch.aten import OPERATORS, cast, dtype_named, register
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.scatter import add_elements, require_few
from strategy.network.size import PROBED


@register("histc.default")
def _histogram(x: Expr, bins: int = 100, low: float = 0, high: float = 0) -> Expr:
    """The numbers of elements within equal parts of a range; those beyond it count nowhere."""
    if low >= high:
        raise NetworkError(f"a histogram from {low} to {high}, whose range is that of the values: give one")
    n, dtype = math.prod(extents(x)), x.tensor_type.dtype
    require_few(math.prod(e for e in extents(x) if e < PROBED) * bins, f"{bins} bins of {n} elements")
    flat = layer.reshape(x, (n, 1))
    least, most = number(low, flat), number(high, flat)
    # In PyTorch's order, and its range in the values' dtype: their rounding decides where a bound itself belongs.
    many = call("multiply", call("subtract", flat, least), number(bins, flat))
    from_low = call("divide", many, Constant(np.asarray(most.value - least.value)))
    # The last bin has its upper end, too.
    place = call("minimum", call("floor", from_low), number(bins - 1, flat))
    inside = call("logical_and", call("less_equal", least, flat), call("less_equal", flat, most))
    found = call("logical_and", inside, call("equal", place, Constant(np.arange(bins, dtype=dtype)[None])))
    return call("sum", cast(found, dtype), axis=(0,), keepdims=False)


@register("bincount.default")
def _bincount(x: Expr, weights: Expr | None = None, minlength: int = 0) -> Expr:
    """The numbers of elements of each value, or the sums of their weights.

    There are as many values as `minlength` says, which the program has to claim: else their number depends on them.
    """
    kind = "int64" if weights is None else "float32" if weights.tensor_type.dtype == "float32" else "float64"
    each = layer.filled(1, extents(x), kind) if weights is None else cast(weights, kind)
    return add_elements(layer.filled(0, (minlength,), kind), 0, x, each)


def _grouped_matmul(x: Expr, weight: Expr, ends: Expr) -> Expr:
    """The product of rows [s, k], of which each group ends at a place, with the group's own weight of [g, k, n].

    Rows behind the last group have the result 0.
    """
    return call("grouped_dense", x, layer.swap(weight), cast(ends, "int32"))


# Of Hugging Face's transformers, in place of PyTorch's own where that has no kernel.
OPERATORS["transformers.grouped_mm_fallback.default"] = _grouped_matmul


@register("_grouped_mm.default")
def _grouped_mm(
    x: Expr, weight: Expr, ends: Expr | None = None, bias: Expr | None = None, out_dtype: Any = None
) -> Expr:
    if ends is None or bias is not None or (len(extents(x)), len(extents(weight))) != (2, 3):
        raise NetworkError("a grouped product of other operands than rows, a weight for each group, and their ends")
    return cast(_grouped_matmul(x, weight, ends), dtype_named(out_dtype, x.tensor_type.dtype))
