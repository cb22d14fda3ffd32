"""The windows of `conv2d_nchw_amx_direct.cpu`, in tiles of the words of an image, and its space."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategy.condition import Clause, ceildiv, minimum
from strategy.cpu.amx import Window
from strategy.cpu.amx_code import LANES, REGISTERS, ROWS, WORD_BYTES, WORDS
from strategy.cpu.dot import Dot
from strategy.cpu.tile import block_knob, largest_divisor, one_order, round_up, up_to, whole_blocks
from strategy.ops.conv2d.dot import count_words
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.dense.amx_product import Depth
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_ROWS = (2, 4, 8, 12, 16, 24, 32, 48)
_LINES = (1, 2, 3, 4)
_WIDTHS = (16, 32, 48, 64, 80, 96)
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 28, 32, 48, 64)
_LONG = 7  # words of a column of a window
_SHARED = 32  # numbers of output channels for a place, from which unfolding with a stride takes less time
_INNER = Knob("inner", ["pixels", "channels"])
# The image is put into words by each task, or before all of them.
BY_TASK, BEFORE = range(2)
_COPIED = Knob("copied", [BY_TASK, BEFORE])


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


def pays(windows: Windows, out_channels: int, out_w: int) -> bool:
    """Return whether windows of several places are read where they lie rather than unfolded, untuned.

    For channels that fill tiles by half, and for so few that a place is a column of the window. With a stride along
    long lines many output channels share what is unfolded, the more the larger the window is, and the larger words are.
    """
    group, is_long = windows.dot.group, out_w * 2 > LANES
    shares = is_long and windows.window.strides[1] > 1 and out_channels * group > _SHARED * windows.places
    fills_tiles = windows.channels * 2 >= WORDS * group and not shares
    # Short columns of 8-bit integers take longer to deal into phases than to unfold.
    few_pay = windows.in_columns and is_long and (windows.phases == 1 or group == 2 or windows.depth.words >= _LONG)
    return windows.places > 1 and (fills_tiles or few_pay)


def _fit_registers(windows: Windows, out_w: int, *, joins: bool) -> Clause:
    """The constraint that sums, a column of the weight's tiles and a tile of the image fit the tile registers."""
    height = ceildiv(knob("rows"), ROWS)
    sums = height * knob("lines") * (knob("width") // LANES)
    if joins:
        # A line of joined ones has more tiles than `width` says.
        joined, pitch = knob("joined"), windows.extents(1, out_w)[1]
        sums = sums + height * minimum(joined - 1, 1) * (ceildiv((joined - 1) * pitch + out_w, LANES) - 1)
    return sums + height + 1 <= REGISTERS


def joined_lines(config: Config) -> int:
    """The lines that are joined; one where none are."""
    return integer(config, "joined") if "joined" in config else 1


def width_of(windows: Windows, config: Config, out_w: int) -> int:
    """The columns of a block's line."""
    joined = joined_lines(config)
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
    )


def space(
    windows: Windows, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """The block, the parts of the image and of the output channels of a task, their order, and the copy.

    `joined` is the number of short lines that are joined, in place of several `lines` beside each other.
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
        )
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
            "copied": BEFORE if leaves or joined > 1 or (windows.phases > 1 and not windows.in_columns) else BY_TASK,
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
