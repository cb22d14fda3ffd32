"""`conv2d_nchw_1x1.cpu`: with 1×1 windows, a product of the weight and the image in place.

With a stride or padding, the pixels that windows see are first put next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.tile import (
    PAGE_BYTES,
    ROWS,
    accumulators,
    best_tile_of,
    block_knob,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    up_to,
    whole_blocks,
    width_knob,
)
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import copy_by_vectors, pick_pixels, schedule_padding
from strategy.ops.conv2d.product import (
    BLOCKS,
    INNER,
    Geometry,
    pack_rows,
    product,
    schedule_packing,
    schedule_product,
)
from strategy.processor import NEAR_LAST_LEVEL
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_AHEAD = Knob("ahead", [False, True])
_COPIED = Knob("copied", [False, True])
_SHORT = 64  # terms of a sum, over which a panel is small; half as many take less time than to write it to memory
_SHARED = 8  # tiles that share a panel, from which its copy pays
_LINE = 4  # panels that are copied together, at least


def leaves_pixels(attrs: Conv2DAttrs) -> bool:
    """Return whether stride and padding keep all pixels in place."""
    return attrs.strides == (1, 1) and not any(attrs.padding)


def space(
    attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile, unrolling, and how tiles are grouped into tasks; `inner` names what changes fastest.

    With `ahead` the next panel of pixels is prefetched meanwhile; those `copied` lie together in a task's memory.
    """
    geometry = Geometry.of(inputs, out_type)
    lanes = lanes_of(target, inputs[0].dtype)

    def fallback() -> dict[str, Any]:
        size = dtype_bytes(inputs[0].dtype)
        (rows, width), narrow, wide = (
            best_tile_of(geometry.out_channels, columns, lanes, target.vector_registers, target.multiply_adds)
            for columns in (geometry.pixels, *(min(geometry.pixels, v * lanes) for v in (2, 4)))
        )
        written = geometry.out_channels * geometry.pixels * size
        if geometry.depth < _SHORT and written > target.l2_bytes * (1 if geometry.depth < _SHORT // 2 else 3):
            # So many pages of channels are written one after the other, a part of as many panels as a quarter of the
            # second level holds. A panel whose last vectors may lie beyond the image has a branch for each load, but a
            # mask if the image ends within a vector.
            for tile in (wide, (rows, width), narrow):
                count = -(-geometry.pixels // tile[1])
                most = min(target.l2_bytes // (4 * geometry.depth * tile[1] * size), count // (4 * target.threads), 32)
                panels = largest_divisor(BLOCKS, count, most)
                if panels >= 4 and (geometry.pixels % tile[1] == 0 or geometry.pixels % lanes):
                    return {
                        "rows": tile[0], "width": tile[1], "unroll": 1, "o_block": 1, "p_block": panels,
                        "inner": "pixels", "ahead": False, "copied": False,
                    }

        def block(rows: int, width: int) -> int:
            tiles = -(-geometry.out_channels // rows)
            whole = -(-geometry.pixels // width) * geometry.batch >= 4 * target.threads
            return largest_divisor(BLOCKS, tiles, tiles if whole else -(-tiles // target.threads))

        def lower(rows: int, width: int, least: int) -> int | None:
            """The rows of the highest tile, not much lower than `rows`, of which a task has at least as many."""
            near = (r for r in ROWS if 4 * rows <= 5 * r <= 5 * rows)
            return max((r for r in near if block(r, width) >= least), default=None)

        plane_bytes, weight_bytes = geometry.pixels * size, geometry.depth * geometry.out_channels * size
        leave = plane_bytes * (geometry.depth + geometry.out_channels) > target.l2_bytes  # data and result
        stays = weight_bytes <= target.l2_bytes // 2
        # Rows whole pages apart share a set of the caches.
        together, is_near = plane_bytes % PAGE_BYTES == 0, target.arch in NEAR_LAST_LEVEL
        far = leave and plane_bytes > PAGE_BYTES and (together or not is_near)
        if far and stays and geometry.depth >= _SHORT:
            shared = lower(*narrow, _SHARED) if geometry.out_channels > (_SHARED - 1) * narrow[0] else None
            lines = _by_lines(geometry, shared, narrow[1], size, target) if shared is not None else None
            if lines is not None:
                return lines
        misplaced = geometry.pixels % lanes > 0 or together  # or vectors cross lines
        if misplaced and geometry.depth >= _SHORT:
            for most, across in ((rows, width), narrow):
                beyond = round_up(geometry.pixels, across) > round_up(geometry.pixels, width)
                if not beyond and geometry.out_channels > (_SHARED - 1) * most:
                    shared = lower(most, across, _SHARED)
                    if shared is not None:
                        return _with_copies(geometry, shared, across, block(shared, across), size, target)
        if not misplaced and 4 * geometry.depth * width * size > 3 * target.l1d_bytes:
            rows, width = narrow
        # Nothing divides a prime number of tiles, each of which would be a task; of lower ones there are others.
        rows = rows if rows >= geometry.out_channels else lower(rows, width, 2) or rows
        return {
            "rows": rows,
            "width": width,
            "unroll": 1,
            "o_block": block(rows, width),
            "p_block": 1,
            "inner": "channels",
            "ahead": geometry.depth >= _SHORT and block(rows, width) * lanes >= width,  # of a step, a line at most
            "copied": False,
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
            _AHEAD,
            _COPIED,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(geometry.out_channels, "rows", "o_block"),
            whole_blocks(geometry.pixels, "width", "p_block"),
            knob("ahead") * (knob("copied") + knob("unroll") - 1) == 0,
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={"inner": one_order(knob("p_block"), knob("o_block"), ahead=True)},
    )


def _by_lines(geometry: Geometry, rows: int, width: int, size: int, target: Target) -> dict[str, Any] | None:
    """The fallback whose tasks copy the panels that half of the second level holds, and a tile goes over all of them.

    Each channel is on pages of its own, of which so many pixels are read and written at a time; None if few panels go
    together.
    """
    panels, tiles = -(-geometry.pixels // width), -(-geometry.out_channels // rows)
    most = min(target.l2_bytes // (2 * geometry.depth * width * size), panels * geometry.batch // target.threads)
    p_block = largest_divisor(BLOCKS, panels, most)
    if p_block < _LINE:
        return None
    parts = panels // p_block * geometry.batch * geometry.groups
    even = parts % target.threads == 0 or parts >= 8 * target.threads
    return {
        "rows": rows, "width": width, "unroll": 1,
        "o_block": largest_divisor(BLOCKS, tiles, tiles if even else -(-tiles // target.threads)),
        "p_block": p_block, "inner": "pixels", "ahead": False, "copied": True,
    }


def _with_copies(
    geometry: Geometry, rows: int, width: int, o_block: int, size: int, target: Target
) -> dict[str, Any]:
    """The fallback whose tasks copy panels of pixels.

    If the weight leaves no half of the second level, its tiles are read for as many panels as a quarter holds.
    """
    panels, tiles = -(-geometry.pixels // width), -(-geometry.out_channels // rows)
    p_block = 1
    if tiles * rows * geometry.depth * size > target.l2_bytes // 2:
        tasks = panels * geometry.batch * (tiles // o_block)
        most = min(target.l2_bytes // (4 * geometry.depth * width * size), tasks // (2 * target.threads))
        p_block = largest_divisor(BLOCKS, panels, most)
    return {
        "rows": rows, "width": width, "unroll": 1, "o_block": o_block, "p_block": p_block,
        "inner": "pixels" if p_block > 1 else "channels", "ahead": False, "copied": True,
    }


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

    if config["copied"]:
        column = _copied(geometry, column, integer(config, "width"))
    return [product(geometry, weight, column, config, str(data.dtype), whole=bool(config["copied"]))]


def _copied(geometry: Geometry, column: Callable[..., Any], width: int) -> Callable[..., Any]:
    """Columns of which those of a panel lie together."""

    def read(n: Any, g: Any, panel: Any, k: Any, lane: Any) -> Any:
        p = panel * width + lane
        return zero_beyond(column(n, g, k, p), p, geometry.pixels, width)

    shape = (geometry.batch, geometry.groups, -(-geometry.pixels // width), geometry.depth, width)
    columns = compute_stage("columns", shape, read)
    return lambda n, g, k, p: columns[n, g, p // width, k, p % width]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of channels × pixels in parallel; in each, one register tile after the other."""
    o_block, p_block = integer(config, "o_block"), integer(config, "p_block")
    lanes = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    sch, stages, task, _ = schedule_product(outs, config, attrs.groups, o_block, p_block, lanes)
    if "padded" in stages:
        schedule_padding(sch, stages["padded"], lanes)
    if "columns" in stages:
        sch.compute_at(stages["columns"], task, preserve_unit_loops=True)
        copy_by_vectors(sch, stages["columns"], lanes)
    schedule_packing(sch, stages)
    return sch
