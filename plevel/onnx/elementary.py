"""Elementary functions of ONNX, and operators of bits."""

from __future__ import annotations

import numpy as np
import onnx.helper

from plevel.onnx.node import OPERATORS, Node, register
from strategy.expr import Expr, call
from strategy.network import elementary
from strategy.network.graph import NetworkError
from strategy.network.layer import number

for _name, _function in {
    "Tan": elementary.tan, "Asin": elementary.asin, "Acos": elementary.acos, "Sinh": elementary.sinh,
    "Cosh": elementary.cosh, "Asinh": elementary.asinh, "Acosh": elementary.acosh, "Atanh": elementary.atanh,
}.items():
    OPERATORS[_name] = lambda node, x, _function=_function: _function(x)
for _name in ("and", "or", "xor"):
    OPERATORS[f"Bitwise{_name.capitalize()}"] = lambda node, x, y, _own=f"bitwise_{_name}": call(_own, x, y)
OPERATORS["Atan"] = lambda node, x: call("atan", x)


def elu(x: Expr, alpha: float) -> Expr:
    less = call("multiply", call("subtract", call("exp", x), number(1, x)), number(alpha, x))
    return call("where", call("less", x, number(0, x)), less, x)


def thresholded_relu(x: Expr, alpha: float) -> Expr:
    return call("where", call("greater", x, number(alpha, x)), x, number(0, x))


def softsign(x: Expr) -> Expr:
    return call("divide", x, call("add", call("abs", x), number(1, x)))


# ONNX has parts of these for operator sets of 18 and later alone.
OPERATORS |= {
    "Elu": lambda node, x: elu(x, node.get("alpha", 1.0)),
    "Selu": lambda node, x: call(
        "multiply", elu(x, node.get("alpha", 1.67326319217681884765625)),
        number(node.get("gamma", 1.05070102214813232421875), x),
    ),
    "Softsign": lambda node, x: softsign(x),
    "ThresholdedRelu": lambda node, x: thresholded_relu(x, node.get("alpha", 1.0)),
}


@register("BitShift")
def _shift(node: Node, x: Expr, y: Expr) -> Expr:
    return call("left_shift" if node.require("direction") == b"LEFT" else "right_shift", x, y)


@register("BitwiseNot")
def _not(node: Node, x: Expr) -> Expr:
    dtype = x.tensor_type.dtype
    if "int" not in dtype:
        raise NetworkError(f"bits of {dtype}: plevel has those of integers")
    return call("bitwise_xor", x, number(np.iinfo(dtype).max if dtype.startswith("u") else -1, x))


@register("BitCast")
def _bitcast(node: Node, x: Expr) -> Expr:
    """Integers of one width, of which a cast keeps the bits."""
    dtype, own = onnx.helper.tensor_dtype_to_np_dtype(node.require("to")), np.dtype(x.tensor_type.dtype)
    if not {dtype.kind, own.kind} <= {"i", "u"} or dtype.itemsize != own.itemsize:
        raise NetworkError(f"bits of {own} as {dtype}: plevel has those of integers of one width")
    return x if dtype == own else call("cast", x, dtype=dtype.name)


@register("Shrink")
def _shrink(node: Node, x: Expr) -> Expr:
    """Elements nearer to 0, by `bias`, and 0 within `lambd` of it; of integers as of float64, rounded towards 0."""
    dtype = x.tensor_type.dtype
    if "float" not in dtype:
        return call("cast", _shrink(node, call("cast", x, dtype="float64")), dtype=dtype)
    bound, bias = node.get("lambd", 0.5), number(node.get("bias", 0.0), x)
    below, above = call("less", x, number(-bound, x)), call("less", number(bound, x), x)
    nearer = call("where", above, call("subtract", x, bias), number(0, x))
    return call("where", below, call("add", x, bias), nearer)
