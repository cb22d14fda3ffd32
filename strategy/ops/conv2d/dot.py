"""`conv2d_nchw_dot.cpu`, `qconv2d_nchw_dot.cpu`: windows unfolded into columns, and a dot-product instruction.

As `conv2d_nchw_im2col.cpu`, on words of 32 bits instead of numbers: a word of the image or of the weight holds as many
neighbouring channels of a group as a lane takes at a time, of bfloat16 two, of 8-bit integers four. An image is put
into words once, together with its padding, and its windows unfold words or read them in place; windows of one pixel
make words themselves.
A zero point of the data, and what the instruction adds to it, is taken off by the sums of the weight's rows, which
are one word more of channels in the packed weight; one of the weight, by the sums of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any

from strategy.cpu.dot import Dot, find_dot, use_dot_of_words
from strategy.cpu.tile import round_up
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.depthwise import largest_sum
from strategy.ops.conv2d.im2col import UNROLL, schedule_columns, space_of_columns
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import padded_width, read_windows
from strategy.ops.conv2d.product import Geometry, pack_rows
from strategy.schedule import Outs, compute_stage, integer, stage
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_CHECKED = Knob("checked", (False,))


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], name: str, plevel: int, target: Target
) -> None:
    """Add the implementation to a strategy where the target has an instruction for the convolution."""
    dot = dot_of(attrs, inputs, target)
    if dot is not None:
        strategy.add_implementation(
            partial(compute, dot), partial(schedule, dot), name, plevel, version=4,
            space=partial(space, dot), prepare=partial(prepare, dot),
        )


def dot_of(attrs: Conv2DAttrs, inputs: Sequence[TensorType], target: Target) -> Dot | None:
    """The target's instruction for a convolution of types in NCHW and OIHW, None without one.

    A group of few channels would leave a part of each word empty.
    """
    data, weight = inputs
    dot = find_dot(target, weight.dtype)
    if dot is None or (data.dtype == "bfloat16") != (dot.data == "bfloat16") or not takes(attrs, data, weight):
        return None
    return dot if int(weight.shape[1]) * 2 > dot.group else None


def takes(attrs: Conv2DAttrs, data: TensorType, weight: TensorType) -> bool:
    """Return whether an instruction for the dtypes can compute a convolution of types in NCHW and OIHW.

    All but the batch must be known; the zero point must be a number of the data, as words are filled and images padded
    with it; and int32 must hold sums of int64.
    """
    least, most = (-128, 127) if data.dtype == "int8" else (0, 255)
    if not least <= getattr(attrs, "input_zero_point", 0) <= most:
        return False
    if not all(d.is_constant for d in (*data.shape[1:], *weight.shape)):
        return False
    return attrs.out_dtype != "int64" or largest_sum(attrs, data, weight) < 1 << 31


def space(
    dot: Dot, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """As for `conv2d_nchw_im2col.cpu`, of words, with whole unrolled steps: an instruction has no condition."""
    geometry = Geometry.of(inputs, out_type)
    geometry = replace(geometry, channels=count_words(dot, geometry.channels))
    unroll = Knob("unroll", sorted(u for u in {*UNROLL, geometry.kernel_w} if geometry.depth % u == 0))
    return space_of_columns(geometry, "int32", unroll, _CHECKED, target, of_words=True)


def prepare(
    dot: Dot, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [ceil(o / rows), words, kh, kw, rows], with its rows' sums where they count."""
    has_sums = bool(dot.zero_points(attrs, inputs[0].dtype)[0])

    def pack(weight: Any) -> Any:
        from tvm import te, tirx

        out_channels, channels, height, width = (int(extent) for extent in weight.shape)
        words = count_words(dot, channels)

        def word(o: Any, c: Any, y: Any, x: Any) -> Any:
            return word_of(dot, channels, c, lambda channel: dot.pack(weight[o, channel, y, x]))

        shape = (out_channels, words + has_sums, height, width)
        if not has_sums:
            return pack_rows(integer(config, "rows"), attrs.groups)(te.compute(shape, word, name="words"))
        r, s, t = (te.reduce_axis((0, extent)) for extent in (channels, height, width))
        sums = compute_stage(
            "weight_sums", (out_channels,),
            lambda o: te.sum(dot.pack(weight[o, r, s, t]).astype("int32"), axis=[r, s, t]),
        )
        with_sums = te.compute(
            shape, lambda o, c, y, x: tirx.if_then_else(c < words, word(o, c, y, x), sums[o]), name="words"
        )
        return pack_rows(integer(config, "rows"), attrs.groups)(with_sums)

    return {1: pack}


def compute(
    dot: Dot, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The columns of words [n, g, words * kh * kw, h, w], and the weight's products with them."""
    from tvm import te, tirx

    data, weight = inputs
    channels, shift = int(data.shape[1]) // attrs.groups, dot.shift(str(data.dtype))
    (of_data, of_weight), words = dot.zero_points(attrs, str(data.dtype)), count_words(dot, channels)
    geometry = replace(Geometry.of_tensors(attrs, data, weight, out_type), channels=words)
    kernel_h, kernel_w, out_h, out_w = geometry.kernel_h, geometry.kernel_w, geometry.out_h, geometry.out_w
    rows, width, window = integer(config, "rows"), integer(config, "width"), kernel_h * kernel_w
    # Pixels beyond the last, up to whole panels, are unfolded, but not stored.
    lines = -(-round_up(geometry.pixels, width) // out_w)
    pixel = read_words(dot, attrs, data, kernel_h, kernel_w, flips_signs=shift != 0)

    def unfolded(n: Any, g: Any, k: Any, h: Any, w: Any) -> Any:
        line = h if lines == out_h else tirx.min(h, out_h - 1)
        return pixel(n, g * words + k // window, k // kernel_w % kernel_h, k % kernel_w, line, w)

    columns = compute_stage("columns", (geometry.batch, attrs.groups, geometry.depth, lines, out_w), unfolded)
    r, own = te.reduce_axis((0, geometry.depth), name="r"), geometry.out_channels
    tiles_of_group = -(-own // rows)

    def packed_number(g: Any, o: Any, c: Any, y: Any, x: Any) -> Any:
        return weight[g * tiles_of_group + o // rows, c, y, x, o % rows]

    def term(n: Any, g: Any, o: Any, p: Any) -> Any:
        packed = packed_number(g, o, r // window, r // kernel_w % kernel_h, r % kernel_w)
        return te.sum(dot.product(columns[n, g, r, p // out_w, p % out_w], packed), axis=r)

    tiles = compute_stage(
        "tiles", (geometry.batch, attrs.groups, round_up(own, rows), round_up(geometry.pixels, width)), term
    )

    total, windows = tiles, None
    if of_weight:
        k = te.reduce_axis((0, geometry.depth), name="k")

        def of_window(n: Any, g: Any, p: Any) -> Any:
            numbers = dot.numbers(columns[n, g, k, p // out_w, p % out_w], dot.data)
            return te.sum(sum(numbers[1:], numbers[0]), axis=k)

        windows = compute_stage("window_sums", (geometry.batch, attrs.groups, lines * out_w), of_window)
    zeros = geometry.depth * dot.group * of_data

    def less_zeros(n: Any, g: Any, o: Any, p: Any) -> Any:
        found = tiles[n, g, o, p]
        if of_data:
            found = found - of_data * packed_number(g, o, words, 0, 0)
        return found - of_weight * (windows[n, g, p] - zeros) if windows is not None else found

    if of_data or of_weight:
        total = compute_stage("total", tiles.shape, less_zeros)
    return [
        te.compute(
            (geometry.batch, attrs.groups * own, out_h, out_w),
            lambda n, o, h, w: total[n, o // own, o % own, h * out_w + w].astype(out_type.dtype),
            name="conv2d",
        )
    ]


def schedule(dot: Dot, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """As of `conv2d_nchw_im2col.cpu`, with the columns of a task in one line."""
    sch, stages, task, lane = schedule_columns(attrs, outs, config, dot.lanes, vectors=False)
    out_w = int(outs.tensors[0].shape[3])
    if not config["in_place"]:
        sch.transform_layout(stages["columns"], ("write", 0), lambda n, g, k, h, w: (n, g, k, h * out_w + w))
    use_dot_of_words(sch, dot, task, lane, broadcast="weight")
    return sch


def read_words(
    dot: Dot, attrs: Conv2DAttrs, data: Any, kernel_h: int, kernel_w: int, *, flips_signs: bool = False
) -> Callable[..., Any]:
    """The word of a padded image, as `read_windows` has a pixel; of windows of one pixel nothing is kept."""
    from tvm import te, tirx

    channels = int(data.shape[1]) // attrs.groups
    words, (top, left, bottom, _) = count_words(dot, channels), attrs.padding
    height, across = (int(extent) for extent in data.shape[2:])
    padded_w = padded_width(attrs, across, kernel_w)
    signs, zero = tirx.const(0x80808080 - 2**32, "int32"), getattr(attrs, "input_zero_point", 0) & 255

    def word(n: Any, c: Any, h: Any, w: Any) -> Any:
        y, x, group = h - top, w - left, c // words * channels
        found = word_of(dot, channels, c % words, lambda channel: data[n, group + channel, y, x], zero)
        right = padded_w - left - across
        tests = [
            test
            for test, needed in ((y >= 0, top), (y < height, bottom), (x >= 0, left), (x < across, right))
            if needed
        ]
        if tests:
            padding = tirx.const(int.from_bytes(bytes([zero] * 4), "little", signed=True), "int32")
            found = tirx.if_then_else(tirx.all(*tests), found, padding)
        return found ^ signs if flips_signs else found

    shape = (data.shape[0], attrs.groups * words, height + top + bottom, padded_w)
    apart = {} if kernel_h * kernel_w == 1 else stage("padded")
    return read_windows(te.compute(shape, word, name="padded", attrs=apart), attrs, kernel_w)


def count_words(dot: Dot, channels: int) -> int:
    """Words of the channels of a group."""
    return -(-channels // dot.group)


def word_of(dot: Dot, channels: int, word: Any, read: Callable[[Any], Any], zero: int = 0) -> Any:
    """A word of the numbers that `read` has for its channels, and of the bits of `zero` beyond the last."""
    from tvm import tirx

    bits, last = 32 // dot.group, channels % dot.group or dot.group

    def number(place: int) -> Any:
        channel = word * dot.group + place
        found = tirx.reinterpret(f"uint{bits}", read(channel)).astype("int32")
        found = found << bits * place if place else found
        beyond = (zero << bits * place ^ 1 << 31) - (1 << 31)
        return found if place < last else tirx.if_then_else(channel < channels, found, tirx.const(beyond, "int32"))

    return reduce(or_, map(number, range(dot.group)))
