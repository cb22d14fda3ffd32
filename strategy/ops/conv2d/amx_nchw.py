"""`conv2d_nchw_amx.cpu`, `qconv2d_nchw_amx.cpu`: windows unfolded into columns, and their product by AMX.

As `conv2d_nchw_dot.cpu`, the weight on the left: tiles of sums are output channels × pixels, as the result lies. A tile
of the image is words of neighbouring channels, the next pixels side by side, and so are an image's words and its
columns: neither is turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strategy.condition import ceildiv, maximum
from strategy.cpu.amx import use_tiles_of_words
from strategy.cpu.amx_code import LANES, ROWS, Block
from strategy.cpu.dot import Dot
from strategy.cpu.tile import round_up, up_to
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.amx import amx_of
from strategy.ops.conv2d.dot import count_words, read_words, word_of
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import schedule_padding, schedule_split
from strategy.ops.conv2d.pointwise import leaves_pixels
from strategy.ops.conv2d.product import split_groups
from strategy.ops.dense.amx_product import Depth, best_block, fit_registers
from strategy.schedule import Outs, compute_stage, find_stages, integer, vectorize, zero_beyond
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_ROWS = (2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48)
_WIDTHS = (16, 32, 48, 64, 80, 96)
_PARTS = 14  # vectors of pixels that are unfolded together
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 32, 48, 64)


@dataclass(frozen=True)
class Windows:
    """The extents of the windows of one group; `dot` has the weight on its left."""

    dot: Dot
    groups: int
    channels: int
    kernel_h: int
    kernel_w: int

    @property
    def words(self) -> int:
        """The words of a pixel."""
        return count_words(self.dot, self.channels)

    @property
    def places(self) -> int:
        """The words of a window."""
        return self.words * self.kernel_h * self.kernel_w

    @property
    def depth(self) -> Depth:
        return Depth.of(self.dot, self.places * self.dot.group)


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, name: str,
    target: Target,
) -> None:
    """Add the implementation to a strategy, of types in NCHW and OIHW, where the target has AMX for them (`amx_of`).

    Each of several groups has half a tile of output channels or more.
    """
    data, weight = inputs
    dot = amx_of(attrs, data, weight, out_type, target, weight_left=True)
    if dot is None:
        return
    out_channels, *extents = weight.concrete_shape
    if attrs.groups > 1 and out_channels // attrs.groups * 2 < ROWS:
        return
    windows = Windows(dot, attrs.groups, *extents)
    strategy.add_implementation(
        partial(compute, windows), partial(schedule, windows), name, 18,
        space=partial(space, windows), prepare=partial(prepare, windows),
    )


def space(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The block, the rows of the image of a task and its blocks of output channels, and their order.

    In the order `panel` a task unfolds one panel of pixels after the other; else all that it has, and its blocks of
    `channels` or those of `pixels` change faster.
    """
    batch, out_channels, out_h, out_w = out_type.concrete_shape
    own = out_channels // windows.groups
    heights = divisors(out_h)
    high, wide = up_to("rows", _ROWS, own), up_to("width", _WIDTHS, out_h * out_w + LANES - 1)
    counts = [-(-own // rows) for rows in _ROWS if high.has(rows)]

    def fallback() -> dict[str, Any]:
        entries = batch * windows.groups

        def cost(image_rows: int) -> tuple[float, int]:
            turns = -(-entries * (out_h // image_rows) // target.threads)
            return turns * best_block(own, image_rows * out_w, _ROWS, _WIDTHS)[0], -image_rows

        # One task alone is no function of its own, and its code is slower.
        several = [h for h in heights if h < out_h or entries > 1]
        image_rows = min(several or heights, key=cost)
        _, rows, width = best_block(own, image_rows * out_w, _ROWS, _WIDTHS)
        return {"rows": rows, "width": width, "image_rows": image_rows, "o_block": 0, "order": "panel"}

    return ConfigSpace(
        [
            high,
            wide,
            Knob("image_rows", heights, "layout"),
            Knob("o_block", [0, *(b for b in _BLOCKS if any(n % b == 0 for n in counts))]),
            Knob("order", ["panel", "channels", "pixels"]),
        ],
        [
            fit_registers(),
            (knob("o_block") == 0) | (ceildiv(own, knob("rows")) % maximum(knob("o_block"), 1) == 0),
        ],
        fallback=fallback,
    )


def prepare(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [g * ceil(o / rows), steps, rows, words], with its rows' sums where they count.

    A sum is the first word of its row in one step more.
    """
    dot, depth, rows = windows.dot, windows.depth, integer(config, "rows")
    kernel_h, kernel_w = windows.kernel_h, windows.kernel_w
    has_sums = bool(getattr(attrs, "input_zero_point", 0))

    def pack(weight: Any) -> Any:
        from tvm import te, tirx

        own = int(weight.shape[0]) // windows.groups
        tiles = -(-own // rows)
        sums = None
        if has_sums:
            axes = [te.reduce_axis((0, extent)) for extent in weight.shape[1:]]
            sums = compute_stage(
                "weight_sums", (weight.shape[0],), lambda o: te.sum(weight[(o, *axes)].astype("int32"), axis=axes)
            )

        def word(tile: Any, step: Any, row: Any, place: Any) -> Any:
            o, k = tile % tiles * rows + row, step * depth.words + place
            c, y, x = k // (kernel_h * kernel_w), k // kernel_w % kernel_h, k % kernel_w
            out = tile // tiles * own + o
            found = word_of(dot, windows.channels, c, lambda channel: weight[out, channel, y, x])
            found = zero_beyond(found, k, windows.places, depth.total)
            if sums is not None:
                found = tirx.if_then_else(step < depth.steps, found, sums[out])
            return zero_beyond(found, o, own, rows)

        shape = (windows.groups * tiles, depth.steps + has_sums, rows, depth.words)
        return compute_stage("weight_tiles", shape, word)

    return {1: pack}


def compute(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The columns of words of each task, and the weight's products with them."""
    from tvm import te, tirx

    data, weight = inputs
    dot, depth, groups, words = windows.dot, windows.depth, windows.groups, windows.words
    kernel_h, kernel_w = windows.kernel_h, windows.kernel_w
    window = kernel_h * kernel_w
    batch, out_channels, out_h, out_w = out_type.concrete_shape
    own = out_channels // groups
    rows, width, image_rows = (integer(config, name) for name in ("rows", "width", "image_rows"))
    tasks, pixels = out_h // image_rows, round_up(image_rows * out_w, width)
    read = read_words(dot, attrs, data, kernel_h, kernel_w)

    def word(n: Any, g: Any, k: Any, h: Any, w: Any) -> Any:
        return read(n, g * words + k // window, k // kernel_w % kernel_h, k % kernel_w, h, w)

    def column(n: Any, g: Any, t: Any, part: Any, k: Any, lane: Any) -> Any:
        first = part * LANES
        if _is_flat(windows, attrs):
            pixel = t * (image_rows * out_w) + first + lane
            found = word(n, g, k, pixel // out_w, pixel % out_w)
            found = zero_beyond(found, first + lane, image_rows * out_w, width)
        else:
            # Neighbours are those of a line, then those of the next ones; beyond the last none is stored.
            h, w = t * image_rows + first // out_w, first % out_w
            ends = range(out_w, out_w - math.gcd(out_w, LANES) + LANES, out_w)
            last = out_h - 1 if pixels > image_rows * out_w else out_h
            lines = [
                word(n, g, k, tirx.min(h + line, last) if last < out_h else h + line, w + lane - line * out_w)
                for line in range(len(ends) + 1)
            ]
            found = lines.pop()
            for end in reversed(ends):
                found = tirx.if_then_else(lane < end - w, lines.pop(), found)
        if depth.total == windows.places:
            return found
        # A condition on lanes, too: of vectors only their lanes have one.
        return tirx.if_then_else(lane + k // windows.places * LANES < LANES, found, tirx.const(0, "int32"))

    columns = compute_stage("columns", (batch, groups, tasks, pixels // LANES, depth.total, LANES), column)
    r = te.reduce_axis((0, depth.total), name="r")
    count = -(-own // rows)

    def term(n: Any, g: Any, t: Any, o: Any, p: Any) -> Any:
        left = weight[g * count + o // rows, r // depth.words, o % rows, r % depth.words]
        return te.sum(dot.product(left, columns[n, g, t, p // LANES, r, p % LANES]), axis=r)

    tiles = compute_stage("tiles", (batch, groups, tasks, round_up(own, rows), pixels), term)
    total, zero = tiles, getattr(attrs, "input_zero_point", 0)
    if zero:
        total = compute_stage(
            "total", tiles.shape,
            lambda n, g, t, o, p: tiles[n, g, t, o, p] - zero * weight[g * count + o // rows, depth.steps, o % rows, 0],
        )
    return [
        te.compute(
            out_type.concrete_shape,
            lambda n, o, h, w: total[
                n, o // own, h // image_rows, o % own, h % image_rows * out_w + w
            ].astype(out_type.dtype),
            name="conv2d",
        )
    ]


def _is_flat(windows: Windows, attrs: Conv2DAttrs) -> bool:
    """Return whether columns are pixels as they lie in the image, over its lines."""
    return windows.kernel_h * windows.kernel_w == 1 and leaves_pixels(attrs)


def schedule(windows: Windows, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of rows of the image × output channels in parallel; in each, one block after the other."""
    from tvm import s_tir

    dot, depth = windows.dot, windows.depth
    rows, width, image_rows = (integer(config, name) for name in ("rows", "width", "image_rows"))
    _, out_channels, _, out_w = (int(extent) for extent in outs.tensors[0].shape)
    sch, _ = split_groups(outs, windows.groups, lambda h, w: (h // image_rows, h % image_rows * out_w + w))
    # Else what the output reads is hidden.
    sch = s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod))
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    stages = find_stages(sch)
    tiles = stages["tiles"]
    anchor = stages.get("total", tiles)
    sch.set_scope(tiles, 0, "local")
    o_block = integer(config, "o_block") or -(-(out_channels // windows.groups) // rows)
    n, g, t, o, p = sch.get_loops(anchor)[:5]
    o_task, o_tile, row = sch.split(o, [None, o_block, rows])
    panel, column = sch.split(p, [None, width])
    order = (o_tile, panel) if config["order"] == "pixels" else (panel, o_tile)
    sch.reorder(n, g, t, o_task, *order, row, column)
    sch.reverse_compute_at(output, order[1], preserve_unit_loops=True)
    if anchor is not tiles:
        sch.compute_at(tiles, order[1], preserve_unit_loops=True)
        sch.compute_inline(anchor)
    task = sch.fuse(n, g, t, o_task)
    sch.parallel(task)
    vectorize(sch, sch.get_loops(output)[-1], LANES)
    _schedule_columns(sch, stages, panel if config["order"] == "panel" else task)
    block = Block(
        dot, rows, width, depth.steps, depth.words,
        row_words=depth.words, step_words=rows * depth.words, panel_words=0, ahead=0, in_columns=True,
    )
    use_tiles_of_words(sch, tiles, block, task)
    for name in ("weight_sums", "weight_tiles"):
        if name in stages:
            sch.parallel(sch.get_loops(stages[name])[0])
    return sch


def _schedule_columns(sch: Any, stages: dict[str, Any], place: Any) -> None:
    """Unfold columns at a loop from the words of the padded image, which all threads make before."""
    columns, padded = stages["columns"], stages.get("padded")
    if "split" in stages:
        schedule_split(sch, stages["split"], padded, LANES)
    elif padded is not None:
        schedule_padding(sch, padded, LANES)
    sch.compute_at(columns, place, preserve_unit_loops=True)
    *_, part, k, lane = sch.get_loops(columns)
    # The place of a word is computed once for many pixels, whose own are constant.
    _, parts = sch.split(part, [None, min(_PARTS, int(sch.get(part).extent))])
    sch.reorder(k, parts)
    sch.unroll(parts)
    sch.vectorize(lane)
