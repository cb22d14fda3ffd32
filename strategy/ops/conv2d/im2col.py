"""`conv2d_nchw_im2col.cpu`: windows unfolded into columns, then one product, for all windows.

After Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document
Processing" (2006), with the columns of a few rows of the image at a time, so that they stay in cache.
Where rows of the output are of whole vectors, columns need not be copied: each is a part of a row of the image, whose
every second column comes first where the stride is two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.condition import ceildiv, maximum, minimum
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    best_tile_of,
    largest_divisor,
    one_order,
    register_constraint,
    tile_registers,
    tile_share,
    up_to,
    width_knob,
)
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import (
    copy_by_vectors,
    pad_zeros,
    padded_width,
    read_windows,
    schedule_padding,
    schedule_split,
)
from strategy.ops.conv2d.product import (
    INNER,
    MOST_UNROLLED,
    Geometry,
    fitting_blocks,
    pack_rows,
    product,
    schedule_packing,
    schedule_product,
)
from strategy.processor import WAITS_FOR_LOADS
from strategy.schedule import Outs, accumulator, compute_stage, dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

UNROLL = (1, 2, 4, 8)
_LONG = 128  # terms of a sum from which a spatial pack is chosen untuned over copied columns


def has_few_channels(weight: TensorType, groups: int) -> bool:
    """Return whether sums are over few channels, or few output channels share a group.

    Over few channels sums are short, and turning the tiles of a spatial pack takes as long, as do winograd's
    transforms; and over few channels of a group its lanes are idle, of 8 fewer than columns take to copy.
    """
    return int(weight.shape[1]) < 8 or (groups > 1 and int(weight.shape[0]) < 8 * groups)


def pays(weight: TensorType, out_type: TensorType, groups: int, target: Target) -> bool:
    """Return whether windows of a constant image are unfolded untuned, rather than read by a spatial pack."""
    lanes, columns = lanes_of(target, accumulator(weight.dtype)), int(out_type.shape[3])
    # Columns are read where they lie by tiles that divide a line. A tile of one vector loads a number of the weight for
    # each multiply-add.
    least = 2 * lanes if target.arch in WAITS_FOR_LOADS else lanes
    in_place = any(columns % (v * lanes) == 0 for v in VECTORS if v * lanes >= least)
    # Over a large window sums are long, and copying its columns takes as long as turning.
    is_long = groups == 1 and math.prod(weight.concrete_shape[1:]) >= _LONG
    return has_few_channels(weight, groups) and (in_place or not is_long)


def space(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile, unrolling, channels per task, rows of the image per task, and where columns are made.

    Columns are made by all threads before; with `o_block` = 0 by each task for itself, which then has all channels, as
    another with the same pixels would unfold them again. They are copied from a padded image, or from the image with
    a check of its bounds (`checked`), or are read `in_place`.
    """
    geometry = Geometry.of(inputs, out_type)
    # The loop over a window's row, unrolled, has constant addresses.
    unroll = Knob("unroll", sorted(u for u in {*UNROLL, geometry.kernel_w} if u <= geometry.depth))
    # Vectors with gaps cannot check their bounds as they are read.
    checked = Knob("checked", (False, True) if any(attrs.padding) and attrs.strides[1] == 1 else (False,))
    return space_of_columns(geometry, inputs[0].dtype, unroll, checked, target)


def space_of_columns(
    geometry: Geometry, dtype: str, unroll: Knob, checked: Knob, target: Target, *, of_words: bool = False
) -> ConfigSpace:
    """The space of a product with columns of `dtype`, which may be words for dot-product instructions."""
    lanes, o = lanes_of(target, dtype), geometry.out_channels
    column_bytes = geometry.depth * geometry.out_w * dtype_bytes(dtype)
    high, wide = up_to("rows", ROWS, 2 * o, "layout"), width_knob(lanes, geometry.pixels)
    sizes: Sequence[Any] = high.values
    blocks = [0, *fitting_blocks([-(-o // r) for r in sizes], 3)]  # 0 is all
    heights = _heights(geometry.out_h, geometry.out_w, wide.values)
    window = geometry.kernel_h * geometry.kernel_w
    whole = [w for v in VECTORS if (w := v * lanes) in wide.values and geometry.out_w % w == 0 and window > 1]

    def tasks(height: int) -> Any:
        return geometry.out_h // height * int(geometry.batch) * geometry.groups

    def fallback() -> dict[str, Any]:
        if whole and geometry.channels < 8:
            return in_place()

        def in_cache(width: int) -> list[int]:
            # As many rows as leave half of the second level to the weight, and each thread a part.
            return [
                h
                for h in heights
                if h * column_bytes <= target.l2_bytes // 2
                and h * geometry.out_w % width == 0
                and tasks(h) >= target.threads
            ]

        rows, width = best_tile_of(o, geometry.pixels, lanes, tile_registers(target), target.multiply_adds)
        narrow = best_tile_of(o, 2 * lanes, lanes, tile_registers(target), target.multiply_adds)
        if of_words and width == lanes < geometry.pixels and target.multiply_adds > 1:
            rows, width = narrow  # one vector would load a word for each instruction, of which a cycle begins two
        if not in_cache(width) and in_cache(narrow[1]):
            rows, width = narrow  # narrow panels end where rows of the image do more often
        fitting = in_cache(width)
        tiles = -(-o // rows)
        return {
            "rows": rows,
            "width": width,
            "unroll": 1,
            "o_block": 0 if fitting else largest_divisor(blocks[1:], tiles, -(-tiles // target.threads)),
            "image_rows": max(fitting, default=geometry.out_h),
            "inner": "channels",
            "checked": False,
            "in_place": False,
        }

    def in_place() -> dict[str, Any]:
        rows, width = max(
            ((r, w) for w in whole for r in ROWS if high.has(r) and (r + 1) * w < target.vector_registers * lanes),
            key=lambda t: tile_share(o, t[0], t[1] // lanes, target.multiply_adds),
        )
        is_short = geometry.kernel_w * rows * width // lanes <= MOST_UNROLLED
        return {
            "rows": rows,
            "width": width,
            "unroll": geometry.kernel_w if unroll.has(geometry.kernel_w) and is_short else 1,
            "o_block": 0,
            "image_rows": max((h for h in heights if tasks(h) >= 4 * target.threads), default=heights[0]),
            "inner": "pixels",
            "checked": False,
            "in_place": True,
        }

    return ConfigSpace(
        [
            high,
            wide,
            unroll,
            Knob("o_block", blocks),
            Knob("image_rows", heights, "layout"),
            INNER,
            checked,
            Knob("in_place", (False, True) if whole else (False,)),
        ],
        [
            register_constraint(target.vector_registers, lanes),
            (knob("o_block") == 0) | (ceildiv(o, knob("rows")) % maximum(knob("o_block"), 1) == 0),
            # Tasks begin at the start of a row: only the last may end within a tile.
            (knob("image_rows") * geometry.out_w % knob("width") == 0)
            | (knob("image_rows") == geometry.out_h),
            knob("in_place") * (knob("checked") + geometry.out_w % knob("width")) == 0,
        ],
        derived={
            "accumulators": accumulators(lanes),
            "column_bytes": knob("image_rows") * column_bytes,
        },
        fallback=fallback,
        idle={
            "inner": one_order(
                ceildiv(knob("image_rows") * geometry.out_w, knob("width")),
                maximum(knob("o_block"), ceildiv(o, knob("rows")) * (1 - minimum(knob("o_block"), 1))),
            )
        },
    )


def _heights(out_h: int, out_w: int, widths: Sequence[Any]) -> list[int]:
    """Numbers of rows of the image of a task that end with a panel of some width, and all rows."""
    return [h for h in divisors(out_h) if h == out_h or any(h * out_w % w == 0 for w in widths)]


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [ceil(o / rows), c * kh * kw, rows]."""
    return {1: pack_rows(integer(config, "rows"), attrs.groups)}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """Padding, the columns [n, g, c * kh * kw, h, w], and their product with the weight."""
    data, weight = inputs
    geometry = Geometry.of_tensors(attrs, data, weight, out_type)
    kernel_h, kernel_w, out_w = geometry.kernel_h, geometry.kernel_w, geometry.out_w
    top, left, bottom, _ = attrs.padding
    width = int(data.shape[3])
    right = padded_width(attrs, width, kernel_w) - left - width
    pixel = read_windows(pad_zeros(data, (top, left, bottom, right)), attrs, kernel_w)
    columns = compute_stage(
        "columns", (geometry.batch, geometry.groups, geometry.depth, geometry.out_h, out_w),
        lambda n, g, k, h, w: pixel(
            n, g * geometry.channels + k // (kernel_h * kernel_w), k // kernel_w % kernel_h, k % kernel_w, h, w
        ),
    )

    def column(n: Any, g: Any, k: Any, p: Any) -> Any:
        return columns[n, g, k, p // out_w, p % out_w]

    return [product(geometry, weight, column, config, str(data.dtype))]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of rows of the image × channels in parallel; each makes its columns, or all are made before."""
    lanes = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    return schedule_columns(attrs, outs, config, lanes)[0]


def schedule_columns(
    attrs: Conv2DAttrs, outs: Outs, config: Config, lanes: int, *, vectors: bool = True
) -> tuple[Any, dict[str, Any], Any, Any]:
    """As `schedule_product`, for a product with columns."""
    image_rows = integer(config, "image_rows")
    (_, channels, _, width), (down, across) = outs.tensors[0].shape, outs.phases
    panels = -(-image_rows * int(width) // across // integer(config, "width"))
    own = int(channels) * down * across // attrs.groups
    o_block = integer(config, "o_block") or -(-own // integer(config, "rows"))
    found = schedule_product(outs, config, attrs.groups, o_block, panels, lanes, vectors=vectors)
    sch, stages, task, _ = found
    columns, padded = stages["columns"], stages.get("padded")
    if config["checked"]:
        sch.compute_inline(padded)
        padded = None
    if "window_sums" in stages:
        if config["o_block"]:
            sch.parallel(sch.fuse(*sch.get_loops(stages["window_sums"])[:2]))
        else:
            sch.compute_at(stages["window_sums"], task, preserve_unit_loops=True)
    if config["in_place"]:
        sch.compute_inline(columns)
    if "split" in stages:
        # A task with all channels splits the rows that it reads, which stay in its cache.
        alone = config["in_place"] and not config["o_block"]
        schedule_split(sch, stages["split"], padded, lanes, task if alone else None)
    elif padded is not None:
        schedule_padding(sch, padded, lanes)
    if not config["in_place"]:
        if config["o_block"]:
            n, g, k, *_ = sch.get_loops(columns)
            sch.parallel(sch.fuse(n, g, k))
        else:
            sch.compute_at(columns, task, preserve_unit_loops=True)
        copy_by_vectors(sch, columns, lanes)
    schedule_packing(sch, stages)
    return found
