"""Products of a few rows with a weight of 4 or 8 bits, in place of those with the real numbers that it stands for.

A product of a few rows takes as long as its weight is read, and integers are a fourth or an eighth of float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from strategy.expr import Call, Constant, Expr, call
from strategy.network.operand import VIEWS, moved_array, source_of
from strategy.network.rewriter import extents

_MOST_ROWS = 8  # with more, products of float32 are faster, as they do not unpack the weight for each few rows
_LEAST_BLOCK = 16  # of fewer numbers the scales would be a fourth of what is read, or more


def multiply_few_bits(node: Call) -> Expr | None:
    """The product of a few rows with a constant weight's integers, scaled by blocks along k; None for others."""
    if node.op.name != "dense" or {"data_layout", "kernel_layout", "out_dtype"} & node.attrs.to_json().keys():
        return None
    data, weight = node.args
    if data.tensor_type.dtype != "float32" or extents(data)[0] > _MOST_ROWS or not isinstance(weight, Call):
        return None
    found = _weight(weight)
    if found is None:
        return None
    numbers, scales = found
    size = _block_size(scales)
    low, high = numbers.min(initial=0), numbers.max(initial=0)
    bits = next((b for b in (4, 8) if -(1 << (b - 1)) <= low and high < 1 << (b - 1)), None)
    if bits is None or size % 2 or size < _LEAST_BLOCK:
        return None
    unsigned = (numbers + (1 << (bits - 1))).astype(np.uint8)
    packed = unsigned if bits == 8 else unsigned[:, ::2] | unsigned[:, 1::2] << 4
    n, k = numbers.shape
    operands = Constant(packed.reshape(n, k // size, -1)), Constant(np.ascontiguousarray(scales[:, ::size]))
    return call("matmul_nbits", data, *operands, bits=bits, block_size=size)


def _weight(node: Call) -> tuple[Any, Any] | None:
    """The integers of a constant weight, [n, k], less their zero points, and the scale of each in an array as large.

    None for other values.
    """
    source, views = source_of(node, VIEWS)
    if not isinstance(source, Call) or source.op.name not in ("dequantize", "cast"):
        return None
    whole, *given = source.args
    if not isinstance(whole, Constant) or not all(isinstance(arg, Constant) for arg in given):
        return None
    if whole.value.dtype.name not in ("int8", "uint8") or node.tensor_type.dtype != "float32":
        return None
    numbers = whole.value.astype(np.int32)
    scales: Any = np.float32(1)
    if given:
        axis = source.attrs.to_json().get("axis", -1) % max(numbers.ndim, 1)
        along = [-1 if i == axis else 1 for i in range(numbers.ndim)]
        scales, points = (arg.value.reshape(along) for arg in given if isinstance(arg, Constant))
        numbers = numbers - points
    each = np.broadcast_to(scales, numbers.shape)
    return moved_array(numbers, views), moved_array(each, views)


def _block_size(scales: Any) -> int:
    """The greatest number of entries of a row that share a scale, in all rows and from the first one on."""
    places = np.flatnonzero((scales[:, 1:] != scales[:, :-1]).any(axis=0)) + 1
    return math.gcd(scales.shape[1], *map(int, places))
