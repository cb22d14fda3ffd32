"""Operators of ATen as calls of plevel's, by their full names."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.normal import extents

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


def _register(*names: str) -> Callable[[Operator], Operator]:
    def decorate(function: Operator) -> Operator:
        OPERATORS.update({f"aten.{name}": function for name in names})
        return function

    return decorate


def _same(x: Expr, *_: Any, **__: Any) -> Expr:
    return x


def _unary(name: str) -> Operator:
    return lambda x: call(name, x)


def _dtype_of(*numbers: Any) -> str:
    """The dtype that PyTorch gives numbers by default."""
    if all(isinstance(n, bool) for n in numbers):
        return "bool"
    return "float32" if any(isinstance(n, float) for n in numbers) else "int64"


def _category(dtype: str) -> int:
    """The place of a dtype among bools, integers and floats; the higher one wins."""
    return 0 if dtype == "bool" else 1 if "int" in dtype else 2


def _operand(value: Any, like: Expr) -> Expr:
    """A number as a tensor: of another's dtype, unless its own is of a higher category."""
    if isinstance(value, Expr):
        return value
    own = _dtype_of(value)
    if _category(own) > _category(like.tensor_type.dtype):
        return Constant(np.asarray(value, own))
    return number(value, like)


def _binary(name: str) -> Operator:
    """A binary operator of tensors, or of one and a number; `alpha` scales the second."""

    def make(x: Any, y: Any, alpha: float = 1, rounding_mode: str | None = None) -> Expr:
        if rounding_mode is not None:
            raise NetworkError(f"rounding_mode {rounding_mode}")
        left, right = _promoted(x, y)
        if alpha != 1:
            right = call("multiply", right, number(alpha, right))
        return call(name, left, right)

    return make


def _promoted(left: Any, right: Any) -> tuple[Expr, Expr]:
    """Two tensors, or one and a number, in one dtype: of the higher category, then not of rank 0, then the wider."""
    like = left if isinstance(left, Expr) else right
    x, y = _operand(left, like), _operand(right, like)
    kinds = [v.tensor_type.dtype for v in (x, y)]
    orders = [(_category(kind), bool(extents(v))) for kind, v in zip(kinds, (x, y), strict=True)]
    same = orders[0] == orders[1]
    wanted = np.promote_types(*kinds).name if same else kinds[orders.index(max(orders))]
    return _cast(x, wanted), _cast(y, wanted)


def _cast(x: Expr, dtype: str) -> Expr:
    return x if x.tensor_type.dtype == dtype else call("cast", x, dtype=dtype)


for _name in (
    "relu", "sigmoid", "tanh", "silu", "hardswish", "mish", "exp", "log", "sqrt", "rsqrt", "abs", "erf", "floor",
    "round", "sin", "cos", "isinf", "isnan", "logical_not",
):  # fmt: skip
    OPERATORS[f"aten.{_name}.default"] = _unary(_name)
OPERATORS["aten.neg.default"] = _unary("negative")
for _name, _own in {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    for _overload in ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar"):
        OPERATORS[f"aten.{_name}.{_overload}"] = _binary(_own)
OPERATORS["aten.div.Tensor_mode"] = _binary("divide")
OPERATORS["aten.maximum.default"] = _binary("maximum")
OPERATORS["aten.minimum.default"] = _binary("minimum")
for _name in ("clone", "alias", "detach", "contiguous", "lift_fresh_copy"):
    OPERATORS[f"aten.{_name}.default"] = _same
OPERATORS["aten.linear.default"] = layer.linear
OPERATORS["aten.matmul.default"] = layer.matmul
OPERATORS["aten.mm.default"] = layer.matmul
OPERATORS["aten.bmm.default"] = layer.matmul


@_register("dropout.default")
def _dropout(x: Expr, share: float, train: bool) -> Expr:
    if train and share:
        raise NetworkError("a dropout that draws: export the model in eval mode")
    return x


@_register("pow.Tensor_Scalar")
def _pow(x: Expr, exponent: float) -> Expr:
    if exponent == 2:
        return call("multiply", x, x)
    return call("sqrt", x) if exponent == 0.5 else call("power", x, number(exponent, x))


@_register("gelu.default")
def _gelu(x: Expr, approximate: str = "none") -> Expr:
    return call("gelu", x, approximate=approximate)


@_register("leaky_relu.default")
def _leaky_relu(x: Expr, negative_slope: float = 0.01) -> Expr:
    return call("leaky_relu", x, alpha=float(negative_slope))


@_register("hardsigmoid.default")
def _hardsigmoid(x: Expr) -> Expr:
    return call("hardsigmoid", x, alpha=1 / 6)


@_register("relu6.default")
def _relu6(x: Expr) -> Expr:
    return call("clip", x, a_min=0.0, a_max=6.0)


@_register("clamp.default", "hardtanh.default")
def _clamp(x: Expr, low: float | None = None, high: float | None = None) -> Expr:
    if low is None and high is None:
        return x
    if high is None:
        return call("relu", x) if low == 0 else call("maximum", x, number(low or 0, x))
    if low is None:
        return call("minimum", x, number(high, x))
    return call("clip", x, a_min=float(low), a_max=float(high))


@_register("addmm.default")
def _addmm(bias: Expr, x: Expr, y: Expr, beta: float = 1, alpha: float = 1) -> Expr:
    if beta != 1 or alpha != 1:
        raise NetworkError(f"beta {beta} and alpha {alpha}: they must be 1")
    return layer.add_bias(layer.matmul(x, y), bias)


@_register("scaled_dot_product_attention.default")
def _attention(
    q: Expr, k: Expr, v: Expr, attn_mask: Expr | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Expr:  # fmt: skip
    if dropout_p:
        raise NetworkError(f"dropout_p {dropout_p}: export the model in eval mode, with 0")
    if enable_gqa:
        raise NetworkError("enable_gqa: repeat the heads of keys and values")
    factor = 1 / math.sqrt(extents(q)[-1]) if scale is None else scale
    return layer.attention(q, k, v, attn_mask, scale=factor, causal=is_causal)


@_register("convolution.default")
def _convolution(
    x: Expr, weight: Expr, bias: Expr | None, strides: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Expr:  # fmt: skip
    if transposed:
        return layer.transposed_convolution(
            x, weight, bias, strides=strides, padding=(*padding, *padding), output_padding=output_padding,
            dilation=dilation, groups=groups,
        )  # fmt: skip
    return layer.convolution(
        x, weight, bias, strides=strides, padding=(*padding, *padding), dilation=dilation, groups=groups
    )


@_register("_weight_int8pack_mm.default")
def _weight_only(x: Expr, weight: Constant, scales: Expr) -> Expr:
    """A product with a weight of signed bytes, a scale for each of its rows."""
    n, k = extents(weight)
    if k % 2 or not isinstance(weight, Constant):
        raise NetworkError(f"a weight of k = {k}: an even one, which is constant, can be packed")
    unsigned = Constant((weight.value.view(np.uint8) ^ 0x80).reshape(n, 1, k))
    return call("matmul_nbits", x, unsigned, layer.reshape(scales, (n, 1)), bits=8, block_size=k)


def _resize(method: str, **attrs: Any) -> Operator:
    """The overload `vec` of upsample: sizes or scales are None."""

    def make(x: Expr, size: Any, *given: Any) -> Expr:
        *corners, scales = given
        more = {"coordinate_transformation_mode": "align_corners"} if corners == [True] else {}
        image = extents(x)[2:]
        sizes = size if size is not None else [int(n * s) for n, s in zip(image, scales, strict=True)]
        return layer.resize(x, sizes, scales or [None] * len(image), method=method, **attrs, **more)

    return make


OPERATORS["aten.upsample_nearest2d.vec"] = _resize(
    "nearest_neighbor", rounding_method="floor", coordinate_transformation_mode="asymmetric"
)
OPERATORS["aten.upsample_bilinear2d.vec"] = _resize("linear")
OPERATORS["aten.upsample_bicubic2d.vec"] = _resize("cubic")


@_register("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    x: Expr, scale: Any, shift: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> tuple[Expr]:
    return (layer.batch_norm(x, scale, shift, mean, variance, epsilon),)


@_register("native_layer_norm.default")
def _layer_norm(
    x: Expr, shape: Sequence[int], scale: Expr | None, shift: Expr | None, epsilon: float
) -> tuple[Expr]:
    size, dtype = math.prod(shape), x.tensor_type.dtype
    whole = layer.reshape(x, (*extents(x)[: -len(shape)], size))
    gamma = Constant(np.ones(size, dtype)) if scale is None else layer.reshape(scale, (size,))
    beta = Constant(np.zeros(size, dtype)) if shift is None else layer.reshape(shift, (size,))
    found = call("layer_norm", whole, gamma, beta, axis=-1, epsilon=epsilon)
    return (layer.reshape(found, extents(x)),)


@_register("native_group_norm.default")
def _group_norm(
    x: Expr, scale: Expr | None, shift: Expr | None, n: int, c: int, hw: int, groups: int, epsilon: float
) -> tuple[Expr]:
    dtype = x.tensor_type.dtype
    gamma = Constant(np.ones(c, dtype)) if scale is None else scale
    beta = Constant(np.zeros(c, dtype)) if shift is None else shift
    return (call("group_norm", x, gamma, beta, num_groups=groups, axis=1, epsilon=epsilon),)


@_register("_softmax.default")
def _softmax(x: Expr, axis: int, half_to_float: bool) -> Expr:
    return call("softmax", x, axis=axis)


@_register("_log_softmax.default")
def _log_softmax(x: Expr, axis: int, half_to_float: bool) -> Expr:
    return call("log_softmax", x, axis=axis)


def _reduce(name: str) -> Operator:
    def make(x: Expr, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
        found = list(range(len(extents(x)))) if axes is None or axes == [] else axes
        axis = tuple(found) if isinstance(found, list | tuple) else (found,)
        return call(name, x, axis=axis, keepdims=keepdim)

    return make


for _name, _own in {
    "mean.dim": "mean", "mean.default": "mean", "sum.dim_IntList": "sum", "sum.default": "sum", "amax.default": "max",
    "amin.default": "min",
}.items():  # fmt: skip
    OPERATORS[f"aten.{_name}"] = _reduce(_own)


@_register("max_pool2d_with_indices.default")
def _max_pool(
    x: Expr, size: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Expr]:
    return (
        call(
            "max_pool2d", x, pool_size=_pair(size), strides=_pair(strides or size),
            padding=_pair(padding), dilation=_pair(dilation), ceil_mode=ceil_mode,
        ),
    )  # fmt: skip


@_register("avg_pool2d.default")
def _avg_pool(
    x: Expr, size: Any, strides: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Expr:  # fmt: skip
    if divisor_override is not None:
        raise NetworkError("divisor_override: pool without it")
    return call(
        "avg_pool2d", x, pool_size=_pair(size), strides=_pair(strides or size), padding=_pair(padding),
        count_include_pad=count_include_pad, ceil_mode=ceil_mode,
    )  # fmt: skip


@_register("_adaptive_avg_pool2d.default", "adaptive_avg_pool2d.default")
def _adaptive_avg_pool(x: Expr, size: Any) -> Expr:
    height, width = extents(x)[-2:]
    down, across = _pair(size)
    if height % down or width % across:
        return call("adaptive_avg_pool2d", x, output_size=(down, across))
    window = (height // down, width // across)
    return call("avg_pool2d", x, pool_size=window, strides=window)


@_register("adaptive_max_pool2d.default")
def _adaptive_max_pool(x: Expr, size: Any) -> tuple[Expr]:
    return (call("adaptive_max_pool2d", x, output_size=_pair(size)),)


def _pair(value: Any) -> tuple[int, int]:
    found = value if isinstance(value, list | tuple) else (value,)
    return (int(found[0]), int(found[-1]))


@_register("view.default", "reshape.default", "_unsafe_view.default")
def _view(x: Expr, shape: Sequence[int]) -> Expr:
    return layer.reshape(x, shape)


@_register("unsqueeze.default")
def _unsqueeze(x: Expr, axis: int) -> Expr:
    shape = list(extents(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return layer.reshape(x, shape)


@_register("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Expr, axes: Any = None) -> Expr:
    shape = extents(x)
    given = range(len(shape)) if axes is None else axes if isinstance(axes, list | tuple) else [axes]
    gone = {axis % len(shape) for axis in given} if shape else set()
    return layer.reshape(x, [n for i, n in enumerate(shape) if i not in gone or n != 1])


@_register("permute.default")
def _permute(x: Expr, axes: Sequence[int]) -> Expr:
    return layer.transpose(x, [axis % len(axes) for axis in axes])


@_register("transpose.int", "t.default")
def _transpose(x: Expr, first: int = 0, second: int = 1) -> Expr:
    axes = list(range(len(extents(x))))
    if len(axes) < 2:
        return x
    axes[first], axes[second] = axes[second], axes[first]
    return layer.transpose(x, axes)


@_register("expand.default")
def _expand(x: Expr, shape: Sequence[int]) -> Expr:
    own = (1,) * (len(shape) - len(extents(x))) + extents(x)
    return layer.broadcast(x, [m if n == -1 else n for n, m in zip(shape, own, strict=True)])


@_register("cat.default")
def _cat(parts: Sequence[Expr], axis: int = 0) -> Expr:
    return layer.concatenate(parts, axis)


@_register("slice.Tensor", "slice_copy.Tensor")
def _slice(
    x: Expr, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Expr:
    return layer.take_slice(x, axis, start, end, step)


@_register("select.int")
def _select(x: Expr, axis: int, index: int) -> Expr:
    axis %= len(extents(x))
    at = index % extents(x)[axis]
    found = _slice(x, axis, at, at + 1)
    return layer.reshape(found, [n for i, n in enumerate(extents(x)) if i != axis])


@_register("split_with_sizes.default")
def _split(x: Expr, sizes: Sequence[int], axis: int = 0) -> tuple[Expr, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(_slice(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@_register("embedding.default")
def _embedding(weight: Expr, indices: Expr, *_: Any) -> Expr:
    return call("take", weight, indices, axis=0)


@_register("where.self")
def _where(condition: Expr, x: Any, y: Any) -> Expr:
    return call("where", condition, *_promoted(x, y))


def _dtype(given: Any, default: str) -> str:
    return default if given is None else str(given).removeprefix("torch.")


@_register("_to_copy.default")
def _to_copy(x: Expr, dtype: Any = None, **_: Any) -> Expr:
    return _cast(x, _dtype(dtype, x.tensor_type.dtype))


@_register("full.default")
def _full(shape: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Expr:
    return Constant(np.full(shape, value, _dtype(dtype, _dtype_of(value))))


@_register("full_like.default")
def _full_like(x: Expr, value: Any, dtype: Any = None, **_: Any) -> Expr:
    return Constant(np.full(extents(x), value, _dtype(dtype, x.tensor_type.dtype)))


@_register("arange.start_step")
def _arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, **_: Any) -> Expr:
    return Constant(np.arange(start, end, step).astype(_dtype(dtype, _dtype_of(start, end, step))))


@_register("scalar_tensor.default")
def _scalar(value: float, dtype: Any = None, **_: Any) -> Expr:
    return Constant(np.asarray(value, _dtype(dtype, "float32")))


@_register("argmax.default")
def _argmax(x: Expr, axis: int | None = None, keepdim: bool = False) -> Expr:
    return call("argmax", x, axis=None if axis is None else (axis,), keepdims=keepdim, dtype="int64")
