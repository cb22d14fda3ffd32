"""Pools of ATen as calls of plevel's. One image alone has no batch axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from plevel.torch.aten import OPERATORS, Operator, register
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.layer import number
from strategy.network.pool import adaptive_places, largest_places, pool, sum_pool
from strategy.network.rewriter import extents
from strategy.network.size import PROBED


def _batched(x: Expr, rank: int) -> Expr:
    return layer.reshape(x, (-1, *extents(x)[-1 - rank :]))


def _back(found: Expr, x: Expr, rank: int) -> Expr:
    """The batch of images that is made of `_batched`, with the axes of x before its image."""
    return layer.reshape(found, (*extents(x)[:-rank], *extents(found)[-rank:]))


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """A number for each axis of an image, of which there may be one for all."""
    found = value if isinstance(value, list | tuple) else (value,)
    return tuple(int(n) for n in (found if len(found) == rank else found * rank))


def _windows(rank: int, size: Any, strides: Any, padding: Any, dilation: Any = 1) -> dict[str, Any]:
    given = {"size": size, "strides": strides or size, "padding": padding, "dilation": dilation}
    found = {name: _each(value, rank) for name, value in given.items()}
    return found | {"padding": found["padding"] * 2}


def _max_pool(rank: int) -> Operator:
    def make(
        x: Expr, size: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> tuple[Expr, Callable[[], Expr]]:
        about = _windows(rank, size, strides, padding, dilation) | {"ceil_mode": ceil_mode}
        batch = _batched(x, rank)
        return (
            _back(pool("max_pool2d", batch, **about), x, rank),
            lambda: _back(largest_places(batch, **about), x, rank),
        )

    return make


def _avg_pool(rank: int) -> Operator:
    def make(
        x: Expr, size: Any, strides: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Expr:
        about = _windows(rank, size, strides, padding) | {"ceil_mode": ceil_mode}
        batch = _batched(x, rank)
        if divisor_override is None:
            found = pool("avg_pool2d", batch, count_include_pad=count_include_pad, **about)
        else:
            total = sum_pool(batch, **about)
            found = call("divide", total, number(divisor_override, total))
        return _back(found, x, rank)

    return make


for _rank in (2, 3):
    OPERATORS[f"aten.max_pool{_rank}d_with_indices.default"] = _max_pool(_rank)
    OPERATORS[f"aten.avg_pool{_rank}d.default"] = _avg_pool(_rank)


@register("_adaptive_avg_pool2d.default", "adaptive_avg_pool2d.default")
def _adaptive_avg_pool(x: Expr, size: Any) -> Expr:
    height, width = extents(x)[-2:]
    down, across = _each(size, 2)
    if max(height, width) >= PROBED or height % down or width % across:
        return _adaptive("avg", x, (down, across))
    window = (height // down, width // across)
    return _back(call("avg_pool2d", _batched(x, 2), pool_size=window, strides=window), x, 2)


@register("adaptive_max_pool2d.default")
def _adaptive_max_pool(x: Expr, size: Any) -> tuple[Expr, Callable[[], Expr]]:
    return _adaptive("max", x, size), partial(_adaptive_places, x, size, 2)


def _adaptive_places(x: Expr, size: Any, rank: int) -> Expr:
    return _back(adaptive_places(_batched(x, rank), _each(size, rank)), x, rank)


def _adaptive(name: str, x: Expr, size: Any) -> Expr:
    return _back(call(f"adaptive_{name}_pool2d", _batched(x, 2), output_size=_each(size, 2)), x, 2)


def _by_planes(function: Callable[[Expr, Any], Expr], x: Expr, size: Any) -> Expr:
    """An adaptive pool of three dimensions: of the planes, then across them, as a window is a product of its sides."""
    down, *plane = _each(size, 3)
    planes = function(x, plane)
    *lead, depth, height, width = extents(planes)
    found = function(layer.reshape(planes, (*lead, depth, height * width)), (down, height * width))
    return layer.reshape(found, (*lead, down, height, width))


@register("_adaptive_avg_pool3d.default", "adaptive_avg_pool3d.default")
def _adaptive_avg_pool3d(x: Expr, size: Any) -> Expr:
    return _by_planes(_adaptive_avg_pool, x, size)


@register("adaptive_max_pool3d.default")
def _adaptive_max_pool3d(x: Expr, size: Any) -> tuple[Expr, Callable[[], Expr]]:
    return _by_planes(partial(_adaptive, "max"), x, size), partial(_adaptive_places, x, size, 3)
