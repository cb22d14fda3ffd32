"""`conv2d_nhwc_amx_direct.cpu`, `qconv2d_nhwc_amx_direct.cpu`: images [n, h, w, c] by AMX, without unfolding.

A row of a tile is channels of one place of the window of an output pixel, its neighbours in the line below it: tiles
are loaded from the image. It is read where it lies, or padded once, with whole tiles of channels. Of few channels, a
row of a tile is a row of the window, whose pixels lie side by side in the copy, in whole words.
"""
# Over 300 lines: one implementation, whose space, packing, copy and schedule share its extents.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strategy.condition import Clause, ceildiv
from strategy.cpu.amx import Window, use_tiles_of_windows
from strategy.cpu.amx_code import LANES, REGISTERS, ROWS, WORD_BYTES, WORDS, Block
from strategy.cpu.dot import Dot
from strategy.cpu.tile import block_knob, largest_divisor, one_order, round_up, up_to, whole_blocks
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.amx import amx_of, pack_rows
from strategy.ops.conv2d.layout import plain_inputs
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.dense.amx_product import Depth
from strategy.ops.dense.dot import sum_of_row
from strategy.schedule import (
    Outs,
    compute_stage,
    integer,
    start_schedule,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_LAYOUT = "NHWC"
_LINES = (1, 2, 3, 4)
_COLUMNS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14, 15, 16, 19, 20, 24, 26, 28, 30, 32)
_WIDTHS = (16, 32, 48, 64)
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 28, 32, 48, 64)
_FEW = 8  # channels; and pixels of a line, half of a tile's rows
_FEW_IN_ROWS = {2: 16, 4: 7}  # channels, by those of a word
_LONG = 7  # words of a row of a window
_INNER = Knob("inner", ["pixels", "panels"])
# The image is read in place, or copied by each task, or before all of them.
_IN_PLACE, _BY_TASK, _BEFORE = range(3)


@dataclass(frozen=True)
class Windows:
    """The windows of one group's output pixels; of few channels, a place is a row of a window, in a copy."""

    dot: Dot
    channels: int
    window: Window

    @property
    def in_rows(self) -> bool:
        """Return whether a place is a row of a window: where tiles divide it, as no pixel beyond may count."""
        width, group = self.window.kernel_w, self.dot.group
        words = width * -(-self.channels // group)
        are_whole = Depth.of(self.dot, words * group).total == words
        return self.channels <= _FEW_IN_ROWS[group] and width > 1 and self.window.dilation[1] == 1 and are_whole

    @property
    def seen(self) -> Window:
        """The window of places."""
        if not self.in_rows:
            return self.window
        return replace(self.window, kernel_w=1, pixel=round_up(self.channels, self.dot.group))

    @property
    def places(self) -> int:
        return self.seen.kernel_h * self.seen.kernel_w

    @property
    def depth(self) -> Depth:
        """The tiles of one place."""
        return Depth.of(self.dot, self.window.kernel_w * self.seen.pixel if self.in_rows else self.channels)

    @property
    def stored(self) -> int:
        """The numbers of a place."""
        return self.depth.total * self.dot.group

    def extents(self, out_h: int, out_w: int) -> tuple[int, int]:
        """The lines and columns of the padded image that so many pixels read."""
        down, across = (
            (count - 1) * stride + (size - 1) * dilation + 1
            for count, size, stride, dilation in zip(
                (out_h, out_w), (self.window.kernel_h, self.window.kernel_w), self.window.strides, self.window.dilation,
                strict=True,
            )
        )
        return down, across


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, name: str,
    target: Target,
) -> None:
    """Add the implementation to a strategy of images in NHWC, as `amx.add`, where lines have several pixels.

    It is chosen untuned where lines fill tiles by half, and channels, or the rows of a window, are not very few.
    """
    data, weight = plain_inputs(attrs, inputs)
    dot = amx_of(attrs, data, weight, out_type, target)
    if dot is None or attrs.groups > 1 or (attrs.data_layout, attrs.result_layout) != (_LAYOUT, _LAYOUT):
        return
    out_w, (_, channels, kernel_h, kernel_w) = out_type.concrete_shape[2], weight.concrete_shape
    if out_w == 1:
        return
    windows = Windows(dot, channels, Window(kernel_h, kernel_w, attrs.strides, attrs.dilation))
    # Rows of few words of 8-bit integers take as long to copy as products by words take.
    are_long = channels >= _FEW or (windows.in_rows and (dot.group == 2 or windows.depth.words >= _LONG))
    fills_tiles = out_w > _FEW and are_long
    strategy.add_implementation(
        partial(compute, windows), partial(schedule, windows), name, 19 if fills_tiles else 12,
        space=partial(space, windows), prepare=partial(prepare, windows),
    )


def _fit_registers() -> Clause:
    """The constraint that sums, a column of the data's tiles and a tile of the weight fit the tile registers."""
    height = knob("lines") * ceildiv(knob("columns"), ROWS)
    return height * (knob("width") // LANES) + height + 1 <= REGISTERS


def _best_block(out_h: int, out_w: int, channels: int, widths: Sequence[int]) -> tuple[int, int, int]:
    """The lines, columns and width of a fallback's block, which wastes little and needs few loads."""

    def cost(lines: int, columns: int, width: int) -> float:
        high, wide = lines * -(-columns // ROWS), width // LANES
        blocks = -(-out_h // lines) * -(-out_w // columns) * -(-channels // width)
        # A product takes as long as its rows, of which a few have the price of eight; half of the loads are hidden.
        rows = max(lines * columns, high * 8)
        return blocks * (rows * wide + (rows + WORDS * wide) / 2)

    return min(
        (
            (lines, columns, width)
            for lines in _LINES for columns in _COLUMNS for width in widths
            if out_h % lines == 0 and columns <= out_w and width < channels + LANES
            and lines * -(-columns // ROWS) * (width // LANES + 1) < REGISTERS
        ),
        key=lambda block: cost(*block),
    )


def space(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The block, the parts of the image and of the output channels of a task, their order, and the copy."""
    batch, out_h, out_w, channels = out_type.concrete_shape
    has_whole_tiles = windows.stored == windows.channels and not any(attrs.padding) and not windows.in_rows

    def fallback() -> dict[str, Any]:
        panel_bytes = windows.places * windows.depth.total * LANES * WORD_BYTES
        # Pixels that are read for several places pay for a narrow panel, if it stays in the first level; but rows of
        # windows cross lines of the cache, and those of bfloat16 take more loads than sums of 8-bit integers hide.
        crosses = windows.in_rows and windows.dot.group == 2
        stays = windows.places > 1 and panel_bytes <= target.l1d_bytes * 3 // 4 and not crosses
        # Sums of 8-bit integers are requantized one by one where a task has one panel.
        widths = [w for w in _WIDTHS if w < channels] if windows.dot.group == 4 and channels > LANES else _WIDTHS
        lines, columns, width = _best_block(out_h, out_w, channels, (LANES,) if stays else widths)
        panels, heights = -(-channels // width), -(-out_h // lines)
        h_tasks = largest_divisor(_BLOCKS, heights, 4 * target.threads)
        tasks = -(-target.threads // (batch * h_tasks))
        is_even = out_h % lines == out_w % columns == 0
        return {
            "lines": lines,
            "columns": columns,
            "width": width,
            "n_block": largest_divisor(_BLOCKS, panels, max(panels // tasks, 1)),
            "h_tasks": h_tasks,
            "inner": "pixels" if stays else "panels",
            # Lines of few channels are read by many windows, and slow to copy.
            "copied": _IN_PLACE if has_whole_tiles and is_even else _BEFORE if windows.in_rows else _BY_TASK,
        }

    high, wide = up_to("lines", _LINES, out_h), up_to("width", _WIDTHS, channels + LANES - 1)
    even = [
        (extent % knob(name) == 0) | (knob("copied") > _IN_PLACE)
        for extent, name in ((out_h, "lines"), (out_w, "columns"))
    ]
    return ConfigSpace(
        [
            wide,
            high,
            up_to("columns", _COLUMNS, out_w),
            block_knob("n_block", _BLOCKS, channels, wide),
            block_knob("h_tasks", _BLOCKS, out_h, high),
            _INNER,
            Knob("copied", [_IN_PLACE, _BY_TASK, _BEFORE] if has_whole_tiles else [_BY_TASK, _BEFORE]),
        ],
        [
            _fit_registers(),
            whole_blocks(channels, "width", "n_block"),
            whole_blocks(out_h, "lines", "h_tasks"),
            *(even if has_whole_tiles else []),
        ],
        fallback=fallback,
        idle={
            "inner": one_order(
                knob("n_block"),
                ceildiv(out_h, knob("lines")) // knob("h_tasks") * ceildiv(out_w, knob("columns")),
            )
        },
    )


def prepare(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed as of a product, from rows of whole tiles."""
    dot, stored, (kernel_w, pixel) = windows.dot, windows.stored, (windows.window.kernel_w, windows.seen.pixel)

    def number(weight: Any, o: Any, column: Any) -> Any:
        place, channel = column // stored, column % stored
        if pixel:
            x, channel = channel // pixel, channel % pixel
            return zero_beyond(dot.pack(weight[o, channel, place, x]), channel, windows.channels, pixel)
        found = dot.pack(weight[o, channel, place // kernel_w, place % kernel_w])
        return zero_beyond(found, channel, windows.channels, stored)

    return {1: pack_rows(dot, attrs, inputs, config, windows.places * windows.depth.total, number)}


def compute(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The convolution of the image, or of its copy, by a weight that `prepare` has packed."""
    from tvm import te, tirx

    data, weight = inputs
    dot, depth, window = windows.dot, windows.depth, windows.window
    batch, out_h, out_w, channels = out_type.concrete_shape
    lines, columns, width = (integer(config, name) for name in ("lines", "columns", "width"))
    height, across = round_up(out_h, lines), round_up(out_w, columns)
    (top, left, *_), dtype = attrs.padding, str(data.dtype)
    image_h, image_w = int(data.shape[1]), int(data.shape[2])
    padded_h, padded_w = windows.extents(height, across)
    pixel = windows.seen.pixel or windows.stored
    zero = dot.zero_points(attrs, dtype)[0] if dot.sums == "int32" else 0

    def number(n: Any, h: Any, w: Any, c: Any) -> Any:
        y, x = h - top, w - left
        found = data[n, y, x, c]
        if dtype != dot.kept:
            found = tirx.reinterpret(dot.kept, found)
        tests = [
            test
            for test, needed in (
                (y >= 0, top), (y < image_h, padded_h - top > image_h), (x >= 0, left),
                (x < image_w, padded_w - left > image_w), (c < windows.channels, pixel > windows.channels),
            ) if needed
        ]
        return tirx.if_then_else(tirx.all(*tests), found, tirx.const(zero, dot.kept)) if tests else found

    if config["copied"] == _IN_PLACE:
        image = data
    elif windows.in_rows:
        image = compute_stage(
            "copied", (batch, padded_h, padded_w * pixel), lambda n, h, at: number(n, h, at // pixel, at % pixel)
        )
    else:
        image = compute_stage("copied", (batch, padded_h, padded_w, pixel), number)
    (stride_h, stride_w), (dilation_h, dilation_w) = window.strides, window.dilation
    kernel_h, kernel_w = window.kernel_h, windows.seen.kernel_w
    y = te.reduce_axis((0, kernel_h), name="y") if kernel_h > 1 else 0
    x = te.reduce_axis((0, kernel_w), name="x") if kernel_w > 1 else 0
    c, t = te.reduce_axis((0, depth.total), name="c"), te.reduce_axis((0, dot.group), name="t")

    def term(n: Any, h: Any, w: Any, o: Any) -> Any:
        line, column, place = h * stride_h + y * dilation_h, w * stride_w + x * dilation_w, c * dot.group + t
        read = image[n, line, column * pixel + place] if windows.in_rows else image[n, line, column, place]
        packed = weight[o // width, (y * kernel_w + x) * depth.total + c, o % width, t]
        axes = [axis for axis in (y, x, c, t) if not isinstance(axis, int)]
        number_of_data = read.astype(dot.sums) if image is data else dot.number(read)
        return te.sum(number_of_data * dot.number(packed), axis=axes)

    total = tiles = compute_stage("tiles", (batch, height, across, round_up(channels, width)), term)
    of_data = dot.zero_points(attrs, dtype)[0]
    if of_data:
        share = compute_stage(
            "share", (round_up(channels, width),),
            lambda o: of_data * sum_of_row(weight, o, windows.places * depth.total, width, dot.group),
        )
        total = compute_stage("total", tiles.shape, lambda n, h, w, o: tiles[n, h, w, o] - share[o])
    return [
        te.compute(out_type.concrete_shape, lambda *i: total(*i).astype(out_type.dtype), name="conv2d")
    ]


def schedule(windows: Windows, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of lines × panels in parallel; in each, one block after the other."""
    dot, depth, window = windows.dot, windows.depth, windows.seen
    sch, stages, output = start_schedule(outs)
    for name in ("sums", "panels"):
        if name in stages:
            outer = sch.get_loops(stages[name])
            sch.parallel(sch.fuse(*outer[:2]) if name == "panels" else outer[0])
    tiles, data = stages["tiles"], outs.args[0]
    lines, columns, width = (integer(config, name) for name in ("lines", "columns", "width"))
    sch.set_scope(tiles, 0, "local")
    anchor = stages.get("total", tiles)
    n, h, w, o = sch.get_loops(anchor)[:4]
    h_task, h_tile, line = sch.split(h, [integer(config, "h_tasks"), None, lines])
    w_tile, column = sch.split(w, [None, columns])
    o_task, panel, lane = sch.split(o, [None, integer(config, "n_block"), width])
    order = (panel, h_tile, w_tile) if config["inner"] == "pixels" else (h_tile, w_tile, panel)
    sch.reorder(n, h_task, o_task, *order, line, column, lane)
    sch.reverse_compute_at(output, order[-1], preserve_unit_loops=True)
    task = sch.fuse(n, h_task, o_task)
    sch.parallel(task)
    if "total" in stages:
        sch.compute_at(tiles, order[-1], preserve_unit_loops=True)
        # Once a task: computed for each block, it keeps LLVM from vectors in the epilogue.
        sch.set_scope(stages["share"], 0, "local")
        sch.compute_at(stages["share"], task, preserve_unit_loops=True)
        vectorize(sch, sch.get_loops(stages["share"])[-1], dot.lanes)
        sch.compute_inline(anchor)
    vectorize(sch, sch.get_loops(output)[-1], dot.lanes)
    padded_w = windows.extents(1, round_up(int(outs.tensors[0].shape[2]), columns))[1]
    if "copied" in stages:
        dtype, across = dot.kept, padded_w
        pixel = window.pixel // dot.group or depth.total
        _schedule_copy(sch, stages["copied"], task, config, window.pixel)
    else:
        dtype, pixel, across = str(data.dtype), windows.channels // dot.group, int(data.shape[2])
    (stride_h, stride_w), (dilation_h, dilation_w) = window.strides, window.dilation
    around = (window.kernel_h, dilation_h * across * pixel), (window.kernel_w, dilation_w * pixel)
    block = Block(
        dot, lines * columns, width, depth.steps, depth.words,
        row_words=stride_w * pixel, step_words=depth.words, panel_words=0, ahead=0,
        lines=lines, line_words=stride_h * across * pixel,
        around=tuple(loop for loop in around if loop[0] > 1),
    )
    use_tiles_of_windows(sch, tiles, block, window, dtype, task)
    return sch


def _schedule_copy(sch: Any, copied: Any, task: Any, config: Config, pixel: int) -> None:
    """Copy what a task reads, or all lines in parallel before."""
    if config["copied"] == _BY_TASK:
        sch.compute_at(copied, task, preserve_unit_loops=True)
    if pixel:
        n, h, numbers = sch.get_loops(copied)[-3:]
        _, pixel_numbers = sch.split(numbers, [None, pixel])
        sch.vectorize(pixel_numbers)
    else:
        n, h, _, numbers = sch.get_loops(copied)[-4:]
        sch.vectorize(numbers)
    if config["copied"] == _BEFORE:
        sch.parallel(sch.fuse(n, h))
