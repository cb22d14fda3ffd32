"""`conv2d_nchw_1x1.cpu`: with 1×1 windows, a product of the weight and the image in place.

With a stride or padding, the pixels that windows see are first put next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.tile import (
    ROWS,
    accumulators,
    best_tile_of,
    block_knob,
    largest_divisor,
    register_constraint,
    up_to,
    whole_blocks,
    width_knob,
)
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import pick_pixels, schedule_padding
from strategy.ops.conv2d.product import (
    BLOCKS,
    INNER,
    Geometry,
    pack_rows,
    product,
    schedule_packing,
    schedule_product,
)
from strategy.schedule import Outs, accumulator, integer, lanes_of
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType


def leaves_pixels(attrs: Conv2DAttrs) -> bool:
    """Return whether stride and padding keep all pixels in place."""
    return attrs.strides == (1, 1) and not any(attrs.padding)


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile, unrolling, and how tiles are grouped into tasks; `inner` names what changes fastest."""
    geometry = Geometry.of(inputs, out_type)
    lanes = lanes_of(target, inputs[0].dtype)

    def fallback() -> dict[str, Any]:
        rows, width = best_tile_of(
            geometry.out_channels, geometry.pixels, lanes, target.vector_registers, target.multiply_adds
        )
        panels = -(-geometry.pixels // width)
        whole = panels * geometry.batch >= 4 * target.threads

        def block(rows: int) -> int:
            tiles = -(-geometry.out_channels // rows)
            return largest_divisor(BLOCKS, tiles, tiles if whole else -(-tiles // target.threads))

        # Nothing divides a prime number of tiles, each of which would be a task; of less high ones there are others.
        lower = max((r for r in ROWS if r < rows), default=rows)
        if whole and rows < geometry.out_channels and block(rows) == 1 < block(lower):
            rows = lower
        return {
            "rows": rows,
            "width": width,
            "unroll": 1,
            "o_block": block(rows),
            "p_block": 1,
            "inner": "channels",
        }

    high, wide = up_to("rows", ROWS, 2 * geometry.out_channels, "layout"), width_knob(lanes, geometry.pixels)
    return ConfigSpace(
        [
            high,
            wide,
            up_to("unroll", (1, 2, 4, 8), geometry.depth),
            block_knob("o_block", BLOCKS, geometry.out_channels, high),
            block_knob("p_block", BLOCKS, geometry.pixels, wide),
            INNER,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(geometry.out_channels, "rows", "o_block"),
            whole_blocks(geometry.pixels, "width", "p_block"),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
    )


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [ceil(o / rows), c, rows]."""
    return {1: pack_rows(integer(config, "rows"), attrs.groups)}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The product of the weight's tiles with the image [n, c, h * w], in each group."""
    data, weight = inputs
    geometry = Geometry.of_tensors(attrs, data, weight, out_type)
    width = geometry.out_w
    if not leaves_pixels(attrs):
        data = pick_pixels(data, attrs, geometry.out_h, width)

    def column(n: Any, g: Any, k: Any, p: Any) -> Any:
        return data[n, g * geometry.channels + k, p // width, p % width]

    return [product(geometry, weight, column, config, str(data.dtype))]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of channels × pixels in parallel; in each, one register tile after the other."""
    o_block, p_block = integer(config, "o_block"), integer(config, "p_block")
    lanes = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    sch, stages, *_ = schedule_product(outs, config, attrs.groups, o_block, p_block, lanes)
    if "padded" in stages:
        schedule_padding(sch, stages["padded"], lanes)
    schedule_packing(sch, stages)
    return sch
