"""Complex numbers of ATen as pairs of tensors, and its Fourier transforms as products, as calls of plevel's."""
# Over 300 lines: a table of operators.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from plevel.torch.aten import OPERATORS, Operator, cast
from strategy.expr import Constant, Expr, Tuple, call
from strategy.network import layer
from strategy.network.fourier import factors_of, transform
from strategy.network.graph import NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


class Complex(NamedTuple):
    """The real and the imaginary part."""

    real: Any
    imaginary: Any


_FLOATS = {torch.complex64: "float32", torch.complex128: "float64"}
_Function = TypeVar("_Function", bound=Operator)
_TABLE: dict[str, Operator] = {}
_PARTS = frozenset(
    f"aten.{name}" for name in (
        "_neg_view.default", "_unsafe_view.default", "alias.default", "clone.default", "cumsum.default",
        "diagonal.default", "expand.default", "flip.default", "gather.default", "index.Tensor", "index_select.default",
        "mean.default", "mean.dim", "neg.default", "permute.default", "repeat.default", "reshape.default",
        "resolve_neg.default", "select.int", "slice.Tensor", "split_with_sizes.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "sum.dim_IntList", "unfold.default", "unsqueeze.default",
        "view.default",
    )
)
"""Operators of each part alone."""


def is_complex(values: Iterable[Any]) -> bool:
    """Return whether there is a complex number among values, or in lists of them."""
    return any(isinstance(v, Complex | complex) or (isinstance(v, list | tuple) and is_complex(v)) for v in values)


def call_complex(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The outputs of an operator that takes or makes complex numbers.

    Raises:
        NetworkError: plevel has none for them.
    """
    if name in _TABLE:
        return _TABLE[name](*args, **kwargs)
    if name not in _PARTS:
        raise NetworkError("complex numbers, of which plevel has no such operator: compute with torch.view_as_real")
    real, imaginary = (OPERATORS[name](*(_part(a, place) for a in args), **kwargs) for place in (0, 1))
    return tuple(map(Complex, real, imaginary)) if isinstance(real, tuple) else Complex(real, imaginary)


def _part(value: Any, place: int) -> Any:
    if isinstance(value, Complex):
        return value[place]
    return [_part(v, place) for v in value] if isinstance(value, list | tuple) else value


def _pair(value: Any) -> Complex:
    """The parts of a value, of which a real one has 0 as its imaginary part."""
    if isinstance(value, Complex):
        return value
    if isinstance(value, Expr):
        return Complex(value, layer.filled(0, extents(value), value.tensor_type.dtype))
    return Complex(complex(value).real, complex(value).imag)


def _register(*names: str) -> Callable[[_Function], _Function]:
    def decorate(function: _Function) -> _Function:
        _TABLE.update({f"aten.{name}": function for name in names})
        return function

    return decorate


def _sum_of(name: str) -> Operator:
    def make(x: Any, y: Any, alpha: float = 1) -> Complex:
        return Complex(*(OPERATORS[name](a, b, alpha=alpha) for a, b in zip(_pair(x), _pair(y), strict=True)))

    return make


def _product_of(name: str) -> Operator:
    """A product of two, in each of which the parts are summed."""
    times = OPERATORS[name]

    def make(x: Any, y: Any) -> Complex:
        if not is_complex([x]):
            return Complex(times(x, _pair(y).real), times(x, _pair(y).imaginary))
        if not is_complex([y]):
            return Complex(times(x.real, y), times(x.imaginary, y))
        (a, b), (c, d) = _pair(x), _pair(y)
        return Complex(call("subtract", times(a, c), times(b, d)), call("add", times(a, d), times(b, c)))

    return make


def _written_by(name: str) -> Operator:
    """A tensor with another one in some of its places."""

    def make(x: Complex, source: Complex, *place: Any, **named: Any) -> Complex:
        write = OPERATORS[name]
        return Complex(*(write(a, b, *place, **named) for a, b in zip(x, source, strict=True)))

    return make


for _name in ("slice_scatter.default", "diagonal_scatter.default"):
    _TABLE[f"aten.{_name}"] = _written_by(f"aten.{_name}")
for _name in ("add.Tensor", "sub.Tensor"):
    _TABLE[f"aten.{_name}"] = _sum_of(f"aten.{_name}")
for _name in ("mul.Tensor", "bmm.default", "matmul.default", "mm.default"):
    _TABLE[f"aten.{_name}"] = _product_of(f"aten.{_name}")


@_register("div.Tensor")
def _divide(x: Any, y: Any) -> Complex:
    divide = OPERATORS["aten.div.Tensor"]
    if isinstance(y, complex):
        found: Complex = _TABLE["aten.mul.Tensor"](x, 1 / y)
        return found
    if isinstance(y, Complex):
        c, d = _pair(y)
        square = call("add", call("multiply", c, c), call("multiply", d, d))
        x = _TABLE["aten.mul.Tensor"](x, Complex(c, call("negative", d)))
        return Complex(divide(x.real, square), divide(x.imaginary, square))
    return Complex(divide(x.real, y), divide(x.imaginary, y))


@_register("reciprocal.default")
def _reciprocal(x: Complex) -> Complex:
    return _divide(1.0, x)


@_register("pow.Tensor_Scalar")
def _power(x: Complex, exponent: Any) -> Complex:
    """A whole power, by squares."""
    if isinstance(exponent, complex) or exponent != int(exponent):
        raise NetworkError(f"complex numbers to the power {exponent}: plevel has whole ones")
    if exponent < 0:
        return _reciprocal(_power(x, -exponent))
    if exponent < 2:
        return x if exponent else _full_like(x, 1)
    times, half = _TABLE["aten.mul.Tensor"], _power(x, exponent // 2)
    square: Complex = times(half, half)
    return times(square, x) if exponent % 2 else square


@_register("exp.default")
def _exponential(x: Complex) -> Complex:
    return _polar(call("exp", x.real), x.imaginary)


@_register("linear.default")
def _linear(x: Any, weight: Any, bias: Any = None) -> Complex:
    turned = Complex(*(layer.swap(v) for v in weight)) if isinstance(weight, Complex) else layer.swap(weight)
    product: Complex = _TABLE["aten.matmul.default"](x, turned)
    return product if bias is None else _TABLE["aten.add.Tensor"](product, bias)


@_register("where.self")
def _where(condition: Expr, x: Any, y: Any) -> Complex:
    choose = OPERATORS["aten.where.self"]
    return Complex(*(choose(condition, a, b) for a, b in zip(_pair(x), _pair(y), strict=True)))


@_register("full.default")
def _full(shape: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Complex:
    kind = _FLOATS.get(dtype, "float32")
    return Complex(*(layer.filled(part, shape, kind) for part in _pair(value)))


@_register("scalar_tensor.default")
def _scalar(value: Any, dtype: Any = None, **_: Any) -> Complex:
    return _full((), value, dtype)


@_register("full_like.default")
def _full_like(x: Any, value: Any, dtype: Any = None, **_: Any) -> Complex:
    like = x.real if isinstance(x, Complex) else x
    kind = _FLOATS.get(dtype, like.tensor_type.dtype)
    return Complex(*(layer.filled(part, extents(like), kind) for part in _pair(value)))


@_register("eq.Tensor", "eq.Scalar")
def _equal(x: Any, y: Any) -> Expr:
    equal = OPERATORS["aten.eq.Tensor"]
    return call("logical_and", *(equal(a, b) for a, b in zip(_pair(x), _pair(y), strict=True)))


@_register("ne.Tensor", "ne.Scalar")
def _unequal(x: Any, y: Any) -> Expr:
    return call("logical_not", _equal(x, y))


@_register("linalg_vector_norm.default")
def _norm(x: Complex, *about: Any, **named: Any) -> Any:
    return OPERATORS["aten.linalg_vector_norm.default"](_size(x), *about, **named)


@_register("cat.default")
def _join(values: Sequence[Any], axis: int = 0) -> Complex:
    """Real tensors may be among them."""
    return Complex(*(OPERATORS["aten.cat.default"](list(part), axis) for part in zip(*map(_pair, values), strict=True)))


@_register("copy.default")
def _copy(x: Any, source: Any, *_: Any) -> Any:
    """Real numbers take the real part alone."""
    copy = OPERATORS["aten.copy.default"]
    if not isinstance(x, Complex):
        return copy(x, source.real)
    return Complex(*(copy(a, b) for a, b in zip(x, _pair(source), strict=True)))


@_register("index_put.default")
def _index_put(x: Complex, indices: Sequence[Expr | None], values: Complex, accumulate: bool = False) -> Complex:
    put = OPERATORS["aten.index_put.default"]
    return Complex(*(put(a, indices, b, accumulate) for a, b in zip(x, values, strict=True)))


@_register("constant_pad_nd.default")
def _pad(x: Complex, sides: Sequence[int], value: complex = 0) -> Complex:
    pad = OPERATORS["aten.constant_pad_nd.default"]
    return Complex(*(pad(v, sides, beside) for v, beside in zip(x, _pair(value), strict=True)))


@_register("_to_copy.default")
def _to_copy(x: Any, dtype: Any = None, **_: Any) -> Complex:
    real, imaginary = _pair(x)
    wanted = _FLOATS.get(dtype)
    if dtype is not None and wanted is None:
        raise NetworkError(f"complex numbers as {dtype}: take torch.real of them")
    return Complex(*(v if wanted is None else cast(v, wanted) for v in (real, imaginary)))


@_register("complex.default")
def _complex(real: Expr, imaginary: Expr) -> Complex:
    shape = np.broadcast_shapes(extents(real), extents(imaginary))
    return Complex(layer.broadcast(real, shape), layer.broadcast(imaginary, shape))


@_register("polar.default")
def _polar(size: Expr, angle: Expr) -> Complex:
    return _complex(*(call("multiply", size, call(name, angle)) for name in ("cos", "sin")))


@_register("view_as_complex.default")
def _view_as_complex(x: Expr) -> Complex:
    return Complex(*(layer.reshape(layer.take_slice(x, -1, i, i + 1), extents(x)[:-1]) for i in (0, 1)))


@_register("view_as_real.default")
def _view_as_real(x: Complex) -> Expr:
    return call("stack", Tuple(list(x)), axis=len(extents(x.real)))


@_register("real.default")
def _real(x: Complex) -> Any:
    return x.real


@_register("imag.default")
def _imaginary(x: Complex) -> Any:
    return x.imaginary


@_register("_conj.default", "conj_physical.default")
def _conjugate(x: Complex) -> Complex:
    return Complex(x.real, call("negative", x.imaginary))


@_register("resolve_conj.default")
def _resolved(x: Complex) -> Complex:
    return x


@_register("abs.default")
def _size(x: Complex) -> Any:
    return OPERATORS["aten.hypot.default"](*x)


@_register("angle.default")
def _angle(x: Any) -> Any:
    if not isinstance(x, Complex):
        x = x if "float" in x.tensor_type.dtype else cast(x, "float32")
        zero = layer.number(0, x)
        found = call("where", call("less", x, zero), layer.number(math.pi, x), zero)
        return call("where", call("isnan", x), x, found)
    return OPERATORS["aten.atan2.default"](x.imaginary, x.real)


def _scale(mode: int, sizes: Sequence[int]) -> float | Expr:
    """The factor of a transform over axes of these sizes: none, by the root of their product, or by it."""
    if not mode or max(sizes) < PROBED:
        return float(math.prod(sizes) ** (0, -0.5, -1)[mode])
    one = Constant(np.ones(()))
    size = layer.count(math.prod(sizes), one)
    return call("divide", one, call("sqrt", size) if mode == 1 else size)


@_register("_fft_r2c.default")
def _transform_real(x: Expr, axes: Sequence[int], mode: int, onesided: bool) -> Complex:
    """The last axis of those that are named is the one of which half is left."""
    *others, last = axes
    scale = _scale(mode, [extents(x)[axis] for axis in axes])
    half = Complex(*transform([x], last, extents(x)[last], scale=scale, onesided=onesided))
    return _transform(half, others, 0, True)


@_register("_fft_c2c.default")
def _transform(x: Complex, axes: Sequence[int], mode: int, forward: bool) -> Complex:
    scale = _scale(mode, [extents(x.real)[axis] for axis in axes])
    for axis in axes:
        x = Complex(*transform(x, axis, extents(x.real)[axis], scale=scale, inverse=not forward))
        scale = 1
    return x


@_register("_fft_c2r.default")
def _transform_half(x: Complex, axes: Sequence[int], mode: int, size: int) -> Expr:
    *others, last = axes
    scale = _scale(mode, [*(extents(x.real)[axis] for axis in others), size])
    (found,) = transform(_transform(x, others, 0, False), last, size, scale=scale, inverse=True, onesided=True)
    return found


@_register("stft.default")
def _spectrogram(
    x: Expr, size: int, step: int | None = None, length: int | None = None, window: Expr | None = None,
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
    align: bool | None = None,
) -> Complex | Expr:
    """Transforms of frames of a signal [batch, time], by a convolution with their factors times the window."""
    if isinstance(x, Complex):
        raise NetworkError("a spectrogram of complex numbers: take those of their parts")
    length = size if length is None else length
    factors = factors_of(size, size, 1, False, onesided is not False)
    factors = factors * size**-0.5 if normalized else factors
    outputs, wide, *_ = factors.shape
    kind = x.tensor_type.dtype
    kernel: Expr = Constant(factors.reshape(outputs * wide, 1, size).astype(kind))
    if window is None:
        window = Constant(np.ones(length, kind))
    if length < size:
        before = (size - length) // 2
        window = call("pad", window, pad_width=((before, size - length - before),))
    batch = layer.reshape(x, (-1, 1, extents(x)[-1]))
    found = layer.convolution(
        batch, call("multiply", kernel, window), None, strides=(size // 4 if step is None else step,), padding=(0, 0),
        dilation=(1,), groups=1,
    )
    shape = (*extents(x)[:-1], wide, extents(found)[2])
    real, imaginary = (layer.reshape(layer.take_slice(found, 1, i * wide, (i + 1) * wide), shape) for i in (0, 1))
    return Complex(real, imaginary) if return_complex else _view_as_real(Complex(real, imaginary))


COMPLEX = _TABLE.keys() | _PARTS
