"""The gradients of reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from strategy.expr import Call, Expr, call, const
from strategy.gradient import register_gradient
from strategy.ops.broadcast import equal, where
from strategy.ops.elemwise import cast, ones_like, zeros_like
from strategy.ops.reduce.operator import reduced_axes
from strategy.ops.reshape import expand_dims


def kept(orig: Call, node: Expr) -> Expr:
    """A result of the reduction `orig` with the reduced axes as extents of 1."""
    attrs = orig.attrs
    if attrs.keepdims:
        return node
    return expand_dims(node, reduced_axes(attrs, orig.args[0].tensor_type.ndim))


def shared_out(node: Expr, x: Expr, axes: Sequence[int], less: int = 0) -> Expr:
    """`node` divided by the number of elements of `x` over the axes, less `less`.

    In float32 where elements are narrower, which cannot hold the number.
    """
    narrow = x.tensor_type.dtype
    dtype = "float64" if narrow == "float64" else "float32"
    extents = [x.tensor_type.shape[axis] for axis in axes]
    count: Expr
    if all(extent.is_constant for extent in extents):
        count = const(math.prod(map(int, extents)) - less, dtype)
    else:
        ones = cast(ones_like(x), "int64")
        count = cast(call("sum", ones, axis=tuple(axes), keepdims=True), dtype) - const(less, dtype)
    return cast(cast(node, dtype) / count, narrow)


register_gradient("sum", lambda orig, grad: [kept(orig, grad) * ones_like(orig.args[0])])


@register_gradient("mean")
def mean_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad / count, broadcast to the input]."""
    x = orig.args[0]
    return [shared_out(kept(orig, grad), x, reduced_axes(orig.attrs, x.tensor_type.ndim)) * ones_like(x)]


@register_gradient("max")
@register_gradient("min")
def extreme_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad where the element is that was taken, shared out where several are equal]."""
    x = orig.args[0]
    dtype = "float64" if x.tensor_type.dtype == "float64" else "float32"  # a narrower one cannot hold the number
    taken = cast(equal(x, kept(orig, orig)), dtype)
    count = call("sum", taken, axis=orig.attrs.axis, exclude=orig.attrs.exclude, keepdims=True)
    return [cast(cast(kept(orig, grad), dtype) / count * taken, x.tensor_type.dtype)]


@register_gradient("prod")
def prod_grad(orig: Call, grad: Expr) -> list[Expr]:
    """Return [grad times the product of all other elements], right where elements are zero too."""
    x = orig.args[0]
    zeros, ones = zeros_like(x), ones_like(x)
    zero = equal(x, zeros)
    safe = where(zero, ones, x)
    others = call("prod", safe, axis=orig.attrs.axis, exclude=orig.attrs.exclude, keepdims=True) / safe
    # A zero among the others makes their product zero.
    found = call("sum", where(zero, ones, zeros), axis=orig.attrs.axis, exclude=orig.attrs.exclude, keepdims=True)
    other_zeros = found - where(zero, ones, zeros)
    return [kept(orig, grad) * where(equal(other_zeros, zeros), others, zeros)]
