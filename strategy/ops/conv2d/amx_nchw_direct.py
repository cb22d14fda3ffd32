"""`conv2d_nchw_amx_direct.cpu`, `qconv2d_nchw_amx_direct.cpu`: images [n, c, h, w] by AMX, without unfolding.

As `conv2d_nchw_amx.cpu`, the weight on the left: tiles of sums are output channels × pixels, as the result lies. The
image is put into words of neighbouring channels once, beside its padding: [n, h, words, w]. A tile of it is the words
of some channels at neighbouring pixels, which each place of the window sees from another one on. With a stride along
lines, each line is dealt into phases, so that the pixels of a tile lie side by side: [n, h, words, phase, w]. Of few
channels, a tile is the words of all lines of the window: [n, h words, ..., w]. Short lines are joined, with their
padding, into one that fills tiles: [n, words, h w]; what a tile has between two lines is not stored.
"""
# Over 300 lines: one implementation, whose space, packing and schedule share its extents.

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strategy.condition import Clause, ceildiv, minimum
from strategy.cpu.amx import Window, use_tiles_of_image
from strategy.cpu.amx_code import LANES, REGISTERS, ROWS, WORD_BYTES, WORDS, Block, Image
from strategy.cpu.dot import Dot
from strategy.cpu.tile import block_knob, largest_divisor, one_order, round_up, up_to, whole_blocks
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.amx import amx_of
from strategy.ops.conv2d.dot import count_words, word_of
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.dense.amx_product import Depth
from strategy.schedule import (
    Outs,
    compute_stage,
    integer,
    start_schedule,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_ROWS = (2, 4, 8, 12, 16, 24, 32, 48)
_LINES = (1, 2, 3, 4)
_WIDTHS = (16, 32, 48, 64, 80, 96)
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 28, 32, 48, 64)
_LONG = 7  # words of a column of a window
_INNER = Knob("inner", ["pixels", "channels"])
# The image is put into words by each task, or before all of them.
_BY_TASK, _BEFORE = range(2)
_COPIED = Knob("copied", [_BY_TASK, _BEFORE])


@dataclass(frozen=True)
class Windows:
    """The windows of one group's output pixels; `dot` has the weight on its left."""

    dot: Dot
    channels: int
    window: Window

    @property
    def words(self) -> int:
        """The words of a pixel."""
        return count_words(self.dot, self.channels)

    @property
    def in_columns(self) -> bool:
        """Return whether a place is a column of a window: where tiles divide it, as no line beyond may count."""
        height = self.window.kernel_h
        words = height * self.words
        are_whole = Depth.of(self.dot, words * self.dot.group).total == words
        return self.words * 2 <= WORDS and height > 1 and self.window.dilation[0] == 1 and are_whole

    @property
    def seen(self) -> Window:
        """The window of places."""
        return replace(self.window, kernel_h=1, pixel=self.words) if self.in_columns else self.window

    @property
    def places(self) -> int:
        return self.seen.kernel_h * self.seen.kernel_w

    @property
    def depth(self) -> Depth:
        """The tiles of one place."""
        if not self.in_columns:
            return Depth.of(self.dot, self.channels)
        return Depth.of(self.dot, self.window.kernel_h * self.words * self.dot.group)

    @property
    def apart(self) -> int:
        """The columns of the image from one that is read to the next."""
        return math.gcd(self.window.strides[1], self.window.dilation[1] if self.window.kernel_w > 1 else 0)

    @property
    def phases(self) -> int:
        """The parts that the columns of a line that are read are dealt into, in turns."""
        return self.window.strides[1] // self.apart

    @property
    def dilation_w(self) -> int:
        """The columns that are read from one place of a window to the next."""
        return self.window.dilation[1] // self.apart

    def extents(self, out_h: int, out_w: int) -> tuple[int, int]:
        """The lines of the padded image, and the columns of a phase, that so many pixels read."""
        down = (out_h - 1) * self.window.strides[0] + (self.window.kernel_h - 1) * self.window.dilation[0] + 1
        return down, out_w + (self.window.kernel_w - 1) * self.dilation_w // self.phases

    def joined(self, lines: int, out_w: int) -> int:
        """The columns from the first pixel of `lines` that are joined to behind the last."""
        return (lines - 1) * self.extents(1, out_w)[1] + out_w

    def joins(self, out_h: int, out_w: int) -> list[int]:
        """The numbers of lines, which divide the image, that take less loads together than each for itself."""

        def pays(lines: int) -> bool:
            tiles = -(-self.joined(lines, out_w) // LANES)
            height = (REGISTERS - 1) // (tiles + 1)
            # Per row of tiles, those of the image twice, as they cross lines of the cache; alone, 2×2 tiles a block.
            return tiles * LANES <= _WIDTHS[-1] and 1 + 2 * tiles / height < 1.5 * lines * -(-out_w // LANES)

        if self.in_columns or self.window.strides != (1, 1):
            return []
        return [lines for lines in divisors(out_h) if lines > 1 and pays(lines)]

    def line(self, out_w: int) -> tuple[int, int]:
        """The distance of a line's words, or of a phase's, of which it is a multiple.

        Of whole lines of the cache, unless they are much more: then the first place of a window crosses none.
        """
        _, across = self.extents(1, out_w)
        whole = round_up(across, LANES)
        return (whole, LANES) if whole * 4 <= across * 5 else (across, 1)


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, name: str,
    target: Target,
) -> None:  # fmt: skip
    """Add the implementation to a strategy, of types in NCHW and OIHW, as `amx_nchw.add`, of one group.

    Windows read each phase of a line. It is chosen untuned where they have several places: for channels that fill tiles
    by half, but with a stride along long lines, which take less time to unfold; and for so few that a place is a column
    of the window.
    """
    data, weight = inputs
    dot = amx_of(attrs, data, weight, out_type, target, weight_left=True)
    if dot is None:
        return
    _, channels, kernel_h, kernel_w = weight.concrete_shape
    windows = Windows(dot, channels, Window(kernel_h, kernel_w, attrs.strides, attrs.dilation))
    if attrs.groups > 1 or windows.phases > kernel_w:
        return
    is_long = int(out_type.shape[3]) * 2 > LANES
    fills_tiles = channels * 2 >= WORDS * dot.group and not (is_long and attrs.strides[1] > 1)
    # Short columns of 8-bit integers take longer to deal into phases than to unfold.
    few_pay = windows.in_columns and is_long and (windows.phases == 1 or dot.group == 2 or windows.depth.words >= _LONG)
    pays = windows.places > 1 and (fills_tiles or few_pay)
    strategy.add_implementation(
        partial(compute, windows), partial(schedule, windows), name, 19 if pays else 12,
        version=3, space=partial(space, windows), prepare=partial(prepare, windows),
    )  # fmt: skip


def _fit_registers(windows: Windows, out_w: int, *, joins: bool) -> Clause:
    """The constraint that sums, a column of the weight's tiles and a tile of the image fit the tile registers."""
    height = ceildiv(knob("rows"), ROWS)
    sums = height * knob("lines") * (knob("width") // LANES)
    if joins:
        # A line of joined ones has more tiles than `width` says.
        joined, pitch = knob("joined"), windows.extents(1, out_w)[1]
        sums = sums + height * minimum(joined - 1, 1) * (ceildiv((joined - 1) * pitch + out_w, LANES) - 1)
    return sums + height + 1 <= REGISTERS


def _joined(config: Config) -> int:
    """The lines that are joined; one where none are."""
    return integer(config, "joined") if "joined" in config else 1


def _width(windows: Windows, config: Config, out_w: int) -> int:
    """The columns of a block's line."""
    joined = _joined(config)
    return int(round_up(windows.joined(joined, out_w), LANES)) if joined > 1 else integer(config, "width")


def _best_block(
    channels: int, out_h: int, out_w: int, heights: Sequence[int], fits: Callable[[int], bool], least: int = 0
) -> tuple[float, int, int, int]:
    """The cost, rows, lines (that `fits` allows) and width of a fallback's block.

    It wastes little, needs few loads, and is as wide as `least`.
    """

    def cost(rows: int, lines: int, width: int) -> float:
        wide = lines * width // LANES
        blocks = -(-channels // rows) * -(-out_h // lines) * -(-out_w // width)
        # Half of the loads are hidden; those of the image cross lines of the cache.
        return blocks * (rows * wide + (rows + 2 * ROWS * wide) / 2)

    return min(
        (
            (cost(rows, lines, width), rows, lines, width)
            for rows in heights for lines in _LINES for width in _WIDTHS
            if rows <= max(channels, heights[0]) and fits(lines) and least <= width < out_w + LANES
            and -(-rows // ROWS) * (lines * (width // LANES) + 1) < REGISTERS
        ),
        key=operator.itemgetter(0),
    )  # fmt: skip


def space(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The block, the parts of the image and of the output channels of a task, their order, and the copy.

    Where short lines may be joined, `joined` is how many are, in place of several `lines` beside each other.
    """
    batch, channels, out_h, out_w = out_type.concrete_shape
    joins = windows.joins(out_h, out_w)
    weight_bytes = channels * windows.places * windows.depth.steps * windows.depth.words * WORD_BYTES

    def fallback() -> dict[str, Any]:
        # A weight that leaves the second level is read once for all lines, and the image by all tasks.
        leaves = weight_bytes > target.l2_bytes

        def tasks_of(lines: int) -> int:
            return 1 if leaves else largest_divisor(_BLOCKS, -(-out_h // lines), 4 * target.threads)

        # Nothing divides a prime number of lines among threads: the last of more than one may end beyond the image.
        several = [lines for lines in _LINES if batch * tasks_of(lines) >= target.threads]
        is_prime = 1 not in several and len(several) > 0
        cost, rows, lines, width = _best_block(
            channels, out_h, out_w, _ROWS,
            lambda n: n == 1 if joins else leaves or (n in several if is_prime else out_h % n == 0),
        )  # fmt: skip
        joined = 1
        for n in joins:
            across = windows.joined(n, out_w)
            other = _best_block(channels, out_h // n, across, _ROWS, lambda lines: lines == 1, across)
            if other[0] < cost:
                joined, (cost, rows, lines, _), width = n, other, LANES
        tiles, h_tasks = -(-channels // rows), tasks_of(lines) if joined == 1 else 1
        tasks = -(-target.threads // (batch * h_tasks))
        return {
            "rows": rows,
            "lines": lines,
            "width": width,
            "o_block": largest_divisor(_BLOCKS, tiles, max(tiles // tasks, 1)),
            "h_tasks": h_tasks,
            "inner": "pixels" if leaves else "channels",
            # Lines that tasks share are slow to deal into phases, and an image that they share is put into words once.
            "copied": _BEFORE if leaves or joined > 1 or (windows.phases > 1 and not windows.in_columns) else _BY_TASK,
            **({"joined": joined} if joins else {}),
        }

    high, deep = up_to("rows", _ROWS, channels), up_to("lines", (1,) if joins else _LINES, out_h)
    constraints = [_fit_registers(windows, out_w, joins=bool(joins))]
    if joins:
        # Lines that are joined are one, of as many tiles as it takes, and a task has those of the whole image.
        constraints.append((knob("joined") == 1) | (knob("width") * knob("h_tasks") == LANES))
    turns = ceildiv(out_h, knob("lines") * knob("joined") if joins else knob("lines")) // knob("h_tasks")
    return ConfigSpace(
        [
            high,
            deep,
            up_to("width", _WIDTHS, out_w + LANES - 1),
            block_knob("o_block", _BLOCKS, channels, high),
            block_knob("h_tasks", _BLOCKS, out_h, deep),
            _INNER,
            _COPIED,
            *([Knob("joined", [1, *joins])] if joins else []),
        ],
        [*constraints, whole_blocks(channels, "rows", "o_block"), whole_blocks(out_h, "lines", "h_tasks")],
        fallback=fallback,
        idle={"inner": one_order(knob("o_block"), turns * ceildiv(out_w, knob("width")))},
    )


def prepare(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [ceil(o / rows), steps * places, rows, words].

    Where the sums of its rows count, they are the first words of a step more.
    """
    dot, depth, rows, kernel_w = windows.dot, windows.depth, integer(config, "rows"), windows.window.kernel_w
    has_sums = bool(getattr(attrs, "input_zero_point", 0))
    steps = windows.places * depth.steps

    def pack(weight: Any) -> Any:
        from tvm import te, tirx

        channels = int(weight.shape[0])
        sums = None
        if has_sums:
            axes = [te.reduce_axis((0, extent)) for extent in weight.shape[1:]]
            sums = compute_stage(
                "weight_sums", (channels,), lambda o: te.sum(weight[(o, *axes)].astype("int32"), axis=axes)
            )

        def word(tile: Any, step: Any, row: Any, at: Any) -> Any:
            o, place, c = tile * rows + row, step % windows.places, step // windows.places * depth.words + at
            y, x = place // kernel_w, place % kernel_w
            if windows.in_columns:
                y, c = c // windows.words, c % windows.words
            found = word_of(dot, windows.channels, c, lambda channel: weight[o, channel, y, x])
            if not windows.in_columns:
                found = zero_beyond(found, c, windows.words, depth.total)
            if sums is not None:
                found = tirx.if_then_else(step < steps, found, sums[o])
            return zero_beyond(found, o, channels, rows)

        return compute_stage("weight_tiles", (-(-channels // rows), steps + has_sums, rows, depth.words), word)

    return {1: pack}


def compute(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The words of the padded image, and the weight's products with them."""
    from tvm import te, tirx

    data, weight = inputs
    dot, depth, window, phases = windows.dot, windows.depth, windows.seen, windows.phases
    batch, channels, out_h, out_w = out_type.concrete_shape
    rows, lines, joined = integer(config, "rows"), integer(config, "lines"), _joined(config)
    width = _width(windows, config, out_w)
    height, across = round_up(out_h, lines), round_up(out_w, width)
    padded_h, padded_w = windows.extents(height, across)
    pitch = windows.extents(1, out_w)[1]
    if joined > 1:
        height, across = out_h // joined, width
        # As many lines as the last tile reads of, beyond the image's.
        _, ahead = windows.extents(1, width)
        below = (window.kernel_h - 1) * window.dilation[0]
        padded_h, padded_w = out_h - joined + below + -(-ahead // pitch), pitch
    image_h, image_w = int(data.shape[2]), int(data.shape[3])
    (top, left, *_), zero = attrs.padding, getattr(attrs, "input_zero_point", 0) & 255
    padding = tirx.const(int.from_bytes(bytes([zero] * 4), "little", signed=True), "int32")
    words, apart = windows.words, windows.apart

    def word(n: Any, h: Any, c: Any, column: Any) -> Any:
        y, x = h - top, column - left
        found = word_of(dot, windows.channels, c, lambda channel: data[n, channel, y, x], zero)
        tests = [
            test
            for test, needed in (
                (y >= 0, top), (y < image_h, padded_h - top > image_h), (x >= 0, left),
                (x < image_w, padded_w * phases * apart - left > image_w),
                (c < words, depth.total > words and not windows.in_columns),
            ) if needed
        ]  # fmt: skip
        return tirx.if_then_else(tirx.all(*tests), found, padding) if tests else found

    deep, padded = words if windows.in_columns else depth.total, None
    if phases * apart > 1:
        # Loads with gaps have no masks: a line is put into words before its columns are picked.
        padded = compute_stage("padded", (batch, padded_h, deep, padded_w * phases * apart), word)

    def read(n: Any, *place: Any) -> Any:
        """A word of a line [h, c] or [h c], at a column of a phase."""
        *line, w = place
        phase = 0
        if phases > 1:
            *line, phase = line
        h, c = (line[0] // words, line[0] % words) if windows.in_columns else line
        column = (w * phases + phase) * apart
        return word(n, h, c, column) if padded is None else padded[n, h, c, column]

    line_shape = (padded_h * words,) if windows.in_columns else (padded_h, deep)
    if joined > 1:
        image = compute_stage("image", (batch, deep, padded_h, pitch), lambda n, c, h, w: word(n, h, c, w))
    else:
        image = compute_stage("image", (batch, *line_shape, *((phases,) if phases > 1 else ()), padded_w), read)
    stride_h, dilation_h, dilation_w = window.strides[0], window.dilation[0], windows.dilation_w
    kernel_h, kernel_w = window.kernel_h, window.kernel_w
    y = te.reduce_axis((0, kernel_h), name="y") if kernel_h > 1 else 0
    x = te.reduce_axis((0, kernel_w), name="x") if kernel_w > 1 else 0
    c = te.reduce_axis((0, depth.total), name="c")

    def term(n: Any, o: Any, h: Any, w: Any) -> Any:
        step = c // depth.words * windows.places + y * kernel_w + x
        left = weight[o // rows, step, o % rows, c % depth.words]
        column = x * dilation_w
        if joined > 1:
            place = (h * joined + y * dilation_h) * pitch + w + column
            right = image[n, c, place // pitch, place % pitch]
            return te.sum(dot.product(left, right), axis=[axis for axis in (y, x, c) if not isinstance(axis, int)])
        line = (h * (stride_h * words) + c,) if windows.in_columns else (h * stride_h + y * dilation_h, c)
        at = (column % phases, w + column // phases) if phases > 1 else (w + column,)
        right = image[(n, *line, *at)]
        return te.sum(dot.product(left, right), axis=[axis for axis in (y, x, c) if not isinstance(axis, int)])

    total = tiles = compute_stage("tiles", (batch, round_up(channels, rows), height, across), term)
    of_data = getattr(attrs, "input_zero_point", 0)
    if of_data:
        steps = windows.places * depth.steps
        total = compute_stage(
            "total", tiles.shape,
            lambda n, o, h, w: tiles[n, o, h, w] - of_data * weight[o // rows, steps, o % rows, 0],
        )  # fmt: skip

    def element(*index: Any) -> Any:
        if joined > 1:
            n, o, h, w = index
            line, at = (h // joined, h % joined) if joined < out_h else (0, h)
            index = n, o, line, at * pitch + w
        return total(*index).astype(out_type.dtype)

    return [te.compute(out_type.concrete_shape, element, name="conv2d")]


def schedule(windows: Windows, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of lines × output channels in parallel; in each, one block after the other."""
    dot, depth, window = windows.dot, windows.depth, windows.seen
    sch, stages, output = start_schedule(outs)
    out_w = int(outs.tensors[0].shape[3])
    rows, lines, joined = integer(config, "rows"), integer(config, "lines"), _joined(config)
    width, pitch = _width(windows, config, out_w), windows.extents(1, out_w)[1]
    for name in ("weight_sums", "weight_tiles"):
        if name in stages:
            sch.parallel(sch.get_loops(stages[name])[0])
    tiles, image = stages["tiles"], stages["image"]
    sch.set_scope(tiles, 0, "local")
    reduced = 1 + (window.kernel_h > 1) + (window.kernel_w > 1)
    if joined > 1:
        task = _schedule_joined(sch, stages, output, (joined, width), reduced, config)
    else:
        task = _schedule_lines(sch, stages, output, (lines, width), reduced, config)
    vectorize(sch, sch.get_loops(output)[-1], LANES)
    if config["copied"] == _BY_TASK:
        sch.compute_at(image, task, preserve_unit_loops=True)
    if "padded" in stages:
        sch.compute_at(stages["padded"], sch.get_loops(image)[-2 - (windows.phases > 1)], preserve_unit_loops=True)
        vectorize(sch, sch.get_loops(stages["padded"])[-1], LANES)
    if joined > 1:
        across, multiple = round_up(int(sch.get(image).writes[0].source.shape[2]) * pitch, LANES), LANES
        sch.transform_layout(image, ("write", 0), lambda n, c, h, w: (n, c, h * pitch + w))
    else:
        across, multiple = windows.line(round_up(out_w, width))
    vectorize(sch, sch.get_loops(image)[-1], LANES)
    if multiple > 1:
        sch.storage_align(image, 0, len(sch.get(image).writes[0].source.shape) - 2, multiple, 0)
    if config["copied"] == _BEFORE:
        sch.parallel(sch.fuse(*sch.get_loops(image)[:2]))
    row_words = windows.phases * across
    line_words = pitch if joined > 1 else (window.pixel or depth.total) * row_words
    around = (window.kernel_h, window.dilation[0] * line_words), (window.kernel_w, windows.dilation_w)
    block = Block(
        dot, rows, lines * width, depth.steps, depth.words,
        row_words=depth.words, step_words=rows * depth.words, panel_words=0, ahead=0,
        around=tuple(loop for loop in around if loop[0] > 1), phases=(windows.phases, across),
        image=Image(lines, row_words, depth.words * row_words, window.strides[0] * line_words),
    )  # fmt: skip
    window = replace(window, dilation=(window.dilation[0], windows.dilation_w), line=pitch if joined > 1 else 0)
    use_tiles_of_image(sch, tiles, block, window, task)
    return sch


def _schedule_lines(
    sch: Any, stages: dict[str, Any], output: Any, shape: tuple[int, int], reduced: int, config: Config
) -> Any:
    """Schedule blocks of `shape`, lines and columns, with their outputs; return the loop over tasks."""
    tiles, (lines, width) = stages["tiles"], shape
    anchor = stages.get("total", tiles)
    n, o, h, w = sch.get_loops(anchor)[:4]
    o_task, o_tile, row = sch.split(o, [None, integer(config, "o_block"), integer(config, "rows")])
    h_task, h_tile, line = sch.split(h, [integer(config, "h_tasks"), None, lines])
    w_tile, column = sch.split(w, [None, width])
    order = (o_tile, h_tile, w_tile) if config["inner"] == "pixels" else (h_tile, w_tile, o_tile)
    # A task of one line has no loop in a block.
    sch.reorder(n, h_task, o_task, *order, *((row, line) if lines > 1 else (line, row)), column)
    sch.reverse_compute_at(output, order[-1], preserve_unit_loops=True)
    task = sch.fuse(n, h_task, o_task)
    sch.parallel(task)
    if "total" in stages:
        sch.compute_at(tiles, order[-1], preserve_unit_loops=True)
        row, line = sch.get_loops(tiles)[-reduced - 3 : -reduced - 1]
        if lines == 1:
            sch.reorder(line, row)
        sch.compute_inline(anchor)
    return task


def _schedule_joined(
    sch: Any, stages: dict[str, Any], output: Any, shape: tuple[int, int], reduced: int, config: Config
) -> Any:
    """As `_schedule_lines`, of lines that are joined: their number, and the columns of all together."""
    from tvm import tirx

    tiles, (joined, width) = stages["tiles"], shape
    if "total" in stages:
        sch.compute_inline(stages["total"])
    # A block has all columns: also those behind the last pixel, which no output reads.
    sums = sch.get(tiles).writes[0].source
    (index,) = (i for i, read in enumerate(sch.get(output).reads) if read.source.same_as(sums))
    columns = tirx.const(0, "int64"), tirx.const(width, "int64")
    sch.annotate_buffer_access(output, index, "read", lambda n, o, h, w: (n, o, h // joined, columns))
    n, o, h, _ = sch.get_loops(output)
    o_task, o_tile, row = sch.split(o, [None, integer(config, "o_block"), integer(config, "rows")])
    h_tile, line = sch.split(h, [None, joined])
    order = (o_tile, h_tile) if config["inner"] == "pixels" else (h_tile, o_tile)
    sch.reorder(n, o_task, *order, row, line)
    sch.compute_at(tiles, order[-1], preserve_unit_loops=True)
    row, line = sch.get_loops(tiles)[-reduced - 3 : -reduced - 1]
    sch.reorder(line, row)
    task = sch.fuse(n, o_task)
    sch.parallel(task)
    return task
