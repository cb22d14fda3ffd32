"""Rules that compute constants, and move factors and summands of channels into weights and biases (batch norms)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from strategy.expr import Call, Constant, Expr, Tuple
from strategy.network.integer import is_scaled_sum
from strategy.network.rewriter import PRODUCTS, Rewriter, extents

_FOLDED = 1 << 28  # elements of a constant that is computed of smaller ones beforehand


def compute_constant(rewriter: Rewriter, node: Call) -> Expr | None:
    """A constant in place of a call of constants."""
    from strategy.types import TensorType

    kind, reference = node.checked_type, node.op.get_attr("FReference")
    arrays: list[Any] = []
    for arg in node.args:
        fields = arg.fields if isinstance(arg, Tuple) else [arg]
        if not all(isinstance(f, Constant) for f in fields):
            return None
        arrays += [f.value for f in fields if isinstance(f, Constant)]
    if reference is None or not isinstance(kind, TensorType) or kind.size > max([_FOLDED, *(a.size for a in arrays)]):
        return None
    with np.errstate(invalid="ignore"):  # as of an infinity that is cast to integers, and not chosen then
        found = np.asarray(reference(node.attrs, arrays), kind.dtype, order="C")
    return Constant(found.reshape(kind.concrete_shape))


def divide_by_number(rewriter: Rewriter, node: Call) -> Expr | None:
    """A sum or product with a number for a difference or quotient, where the result is rounded as before."""
    if node.op.name not in ("subtract", "divide"):
        return None
    value, by = node.args
    if not isinstance(by, Constant) or by.value.size != 1 or by.value.dtype.kind != "f":
        return None
    if node.op.name == "subtract":
        return rewriter.make("add", value, Constant(-by.value))
    if abs(math.frexp(by.value.item())[0]) != 0.5:  # no power of two: 41 · (1 / 41) is less than 1
        return None
    with np.errstate(over="ignore"):
        factor = np.asarray(1 / by.value, by.value.dtype)
    return rewriter.make("multiply", value, Constant(factor)) if np.isfinite(factor) else None


def _channels(node: Call) -> tuple[Call, Expr] | None:
    """A value with channels on axis 1, and a constant's entry for each of them, that a binary operator joins."""
    for value, other in (node.args, node.args[::-1]) if len(node.args) == 2 else ():
        if not isinstance(other, Constant) or not isinstance(value, Call):
            continue
        if value.op.name not in (*PRODUCTS, "bias_add") and not is_scaled_sum(value):
            continue
        product, shape = value.args[0] if value.op.name == "bias_add" else value, extents(value)
        if isinstance(product, Call) and {"data_layout", "kernel_layout"} & product.attrs.to_json().keys():
            continue  # its channels are elsewhere
        if product is not value and value.attrs.to_json().get("axis", 1) % len(shape) != 1:
            continue
        flat = (1,) * (len(shape) - other.value.ndim) + other.value.shape
        if extents(node) == shape and flat == (1, shape[1], *(1,) * (len(shape) - 2)):
            return value, Constant(np.ascontiguousarray(other.value.reshape(-1)))
    return None


def add_bias(rewriter: Rewriter, node: Call) -> Expr | None:
    """bias_add after a product for a sum with a constant of each channel, joined with a bias before it."""
    if node.op.name == "bias_add":
        value, bias = node.args
        if not (isinstance(value, Call) and value.op.name == "bias_add" and isinstance(bias, Constant)):
            return None
        pair: tuple[Call, Expr] | None = (value, bias) if node.attrs == value.attrs else None
    else:
        pair = _channels(node) if node.op.name in ("add", "subtract") else None
    if pair is None:
        return None
    value, summand = pair
    assert isinstance(summand, Constant)
    if node.op.name == "subtract":
        if node.args[0] is not value:
            return None
        summand = Constant(-summand.value)
    if value.op.name != "bias_add":
        return rewriter.make("bias_add", value, summand, axis=1)
    before = value.args[1]
    if not isinstance(before, Constant) or not rewriter.is_only(value):
        return None
    axis = value.attrs.to_json().get("axis", 1)
    with np.errstate(over="ignore"):
        bias = before.value + summand.value
    return rewriter.make("bias_add", value.args[0], Constant(bias), axis=axis) if np.isfinite(bias).all() else None


def scale_weight(rewriter: Rewriter, node: Call) -> Expr | None:
    """A product with scaled weights for a factor of each channel after it."""
    pair = _channels(node) if node.op.name in ("multiply", "divide") else None
    if pair is None or not rewriter.is_only(pair[0]):
        return None
    value, constant = pair
    assert isinstance(constant, Constant)
    if node.op.name == "divide":
        if node.args[0] is not value:
            return None
        with np.errstate(divide="ignore", over="ignore"):
            constant = Constant(1 / constant.value)
        if not (np.isfinite(constant.value) & (np.abs(constant.value) >= _least_normal(constant))).all():
            return None
    product = value.args[0] if value.op.name == "bias_add" else value
    if not isinstance(product, Call) or product.op.name not in PRODUCTS:
        return None
    data, weight = product.args
    if not isinstance(weight, Constant) or (product is not value and rewriter.uses[product] > 1):
        return None
    if weight.value.dtype != constant.value.dtype:  # of sums that are wider than the weight
        return None
    with np.errstate(over="ignore"):
        changed = weight.value * constant.value.reshape(-1, *(1,) * (weight.value.ndim - 1))
    if not np.isfinite(changed).all():
        return None
    # Less than the least normal number all weights of a channel would lose digits; smaller ones of it may.
    largest, before = (np.abs(w).reshape(len(w), -1).max(axis=1, initial=0) for w in (changed, weight.value))
    if ((largest < _least_normal(weight)) & (before > 0) & (constant.value != 0)).any():
        return None
    scaled: Expr = Call(product.op, [data, Constant(changed)], product.attrs)
    if product is value:
        return scaled
    bias = value.args[1]
    if not isinstance(bias, Constant):
        return None
    with np.errstate(over="ignore"):
        moved = bias.value * constant.value
    return Call(value.op, [scaled, Constant(moved)], value.attrs) if np.isfinite(moved).all() else None


def _least_normal(constant: Constant) -> float:
    """The least positive number of a constant's dtype that has all digits."""
    return {"float16": 2.0**-14, "float64": 2.0**-1022}.get(str(constant.value.dtype), 2.0**-126)
