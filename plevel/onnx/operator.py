"""Operators of ONNX as calls of plevel's, by their names: arithmetic, products, norms, reductions and choices."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx.helper

from plevel.onnx.node import OPERATORS, Node, Operator, constant, integers, register
from strategy.expr import Constant, Expr, TupleGetItem, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents

for _name, _own in {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Abs": "abs",
    "Erf": "erf", "Neg": "negative", "HardSwish": "hardswish", "Mish": "mish", "Floor": "floor", "Round": "round",
    "Ceil": "ceil", "Sin": "sin", "Cos": "cos", "Not": "logical_not", "IsNaN": "isnan", "Sign": "sign",
    "Softplus": "softplus",
}.items():
    OPERATORS[_name] = lambda node, x, _own=_own: call(_own, x)
for _name, _own in {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor",
}.items():
    OPERATORS[_name] = lambda node, x, y, _own=_own: call(_own, x, y)


@register("Div")
def _div(node: Node, x: Expr, y: Expr) -> Expr:
    return call("divide", x, y) if "float" in x.tensor_type.dtype else layer.truncated_quotient(x, y)


@register("Dropout")
def _dropout(
    node: Node, x: Expr, ratio: Expr | None = None, training: Expr | None = None
) -> tuple[Expr, Expr]:
    draws = not node.get("is_test", 0) if node.version < 7 else training is not None
    if draws and (training is None or constant(training, "training_mode").any()):
        raise NetworkError("training_mode: export the model in eval mode")
    return x, layer.filled(True, extents(x), "bool")


OPERATORS["Max"] = lambda node, first, *more: folded("maximum", first, more)
OPERATORS["Min"] = lambda node, first, *more: folded("minimum", first, more)
OPERATORS["Sum"] = lambda node, first, *more: folded("add", first, more)
OPERATORS["Mean"] = lambda node, first, *more: call(
    "divide", folded("add", first, more), number(1 + len(more), first)
)


def folded(name: str, first: Expr, more: Sequence[Expr]) -> Expr:
    """The values by an operator of two of them at a time."""
    for value in more:
        first = call(name, first, value)
    return first


@register("Pow")
def _pow(node: Node, x: Expr, y: Expr) -> Expr:
    if isinstance(y, Constant) and y.value.size == 1:
        exponent = float(y.value.reshape(()))
        x = layer.broadcast(x, np.broadcast_shapes(extents(x), extents(y)))
        if exponent == 2:
            return call("multiply", x, x)
        if exponent == 0.5 and "float" in x.tensor_type.dtype:
            return call("sqrt", x)
        y = y if "float" in x.tensor_type.dtype else Constant(y.value.reshape(()))
    return _power(x, y)


def _power(x: Expr, y: Expr) -> Expr:
    """The power in the dtype of x; of integers in float64, rounded towards 0 as ONNX Runtime's."""
    dtype = x.tensor_type.dtype
    if "float" in dtype:
        return call("power", x, y if y.tensor_type.dtype == dtype else call("cast", y, dtype=dtype))
    return call("cast", call("power", *(call("cast", v, dtype="float64") for v in (x, y))), dtype=dtype)


@register("Mod")
def _mod(node: Node, x: Expr, y: Expr) -> Expr:
    """The remainder with the sign of y, or of x with `fmod`."""
    if not node.get("fmod", 0) or x.tensor_type.dtype.startswith("uint"):
        return call("floor_mod", x, y)
    rest = call("floor_mod", call("abs", x), call("abs", y))
    return call("where", call("less", x, number(0, x)), call("negative", rest), rest)


@register("IsInf")
def _is_infinite(node: Node, x: Expr) -> Expr:
    signs = [node.get(f"detect_{name}", 1) for name in ("negative", "positive")]
    return call("isinf", x) if all(signs) else call("equal", x, number(math.inf if signs[1] else -math.inf, x))


OPERATORS |= {
    "Identity": lambda node, x: x,
    "Reciprocal": lambda node, x: call("divide", number(1, x), x),
    "Gelu": lambda node, x: call("gelu", x, approximate=node.get("approximate", "none")),
    "LeakyRelu": lambda node, x: call("leaky_relu", x, alpha=float(node.get("alpha", 0.01))),
    "Where": lambda node, condition, x, y: call("where", condition, x, y),
    "MatMul": lambda node, x, y: layer.matmul(x, y),
    "InstanceNormalization": lambda node, x, scale, shift: call(
        "instance_norm", x, scale, shift, axis=1, epsilon=float(node.get("epsilon", 1e-5))
    ),
}


@register("CastLike")
def _cast_like(node: Node, x: Expr, like: Expr) -> Expr:
    dtype = like.tensor_type.dtype
    return x if x.tensor_type.dtype == dtype else call("cast", x, dtype=dtype)


@register("HardSigmoid")
def _hard_sigmoid(node: Node, x: Expr) -> Expr:
    alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
    # PyTorch's 1/6, of which the file has the float32.
    alpha = 1 / 6 if math.isclose(alpha, 1 / 6, rel_tol=1e-6) else alpha
    return call("hardsigmoid", x, alpha=alpha, beta=beta)


@register("PRelu")
def _prelu(node: Node, x: Expr, slope: Expr) -> Expr:
    shape, rank = extents(slope), len(extents(x))
    aligned = (1,) * (rank - len(shape)) + shape
    if rank > 1 and (math.prod(shape) == 1 or aligned == (1, extents(x)[1], *(1,) * (rank - 2))):
        return call("prelu", x, layer.broadcast(layer.reshape(slope, (-1,)), (extents(x)[1],)), axis=1)
    negative = call("minimum", x, number(0, x))
    return call("add", call("relu", x), call("multiply", negative, slope))


@register("Clip")
def _clip(node: Node, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    if not all(v is None or isinstance(v, Constant) for v in (low, high)):
        for name, bound in (("maximum", low), ("minimum", high)):
            x = x if bound is None else call(name, x, layer.reshape(bound, ()))
        return x
    least = node.get("min") if low is None else constant(low, "min").item()
    most = node.get("max") if high is None else constant(high, "max").item()
    return layer.clip(x, least, most)


@register("Cast")
def _cast(node: Node, x: Expr) -> Expr:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(node.get("to")).name
    return x if x.tensor_type.dtype == dtype else call("cast", x, dtype=dtype)


@register("Gemm")
def _gemm(node: Node, x: Expr, y: Expr, bias: Expr | None = None) -> Expr:
    x = layer.swap(x) if node.get("transA", 0) else x
    weight = y if node.get("transB", 0) else layer.swap(y)
    found = layer.linear(x, weight)
    if node.get("alpha", 1.0) != 1:
        found = call("multiply", found, number(node.get("alpha"), found))
    if bias is None or node.get("beta", 1.0) == 0:
        return found
    if node.get("beta", 1.0) != 1:
        bias = call("multiply", bias, number(node.get("beta"), bias))
    return layer.add_bias(found, bias)


@register("BatchNormalization")
def _batch_norm(node: Node, x: Expr, scale: Expr, shift: Expr, mean: Expr, variance: Expr) -> Expr:
    if node.get("training_mode", 0):
        raise NetworkError("training_mode: export the model in eval mode")
    return layer.batch_norm(x, scale, shift, mean, variance, node.get("epsilon", 1e-5))


@register("LayerNormalization")
def _layer_norm(node: Node, x: Expr, scale: Expr, shift: Expr | None = None) -> Expr | tuple[Expr, ...]:
    """The norm; behind it, where they are named, the mean and the inverse of the deviation, in float32."""
    axis = node.get("axis", -1) % len(extents(x))
    size = math.prod(extents(x)[axis:])
    beta = Constant(np.zeros(size, x.tensor_type.dtype)) if shift is None else layer.reshape(shift, (size,))
    found: Expr = call(
        "layer_norm", layer.reshape(x, (*extents(x)[:axis], size)), layer.reshape(scale, (size,)), beta,
        axis=-1, epsilon=float(node.get("epsilon", 1e-5)),
    )
    found = layer.reshape(found, extents(x))
    if node.count == 1:
        return found
    wide = x if x.tensor_type.dtype == "float32" else call("cast", x, dtype="float32")
    about = {"axis": tuple(range(axis, len(extents(x)))), "keepdims": True}
    moved = call("add", call("variance", wide, **about), number(node.get("epsilon", 1e-5), wide))
    return found, call("mean", wide, **about), call("rsqrt", moved)


def _along(function: Callable[[Expr, int], Expr]) -> Operator:
    def make(node: Node, x: Expr) -> Expr:
        axis = node.get("axis", -1 if node.version >= 13 else 1) % len(extents(x))
        if node.version >= 13:
            return function(x, axis)
        # Of all further axes together.
        flat = layer.reshape(x, (math.prod(extents(x)[:axis]), math.prod(extents(x)[axis:])))
        return layer.reshape(function(flat, 1), extents(x))

    return make


def _first_largest(x: Expr, axis: int) -> Expr:
    """1 at the first of the largest elements, and 0."""
    places = call("argmax", x, axis=(axis,), keepdims=True, dtype="int64")
    extent, behind = extents(x)[axis], (1,) * (len(extents(x)) - 1 - axis)
    own = layer.reshape(layer.steps(0, extent, 1, "int64"), (extent, *behind))
    return call("where", call("equal", own, places), number(1, x), number(0, x))


OPERATORS["Softmax"] = _along(lambda x, axis: call("softmax", x, axis=axis))
OPERATORS["LogSoftmax"] = _along(lambda x, axis: call("log_softmax", x, axis=axis))
OPERATORS["Hardmax"] = _along(_first_largest)


def _reduce(name: str, before: str = "", after: str = "") -> Operator:
    """A reduction of `before` of the elements, and `after` of it; of no axes, both of each element."""

    def make(node: Node, x: Expr, given: Expr | None = None) -> Expr:
        axes = integers(node, "axes", given)
        kept = not axes and node.get("noop_with_empty_axes", 0)
        x = call("multiply", x, x) if before == "square" else call(before, x) if before else x
        found = x
        if extents(x) and not kept:
            about = {"axis": tuple(axes or range(len(extents(x)))), "keepdims": bool(node.get("keepdims", 1))}
            if x.tensor_type.dtype != "bool":
                found = call(name, x, **about)
            elif name == "max":
                found = call("any", x, **about)
            else:
                found = call("logical_not", call("any", call("logical_not", x), **about))
        return call(after, found) if after else found

    return make


for _name, _parts in {
    "ReduceMean": ("mean",), "ReduceSum": ("sum",), "ReduceMax": ("max",), "ReduceMin": ("min",),
    "ReduceProd": ("prod",), "ReduceL1": ("sum", "abs"), "ReduceL2": ("sum", "square", "sqrt"),
    "ReduceSumSquare": ("sum", "square"), "ReduceLogSum": ("sum", "", "log"), "ReduceLogSumExp": ("logsumexp",),
}.items():
    OPERATORS[_name] = _reduce(*_parts)


@register("LpNormalization")
def _lp_normalization(node: Node, x: Expr) -> Expr:
    order = node.get("p", 2)
    if order not in (1, 2):
        raise NetworkError(f"a norm of order {order}: plevel has 1 and 2")
    powers = call("abs", x) if order == 1 else call("multiply", x, x)
    norm = call("sum", powers, axis=(node.get("axis", -1),), keepdims=True)
    norm = norm if order == 1 else call("sqrt", norm)
    return call("divide", x, call("where", call("equal", norm, number(0, x)), number(1, x), norm))


def _place(name: str) -> Operator:
    def make(node: Node, x: Expr) -> Expr:
        axis, last = node.get("axis", 0), node.get("select_last_index", 0)
        x = call("reverse", x, axis=axis) if last else x
        found = call(name, x, axis=(axis,), keepdims=bool(node.get("keepdims", 1)), dtype="int64")
        return call("subtract", layer.count(extents(x)[axis] - 1, found), found) if last else found

    return make


OPERATORS["ArgMax"], OPERATORS["ArgMin"] = _place("argmax"), _place("argmin")


@register("TopK")
def _topk(node: Node, x: Expr, count: Expr) -> tuple[Expr, Expr]:
    k, axis = int(constant(count, "K").item()), node.get("axis", -1)
    if node.sizes is not None:
        node.limits.append((k, extents(x)[axis]))
    found = layer.largest(x, k, axis, ascending=not node.get("largest", 1))
    return call("gather", x, found, axis=axis), found


def _scan(name: str) -> Operator:
    def make(node: Node, x: Expr, given: Expr) -> Expr:
        axis = int(constant(given, "axis").item())
        backwards, attrs = node.get("reverse", 0), {"exclusive": bool(node.get("exclusive", 0))}
        x = call("reverse", x, axis=axis) if backwards else x
        found = call(name, x, axis=axis, dtype=x.tensor_type.dtype, **attrs)
        return call("reverse", found, axis=axis) if backwards else found

    return make


OPERATORS["CumSum"], OPERATORS["CumProd"] = _scan("cumsum"), _scan("cumprod")


@register("Einsum")
def _einsum(node: Node, *operands: Expr) -> Expr:
    """Products of two operands at a time, with the axes that both have, and a later one needs, as the batch."""
    equation = node.require("equation").decode().replace(" ", "")
    values, equation = _without_ellipsis(operands, equation)
    given, arrow, wanted = equation.partition("->")
    terms = given.split(",")
    wanted = wanted if arrow else "".join(sorted(a for a in set(given) - {","} if given.count(a) == 1))
    if len(terms) != len(values):
        raise NetworkError(f"einsum of {given!r:.40} for {len(values)} operands")
    (found, own), *others = map(_without_repeats, values, terms)
    for i, (more, axes) in enumerate(others):
        later = {*wanted, *"".join(terms[i + 2 :])}
        found, own = _contracted(found, own, more, axes, later)
    found, own = _summed(found, own, set(wanted))
    return found if own == wanted else layer.transpose(found, [own.index(a) for a in wanted])


def _without_repeats(x: Expr, axes: str) -> tuple[Expr, str]:
    """An operand of an equation and its axes, with the diagonal for two of one name."""
    for name in dict.fromkeys(axes):
        while axes.count(name) > 1:
            pair = [place for place, own in enumerate(axes) if own == name][:2]
            x = layer.diagonal(x, *pair)
            axes = "".join(own for place, own in enumerate(axes) if place not in pair) + name
    return x, axes


def _without_ellipsis(operands: Sequence[Expr], equation: str) -> tuple[Sequence[Expr], str]:
    """An equation with digits for the axes that its '...' stands for, counted from the last one.

    An operand has none of these axes along which another one repeats it.
    """
    if "..." not in equation:
        return operands, equation
    given, arrow, wanted = equation.partition("->")
    terms = given.split(",")
    counts = [
        len(extents(x)) - len(t.replace("...", "")) if "..." in t else 0
        for x, t in zip(operands, terms, strict=True)
    ]
    if not 0 <= max(counts) <= 10:
        raise NetworkError(f"einsum of {given!r:.40}: '...' stands for {max(counts)} axes")
    names = "9876543210"[10 - max(counts) :]
    if not arrow:
        wanted = "..." + "".join(sorted(a for a in set(given) - set(",.") if given.count(a) == 1))
    whole = [term.replace("...", names[len(names) - n :]) for term, n in zip(terms, counts, strict=True)]
    pairs = [list(zip(axes, extents(x), strict=True)) for axes, x in zip(whole, operands, strict=True)]
    longest = {name: max(n for each in pairs for a, n in each if a == name) for name in names}
    kept = [[(a, n) for a, n in each if n == longest.get(a, n)] for each in pairs]
    found = [layer.reshape(x, [n for _, n in each]) for x, each in zip(operands, kept, strict=True)]
    return found, f"{','.join(''.join(a for a, _ in each) for each in kept)}->{wanted.replace('...', names)}"


def _summed(x: Expr, axes: str, kept: set[str]) -> tuple[Expr, str]:
    gone = tuple(i for i, a in enumerate(axes) if a not in kept)
    return call("sum", x, axis=gone, keepdims=False) if gone else x, "".join(a for a in axes if a in kept)


def _contracted(x: Expr, left: str, y: Expr, right: str, later: set[str]) -> tuple[Expr, str]:
    """The product of two tensors with named axes, summed over those that no later one needs."""
    (x, left), (y, right) = _summed(x, left, later | {*right}), _summed(y, right, later | {*left})
    batch = [a for a in left if a in right and a in later]
    over = [a for a in left if a in right and a not in later]
    rows, columns = ([a for a in own if a not in other] for own, other in ((left, right), (right, left)))
    sizes = dict(zip(left + right, extents(x) + extents(y), strict=True))
    m, k, n = (math.prod(sizes[a] for a in group) for group in (rows, over, columns))
    lead = [sizes[a] for a in batch]
    first = layer.reshape(layer.transpose(x, [left.index(a) for a in batch + rows + over]), (*lead, m, k))
    second = layer.reshape(layer.transpose(y, [right.index(a) for a in batch + over + columns]), (*lead, k, n))
    axes = batch + rows + columns
    return layer.reshape(layer.matmul(first, second), [sizes[a] for a in axes]), "".join(axes)


@register("NonMaxSuppression")
def _depends_on_data(node: Node, *inputs: Expr | None) -> Expr:
    raise NetworkError("how large its output is depends on data: end the model before it")


@register("Unique")
def _unique(node: Node, x: Expr) -> tuple[Expr | None, ...]:
    """Only the places of the input's elements among those that differ: how large the others are depends on data."""
    if not node.get("sorted", 1) or (node.get("axis") is not None and len(extents(x)) > 1):
        raise NetworkError("an axis or sorted = 0: plevel compares single elements, and sorts them")
    found = call("unique", layer.reshape(x, (math.prod(extents(x)),)), dtype="int64")
    return None, None, TupleGetItem(found, 2), None
