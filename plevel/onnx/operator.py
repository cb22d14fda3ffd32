"""Operators of ONNX as calls of plevel's, by their names."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx.helper

from strategy.expr import Constant, Expr, TupleGetItem, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.normal import extents
from strategy.network.scatter import (
    add_elements,
    place_of,
    reduce_elements,
    write_elements,
    write_rows,
)
from strategy.network.size import MOST, Extent, Sizes

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


class Node:
    """A node's attributes, the version of its operator set, and the model's symbolic sizes if it has any.

    `count` is the number of its outputs, unnamed ones included. To `limits` a node adds pairs of extents, of which the
    first must be at most the second, whatever the sizes.
    """

    def __init__(
        self, node: Any, opsets: Mapping[str, int], sizes: Sizes | None, limits: list[tuple[int, int]]
    ) -> None:
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self.type = node.op_type
        self.version = opsets.get(node.domain or "ai.onnx", 1)
        self.count = len(node.output)
        self.sizes, self.limits = sizes, limits

    def get(self, name: str, default: Any = None) -> Any:
        found = self._attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def require(self, name: str) -> Any:
        if name not in self._attributes:
            raise NetworkError(f"its attribute {name} is missing: export the model with it")
        return self._attributes[name]


def register(*names: str) -> Callable[[Operator], Operator]:
    def decorate(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return decorate


def constant(value: Expr | None, what: str) -> Any:
    """The value of an input that must be constant."""
    if not isinstance(value, Constant):
        raise NetworkError(f"{what} is not constant")
    return value.value


def _integers(node: Node, name: str, value: Expr | None) -> list[int] | None:
    """Integers that newer versions take as an input, and older ones as an attribute."""
    given = node.get(name) if value is None else constant(value, name).reshape(-1).tolist()
    return None if given is None else [int(i) for i in given]


for _name, _own in {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Abs": "abs",
    "Erf": "erf", "Neg": "negative", "HardSwish": "hardswish", "Mish": "mish", "Floor": "floor", "Round": "round",
    "Ceil": "ceil", "Sin": "sin", "Cos": "cos", "Not": "logical_not", "IsNaN": "isnan", "Sign": "sign",
    "Softplus": "softplus",
}.items():  # fmt: skip
    OPERATORS[_name] = lambda node, x, _own=_own: call(_own, x)
for _name, _own in {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor",
}.items():  # fmt: skip
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


OPERATORS["Max"] = lambda node, first, *more: _folded("maximum", first, more)
OPERATORS["Min"] = lambda node, first, *more: _folded("minimum", first, more)
OPERATORS["Sum"] = lambda node, first, *more: _folded("add", first, more)
OPERATORS["Mean"] = lambda node, first, *more: call(
    "divide", _folded("add", first, more), number(1 + len(more), first)
)


def _folded(name: str, first: Expr, more: Sequence[Expr]) -> Expr:
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
        if exponent == 0.5:
            return call("sqrt", x)
        return call("power", x, number(exponent, x))
    return call("power", x, y)


@register("Mod")
def _mod(node: Node, x: Expr, y: Expr) -> Expr:
    """The remainder with the sign of y, or of x with `fmod`."""
    if not node.get("fmod", 0):
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
    "Conv": lambda node, x, weight, bias=None: layer.convolution(x, weight, bias, **windows(node, x, weight)),
    "DepthToSpace": lambda node, x: call(
        "depth_to_space", x, block_size=node.get("blocksize"), mode=node.get("mode", "DCR")
    ),
    "InstanceNormalization": lambda node, x, scale, shift: call(
        "instance_norm", x, scale, shift, axis=1, epsilon=float(node.get("epsilon", 1e-5))
    ),
    "MaxPool": lambda node, x: _pool(node, x, "max_pool2d"),
    "AveragePool": lambda node, x: _pool(
        node, x, "avg_pool2d", count_include_pad=bool(node.get("count_include_pad", 0))
    ),
    "Transpose": lambda node, x: layer.transpose(x, node.get("perm", range(len(extents(x)))[::-1])),
    "Concat": lambda node, *parts: layer.concatenate(parts, node.get("axis")),
}


@register("SpaceToDepth")
def _space_to_depth(node: Node, x: Expr) -> Expr:
    size = node.require("blocksize")
    if node.get("mode", "DCR") == "DCR":
        return call("space_to_depth", x, block_size=size)
    n, channels, height, width = extents(x)
    blocks = layer.reshape(x, (n, channels, height // size, size, width // size, size))
    turned = layer.transpose(blocks, (0, 1, 3, 5, 2, 4))
    return layer.reshape(turned, (n, channels * size * size, height // size, width // size))


@register("CastLike")
def _cast_like(node: Node, x: Expr, like: Expr) -> Expr:
    dtype = like.tensor_type.dtype
    return x if x.tensor_type.dtype == dtype else call("cast", x, dtype=dtype)


@register("Shrink")
def _shrink(node: Node, x: Expr) -> Expr:
    """Elements nearer to 0, by `bias`, and 0 within `lambd` of it."""
    bound, bias = node.get("lambd", 0.5), number(node.get("bias", 0.0), x)
    below, above = call("less", x, number(-bound, x)), call("less", number(bound, x), x)
    nearer = call("where", above, call("subtract", x, bias), number(0, x))
    return call("where", below, call("add", x, bias), nearer)


@register("Sinh", "Cosh")
def _hyperbolic(node: Node, x: Expr) -> Expr:
    """From exp of half the element, whose square may overflow only where the result does; sinh by tanh near 0."""
    if node.type == "Sinh":
        half = call("tanh", call("multiply", x, number(0.5, x)))
        square = call("multiply", half, half)
        near = call("divide", call("add", half, half), call("subtract", number(1, x), square))
        return call("where", call("less", call("abs", x), number(1, x)), near, _exponentials(x, "subtract"))
    return _exponentials(x, "add")


def _exponentials(x: Expr, name: str) -> Expr:
    halves = (call("exp", call("multiply", x, number(f, x))) for f in (0.5, -0.5))
    each = [call("multiply", call("multiply", h, number(0.5, x)), h) for h in halves]
    return call(name, *each)


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
    found = call("dense", x, weight)
    if node.get("alpha", 1.0) != 1:
        found = call("multiply", found, number(node.get("alpha"), found))
    if bias is None or node.get("beta", 1.0) == 0:
        return found
    if node.get("beta", 1.0) != 1:
        bias = call("multiply", bias, number(node.get("beta"), bias))
    return layer.add_bias(found, bias)


def _pads(node: Node, x: Expr, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The padding: all begins, then all ends."""
    auto, rank = node.get("auto_pad", "NOTSET"), len(window)
    if auto == "NOTSET":
        return list(node.get("pads", [0] * (2 * rank)))
    if auto == "VALID":
        return [0] * (2 * rank)
    begins, ends = [], []
    for extent, size, stride, step in zip(extents(x)[2:], window, strides, dilation, strict=True):
        covered = (-(-extent // stride) - 1) * stride + (size - 1) * step + 1
        padding = max(covered - extent, 0)
        less, more = padding // 2, padding - padding // 2
        begins.append(less if auto == "SAME_UPPER" else more)
        ends.append(more if auto == "SAME_UPPER" else less)
    return begins + ends


def windows(node: Node, x: Expr, weight: Expr) -> dict[str, Any]:
    """The attributes of a convolution."""
    rank = len(extents(x)) - 2
    strides, dilation = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    padding = _pads(node, x, extents(weight)[2:], strides, dilation)
    return {"strides": strides, "padding": padding, "dilation": dilation, "groups": node.get("group", 1)}


@register("ConvTranspose")
def _conv_transpose(node: Node, x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    rank = len(extents(x)) - 2
    strides, dilation = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.get("output_shape"):
        raise NetworkError("it has auto_pad or output_shape: export it with pads")
    return layer.transposed_convolution(
        x, weight, bias, strides=strides, padding=node.get("pads", [0] * (2 * rank)), dilation=dilation,
        output_padding=node.get("output_padding", [0] * rank), groups=node.get("group", 1),
    )  # fmt: skip


@register("Resize", "Upsample")
def _resize(
    node: Node, x: Expr, roi: Expr | None = None, scales: Expr | None = None, sizes: Expr | None = None
) -> Expr:
    if node.version < 11:  # no regions of interest
        roi, scales = None, roi
    for name in ("antialias", "exclude_outside"):
        if node.get(name, 0):
            raise NetworkError(f"{name} = 1: plevel resizes without it, export the model with 0")
    rank = len(extents(x))
    axes = [a % rank for a in node.get("axes", range(rank))]
    factors: list[float | None] = [None] * rank
    wanted = list(extents(x))
    if sizes is None:
        for axis, f in _for_each(axes, "scales", node.get("scales") if scales is None else constant(scales, "scales")):
            factors[axis], wanted[axis] = float(f), math.floor(np.float32(wanted[axis]) * np.float32(f))
    else:
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            raise NetworkError(f"keep_aspect_ratio_policy {policy!r}: export the sizes it leads to, with 'stretch'")
        for axis, extent in _for_each(axes, "sizes", constant(sizes, "sizes")):
            wanted[axis] = int(extent)
    if tuple(wanted[:2]) != extents(x)[:2]:
        raise NetworkError("it resizes the batch or channels: plevel resizes height and width only")
    mode = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric")
    if mode == "pytorch_half_pixel":
        for axis in range(2, rank):
            if wanted[axis] == 1:  # the first pixel in place of the middle one
                x, factors[axis] = layer.take_slice(x, axis, 0, 1), None
    if mode in ("pytorch_half_pixel", "half_pixel_symmetric"):  # which differ where scales are no ratios of sizes
        mode = "half_pixel"
    method = {"nearest": "nearest_neighbor"}.get(node.get("mode", "nearest"), node.get("mode"))
    alpha, start = float(node.get("cubic_coeff_a", -0.75)), "round_prefer_floor" if node.version >= 11 else "floor"

    def resized(x: Expr, axes: set[int], rounding: str) -> Expr:
        size = [wanted[i] if i in axes else n for i, n in enumerate(extents(x))]
        scale = [f if i in axes else None for i, f in enumerate(factors)]
        return layer.resize(
            x, size[2:], scale[2:], method=method, coordinate_transformation_mode=mode, rounding_method=rounding,
            cubic_alpha=alpha,
        )  # fmt: skip

    older = node.version < 11 and method == "nearest_neighbor"
    fewer = {i for i in range(2, rank) if older and wanted[i] < extents(x)[i]}
    if fewer:  # rounded up by ONNX Runtime, unlike those that grow
        x = resized(x, fewer, "ceil")
    if tuple(wanted) == extents(x):
        return x
    return resized(x, set(range(2, rank)) - fewer, node.get("nearest_mode", start))


@register("GridSample")
def _grid_sample(node: Node, x: Expr, grid: Expr) -> Expr:
    if len(extents(x)) != 4:
        raise NetworkError(f"an image of {len(extents(x)) - 2} dimensions is sampled: plevel has two")
    methods = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest_neighbor"}  # of version 16
    mode, dtype = node.get("mode", "linear"), x.tensor_type.dtype
    grid = grid if grid.tensor_type.dtype == dtype else call("cast", grid, dtype=dtype)
    return call(
        "grid_sample", x, grid, method=methods.get(mode, mode), padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )  # fmt: skip


def _for_each(axes: Sequence[int], name: str, given: Any) -> list[tuple[int, Any]]:
    """Each axis with its entry."""
    count = 0 if given is None else len(given)
    if count != len(axes):
        raise NetworkError(f"{name} has {count} entries for {len(axes)} axes: give one for each")
    return list(zip(axes, given, strict=True))


@register("BatchNormalization")
def _batch_norm(node: Node, x: Expr, scale: Expr, shift: Expr, mean: Expr, variance: Expr) -> Expr:
    if node.get("training_mode", 0):
        raise NetworkError("training_mode: export the model in eval mode")
    return layer.batch_norm(x, scale, shift, mean, variance, node.get("epsilon", 1e-5))


@register("LayerNormalization")
def _layer_norm(node: Node, x: Expr, scale: Expr, shift: Expr | None = None) -> Expr:
    axis = node.get("axis", -1) % len(extents(x))
    size = math.prod(extents(x)[axis:])
    beta = Constant(np.zeros(size, x.tensor_type.dtype)) if shift is None else layer.reshape(shift, (size,))
    found = call(
        "layer_norm", layer.reshape(x, (*extents(x)[:axis], size)), layer.reshape(scale, (size,)), beta,
        axis=-1, epsilon=float(node.get("epsilon", 1e-5)),
    )  # fmt: skip
    return layer.reshape(found, extents(x))


def _softmax_of(name: str) -> Operator:
    def make(node: Node, x: Expr) -> Expr:
        axis = node.get("axis", -1 if node.version >= 13 else 1)
        if node.version >= 13:
            return call(name, x, axis=axis)
        axis %= len(extents(x))  # of all further axes together
        flat = layer.reshape(x, (math.prod(extents(x)[:axis]), math.prod(extents(x)[axis:])))
        return layer.reshape(call(name, flat, axis=-1), extents(x))

    return make


OPERATORS["Softmax"] = _softmax_of("softmax")
OPERATORS["LogSoftmax"] = _softmax_of("log_softmax")


def _reduce(name: str, before: str = "", after: str = "") -> Operator:
    """A reduction of `before` of the elements, and `after` of it; of no axes, both of each element."""

    def make(node: Node, x: Expr, given: Expr | None = None) -> Expr:
        axes = _integers(node, "axes", given)
        kept = not axes and node.get("noop_with_empty_axes", 0)
        x = call("multiply", x, x) if before == "square" else call(before, x) if before else x
        found = x
        if extents(x) and not kept:
            over = tuple(axes or range(len(extents(x))))
            found = call(name, x, axis=over, keepdims=bool(node.get("keepdims", 1)))
        return call(after, found) if after else found

    return make


for _name, _parts in {
    "ReduceMean": ("mean",), "ReduceSum": ("sum",), "ReduceMax": ("max",), "ReduceMin": ("min",),
    "ReduceProd": ("prod",), "ReduceL1": ("sum", "abs"), "ReduceL2": ("sum", "square", "sqrt"),
    "ReduceSumSquare": ("sum", "square"), "ReduceLogSum": ("sum", "", "log"), "ReduceLogSumExp": ("logsumexp",),
}.items():  # fmt: skip
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


@register("LRN")
def _local_response_norm(node: Node, x: Expr) -> Expr:
    """Each channel by a sum of squares of those around it, of which more stand behind it."""
    size, channels = node.require("size"), extents(x)[1]
    around = ((0, 0), ((size - 1) // 2, size // 2), *((0, 0),) * (len(extents(x)) - 2))
    squares = call("pad", call("multiply", x, x), pad_width=around)
    first, *more = (layer.take_slice(squares, 1, i, i + channels) for i in range(size))
    found = _folded("add", first, more)
    scaled = call("multiply", found, number(node.get("alpha", 1e-4) / size, x))
    base = call("add", scaled, number(node.get("bias", 1.0), x))
    return call("divide", x, call("power", base, number(node.get("beta", 0.75), x)))


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
    found = call("topk", x, k=k, axis=axis, ret_type="indices", is_ascend=not node.get("largest", 1), dtype="int64")
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
    if any(len(set(t)) < len(t) for t in terms) or len(terms) != len(values):
        raise NetworkError(f"einsum of {given!r:.40}: plevel has it without diagonals")
    (found, own), *others = zip(values, terms, strict=True)
    for i, (more, axes) in enumerate(others):
        later = {*wanted, *"".join(terms[i + 2 :])}
        found, own = _contracted(found, own, more, axes, later)
    found, own = _summed(found, own, set(wanted))
    return found if own == wanted else layer.transpose(found, [own.index(a) for a in wanted])


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


def _pool(node: Node, x: Expr, name: str, **attrs: Any) -> Expr:
    size = node.require("kernel_shape")
    strides, dilation = (node.get(n, [1] * len(size)) for n in ("strides", "dilations"))
    if node.get("auto_pad", "NOTSET").startswith("SAME") and (
        max(dilation) > 1
        or (name == "avg_pool2d" and any((-(-n // s) - 1) * s + k <= n - 2 for n, s, k in zip(
            extents(x)[2:], strides, size, strict=True
        )))
    ):  # fmt: skip
        raise NetworkError(
            "auto_pad of dilated windows, or of an average of windows that leave gaps, which ONNX Runtime pads "
            "otherwise than ONNX says: export it with pads"
        )
    padding = _pads(node, x, size, strides, dilation)
    return layer.pool(
        name, x, size=size, strides=strides, padding=padding, dilation=dilation,
        ceil_mode=bool(node.get("ceil_mode", 0)), **attrs,
    )  # fmt: skip


def _global_pool(name: str) -> Operator:
    return lambda node, x: call(name, x, axis=tuple(range(-1, 1 - len(extents(x)), -1)), keepdims=True)


OPERATORS["GlobalAveragePool"], OPERATORS["GlobalMaxPool"] = _global_pool("mean"), _global_pool("max")


@register("Reshape")
def _reshape(node: Node, x: Expr, shape: Expr) -> Expr:
    given = [int(n) for n in constant(shape, "the shape")]
    if not node.get("allowzero", 0):
        given = [extents(x)[i] if n == 0 else n for i, n in enumerate(given)]
    return layer.reshape(x, given)


@register("Tile")
def _tile(node: Node, x: Expr, times: Expr) -> Expr:
    return layer.tile(x, [int(n) for n in constant(times, "repeats")])


@register("Trilu")
def _trilu(node: Node, x: Expr, diagonal: Expr | None = None) -> Expr:
    k = 0 if diagonal is None else int(constant(diagonal, "k").item())
    return call("trilu", x, k=k, upper=bool(node.get("upper", 1)))


@register("Flatten")
def _flatten(node: Node, x: Expr) -> Expr:
    axis = node.get("axis", 1)
    axis = axis if axis >= 0 else axis + len(extents(x))
    return layer.reshape(x, (math.prod(extents(x)[:axis]), math.prod(extents(x)[axis:])))


@register("Squeeze")
def _squeeze(node: Node, x: Expr, given: Expr | None = None) -> Expr:
    axes, shape = _integers(node, "axes", given), extents(x)
    gone = {a % len(shape) for a in axes} if axes else {i for i, n in enumerate(shape) if n == 1}
    return layer.reshape(x, [n for i, n in enumerate(shape) if i not in gone])


@register("Unsqueeze")
def _unsqueeze(node: Node, x: Expr, given: Expr | None = None) -> Expr:
    axes = _integers(node, "axes", given) or []
    rank = len(extents(x)) + len(axes)
    new, left = {a % rank for a in axes}, iter(extents(x))
    return layer.reshape(x, [1 if i in new else next(left) for i in range(rank)])


@register("Expand")
def _expand(node: Node, x: Expr, shape: Expr) -> Expr:
    given = tuple(int(n) for n in constant(shape, "the shape"))
    return layer.broadcast(x, np.broadcast_shapes(extents(x), given))


@register("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Expr) -> Expr:
    value = node.get("value")
    filling = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    return layer.filled(filling[0], [int(n) for n in constant(shape, "the shape")], filling.dtype.name)


@register("Range")
def _range(node: Node, start: Expr, limit: Expr, delta: Expr) -> Expr:
    first, end, step = (constant(v, "a bound").item() for v in (start, limit, delta))
    return layer.steps(first, end, step, start.tensor_type.dtype)


@register("Slice")
def _slice(node: Node, x: Expr, *given: Expr | None) -> Expr:
    names = ("starts", "ends", "axes", "steps")
    inputs = (*given, *(None for _ in range(4 - len(given))))
    starts, ends, axes, steps = (_integers(node, n, v) for n, v in zip(names, inputs, strict=True))
    axes = list(range(len(starts or []))) if axes is None else axes
    for axis, start, end, step in zip(axes, starts or [], ends or [], steps or [1] * len(axes), strict=True):
        x = layer.take_slice(x, axis, *_bounds(node, start, end, extents(x)[axis], step), step)
    return x


def _bounds(node: Node, start: int, end: int, extent: int, step: int) -> tuple[int, int | None]:
    """The start and the end of a part of an axis, to be read as Python does.

    With symbolic sizes it adds the limits at which the part is of the same form at every call: what it has lies within
    the axis, and its start stays before its end, or behind it.
    """
    forwards = step > 0
    of, first, last = (
        node.sizes is not None and isinstance(node.sizes.encode(abs(n)), Extent) for n in (extent, start, end)
    )
    if not (of or first or last):
        # Backwards from before the beginning it begins there.
        return start if forwards else max(start, -extent), min(end, extent)
    refused = NetworkError(f"a part of an axis of {extent} from {start} to {end} by {step}")
    if not of and (first or not forwards or end < 0):
        raise refused
    if abs(start) >= MOST:  # the beginning of the axis, or its last element
        start = 0 if start < 0 else start if forwards else -1
    if end >= MOST if forwards else end <= -MOST:
        end = extent if forwards else -1 - extent
    begins, ends = (n + extent if n < 0 else n for n in (start, end))  # as indices
    if begins < 0 or (last and ends < 0):
        raise refused
    if start:
        node.limits.append((start + 1, extent) if start > 0 else (-start, extent))
    taken, whole = range(begins, ends, step), end in (extent, -1 - extent)
    if (start < 0) == (end < 0) and not (first or last or whole):  # as many at every call
        if taken:
            node.limits.append((taken[-1] + 1 if start >= 0 else extent - taken[-1], extent))
        return start, end
    node.limits.append((begins, ends) if forwards == bool(taken) else (ends, begins))
    if taken and forwards and end >= 0 and not whole:
        node.limits.append((extent, end) if of and end > extent else (end, extent))
    return start, end


@register("Split")
def _split(node: Node, x: Expr, given: Expr | None = None) -> tuple[Expr, ...]:
    axis, sizes = node.get("axis", 0), _integers(node, "split", given)
    whole = extents(x)[axis]
    if sizes is None:
        count = node.get("num_outputs") or node.count
        size = -(-whole // count)
        sizes = [min(size, whole - i * size) for i in range(count)]
    ends = np.cumsum(sizes).tolist()
    return tuple(layer.take_slice(x, axis, e - n, e) for n, e in zip(sizes, ends, strict=True))


@register("Gather")
def _gather(node: Node, x: Expr, indices: Expr) -> Expr:
    axis = node.get("axis", 0)
    if isinstance(indices, Constant) and indices.value.size and node.sizes is not None:
        whole = extents(x)[axis]
        if isinstance(node.sizes.encode(whole), Extent):
            outermost = int(indices.value.min()), int(indices.value.max())
            node.limits += [(n + 1 if n >= 0 else -n, whole) for n in outermost]
    if isinstance(indices, Constant) and indices.value.size == 1:
        at = int(indices.value.reshape(())) % extents(x)[axis]
        taken, shape = layer.take_slice(x, axis, at, at + 1), list(extents(x))
        shape[axis : axis % len(shape) + 1] = extents(indices)
        return layer.reshape(taken, shape)
    return call("take", x, indices, axis=axis, mode="wrap")  # from the end where negative


@register("GatherElements")
def _gather_elements(node: Node, x: Expr, indices: Expr) -> Expr:
    """The indices may have less rows than the tensor."""
    axis = node.get("axis", 0) % len(extents(x))
    for other, extent in enumerate(extents(indices)):
        x = x if other == axis else layer.take_slice(x, other, 0, extent)
    return call("gather", x, _counted(indices, extents(x)[axis]), axis=axis)


@register("OneHot")
def _one_hot(node: Node, indices: Expr, depth: Expr, values: Expr) -> Expr:
    count, rank = int(constant(depth, "depth").item()), len(extents(indices)) + 1
    shape, axis = list(extents(indices)), node.get("axis", -1) % rank
    shape.insert(axis, 1)
    places = layer.reshape(layer.steps(0, count, 1, indices.tensor_type.dtype), (count, *(1,) * (rank - 1 - axis)))
    hit = call("equal", layer.reshape(_counted(indices, count), shape), places)
    off, on = (layer.reshape(layer.take_slice(values, 0, i, i + 1), ()) for i in (0, 1))
    return call("where", hit, on, off)


@register("GatherND")
def _gather_nd(node: Node, x: Expr, indices: Expr) -> Expr:
    """The coordinates stand on the last axis of the indices, and on the first of plevel's."""
    rank, batch = len(extents(indices)), node.get("batch_dims", 0)
    front = layer.transpose(indices, [rank - 1, *range(rank - 1)])
    return call("gather_nd", x, front, batch_dims=batch)


@register("ScatterElements", "Scatter")
def _scatter_elements(node: Node, x: Expr, indices: Expr, updates: Expr) -> Expr:
    axis, reduction = node.get("axis", 0), node.get("reduction", "none")
    places = _counted(indices, extents(x)[axis])
    if reduction == "none":
        return write_elements(x, axis, places, updates)
    if reduction == "add":
        return add_elements(x, axis, places, updates)
    if reduction not in ("max", "min"):
        raise NetworkError(f"reduction {reduction!r}: plevel has 'none', 'add', 'max' and 'min'")
    return reduce_elements(x, axis, places, updates, reduction)


@register("ScatterND")
def _scatter_nd(node: Node, x: Expr, indices: Expr, updates: Expr) -> Expr:
    """The first axes as one, and the others as one."""
    reduction, (*shape, count) = node.get("reduction", "none"), extents(indices)
    if reduction not in ("none", "add"):
        raise NetworkError(f"reduction {reduction!r}: plevel has 'none' and 'add'")
    own, written = extents(x), math.prod(shape)
    rows, columns = math.prod(own[:count]), math.prod(own[count:])
    coordinates = layer.reshape(indices, (written, count))
    if not 1 <= count <= len(own):
        raise NetworkError(f"indices of {count} coordinates for {len(own)} axes")
    place = place_of(
        [(_counted(layer.take_slice(coordinates, 1, i, i + 1), own[i]), own[i]) for i in range(count)]
    )
    source = layer.reshape(updates, (written, columns))
    found = write_rows(layer.reshape(x, (rows, columns)), place, source, reduction == "add")
    return layer.reshape(found, own)


def _counted(indices: Expr, extent: int) -> Expr:
    """Indices counted from the front; those below 0 are counted from behind."""
    below = call("less", indices, number(0, indices))
    return call("where", below, call("add", indices, layer.count(extent, indices)), indices)


@register("Pad")
def _pad(
    node: Node, x: Expr, pads: Expr | None = None, value: Expr | None = None, axes: Expr | None = None
) -> Expr:
    """`pads` has what goes before each axis, then what goes behind; one below 0 takes elements away."""
    rank, mode = len(extents(x)), node.get("mode", "constant")
    widths = _integers(node, "pads", pads) or []
    given = range(rank) if axes is None else [int(a) for a in constant(axes, "axes").reshape(-1)]
    of = [a % rank for a in given if -rank <= a < rank]
    if not len(given) == len(of) == len(set(of)) == len(widths) / 2:
        raise NetworkError(f"pads {widths} of axes {list(given)} do not fit a tensor of rank {rank}")
    pairs = [(0, 0)] * rank
    for axis, pair in zip(of, zip(widths[: len(of)], widths[len(of) :], strict=True), strict=True):
        pairs[axis] = pair
    for axis, (before, behind) in enumerate(pairs):
        x = layer.take_slice(x, axis, max(0, -before), extents(x)[axis] - max(0, -behind))
    added = tuple((max(0, before), max(0, behind)) for before, behind in pairs)
    if mode not in ("constant", "edge", "reflect"):
        raise NetworkError(f"mode {mode!r}: plevel pads by constant, edge and reflect")
    fill = node.get("value", 0.0) if value is None else constant(value, "constant_value").reshape(-1)[0]
    return call("pad", x, pad_width=added, pad_value=float(fill), pad_mode=mode) if np.any(added) else x
