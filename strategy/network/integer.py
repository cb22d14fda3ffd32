"""Products of 8-bit integers in place of products of the real numbers that they stand for.

Quantised models have integers, and multiply the numbers that `dequantize` makes of data and weight. The sums of the
integers' products, times both scales, are the same without the roundings of these numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from strategy.compile.fusion import Group, describe
from strategy.expr import Call, Constant, Expr, call, post_order
from strategy.network import layer
from strategy.network.graph import Network
from strategy.network.rewriter import Rewriter, behind, extents
from strategy.op_strategy import evaluate
from strategy.target import Target

_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}
_PRODUCTS = {"dense": "qdense", "conv2d": "qconv2d"}
_PLAIN = 10  # the plevel of loops without instructions for 8 bits, which products of real numbers outrun


def multiply_integers(network: Network, target: Target) -> Network:
    """The same network with products of integers where both operands are dequantised, and the target is fast at them.

    Products stay as they are whose sums int32 may not hold, and those of scales or zero points that are several for
    the data, or not constant for the weight. So do convolutions of a network with symbolic sizes.
    """

    def multiply(_: Rewriter, node: Call) -> Expr | None:
        is_product = node.op.name in _PRODUCTS and not (node.op.name == "conv2d" and network.sizes)
        return _product(node, target) if is_product else None

    made = Rewriter(network, (multiply,))
    outputs = {name: made.of(node) for name, node in network.outputs.items()}
    twin = network.twin and multiply_integers(network.twin, target)
    return replace(network, outputs=outputs, names=made.names, twin=twin)


def constant_bytes(network: Network, target: Target) -> int:
    """The bytes of the numbers that a library holds of dequantised constants, four for each integer of no product."""
    nodes = (node for node in post_order(multiply_integers(network, target).root) if isinstance(node, Call))
    kept = (node for node in nodes if node.op.name == "dequantize" and isinstance(node.args[0], Constant))
    return sum(4 * node.tensor_type.size for node in kept)


def _product(node: Call, target: Target) -> Expr | None:
    data, weight = _dequantized(node.args[0]), _dequantized(node.args[1])
    attrs = node.attrs.to_json()
    if data is None or weight is None or {"data_layout", "kernel_layout", "out_layout", "out_dtype"} & attrs.keys():
        return None
    numbers, scales, points = weight.args
    if not (isinstance(numbers, Constant) and isinstance(scales, Constant) and isinstance(points, Constant)):
        return None
    is_of_rows = weight.attrs.to_json().get("axis", -1) % numbers.value.ndim == 0
    if numbers.value.shape != extents(node.args[1]):
        numbers = Constant(numbers.value.reshape(extents(node.args[1])))
    if scales.value.size not in (1, len(numbers.value) if is_of_rows else 1) or len(set(points.value.flat)) != 1:
        return None
    x, scale, point = data.args
    if max(scale.tensor_type.ndim and extents(scale)[0], point.tensor_type.ndim and extents(point)[0]) > 1:
        return None
    of_data, of_weight = int(point.value.flat[0]) if isinstance(point, Constant) else 0, int(points.value.flat[0])
    sizes = np.abs(numbers.value.astype(np.int64) - of_weight).reshape(len(numbers.value), -1).sum(axis=1)
    if sizes.max() * 255 >= 1 << 31 or not (_is_number(of_data, x) and _is_number(of_weight, numbers)):
        return None
    factor = _joint_scale(layer.reshape(scale, ()), scales)
    if factor is None:
        return None
    given: dict[str, Any] = {**attrs, "kernel_zero_point": of_weight}
    x = layer.reshape(x, extents(node.args[0]))
    sums = call(_PRODUCTS[node.op.name], x, numbers, **given, input_zero_point=of_data)
    if not _is_fast(sums, target):
        return None
    if not isinstance(point, Constant):
        sums = _without(layer.reshape(point, ()), sums, given)
    return call("dequantize", sums, factor, Constant(np.zeros((), np.int32)), axis=1)


def _dequantized(node: Expr) -> Call | None:
    """The call that makes a value's real numbers of 8-bit integers, which reshapes may show; None for others."""
    while (source := behind(node)) is not None:
        node = source
    if not isinstance(node, Call) or node.op.name != "dequantize":
        return None
    return node if node.args[0].tensor_type.dtype in _BOUNDS else None


def _is_number(zero_point: int, of: Expr) -> bool:
    low, high = _BOUNDS[of.tensor_type.dtype]
    return low <= zero_point <= high


def _joint_scale(scale: Expr, scales: Constant) -> Expr | None:
    """The product of the data's scale and the weight's, one or one for each output; None if float32 lacks it."""
    of_weight = Constant(scales.value.reshape(()) if scales.value.size == 1 else scales.value)
    if not isinstance(scale, Constant):
        found: Expr = call("multiply", of_weight, scale)
        return found
    with np.errstate(over="ignore", under="ignore"):
        joint = scale.value * of_weight.value
    is_held = np.isfinite(joint) & ((np.abs(joint) >= np.finfo(np.float32).tiny) | (of_weight.value == 0))
    return Constant(np.asarray(joint)) if is_held.all() else None


def _is_fast(sums: Call, target: Target) -> bool:
    workload, _ = describe(Group([sums]))
    valid = (i for condition, i in evaluate(workload, target) if condition is None or condition.decide() is not False)
    return any(i.plevel > _PLAIN for i in valid)


def _without(point: Expr, sums: Call, attrs: dict[str, Any]) -> Call:
    """Sums of products less those of the data's zero point, which is computed at the call, with the weight."""
    x, numbers = sums.args
    assert isinstance(numbers, Constant)
    if any(attrs.get("padding", ())):  # which has the zero point, too, and thus no part in the sums
        ones = layer.filled(1, (1, *extents(x)[1:]), x.tensor_type.dtype)
        return call("subtract", sums, call("multiply", call("qconv2d", ones, numbers, **attrs), point))
    of_rows = (attrs["kernel_zero_point"] - numbers.value.astype(np.int32)).reshape(len(numbers.value), -1)
    each = Constant(of_rows.sum(axis=1, dtype=np.int32))
    return call("bias_add", sums, call("multiply", each, point), axis=1)
