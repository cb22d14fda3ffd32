"""Operators of ATen as calls of plevel's, by their full names."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from plevel.torch.symbol import Computed
from strategy.expr import Constant, Expr, call
from strategy.network import elementary, layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.normal import extents
from strategy.network.scatter import require_few
from strategy.network.size import PROBED
from strategy.ops.matmul import einsum

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}
_NARROW = {"float16", "bfloat16"}


def register(*names: str) -> Callable[[Operator], Operator]:
    def decorate(function: Operator) -> Operator:
        OPERATORS.update({f"aten.{name}": function for name in names})
        return function

    return decorate


def _same(x: Expr, *_: Any, **__: Any) -> Expr:
    return x


def _unary(name: str) -> Operator:
    return lambda x: call(name, x)


def dtype_of(*numbers: Any) -> str:
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
    own, kind = dtype_of(value), like.tensor_type.dtype
    return scalar(value, own if _category(own) > _category(kind) else kind)


def scalar(value: Any, dtype: str) -> Expr:
    """A number as a tensor, computed at the call if it depends on symbolic sizes."""
    return cast(value.made, dtype) if isinstance(value, Computed) else Constant(np.asarray(value, dtype))


def _binary(name: str) -> Operator:
    """A binary operator of tensors, or of one and a number; `alpha` scales the second."""

    def make(x: Any, y: Any, alpha: float = 1) -> Expr:
        if name == "multiply" and _is_rounded(x, y):
            return cast(make(cast(x, "float32"), y), x.tensor_type.dtype)
        left, right = promoted(x, y)
        if alpha != 1:
            right = call("multiply", right, number(alpha, right))
        if name == "multiply" and left.tensor_type.dtype == "bool":
            return call("logical_and", left, right)
        return call(name, left, right)

    return make


def _is_rounded(x: Any, y: Any) -> bool:
    """Return whether y is a number that x's dtype of 16 bits would round; PyTorch multiplies in float32.

    A constant of rank 0 is a number, too, beside a tensor that has axes.
    """
    if not isinstance(x, Expr) or x.tensor_type.dtype not in _NARROW:
        return False
    if isinstance(y, Constant) and extents(x) and not extents(y):
        y = y.value.item()
    if isinstance(y, Expr):
        return False
    with np.errstate(over="ignore"):
        return bool(number(y, x).value.astype(np.float64) != y)


def promoted(left: Any, right: Any) -> tuple[Expr, Expr]:
    """Two tensors, or one and a number, in one dtype: of the higher category, then not of rank 0, then the wider."""
    like = left if isinstance(left, Expr) else right
    x, y = _operand(left, like), _operand(right, like)
    kinds = [v.tensor_type.dtype for v in (x, y)]
    orders = [(_category(kind), bool(extents(v))) for kind, v in zip(kinds, (x, y), strict=True)]
    wanted = kinds[orders.index(max(orders))] if orders[0] != orders[1] else common_dtype(*kinds)
    return cast(x, wanted), cast(y, wanted)


def common_dtype(first: str, second: str) -> str:
    """The dtype that PyTorch gives two tensors with axes."""
    if _category(first) != _category(second):
        return max(first, second, key=_category)
    return "float32" if {first, second} == _NARROW else np.promote_types(first, second).name


def cast(x: Expr, dtype: str) -> Expr:
    return x if x.tensor_type.dtype == dtype else call("cast", x, dtype=dtype)


def _in_float32(function: Callable[..., Expr]) -> Operator:
    """The operator by parts that lose too much in 16 bits: between two casts, as PyTorch computes it."""

    @wraps(function)
    def wide(x: Expr, *more: Any, **named: Any) -> Expr:
        dtype = x.tensor_type.dtype
        return cast(function(cast(x, "float32") if dtype in _NARROW else x, *more, **named), dtype)

    return wide


def _of_floats(function: Callable[[Expr], Expr]) -> Operator:
    """A function of floats; integers and bools are taken as float32."""
    return lambda x: function(x if _category(x.tensor_type.dtype) == 2 else cast(x, "float32"))


def _of_fractions(name: str) -> Operator:
    """A rounding, which leaves integers as they are."""
    return lambda x: call(name, x) if _category(x.tensor_type.dtype) == 2 else x


for _name in ("relu", "silu", "hardswish", "mish", "abs", "isinf", "isnan"):
    OPERATORS[f"aten.{_name}.default"] = _unary(_name)
for _name in ("floor", "round", "ceil"):
    OPERATORS[f"aten.{_name}.default"] = _of_fractions(_name)
for _name in ("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "atan"):
    OPERATORS[f"aten.{_name}.default"] = _of_floats(partial(call, _name))
for _name in ("tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "erfinv", "lgamma", "log1p"):
    OPERATORS[f"aten.{_name}.default"] = _of_floats(getattr(elementary, _name))
OPERATORS["aten.neg.default"] = _unary("negative")
for _name, _own in {
    "add": "add", "sub": "subtract", "mul": "multiply", "pow": "power", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "remainder": "floor_mod",
}.items():  # fmt: skip
    for _overload in ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar"):
        OPERATORS[f"aten.{_name}.{_overload}"] = _binary(_own)
OPERATORS["aten.maximum.default"] = _binary("maximum")
OPERATORS["aten.minimum.default"] = _binary("minimum")
for _name in ("clone", "alias", "detach", "contiguous", "lift_fresh_copy"):
    OPERATORS[f"aten.{_name}.default"] = _same
OPERATORS |= {
    "aten.linear.default": layer.linear,
    **dict.fromkeys(("aten.matmul.default", "aten.mm.default", "aten.bmm.default"), layer.matmul),
    "aten.reciprocal.default": lambda x: call("divide", number(1, x), x),
    "aten.exp2.default": lambda x: call("power", number(2, x), x),
    "aten.gelu.default": lambda x, approximate="none": call("gelu", x, approximate=approximate),
    "aten.leaky_relu.default": lambda x, negative_slope=0.01: call("leaky_relu", x, alpha=float(negative_slope)),
    "aten.hardsigmoid.default": lambda x: call("hardsigmoid", x, alpha=1 / 6),
    "aten.relu6.default": lambda x: call("clip", x, a_min=0.0, a_max=6.0),
    "aten.hardtanh.default": lambda x, low=-1, high=1: layer.clip(x, low, high),
    "aten._softmax.default": lambda x, axis, half_to_float: call("softmax", x, axis=axis),
    "aten._log_softmax.default": lambda x, axis, half_to_float: call("log_softmax", x, axis=axis),
    "aten.argmax.default": lambda x, axis=None, keepdim=False: _place("argmax", x, axis, keepdim),
    "aten.argmin.default": lambda x, axis=None, keepdim=False: _place("argmin", x, axis, keepdim),
}


@register("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Expr:
    if rounding_mode == "floor":
        found: Expr = _binary("floor_divide")(x, y)
        return found
    if _is_rounded(x, y):
        return cast(_divide(cast(x, "float32"), y, rounding_mode), x.tensor_type.dtype)
    left, right = promoted(x, y)
    if "float" not in left.tensor_type.dtype:
        if rounding_mode is not None:
            return layer.truncated_quotient(left, right)
        left, right = cast(left, "float32"), cast(right, "float32")
    quotient = call("divide", left, right)
    return quotient if rounding_mode is None else _truncate(quotient)


@register("fmod.Tensor", "fmod.Scalar")
def _fmod(x: Expr, y: Any) -> Expr:
    """The remainder with the sign of x."""
    left, right = promoted(x, y)
    rest = call("floor_mod", call("abs", left), call("abs", right))
    return call("where", call("less", left, number(0, left)), call("negative", rest), rest)


@register("trunc.default")
def _truncate(x: Expr) -> Expr:
    if _category(x.tensor_type.dtype) < 2:
        return x
    return call("where", call("less", x, number(0, x)), call("ceil", x), call("floor", x))


@register("sign.default")
def _sign(x: Expr) -> Expr:
    """0 of NaN, too."""
    found = call("sign", x)
    return call("where", call("isnan", x), number(0, x), found) if _category(x.tensor_type.dtype) == 2 else found


def _logarithm(base: int) -> Operator:
    """A logarithm, exact at powers of the base."""

    @_in_float32
    def make(x: Expr) -> Expr:
        found = call("multiply", call("log", x), number(1 / math.log(base), x))
        whole = call("round", found)
        exact = call("equal", call("power", number(base, x), whole), x)
        if base != 2:  # a subnormal number may only be rounded to a power
            least = float(np.finfo(x.tensor_type.dtype).tiny)
            exact = call("logical_and", exact, call("greater_equal", x, number(least, x)))
        return call("where", exact, whole, found)

    return _of_floats(make)


OPERATORS["aten.log2.default"] = _logarithm(2)
OPERATORS["aten.log10.default"] = _logarithm(10)


@register("atan2.default")
def _angle_of(y: Any, x: Any) -> Expr:
    """The angle of a point, by the quotient of the lesser size and the greater one, so that none overflows."""
    y, x = promoted(y, x)
    if _category(x.tensor_type.dtype) < 2:
        y, x = cast(y, "float32"), cast(x, "float32")
    if x.tensor_type.dtype in _NARROW:
        return cast(_angle_of(cast(y, "float32"), cast(x, "float32")), x.tensor_type.dtype)
    up, right = call("abs", y), call("abs", x)
    steep = call("greater", up, right)
    least, most = call("minimum", up, right), call("maximum", up, right)
    # Two zeros, and two infinities, lie on an axis, and on a diagonal.
    quotient = call("where", call("equal", least, most), call("sign", most), call("divide", least, most))
    angle = call("atan", quotient)
    angle = call("where", steep, call("subtract", number(math.pi / 2, x), angle), angle)
    angle = call("where", _is_negative(x), call("subtract", number(math.pi, x), angle), angle)
    found = call("where", _is_negative(y), call("negative", angle), angle)
    return call("where", call("logical_or", call("isnan", x), call("isnan", y)), call("add", x, y), found)


def _is_negative(x: Expr) -> Expr:
    """Return whether the sign is set, of -0, too, whose inverse is below 0."""
    zero = number(0, x)
    inverse = call("less", call("divide", number(1, x), x), zero)
    return call("logical_or", call("less", x, zero), call("logical_and", call("equal", x, zero), inverse))


@register("signbit.default")
def _signbit(x: Expr) -> Expr:
    return _is_negative(x) if _category(x.tensor_type.dtype) == 2 else call("less", x, number(0, x))


@register("copysign.Tensor", "copysign.Scalar")
def _copysign(x: Any, y: Any) -> Expr:
    x, y = promoted(x, y)
    size = call("abs", x)
    return call("where", _is_negative(y), call("negative", size), size)


def _extreme_number(name: str) -> Operator:
    """The larger or smaller of two, of which NaN is none."""

    def make(x: Any, y: Any) -> Expr:
        x, y = promoted(x, y)
        found = call(name, x, y)
        if _category(x.tensor_type.dtype) < 2:
            return found
        return call("where", call("isnan", x), y, call("where", call("isnan", y), x, found))

    return make


OPERATORS["aten.fmax.default"] = _extreme_number("maximum")
OPERATORS["aten.fmin.default"] = _extreme_number("minimum")


@register("hypot.default")
def _hypot(x: Any, y: Any) -> Expr:
    """The greater size times √(1 + the square of their quotient), which overflows only where the result does."""
    x, y = promoted(x, y)
    if x.tensor_type.dtype in _NARROW:
        return cast(_hypot(cast(x, "float32"), cast(y, "float32")), x.tensor_type.dtype)
    sizes = call("abs", x), call("abs", y)
    least, most = call("minimum", *sizes), call("maximum", *sizes)
    quotient = call("where", call("equal", least, most), call("sign", most), call("divide", least, most))
    found = call("multiply", most, call("sqrt", call("add", number(1, x), call("multiply", quotient, quotient))))
    infinite = call("logical_or", *(call("isinf", size) for size in sizes))  # beside NaN, too
    return call("where", infinite, number(math.inf, x), found)


@register("expm1.default")
@_in_float32
def _expm1(x: Expr) -> Expr:
    """As tanh(x / 2) (exp(x) + 1), which is precise near zero."""
    half = call("tanh", call("multiply", x, number(0.5, x)))
    return call("multiply", half, call("add", call("exp", x), number(1, x)))


@register("elu.default")
def _elu(x: Expr, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    below = call("multiply", _expm1(call("multiply", x, number(input_scale, x))), number(alpha * scale, x))
    above = call("multiply", x, number(scale, x))
    return call("where", call("greater", x, number(0, x)), above, below)


@register("dropout.default")
def _dropout(x: Expr, share: float, train: bool) -> Expr:
    if train and share:
        raise NetworkError("a dropout that draws random numbers: export the model in eval mode")
    return x


@register("pow.Tensor_Scalar")
def _pow(x: Expr, exponent: Any) -> Expr:
    if isinstance(exponent, float) and _category(x.tensor_type.dtype) < 2:
        x = cast(x, "float32")
    if exponent == 2:
        return call("multiply", x, x)
    return call("sqrt", x) if exponent == 0.5 else call("power", x, number(exponent, x))


@register("clamp.default")
def _clamp(x: Expr, low: Any = None, high: Any = None) -> Expr:
    if isinstance(low, Computed) or isinstance(high, Computed):
        found: Expr = _clamp_tensor(x, low, high)
        return found
    kind = x.tensor_type.dtype
    if "float" not in kind and any(isinstance(bound, float) for bound in (low, high)):
        return layer.clip(cast(x, "float32"), low, high)
    if kind == "uint8":  # whose bounds below 0 are read as bytes
        low, high = (bound % 256 if bound is not None and -256 < bound < 0 else bound for bound in (low, high))
    return layer.clip(x, low, high)


@register("clamp.Tensor")
def _clamp_tensor(x: Expr, low: Any = None, high: Any = None) -> Expr:
    x = x if low is None else call("maximum", *promoted(x, low))
    return x if high is None else call("minimum", *promoted(x, high))


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
    if extents(x)[0] >= PROBED:
        raise NetworkError("distances of a symbolic number of rows: export the model with that size fixed")
    pair = (call("take", x, Constant(places), axis=0) for places in np.triu_indices(extents(x)[0], 1))
    found: Expr = _vector_norm(call("subtract", *pair), order, [-1])
    return found


@register("_trilinear.default")
def _trilinear(
    x: Expr, y: Expr, z: Expr, no_x: Sequence[int], no_y: Sequence[int], no_z: Sequence[int], summed: Sequence[int],
    unrolled: int = 1,
) -> Expr:  # fmt: skip
    """Sums of products of three tensors, each without some of the axes."""
    axes = "abcdefgh"[: len(extents(x)) + len(no_x)]
    terms = ("".join(a for i, a in enumerate(axes) if i not in gone) for gone in (no_x, no_y, no_z, summed))
    return einsum("{},{},{}->{}".format(*terms), x, y, z)


@register("addmm.default")
def _addmm(bias: Expr, x: Expr, y: Expr, beta: float = 1, alpha: float = 1) -> Expr:
    pairs = (layer.matmul(x, y), alpha), (bias, beta)
    product, summand = (v if factor == 1 else call("multiply", v, number(factor, v)) for v, factor in pairs)
    return layer.add_bias(product, summand) if beta else product


@register("scaled_dot_product_attention.default")
def _attention(
    q: Expr, k: Expr, v: Expr, attn_mask: Expr | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Expr:  # fmt: skip
    if dropout_p:
        raise NetworkError(f"dropout_p {dropout_p}: export the model in eval mode, with 0")
    if extents(q)[-1] >= PROBED:
        raise NetworkError("attention with heads of a symbolic size: export the model with that size fixed")
    if {len(extents(v)) for v in (q, k, v)} != {4}:
        return _attention_of_any_rank(q, k, v, attn_mask, scale, is_causal)
    (batch,) = np.broadcast_shapes(*(extents(x)[:1] for x in (q, k, v)))
    (heads,) = extents(q)[1:2] if enable_gqa else np.broadcast_shapes(*(extents(x)[1:2] for x in (q, k, v)))
    q = layer.broadcast(q, (batch, heads, *extents(q)[2:]))
    # Heads of keys and values that queries share need not be repeated.
    (shared,) = np.broadcast_shapes(*(extents(x)[1:2] for x in (k, v)))
    k, v = (layer.broadcast(x, (batch, shared, *extents(x)[2:])) for x in (k, v))
    return layer.attention(q, k, v, attn_mask, scale=scale, causal=is_causal)


def _attention_of_any_rank(
    q: Expr, k: Expr, v: Expr, mask: Expr | None, scale: float | None, is_causal: bool
) -> Expr:
    """All axes before the last two as the batch, with one head."""
    batch = np.broadcast_shapes(*(extents(x)[:-2] for x in (q, k, v)))

    def joined(x: Expr) -> Expr:
        last = extents(x)[-2:]
        return layer.reshape(layer.broadcast(x, (*batch, *last)), (math.prod(batch), 1, *last))

    if mask is not None and len(extents(mask)) > 2:
        mask = joined(mask)
    found = layer.attention(joined(q), joined(k), joined(v), mask, scale=scale, causal=is_causal)
    return layer.reshape(found, (*batch, *extents(found)[-2:]))


@register("convolution.default")
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


@register("_weight_int8pack_mm.default")
def _weight_only(x: Expr, weight: Constant, scales: Expr) -> Expr:
    """A product with a weight of signed bytes, a scale for each of its rows."""
    n, k = extents(weight)
    if not isinstance(weight, Constant):
        raise NetworkError("a weight that is computed cannot be packed: make it a parameter or a buffer")
    if k % 2:
        raise NetworkError(f"a weight of k = {k} cannot be packed: pad k to an even number")
    unsigned = Constant((weight.value.view(np.uint8) ^ 0x80).reshape(n, 1, k))
    return call("matmul_nbits", x, unsigned, layer.reshape(scales, (n, 1)), bits=8, block_size=k)


@register("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    x: Expr, scale: Any, shift: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> tuple[Expr]:
    return (layer.batch_norm(x, scale, shift, mean, variance, epsilon),)


@register("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default")
def _batch_norm_in_training(*_: Any) -> Expr:
    raise NetworkError("a batch norm that changes its statistics: export the model in eval mode")


@register("_native_batch_norm_legit.no_stats")
def _batch_norm_of_batch(
    x: Expr, scale: Expr | None, shift: Expr | None, training: bool, momentum: float, epsilon: float
) -> tuple[Expr]:
    """Each channel by its own mean and variance in the batch, as an instance norm's decomposition has it."""
    (batch, channels, *image), dtype = extents(x), x.tensor_type.dtype
    one = layer.transpose(layer.reshape(x, (batch, channels, math.prod(image))), (1, 0, 2)) if batch > 1 else x
    size = batch * math.prod(image)
    whole = layer.reshape(one, (1, channels, size))
    if max(channels, size) < PROBED:
        gamma = Constant(np.ones(channels, dtype)) if scale is None else scale
        beta = Constant(np.zeros(channels, dtype)) if shift is None else shift
        found: Expr = call("instance_norm", whole, gamma, beta, epsilon=epsilon)
    else:  # an instance norm's, of all entries of a symbolic batch, or of an image of a symbolic size
        gamma, beta = (layer.filled(value, (size,), dtype) for value in (1, 0))
        found = call("layer_norm", layer.reshape(whole, (channels, size)), gamma, beta, axis=-1, epsilon=epsilon)
        found = found if scale is None else call("multiply", found, layer.reshape(scale, (channels, 1)))
        found = found if shift is None else call("add", found, layer.reshape(shift, (channels, 1)))
    if batch > 1:
        found = layer.transpose(layer.reshape(found, (channels, batch, math.prod(image))), (1, 0, 2))
    return (layer.reshape(found, extents(x)),)


@register("native_layer_norm.default")
def _layer_norm(
    x: Expr, shape: Sequence[int], scale: Expr | None, shift: Expr | None, epsilon: float
) -> tuple[Expr]:
    size, dtype = math.prod(shape), x.tensor_type.dtype
    whole = layer.reshape(x, (*extents(x)[: -len(shape)], size))
    gamma = Constant(np.ones(size, dtype)) if scale is None else layer.reshape(scale, (size,))
    beta = Constant(np.zeros(size, dtype)) if shift is None else layer.reshape(shift, (size,))
    found = call("layer_norm", whole, gamma, beta, axis=-1, epsilon=epsilon)
    return (layer.reshape(found, extents(x)),)


@register("native_group_norm.default")
def _group_norm(
    x: Expr, scale: Expr | None, shift: Expr | None, n: int, c: int, hw: int, groups: int, epsilon: float
) -> tuple[Expr]:
    dtype = x.tensor_type.dtype
    gamma = Constant(np.ones(c, dtype)) if scale is None else scale
    beta = Constant(np.zeros(c, dtype)) if shift is None else shift
    return (call("group_norm", x, gamma, beta, num_groups=groups, axis=1, epsilon=epsilon),)


@register("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    weight: Expr, indices: Expr, offsets: Expr, scale_grad: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Expr | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Expr]:  # fmt: skip
    """Sums, means or maxima of rows, of bags that begin at offsets.

    Unless all bags have as many rows, each looks at all of them, by a product or a choice.
    """
    (n,), kind = extents(indices), weight.tensor_type.dtype
    begin = cast(offsets, "int64")
    if include_last_offset:
        begin = layer.take_slice(begin, 0, 0, -1)
    (bags,), columns = extents(begin), extents(weight)[1]
    rows = call("take", weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = call("multiply", rows, layer.reshape(per_sample_weights, (n, 1)))
    each = n // max(bags, 1)
    regular = isinstance(begin, Constant) and each and np.array_equal(begin.value, np.arange(0, n, each))
    if regular and n == bags * each and padding_idx < 0:
        whole = layer.reshape(rows, (bags, each, columns))
        return (call(("sum", "mean", "max")[mode], whole, axis=(1,), keepdims=False),)
    require_few(bags * n * (columns if mode == 2 else 1), f"{bags} bags of {n} embeddings")
    end = layer.concatenate([layer.take_slice(begin, 0, 1, None), Constant(np.asarray([n]))], 0)
    if include_last_offset:
        end = layer.take_slice(cast(offsets, "int64"), 0, 1, None)
    place = Constant(np.arange(n)[None])
    within = call(
        "logical_and", call("less_equal", layer.reshape(begin, (bags, 1)), place),
        call("less", place, layer.reshape(end, (bags, 1))),
    )  # fmt: skip
    if padding_idx >= 0:
        within = call("logical_and", within, call("not_equal", indices, number(padding_idx, indices)))
    if mode == 2:
        beside, wide = layer.reshape(within, (bags, n, 1)), layer.reshape(rows, (1, n, columns))
        most = call("max", call("where", beside, wide, number(-math.inf, rows)), axis=(1,), keepdims=False)
        return (call("where", call("any", within, axis=(1,), keepdims=True), most, number(0, rows)),)
    share = cast(within, kind)
    found = layer.matmul(share, rows)
    if mode == 1:
        count = call("sum", share, axis=(1,), keepdims=True)
        found = call("divide", found, layer.clip(count, 1, None))
    return (found,)


def dtype_named(given: Any, default: str) -> str:
    """The name of a dtype of PyTorch's, or the default for None."""
    return default if given is None else str(given).removeprefix("torch.")


def summed(x: Expr) -> str:
    """The dtype of sums in PyTorch."""
    kind = x.tensor_type.dtype
    return kind if "float" in kind else "int64"


def _reduce(name: str, **attrs: Any) -> Operator:
    def make(x: Expr, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
        x = cast(x, dtype_named(dtype, summed(x) if name in ("sum", "prod") else x.tensor_type.dtype))
        if not extents(x) and name != "variance":  # one element, without axes
            return x
        found = list(range(len(extents(x)))) if axes is None or axes == [] else axes
        axis = tuple(found) if isinstance(found, list | tuple) else (found,)
        return call(name, x, axis=axis, keepdims=keepdim, **attrs)

    return make


for _name, _own in {
    "mean.dim": "mean", "mean.default": "mean", "sum.dim_IntList": "sum", "amax.default": "max",
    "amin.default": "min", "max.default": "max", "min.default": "min", "prod.default": "prod", "prod.dim_int": "prod",
}.items():  # fmt: skip
    OPERATORS[f"aten.{_name}"] = _reduce(_own)


def _place(name: str, x: Expr, axis: int | None, keepdim: bool) -> Expr:
    return call(name, x, axis=None if axis is None else (axis,), keepdims=keepdim, dtype="int64")


@register("max.dim")
def _max(x: Expr, axis: int, keepdim: bool = False) -> tuple[Expr, Expr]:
    return call("max", x, axis=(axis,), keepdims=keepdim), _place("argmax", x, axis, keepdim)


@register("min.dim")
def _min(x: Expr, axis: int, keepdim: bool = False) -> tuple[Expr, Expr]:
    return call("min", x, axis=(axis,), keepdims=keepdim), _place("argmin", x, axis, keepdim)


@register("var.correction")
def _variance(x: Expr, axes: Any = None, correction: float | None = None, keepdim: bool = False) -> Expr:
    correction = 1 if correction is None else correction
    if correction not in (0, 1):
        raise NetworkError(f"a variance with correction {correction:g}: plevel has 0 and 1")
    found: Expr = _reduce("variance", unbiased=correction == 1)(x, axes, keepdim)
    return found


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


@_in_float32
def _norm_by_powers(x: Expr, axes: Any, keepdim: bool, order: float) -> Expr:
    total = _reduce("sum")(call("power", call("abs", x), number(order, x)), axes, keepdim)
    return call("power", total, number(1 / order, x))


@_in_float32
def _norm(x: Expr, axes: Any, keepdim: bool) -> Expr:
    return call("sqrt", _reduce("sum")(call("multiply", x, x), axes, keepdim))


@register("any.default", "any.dim", "any.dims")
def _any(x: Expr, axes: Any = None, keepdim: bool = False) -> Expr:
    found: Expr = _reduce("any")(_truth(x), axes, keepdim)
    return found


def _truth(x: Expr) -> Expr:
    return x if x.tensor_type.dtype == "bool" else call("not_equal", x, number(0, x))


def _logical(name: str) -> Operator:
    return lambda *operands: call(name, *(_truth(x) for x in operands))


def _bitwise(name: str) -> Operator:
    """An operator of the bits of integers, and of bools as truths."""

    def make(x: Any, y: Any) -> Expr:
        left, right = promoted(x, y)
        return call(f"{'logical' if left.tensor_type.dtype == 'bool' else 'bitwise'}_{name}", left, right)

    return make


@register("bitwise_not.default")
def _bitwise_not(x: Expr) -> Expr:
    kind = x.tensor_type.dtype
    if kind == "bool":
        return call("logical_not", x)
    return call("bitwise_xor", x, number(int(np.iinfo(kind).max) if kind.startswith("u") else -1, x))


for _name in ("and", "or", "xor"):
    OPERATORS[f"aten.logical_{_name}.default"] = _logical(f"logical_{_name}")
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        OPERATORS[f"aten.bitwise_{_name}.{_overload}"] = _bitwise(_name)
for _name, _own in (("left", "l"), ("right", "r")):
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        OPERATORS[f"aten.bitwise_{_name}_shift.{_overload}"] = _binary(f"{_name}_shift")
    for _overload in ("Tensor", "Scalar"):
        OPERATORS[f"aten.__{_own}shift__.{_overload}"] = _binary(f"{_name}_shift")
OPERATORS["aten.logical_not.default"] = _logical("logical_not")
