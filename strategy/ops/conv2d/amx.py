"""`conv2d_nhwc_amx.cpu`, `qconv2d_nhwc_amx.cpu`: images [n, h, w, c] of one group, unfolded into products by AMX.

A row of the product is the window of one output pixel. It is copied line by line into tiles: a line is the channels of
a place in the window, or of a row of places where they are few, and ends with a whole tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strategy.cpu.amx import find_product
from strategy.cpu.amx_code import WORDS
from strategy.cpu.dot import Dot
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.layout import plain_inputs, plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.dense.amx import RESULTS
from strategy.ops.dense.amx_product import Depth, is_summed, product, schedule_product, space_of
from strategy.ops.dense.dot import packing
from strategy.schedule import VIEW, Outs, find_stages, integer, join_epilogue, new_schedule
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import Dim, TensorType

_LAYOUT = "NHWC"


@dataclass(frozen=True)
class Lines:
    """The lines of a window: `length` numbers each, of the places of one row if `in_rows`, else of one place."""

    dot: Dot
    channels: int
    kernel_h: int
    kernel_w: int
    in_rows: bool

    @classmethod
    def of(cls, dot: Dot, attrs: Conv2DAttrs, weight: Sequence[int]) -> Lines:
        """The lines for the extents of a weight of OIHW."""
        _, channels, kernel_h, kernel_w = weight
        in_rows = channels * 2 <= WORDS * dot.group and attrs.dilation[1] == 1
        return cls(dot, channels, kernel_h, kernel_w, in_rows)

    @property
    def length(self) -> int:
        return self.channels * (self.kernel_w if self.in_rows else 1)

    @property
    def _tiles(self) -> Depth:
        """The tiles of one line."""
        return Depth.of(self.dot, self.length)

    @property
    def are_whole(self) -> bool:
        """Return whether tiles divide a line."""
        return self._tiles.total * self.dot.group == self.length

    @property
    def depth(self) -> Depth:
        """The tiles of all lines."""
        count = self.kernel_h * (1 if self.in_rows else self.kernel_w)
        return Depth(count * self._tiles.steps, self._tiles.words)

    def place(self, column: Any) -> tuple[Any, Any, Any, Any]:
        """The row and column in the window of a number of a product's row, its channel, and its place in the line."""
        stored = self._tiles.total * self.dot.group
        line, at = column // stored, column % stored
        if self.in_rows:
            return line, at // self.channels, at % self.channels, at
        return line // self.kernel_w, line % self.kernel_w, at, at


def amx_of(
    attrs: Conv2DAttrs, data: TensorType, weight: TensorType, out_type: TensorType, target: Target,
    *, weight_left: bool = False,
) -> Dot | None:
    """The target's tiles for a convolution, with the data or the weight on their left; None without them.

    All extents must be known. Zero points of the weight would take sums of windows; that of the data must be one of its
    numbers, as images are padded with it.
    """
    left, right = (weight, data) if weight_left else (data, weight)
    dot = find_product(target, left.dtype, right.dtype)
    if dot is None or not all(d.is_constant for d in (*data.shape, *weight.shape)):
        return None
    least, most = (-128, 127) if data.dtype == "int8" else (0, 255)
    of_data, of_weight = dot.zero_points(attrs, left.dtype)
    return dot if not of_weight and least <= of_data <= most and out_type.dtype in RESULTS[data.dtype] else None


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, name: str,
    target: Target,
) -> None:
    """Add the implementation to a strategy of images in NHWC where the target has AMX for them (`amx_of`)."""
    data, weight = plain_inputs(attrs, inputs)
    dot = amx_of(attrs, data, weight, out_type, target)
    if dot is None or attrs.groups > 1 or (attrs.data_layout, attrs.result_layout) != (_LAYOUT, _LAYOUT):
        return
    lines = Lines.of(dot, attrs, weight.concrete_shape)
    # Lines of a few bytes take longer to copy than products by words take.
    short = dot.sums == "int32" and lines.length <= WORDS * 2
    strategy.add_implementation(
        partial(compute, lines), partial(schedule, lines), name, 13 if short else 18,
        space=partial(space, lines), prepare=partial(prepare, lines),
    )


def space(
    lines: Lines, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """As of a product whose rows are copied."""
    batch, height, width, channels = out_type.concrete_shape
    return space_of(Dim(batch * height * width), channels, 1, target, in_place=False, unfolded=True)


def prepare(
    lines: Lines, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed as of a product, from rows of whole tiles."""

    def number(weight: Any, o: Any, column: Any) -> Any:
        from tvm import tirx

        dot, (y, x, channel, at) = lines.dot, lines.place(column)
        found = dot.pack(weight[o, channel, y, x])
        return found if lines.are_whole else tirx.if_then_else(at < lines.length, found, tirx.const(0, dot.packed))

    return {1: pack_rows(lines.dot, attrs, inputs, config, lines.depth.total, number)}


def pack_rows(
    dot: Dot, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config, words: int,
    number: Callable[[Any, Any, Any], Any],
) -> Callable[[Any], Any]:
    """The packing of a weight as of a product, from rows of `words`.

    Args:
        number: that of the weight of OIHW, a TE tensor, which is in a column of an output channel's row.
    """
    summed = is_summed(dot, attrs, inputs[0].dtype)

    def pack(given: Any) -> Any:
        from tvm import te

        weight = plain_weight(attrs, given)
        shape = (weight.shape[0], words * dot.group)
        rows = te.compute(shape, partial(number, weight), name="rows", attrs={VIEW: "rows"})
        return packing(dot, integer(config, "width"), words, is_transposed=True, summed=summed)(rows)

    return pack


def compute(
    lines: Lines, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The product of unfolded windows by the weight, as an image."""
    from tvm import te

    data, weight = inputs
    batch, height, width, channels = out_type.concrete_shape
    depth = lines.depth
    windows = te.compute(
        (batch * height * width, depth.total * lines.dot.group), partial(_window, lines, attrs, data, height, width),
        name="windows", attrs={VIEW: "windows"},
    )
    total = product(lines.dot, attrs, windows, weight, channels, depth, config)
    return [
        te.compute(
            out_type.concrete_shape,
            lambda n, h, w, o: total[(n * height + h) * width + w, o].astype(out_type.dtype), name="conv2d",
        )
    ]


def _window(lines: Lines, attrs: Conv2DAttrs, data: Any, height: int, width: int, pixel: Any, column: Any) -> Any:
    """A number of an output pixel's window, as it is copied."""
    from tvm import tirx

    dot, dtype = lines.dot, str(data.dtype)
    y, x, channel, at = lines.place(column)
    h = pixel // width % height * attrs.strides[0] + y * attrs.dilation[0] - attrs.padding[0]
    w = pixel % width * attrs.strides[1] + x * attrs.dilation[1] - attrs.padding[1]
    found = data[pixel // (height * width), h, w, channel]
    if dtype != dot.kept:
        found = tirx.reinterpret(dot.kept, found)
    rows, columns = int(data.shape[1]), int(data.shape[2])
    tests = [
        test
        for test, needed in (
            (h >= 0, attrs.padding[0]), (h < rows, attrs.padding[2]), (w >= 0, attrs.padding[1]),
            (w < columns, attrs.padding[3]), (at < lines.length, not lines.are_whole),
        ) if needed
    ]
    zero = dot.zero_points(attrs, dtype)[0] if dot.sums == "int32" else 0
    return tirx.if_then_else(tirx.all(*tests), found, tirx.const(zero, dot.kept)) if tests else found


def schedule(lines: Lines, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of pixels × panels in parallel; in each, one block after the other."""
    batch, height, width, _ = (int(d) for d in outs.tensors[0].shape)
    sch = new_schedule(outs)
    output = join_epilogue(sch)
    sch.transform_block_layout(output, lambda n, h, w, o: ((n * height + h) * width + w, o))
    dtype = str(outs.args[0].dtype)
    schedule_product(
        sch, find_stages(sch), output, lines.dot, lines.depth, config,
        summed=is_summed(lines.dot, attrs, dtype), m=batch * height * width, in_place=(dtype, 0),
    )
    return sch
