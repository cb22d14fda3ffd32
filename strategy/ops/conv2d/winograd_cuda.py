"""`conv2d_nchw_winograd.cuda`: F(2×2, 3×3), 4 multiplications for each output where direct needs 9.

Tiles are transformed, multiplied, one product for each of their 16 places, and transformed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.limit import limits_of
from strategy.cuda.matmul import Product, compute_product
from strategy.cuda.schedule import bind_flat
from strategy.cuda.tiled import schedule_tiled, tiled_space
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.transform import F2, Matrix, combine
from strategy.schedule import (
    Outs,
    ScheduleError,
    compute_stage,
    find_stages,
    join_epilogue,
    new_schedule,
)
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType

_TILE, _ALPHA = F2.tile, F2.alpha


def _transformed(matrix: Matrix, i: Any, j: Any, read: Callable[[int, int], Any]) -> Any:
    """Entry (i, j), known at run time, of matrix · tile · matrixᵀ for a small tile that `read` gives."""
    steps = range(len(matrix[0]))
    return combine(matrix, j, [combine(matrix, i, [read(a, b) for a in steps]) for b in steps])


def _tiles(out_type: TensorType) -> tuple[int, int, int]:
    """Tiles down and across an image, and in all."""
    batch, _, rows, columns = out_type.concrete_shape
    down, across = -(-rows // _TILE), -(-columns // _TILE)
    return down, across, batch * down * across


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Blocks, threads and loads of the products."""
    out_channels, channels, _, _ = inputs[1].concrete_shape
    count = _tiles(out_type)[2]
    return tiled_space(
        limits_of(target), inputs[0].dtype, out_channels, count, channels, batch=_ALPHA * _ALPHA,
        along_k=False, vector=4 if channels % 4 == count % 4 == 0 else 1, split=False,
    )


def prepare(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight [o, c, 3, 3] in the transformed domain: [16, o, c]."""

    def transform(weight: Any) -> Any:
        return compute_stage(
            "weight_transform", (_ALPHA * _ALPHA, weight.shape[0], weight.shape[1]),
            lambda p, o, c: _transformed(F2.weight, p // _ALPHA, p % _ALPHA, lambda a, b: weight[o, c, a, b]),
        )

    return {1: transform}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The convolution of [n, c, h, w] with a weight that `prepare` has transformed."""
    from tvm import te, tirx

    data, weight = inputs
    channels, out_channels = int(data.shape[1]), int(weight.shape[1])
    down, across, count = _tiles(out_type)
    top, left, _, _ = attrs.padding

    def place(p: Any, c: Any, t: Any) -> Any:
        n, y, x = t // (down * across), t // across % down * _TILE, t % across * _TILE

        def read(a: int, b: int) -> Any:
            row, column = y + a - top, x + b - left
            inside = tirx.all(row >= 0, row < data.shape[2], column >= 0, column < data.shape[3])
            return tirx.if_then_else(inside, data[n, c, row, column], tirx.const(0, data.dtype))

        return _transformed(F2.data, p // _ALPHA, p % _ALPHA, read)

    tiles = compute_stage("tiles", (_ALPHA * _ALPHA, channels, count), place)
    product = compute_product(
        Product(_ALPHA * _ALPHA, out_channels, count, channels),
        lambda p, o, c: weight[p, o, c],
        lambda p, t, c: tiles[p, c, t],
        str(data.dtype),
        config,
    )
    sums = compute_stage("sums", (_ALPHA * _ALPHA, out_channels, count), lambda p, o, t: product[p, o, t])

    def back(n: Any, o: Any, h: Any, w: Any) -> Any:
        t = (n * down + h // _TILE) * across + w // _TILE
        return _transformed(F2.inverse, h % _TILE, w % _TILE, lambda a, b: sums[a * _ALPHA + b, o, t])

    return [te.compute(out_type.concrete_shape, back, name="conv2d_winograd")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Three kernels: tiles, products, outputs; one more for a weight that changes."""
    sch = new_schedule(outs)
    stages = find_stages(sch)
    if "sums" not in stages:
        raise ScheduleError("this is no convolution of compute")
    output = join_epilogue(sch)
    for block in (stages["tiles"], stages.get("weight_transform")):
        if block is not None:
            place, *which = sch.get_loops(block)
            _bind_tiles(sch, which, [place])
    n, o, h, w = sch.get_loops(output)
    (h, row), (w, column) = (sch.split(loop, [None, _TILE]) for loop in (h, w))
    _bind_tiles(sch, [n, o, h, w], [row, column])
    batch, row, column = sch.get_loops(stages["sums"])
    schedule_tiled(sch, (batch, row, column), config, b_along_k=False)
    return sch


def _bind_tiles(sch: Any, tiles: list[Any], places: list[Any]) -> None:
    """A thread for each tile, which computes all of its places: what they share is read once."""
    sch.reorder(*tiles, *places)
    bind_flat(sch, tiles)
    for place in places:
        sch.unroll(place)
