"""Products of 8-bit integers in place of products of the real numbers that they stand for.

Quantised models have integers, and multiply the numbers that `dequantize` makes of data and weight. The sums of the
integers' products, times both scales, are the same without the roundings of these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from strategy.compile.fusion import Group, describe
from strategy.expr import Call, Constant, Expr, Tuple, call, post_order
from strategy.network import layer
from strategy.network.few_bits import multiply_few_bits
from strategy.network.graph import Network
from strategy.network.operand import VIEWS, fold_operand, moved, moved_array, source_of
from strategy.network.rewriter import Rewriter, extents
from strategy.op_strategy import evaluate
from strategy.target import Target

_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}
_PRODUCTS = {"dense": "qdense", "conv2d": "qconv2d"}
_PLAIN = 10  # the plevel of loops without instructions for 8 bits, which products of real numbers outrun
_MOVES = VIEWS | {"max_pool2d", "strided_slice"}  # whose elements are those of their operand


def multiply_integers(network: Network, target: Target) -> Network:
    """The same network with products of integers where both operands are dequantised, and the target is fast at them.

    Products stay as they are whose sums int32 may not hold, those of data whose scales are several but for one of each
    row, and of scales or zero points that are not constant for the weight. So do convolutions of a network with
    symbolic sizes. Products of a few rows of real numbers read a weight's integers. Integers that are moved as real
    numbers alone are moved as integers.
    """

    def multiply(_: Rewriter, node: Call) -> Expr | None:
        is_product = node.op.name in _PRODUCTS and not (node.op.name == "conv2d" and network.sizes)
        return (_product(node, target) or multiply_few_bits(node)) if is_product else None

    made = Rewriter(network, (fold_operand, multiply, _move_integers, _quantize_parts))
    outputs = {name: made.of(node) for name, node in network.outputs.items()}
    twin = network.twin and multiply_integers(network.twin, target)
    return replace(network, outputs=outputs, names=made.names, twin=twin)


def constant_bytes(network: Network, target: Target) -> int:
    """The bytes of the numbers that a library holds of dequantised constants, four for each integer of no product."""
    nodes = (node for node in post_order(multiply_integers(network, target).root) if isinstance(node, Call))
    kept = (node for node in nodes if node.op.name == "dequantize" and isinstance(node.args[0], Constant))
    return sum(4 * node.tensor_type.size for node in kept)


def _product(node: Call, target: Target) -> Expr | None:
    data, weight = _data(node.args[0]), _weight(node.args[1])
    attrs = node.attrs.to_json()
    if data is None or weight is None or {"data_layout", "kernel_layout", "out_layout", "out_dtype"} & attrs.keys():
        return None
    (x, scale, point), (numbers, scales, of_weight) = data, weight
    points = set(point.value.flat) if isinstance(point, Constant) else set()
    is_known = len(points) == 1
    of_data = int(points.pop()) if is_known else 0
    sizes = np.abs(numbers.value.astype(np.int64) - of_weight).reshape(len(numbers.value), -1).sum(axis=1)
    if sizes.max() * 255 >= 1 << 31 or not (_is_number(of_data, x) and _is_number(of_weight, numbers)):
        return None
    by_rows = extents(scale) not in ((), (1,))
    of_outputs = Constant(scales.value.reshape(())) if scales.value.size == 1 else scales
    factor = of_outputs if by_rows else _joint_scale(layer.reshape(scale, ()), of_outputs)
    if factor is None:
        return None
    given: dict[str, Any] = {**attrs, "kernel_zero_point": of_weight}
    sums = call(_PRODUCTS[node.op.name], x, numbers, **given, input_zero_point=of_data)
    if not _is_fast(sums, target):
        return None
    if not is_known:
        count = extents(point)
        sums = subtract_point(sums, layer.reshape(point, (*count, 1) if by_rows and count else ()), given)
    found: Expr = call("dequantize", sums, factor, Constant(np.zeros((), np.int32)), axis=1)
    return call("multiply", found, layer.reshape(scale, (*extents(scale), 1))) if by_rows else found


def _data(node: Expr) -> tuple[Expr, Expr, Expr] | None:
    """The 8-bit integers of data, their scale and zero point, or those of each row; None for other values."""
    source, moves = source_of(node, VIEWS)
    if not isinstance(source, Call) or source.op.name != "dequantize":
        return None
    x, *numbers = source.args
    if x.tensor_type.dtype not in _BOUNDS:
        return None
    scale, point = numbers
    if any(extents(number) not in ((), (1,)) for number in numbers):
        keeps_rows = len(extents(x)) == 2 and extents(node) == extents(x) and all(m.op.name == "reshape" for m in moves)
        if not keeps_rows or source.attrs.to_json().get("axis", -1) % 2 or extents(scale) in ((), (1,)):
            return None
    return moved(x, moves), scale, point


def _weight(node: Expr) -> tuple[Constant, Constant, int] | None:
    """The 8-bit integers of a constant weight, its scales, one or one for each row, and its only zero point.

    None for other values, and where a row has several scales.
    """
    source, moves = source_of(node, VIEWS)
    if not isinstance(source, Call) or source.op.name != "dequantize":
        return None
    if not all(isinstance(arg, Constant) for arg in source.args):
        return None
    whole, scales, points = (arg for arg in source.args if isinstance(arg, Constant))
    numbers = whole.value
    if numbers.dtype.name not in _BOUNDS or len(set(points.value.flat)) != 1:
        return None
    axis = source.attrs.to_json().get("axis", -1) % max(numbers.ndim, 1)
    each = scales.value.reshape([-1 if i == axis else 1 for i in range(numbers.ndim)])
    each = np.broadcast_to(each, numbers.shape)
    numbers, each = (moved_array(v, moves) for v in (numbers, each))
    if scales.value.size > 1:
        rows = each.reshape(len(each), -1)
        if (rows != rows[:, :1]).any():
            return None
        scales = Constant(np.ascontiguousarray(rows[:, 0]))
    made = Constant(np.ascontiguousarray(numbers)) if moves else whole
    return made, scales, int(points.value.flat[0])


def _is_number(zero_point: int, of: Expr) -> bool:
    low, high = _BOUNDS[of.tensor_type.dtype]
    return low <= zero_point <= high


def _joint_scale(scale: Expr, scales: Constant) -> Expr | None:
    """The product of the data's scale and the weight's, one or one for each output; None if float32 lacks it."""
    if not isinstance(scale, Constant):
        found: Expr = call("multiply", scales, scale)
        return found
    with np.errstate(over="ignore", under="ignore"):
        joint = scale.value * scales.value
    is_held = np.isfinite(joint) & ((np.abs(joint) >= np.finfo(np.float32).tiny) | (scales.value == 0))
    return Constant(np.asarray(joint)) if is_held.all() else None


def _is_fast(sums: Call, target: Target) -> bool:
    workload, _ = describe(Group([sums]))
    valid = (i for condition, i in evaluate(workload, target) if condition is None or condition.decide() is not False)
    return any(i.plevel > _PLAIN for i in valid)


def subtract_point(sums: Call, point: Expr, attrs: Mapping[str, Any]) -> Call:
    """Sums of products less those of the data's zero point, which is computed at the call, with the weight.

    Args:
        point: a number, or one for each row of the data, [m, 1].
        attrs: of the product, which have no zero point of the data.
    """
    x, numbers = sums.args
    # The padding has the zero point, too, and thus no part in the sums.
    if any(attrs.get("padding", ())) or not isinstance(numbers, Constant):
        ones = layer.filled(1, (1, *extents(x)[1:]), x.tensor_type.dtype)
        return call("subtract", sums, call("multiply", call("qconv2d", ones, numbers, **attrs), point))
    of_rows = (attrs["kernel_zero_point"] - numbers.value.astype(np.int32)).reshape(len(numbers.value), -1)
    each = of_rows.sum(axis=1, dtype=np.int32)
    if extents(point):
        return call("add", sums, call("multiply", Constant(each[None]), point))
    return call("bias_add", sums, call("multiply", Constant(each), point), axis=1)


def _move_integers(rewriter: Rewriter, node: Call) -> Expr | None:
    """Integers moved as they are, for moved real numbers of them that become the same integers again."""
    if node.op.name != "quantize":
        return None
    source, moves = source_of(node.args[0], _MOVES)
    if not isinstance(source, Call) or source.op.name != "dequantize":
        return None
    x, *before = source.args
    is_read = any(rewriter.uses[move] > (move is not node.args[0]) for move in moves)  # as real numbers, too
    if is_read or x.tensor_type.dtype != node.tensor_type.dtype:
        return None
    numbers = [a.value.item() for a in (*before, *node.args[1:]) if isinstance(a, Constant) and a.value.size == 1]
    if len(numbers) != 4 or numbers[:2] != numbers[2:]:
        return None
    scale, point = numbers[:2]
    # float32 has its products with bytes, but for a rounding. Below 0 the largest number would be the least integer.
    is_exact = 2.0**-100 < scale < 2.0**100
    return moved(x, moves) if is_exact and _is_number(point, x) else None


def _quantize_parts(rewriter: Rewriter, node: Call) -> Expr | None:
    """Integers that are concatenated, for integers of concatenated real numbers."""
    whole, *given = node.args
    if node.op.name != "quantize" or any(extents(number) for number in given):
        return None
    if not isinstance(whole, Call) or whole.op.name != "concatenate" or not rewriter.is_only(whole):
        return None
    parts, attrs = whole.args[0], node.attrs.to_json()
    if not isinstance(parts, Tuple):
        return None
    each = [rewriter.make("quantize", part, *given, **attrs) for part in parts.fields]
    return Call(whole.op, [Tuple(each)], whole.attrs)


def drop_offset(rewriter: Rewriter, node: Call) -> Expr | None:
    """The sums of signed bytes, for those of bytes that are 128 more, less 128 times the sums of the weight."""
    if node.op.name != "subtract":
        return None
    sums, share = node.args
    if not (isinstance(sums, Call) and sums.op.name == "qdense" and isinstance(share, Constant)):
        return None
    data, weight = sums.args
    attrs = sums.attrs.to_json()
    if not isinstance(weight, Constant) or attrs.get("input_zero_point", 0) or data.tensor_type.dtype != "uint8":
        return None
    shifted = data.args[0] if isinstance(data, Call) and data.op.name == "cast" else None
    if not isinstance(shifted, Call) or shifted.op.name != "add":
        return None
    number, offset = shifted.args
    source = number.args[0] if isinstance(number, Call) and number.op.name == "cast" else None
    is_offset = isinstance(offset, Constant) and offset.value.size == 1 and offset.value.item() == 128
    if source is None or source.tensor_type.dtype != "int8" or not is_offset:
        return None
    of_rows = (weight.value.astype(np.int64) - attrs.get("kernel_zero_point", 0)).sum(axis=1)
    fits = share.value.shape in (of_rows.shape, (1, *of_rows.shape)) and (share.value == 128 * of_rows).all()
    return call("qdense", source, weight, **attrs) if fits else None


def dequantize_sums(rewriter: Rewriter, node: Call) -> Expr | None:
    """The real numbers of sums of integers that are cast, and times one factor or one for each channel.

    They may be times one for each row before.
    """
    if node.op.name != "multiply":
        return None
    for value, factor in (node.args, node.args[::-1]):
        sums, rows = _cast_sums(rewriter, value)
        if sums is None:
            continue
        whole, shape = extents(value), extents(factor)
        flat = (1,) * (len(whole) - len(shape)) + shape
        each = (1, whole[1], *(1,) * (len(whole) - 2))
        if extents(node) != whole or node.tensor_type.dtype != "float32" or flat not in (each, (1,) * len(whole)):
            continue
        scales = rewriter.reshaped(factor, () if math.prod(shape) == 1 else (whole[1],))
        found = rewriter.make("dequantize", sums, scales, Constant(np.zeros((), np.int32)), axis=1)
        return found if rows is None else rewriter.make("multiply", found, rows)
    return None


def _cast_sums(rewriter: Rewriter, value: Expr) -> tuple[Expr | None, Expr | None]:
    """The sums of integers that are cast, and their factors of rows, [m, 1], if they have any."""
    if not isinstance(value, Call) or not rewriter.is_only(value):
        return None, None
    if value.op.name == "cast":
        return (value.args[0], None) if is_sum(value.args[0]) else (None, None)
    for cast, rows in (value.args, value.args[::-1]) if value.op.name == "multiply" else ():
        is_cast = isinstance(cast, Call) and cast.op.name == "cast" and rewriter.uses[cast] == 1
        if is_cast and is_sum(cast.inputs[0]) and len(extents(value)) == 2 and extents(rows) == (extents(value)[0], 1):
            return cast.inputs[0], rows
    return None, None


def is_sum(node: Expr) -> bool:
    """Return whether a value is of sums of products of integers."""
    while isinstance(node, Call) and node.op.name == "bias_add":
        node = node.args[0]
    return isinstance(node, Call) and node.op.name in _PRODUCTS.values()


def is_scaled_sum(node: Call) -> bool:
    """Return whether a value is of the real numbers of such sums, which may be times one for each row."""
    if node.op.name == "multiply" and (*extents(node)[:-1], 1) in map(extents, node.args):
        node = next((arg for arg in node.args if isinstance(arg, Call) and arg.op.name == "dequantize"), node)
    return node.op.name == "dequantize" and is_sum(node.args[0])
