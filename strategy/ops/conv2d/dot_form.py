"""Forms of an image in NHWC and of a weight for dot-product instructions: words of neighbouring channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.cpu.dot import Dot
from strategy.ops.conv2d.layout import plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pointwise import leaves_pixels
from strategy.schedule import compute_stage, integer, zero_beyond
from strategy.space import Config
from strategy.types import TensorType

SAVED = 0.9  # of the words of single pixels: fewer pay for unfolding


@dataclass(frozen=True)
class Form:
    """The way in which windows of `kernel_w` columns are read, and the instruction.

    Attributes:
        is_flat: outputs read the pixel at their own place alone, so tiles may go over lines.
        in_rows: a window's row is read as it lies, as one pixel of many channels: few channels fill no word, but those
            of several pixels do. What a word has beyond the row is multiplied by zero, so it must be a finite number.
        unfolds: each output has the rows of its window for itself, with zeros beyond.
    """

    dot: Dot
    is_flat: bool
    in_rows: bool
    unfolds: bool
    channels: int
    kernel_w: int

    @classmethod
    def of(cls, dot: Dot, attrs: Conv2DAttrs, weight: TensorType) -> Form:
        """The form for a weight of OIHW."""
        _, channels, *window = weight.concrete_shape
        is_flat = leaves_pixels(attrs) and window == [1, 1]
        few = channels % dot.group > 0 and attrs.groups == 1 and attrs.dilation[1] == 1 and not is_flat
        finite = dot.sums == "int32" or channels * window[1] % dot.group == 0
        pays = -(-channels * window[1] // dot.group) <= SAVED * window[1] * -(-channels // dot.group)
        return cls(dot, is_flat, few and (finite or pays), few and not finite and pays, channels, window[1])

    @property
    def length(self) -> int:
        """Numbers of the image that lie together and are summed."""
        return self.channels * (self.kernel_w if self.in_rows else 1)

    @property
    def words(self) -> int:
        return -(-self.length // self.dot.group)

    @property
    def stored(self) -> int:
        """Numbers of a pixel's group in a copy of the image."""
        return self.channels if self.in_rows and not self.unfolds else self.words * self.dot.group

    def reach(self, attrs: Conv2DAttrs) -> int:
        """Columns of the image that the row of a window reads."""
        if self.in_rows:
            return -(-self.words * self.dot.group // self.channels)
        return (self.kernel_w - 1) * attrs.dilation[1] + 1


def prepare(
    form: Form, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [g * ceil(o / width), kh, kw, words, width, group], of integers with its sums.

    The bytes of a sum are `width` apart, in one word more of the window's first place.
    """
    dot, words = form.dot, form.words
    width, group = integer(config, "width"), dot.group
    has_sums = bool(dot.zero_points(attrs, inputs[0].dtype)[0])

    def pack(given: Any) -> Any:
        from tvm import te, tirx

        weight = plain_weight(attrs, given)
        out_channels, channels, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        own = out_channels // attrs.groups
        panels = -(-own // width)
        r, s, t = (te.reduce_axis((0, extent)) for extent in (channels, kernel_h, kernel_w))

        def within(panel: Any, lane: Any, read: Callable[[Any], Any]) -> Any:
            """The number that `read` has for the output channel of a lane, zero beyond the last."""
            o = panel % panels * width + lane
            return zero_beyond(read(panel // panels * own + o), o, own, width)

        def number(panel: Any, y: Any, x: Any, word: Any, lane: Any, place: Any) -> Any:
            at = word * group + place

            def read(o: Any) -> Any:
                window = (at % channels, y, at // channels) if form.in_rows else (at, y, x)
                return dot.pack(weight[(o, *window)])

            return zero_beyond(within(panel, lane, read), at, form.length, group)

        shape = (attrs.groups * panels, kernel_h, 1 if form.in_rows else kernel_w, words, width, group)
        if not has_sums:
            return compute_stage("panels", shape, number)
        sums = compute_stage(
            "sums", (out_channels,),
            lambda o: te.sum(dot.pack(weight[o, r, s, t]).astype("int32"), axis=[r, s, t]),
        )

        def number_or_byte(panel: Any, y: Any, x: Any, word: Any, lane: Any, place: Any) -> Any:
            flat = lane * group + place
            byte = within(panel, flat % width, lambda o: (sums[o] >> (flat // width % 4 * 8)).astype(dot.packed))
            return tirx.if_then_else(word < words, number(panel, y, x, word, lane, place), byte)

        shape = (*shape[:3], words + 1, *shape[4:])
        return compute_stage("panels", shape, number_or_byte)

    return {1: pack}


def copied(form: Form, attrs: Conv2DAttrs, data: Any, columns: int) -> Any:
    """The padded lines [n, h, w * g * stored] of the numbers that the instruction takes, of at least some `columns`."""
    from tvm import tirx

    dot, channels, wide = form.dot, form.channels, form.stored
    batch, height, width, _ = data.shape[0], *(int(extent) for extent in data.shape[1:])
    shift, pixel, (top, left, bottom, right) = dot.shift(str(data.dtype)), wide * attrs.groups, attrs.padding
    right = max(right, columns - left - width)
    zero = dot.zero_points(attrs, str(data.dtype))[0] if dot.sums == "int32" else 0

    def number(n: Any, y: Any, place: Any) -> Any:
        h, w, inner = y - top, place // pixel - left, place % pixel
        channel = inner if wide == channels else inner // wide * channels + inner % wide
        found = data[n, h, w, channel]
        if shift:
            # Of unsigned numbers, whose sum may wrap around.
            found = tirx.reinterpret("uint8", found) + tirx.const(128, "uint8")
        if shift or str(data.dtype) != dot.kept:
            found = tirx.reinterpret(dot.kept, found)
        tests = [
            test
            for test, needed in (
                (h >= 0, top), (h < height, bottom), (place >= left * pixel, left),
                (place < (left + width) * pixel, right), (inner % wide < channels, wide > channels),
            ) if needed
        ]
        return tirx.if_then_else(tirx.all(*tests), found, tirx.const(zero, dot.kept)) if tests else found

    shape = (batch, height + top + bottom, (left + width + right) * pixel)
    return compute_stage("copied", shape, number)


def unfolded(form: Form, attrs: Conv2DAttrs, data: Any, columns: int) -> Any:
    """The rows of windows [n, h, w, stored] of the padded lines, for the first `columns` outputs of a line."""
    from tvm import tirx

    channels, wide, stride = form.channels, form.stored, attrs.strides[1]
    batch, height, width, _ = data.shape[0], *(int(extent) for extent in data.shape[1:])
    top, left, bottom, _ = attrs.padding

    def number(n: Any, y: Any, w: Any, inner: Any) -> Any:
        h, place = y - top, (w * stride - left) * channels + inner
        found = tirx.reinterpret(form.dot.kept, data[n, h, w * stride - left + inner // channels, inner % channels])
        tests = [
            test
            for test, needed in (
                (h >= 0, top), (h < height, bottom), (place >= 0, left), (place < width * channels, True),
                (inner < form.length, True),
            ) if needed
        ]
        return tirx.if_then_else(tirx.all(*tests), found, tirx.const(0, form.dot.kept))

    return compute_stage("copied", (batch, height + top + bottom, columns, wide), number)
