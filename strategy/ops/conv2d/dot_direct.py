"""`conv2d_nchw_dot_direct.cpu`, `qconv2d_nchw_dot_direct.cpu`: the words of an image, and a dot-product instruction.

As `conv2d_nchw_dot.cpu`, words are neighbouring channels of a pixel; but output channels are in the lanes, so that
small images fill vectors as well as large ones, and nothing is unfolded but rows of windows over few channels. The
image is put into words once, beside its padding, each line of all channels together: [n, h, words, w]. Words are
broadcast to all lanes from where they lie, and a finished tile is turned. A tile is `rows` pixels of a line × `width`
channels; where windows are of one pixel, lines are the pixels of a tile.
"""
# Over 300 lines: one implementation, whose space, packing, image and schedule share its words.

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

from strategy.condition import ceildiv
from strategy.cpu.ahead import fits_ahead, prefetch_panels
from strategy.cpu.dot import Dot, plevel_of, use_dot_of_words
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.cpu.turn import turn, turned_width
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.dot import count_words, dot_of, word_of
from strategy.ops.conv2d.dot_form import SAVED
from strategy.ops.conv2d.dot_tasks import Tasks
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import copy_by_vectors, put_in_order
from strategy.ops.conv2d.pointwise import leaves_pixels
from strategy.ops.conv2d.product import INNER, Geometry, fitting_blocks, idle_window, split_groups
from strategy.ops.conv2d.spatial_pack import WINDOW
from strategy.ops.conv2d.task_padding import BY_TASK
from strategy.schedule import (
    Outs,
    compute_stage,
    find_stages,
    integer,
    unroll_tile,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_WINDOW = Knob("window", ["unrolled", "loops"])  # of places below each other
_AHEAD = Knob("ahead", [False, True])
_FEW = 8  # channels
_TURNING, _UNFOLDING = 4, 2  # cycles to turn a vector of sums, and to unfold one of words


@dataclass(frozen=True)
class Words:
    """The words that windows of one group read, for an instruction.

    Attributes:
        is_flat: outputs read the pixel at their own place alone, so tiles may go over lines.
        unfolds: words are of the rows of windows, of all channels, where channels are few and leave parts of words
            empty. Each output then has those of its own.
        steps: lines and columns from one window to the next in the words: of windows of one pixel, others are left out.
    """

    dot: Dot
    is_flat: bool
    unfolds: bool
    steps: tuple[int, int]
    channels: int
    kernel_w: int

    @classmethod
    def of(cls, dot: Dot, attrs: Conv2DAttrs, weight: TensorType) -> Words:
        """Those of a weight of OIHW."""
        _, channels, *window = weight.concrete_shape
        is_pixel, kernel_w = window == [1, 1], window[1]
        saves = count_words(dot, channels * kernel_w) <= SAVED * kernel_w * count_words(dot, channels)
        unfolds, (down, across) = channels < _FEW and saves, attrs.strides
        steps = (1, 1) if is_pixel else (down, 1) if unfolds else (down, across)
        return cls(dot, is_pixel and leaves_pixels(attrs), unfolds, steps, channels, kernel_w)

    @property
    def length(self) -> int:
        """The numbers in the words of a pixel, or of a window's row."""
        return self.channels * self.kernel_w if self.unfolds else self.channels

    @property
    def count(self) -> int:
        return count_words(self.dot, self.length)

    def number(self, at: Any) -> tuple[Any, Any]:
        """The channel of a number, and its column of the window's row."""
        return (at // self.kernel_w, at % self.kernel_w) if self.unfolds else (at, 0)


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, name: str,
    target: Target,
) -> None:
    """Add the implementation to a strategy, of types in NCHW and OIHW, where the target has an instruction for it."""
    dot = dot_of(attrs, inputs, target)
    if dot is None:
        return
    words = Words.of(dot, attrs, inputs[1])
    level = 15 if _pays(words, Geometry.of(inputs, out_type), target) else 13
    strategy.add_implementation(
        partial(compute, words), partial(schedule, words), name, plevel_of(target, inputs[0].dtype, level),
        version=3, space=partial(space, words), prepare=partial(prepare, words),
    )


def _pays(words: Words, geometry: Geometry, target: Target) -> bool:
    """Return whether output channels are in the lanes untuned, rather than pixels, as of `conv2d_nchw_dot.cpu`.

    That leaves lanes idle behind the last pixel, and unfolds windows for all output channels; it turns no tile.
    """
    lanes, o, pixels = words.dot.lanes, geometry.out_channels, geometry.pixels
    vector = lanes * 2 if pixels > lanes and target.multiply_adds > 1 else lanes
    window = geometry.kernel_h * geometry.kernel_w
    terms = window * count_words(words.dot, words.channels)
    in_place = window == 1 or (geometry.out_w % lanes == 0 and words.channels < _FEW * words.dot.group)
    # Cycles of a vector of the output.
    unfolding = 0.0 if in_place else _UNFOLDING * terms / o
    of_pixels = terms / target.multiply_adds * int(round_up(pixels, vector)) / pixels + unfolding
    own = geometry.kernel_h * (1 if words.unfolds else geometry.kernel_w) * words.count
    return bool(own / target.multiply_adds * int(round_up(o, lanes)) / o + _TURNING < of_pixels)


def space(
    words: Words, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over the window and words, and tiles or lines per task.

    The image is put into words before all tasks, or `by_task`, each those that it reads. With `ahead` the next panel
    of the weight is prefetched meanwhile.
    """
    geometry = Geometry.of(inputs, out_type)
    dot, is_flat = words.dot, words.is_flat
    lanes, o, kernel_w = dot.lanes, geometry.out_channels, 1 if words.unfolds else geometry.kernel_w
    across = geometry.pixels if is_flat else geometry.out_w
    widths = tuple(v * lanes for v in VECTORS if v == 1 or (v - 1) * lanes < o)
    high, wide = up_to("rows", ROWS, 2 * across), Knob("width", widths, "layout")

    def parts(rows: Any) -> int:
        """The number of lines that tasks share, or of tiles where these may go over lines."""
        return int(-(-across // rows)) if is_flat else int(geometry.out_h)

    # Tiles over lines have two blocks that divide numbers of them.
    o_blocks = Knob("o_block", fitting_blocks([-(-o // w) for w in widths], 4 if is_flat else len(widths)))
    heights = fitting_blocks([parts(r) for r in high.values], 9)
    if not is_flat and parts(1) not in heights:
        heights.append(parts(1))  # all lines
    terms = words.count * geometry.kernel_h * kernel_w
    # The sums of windows, which a zero point of the weight needs, are made before all tasks.
    by_task = Knob("by_task", BY_TASK.values if not dot.zero_points(attrs, inputs[0].dtype)[1] else [False])

    def fallback() -> dict[str, Any]:
        tiles = ((r, w) for r, w in itertools.product(ROWS, widths) if high.has(r))
        fitting = [(r, w) for r, w in tiles if (r + 1) * w // lanes + 1 <= target.vector_registers]
        places = by_task.values if not words.unfolds else [False]
        steps = words.steps[0], (geometry.kernel_h - 1) * attrs.dilation[0] + 1
        wide = (geometry.out_w - 1) * words.steps[1] + (geometry.kernel_w - 1) * attrs.dilation[1] + 1
        found = Tasks(
            geometry, target, lanes, terms, words.count, is_flat, steps, wide, (o_blocks.values, heights, places)
        ).best(fitting)
        panel_bytes, panels = terms * found["width"] * 4, -(-o // found["width"]) * geometry.groups
        return {
            **found,
            "window": "loops",
            "unroll": largest_divisor((1, 2, 4), words.count, max(1, 4 // kernel_w)),
            "inner": "pixels",
            "ahead": panels * panel_bytes >= target.l2_bytes // 2 and fits_ahead(panel_bytes, target),
        }

    return ConfigSpace(
        [
            wide,
            high,
            WINDOW if kernel_w > 1 else _WINDOW,
            Knob("unroll", [u for u in (1, 2, 4, 8) if words.count % u == 0]),
            o_blocks,
            Knob("p_block", heights),
            INNER,
            by_task,
            _AHEAD,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(o, "width", "o_block"),
            *([whole_blocks(across, "rows", "p_block")] if is_flat else []),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={
            **idle_window(geometry),
            "inner": one_order(
                knob("o_block"), knob("p_block") * (1 if is_flat else ceildiv(across, knob("rows"))), ahead=True
            ),
        },
    )


def prepare(
    words: Words, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [g * ceil(o / width), kh, kw, words, width].

    Where the sums of its rows count, they are one word more of each place.
    """
    dot, width, groups = words.dot, integer(config, "width"), attrs.groups
    has_sums = bool(dot.zero_points(attrs, inputs[0].dtype)[0])

    def pack(weight: Any) -> Any:
        from tvm import te, tirx

        out_channels, channels, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        own, sums = out_channels // groups, None
        panels = -(-own // width)
        if has_sums:
            r, s, t = (te.reduce_axis((0, extent)) for extent in (channels, kernel_h, kernel_w))
            sums = compute_stage(
                "weight_sums", (out_channels,),
                lambda o: te.sum(dot.pack(weight[o, r, s, t]).astype("int32"), axis=[r, s, t]),
            )

        def word(panel: Any, y: Any, x: Any, c: Any, lane: Any) -> Any:
            o = panel % panels * width + lane
            row = panel // panels * own + o

            def read(at: Any) -> Any:
                channel, column = words.number(at)
                return dot.pack(weight[row, channel, y, x + column])

            found = word_of(dot, words.length, c, read)
            if sums is not None:
                found = tirx.if_then_else(c < words.count, found, sums[row])
            return zero_beyond(found, o, own, width)

        shape = (groups * panels, kernel_h, 1 if words.unfolds else kernel_w, words.count + has_sums, width)
        return compute_stage("weight_tiles", shape, word)

    return {1: pack}


def compute(
    words: Words, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The sums of whole tiles [n, g, h, p, o], [n, g, p, o] if flat, less the zero points' shares, and the output."""
    from tvm import te

    data, weight = inputs
    dot, is_flat, count = words.dot, words.is_flat, words.count
    kernel_h, kernel_w = (int(extent) for extent in weight.shape[1:3])
    out_channels, out_h, out_w = (int(extent) for extent in out_type.shape[1:])
    own, batch = out_channels // attrs.groups, data.shape[0]
    rows, width = integer(config, "rows"), integer(config, "width")
    geometry = Geometry(batch, attrs.groups, words.channels, own, kernel_h, kernel_w, out_h, out_w)
    image = _image(words, attrs, data, geometry, rows)
    (down, across), (dilation_h, dilation_w) = words.steps, attrs.dilation
    of_data, of_weight = dot.zero_points(attrs, str(data.dtype))
    panels = -(-own // width)
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    c = te.reduce_axis((0, count), name="c")

    def pixel(*place: Any) -> tuple[Any, Any]:
        """The line and column of the image where a window begins."""
        *line, p = place
        return (p // rows, p % rows) if is_flat else (line[0] * down, p * across)

    def packed(g: Any, o: Any, *place: Any) -> Any:
        return weight[(g * panels + o // width, *place, o % width)]

    def term(n: Any, g: Any, *place: Any) -> Any:
        *at, o = place
        h, w = pixel(*at)
        word = image[n, g * count + c, h + y * dilation_h, w + x * dilation_w]
        return te.sum(dot.product(word, packed(g, o, y, x, c)), axis=[y, x, c])

    places = (round_up(out_h * out_w, rows),) if is_flat else (out_h, round_up(out_w, rows))
    shape = (batch, attrs.groups, *places, round_up(own, width))
    tiles, windows = compute_stage("tiles", shape, term), None
    if of_weight:
        k = te.reduce_axis((0, count), name="k")
        s, t = te.reduce_axis((0, kernel_h), name="s"), te.reduce_axis((0, kernel_w), name="t")
        _, _, *extents = image.shape

        def of_pixel(n: Any, g: Any, h: Any, w: Any) -> Any:
            numbers = dot.numbers(image[n, g * count + k, h, w], dot.data)
            return te.sum(sum(numbers[1:], numbers[0]), axis=k)

        pixels = compute_stage("pixel_sums", (batch, attrs.groups, *extents), of_pixel)

        def of_window(n: Any, g: Any, *place: Any) -> Any:
            h, w = pixel(*place)
            return te.sum(pixels[n, g, h + s * dilation_h, w + t * dilation_w], axis=[s, t])

        windows = compute_stage("window_sums", shape[:-1], of_window)
    zeros = kernel_h * kernel_w * count * dot.group * of_data

    def less_zeros(n: Any, g: Any, *place: Any) -> Any:
        *at, o = place
        found = tiles[(n, g, *place)]
        if of_data:
            found = found - of_data * packed(g, o, 0, 0, count)
        return found - of_weight * (windows[(n, g, *at)] - zeros) if windows is not None else found

    kept = compute_stage("kept", shape, less_zeros)
    *outer, high, deep = shape
    turned = compute_stage(
        "turned", (*outer, deep, high), lambda *place: kept[(*place[:-2], place[-1], place[-2])]
    )

    def out(n: Any, o: Any, h: Any, w: Any) -> Any:
        *line, p = (h * out_w + w,) if is_flat else (h, w)
        return turned[(n, o // own, *line, o % own, p)].astype(out_type.dtype)

    return [te.compute((batch, out_channels, out_h, out_w), out, name="conv2d")]


def _image(words: Words, attrs: Conv2DAttrs, data: Any, geometry: Geometry, rows: int) -> Any:
    """The words [n, g * words, h, w] that tiles of `rows` pixels read, and those of padding around."""
    from tvm import tirx

    dot, channels, count, zero = words.dot, words.channels, words.count, getattr(attrs, "input_zero_point", 0)
    down, across = words.steps
    if words.is_flat:
        high, wide = -(-geometry.pixels // rows), rows
    else:
        high = (geometry.out_h - 1) * down + (geometry.kernel_h - 1) * attrs.dilation[0] + 1
        wide = (int(round_up(geometry.out_w, rows)) - 1) * across + (geometry.kernel_w - 1) * attrs.dilation[1] + 1
    apart = attrs.strides[0] // down, attrs.strides[1] // across  # from one word to the next
    signs = tirx.const(0x80808080 - 2**32, "int32")
    reach = (wide - 1) * apart[1] + (words.kernel_w - 1) * attrs.dilation[1] + 1
    lines = _lines(attrs, data, high, reach, zero) if words.unfolds else None

    def word(n: Any, c: Any, h: Any, w: Any) -> Any:
        first = c // count * channels

        if lines is not None:
            def read(at: Any) -> Any:
                channel, column = words.number(at)
                return lines[n, first + channel, h, w * apart[1] + column * attrs.dilation[1]]

            found = _word(words, c % count, read, zero & 255)
        else:
            y, x, tests = _place(words, attrs, data, geometry.pixels, (high, wide), apart, (h, w))
            found = _word(words, c % count, lambda channel: data[n, first + channel, y, x], zero & 255)
            padding = tirx.const(int.from_bytes(bytes([zero & 255] * 4), "little", signed=True), "int32")
            found = tirx.if_then_else(tirx.all(*tests), found, padding) if tests else found
        return found ^ signs if dot.shift(str(data.dtype)) else found

    return compute_stage("image", (data.shape[0], geometry.groups * count, high, wide), word)


def _place(
    words: Words, attrs: Conv2DAttrs, data: Any, pixels: int, extents: tuple[int, int], apart: tuple[int, int],
    at: tuple[Any, Any],
) -> tuple[Any, Any, list[Any]]:
    """The line and column of the data for a word, and the conditions under which they are no padding."""
    height, width = (int(extent) for extent in data.shape[2:])
    (h, w), (top, left, *_) = at, attrs.padding
    if words.is_flat:
        p = h * extents[1] + w
        return p // width, p % width, [p < pixels] if pixels % extents[1] else []
    below, behind = -(-(top + height) // apart[0]), -(-(left + width) // apart[1])
    tests = [
        test
        for test, needed in (
            (h >= -(-top // apart[0]), top), (h < below, extents[0] > below),
            (w >= -(-left // apart[1]), left), (w < behind, extents[1] > behind),
        ) if needed
    ]
    return h * apart[0] - top, w * apart[1] - left, tests


def _lines(attrs: Conv2DAttrs, data: Any, high: int, wide: int, zero: int) -> Any:
    """The lines of the data with their padding, so that unfolding has no conditions; of bfloat16, its bits."""
    from tvm import tirx

    height, width = (int(extent) for extent in data.shape[2:])
    (top, left, *_), dtype = attrs.padding, str(data.dtype)
    kept = "uint16" if dtype == "bfloat16" else dtype

    def number(n: Any, c: Any, h: Any, w: Any) -> Any:
        y, x = h - top, w - left
        found = data[n, c, y, x] if kept == dtype else tirx.reinterpret(kept, data[n, c, y, x])
        tests = [
            test
            for test, needed in (
                (y >= 0, top), (y < height, high > height + top), (x >= 0, left), (x < width, wide > width + left),
            ) if needed
        ]
        return tirx.if_then_else(tirx.all(*tests), found, tirx.const(zero, kept)) if tests else found

    return compute_stage("lines", (*data.shape[:2], high, wide), number)


def _word(words: Words, word: Any, read: Callable[[Any], Any], zero: int) -> Any:
    """As `word_of`, without a condition, of which TVM makes no vectors: what is beyond the last number is masked.

    Within a condition, the simplifier would take the bound off the place that is read.
    """
    from tvm import tirx

    group, length = words.dot.group, words.length
    bits, last = 32 // group, length % group or group

    def number(place: int) -> Any:
        at = word * group + place
        found = tirx.reinterpret(f"uint{bits}", read(at if place < last else tirx.min(at, length - 1))).astype("int32")
        if place >= last:
            beyond = (at >= length).astype("int32")
            found = (found & (beyond - 1)) + beyond * zero
        return found << bits * place if place else found

    return reduce(or_, map(number, range(group)))


def schedule(words: Words, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels × lines in parallel; in each, one register tile after the other."""
    dot, out_w = words.dot, int(outs.tensors[0].shape[3])
    sch, output = split_groups(outs, attrs.groups, lambda h, w: (h * out_w + w,) if words.is_flat else (h, w))
    rows, width, lanes = integer(config, "rows"), integer(config, "width"), dot.lanes
    stages = find_stages(sch)
    image, tiles, kept, turned = (stages[name] for name in ("image", "tiles", "kept", "turned"))
    for name in ("weight_sums", "weight_tiles"):
        if name in stages:
            sch.parallel(sch.get_loops(stages[name])[0])
    put_in_order(sch, image, channels_last=False)
    n, g, *line, p, o = sch.get_loops(kept)
    tile, high = sch.split(p, [None, rows])
    p_task, *p_tile = sch.split(*(line or [tile]), [None, integer(config, "p_block")])
    p_tile += [tile] if line else []
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), width])
    inner = (panel, *p_tile) if config["inner"] == "pixels" else (*p_tile, panel)
    sch.reorder(n, g, o_task, p_task, *inner, high, columns)
    shuffles = rows > 1
    if shuffles:
        sch.reverse_compute_at(turned, inner[-1], preserve_unit_loops=True)
    else:
        sch.compute_inline(turned)
    sch.reverse_compute_at(output, inner[-1], preserve_unit_loops=True)
    sch.compute_at(tiles, inner[-1], preserve_unit_loops=True)
    task = sch.fuse(n, g, o_task, p_task)
    sch.parallel(task)
    if config["by_task"]:
        sch.compute_at(image, task, preserve_unit_loops=True)
    copy_by_vectors(sch, image, lanes)
    *_, place, _, _, _ = sch.get_loops(image)
    if not config["by_task"]:
        # Those of a line are unfolded from it.
        place = sch.fuse(*sch.get_loops(image)[: 2 if words.unfolds else 3])
        sch.parallel(place)
    if words.unfolds:
        sch.compute_at(stages["lines"], place, preserve_unit_loops=True)
        copy_by_vectors(sch, stages["lines"], lanes * dot.group)
    _schedule_sums(sch, stages, lanes)
    sch.set_scope(tiles, 0, "local")
    vectorize(sch, columns, lanes)
    sch.unroll(high)
    if shuffles:
        panel, column = sch.split(sch.get_loops(turned)[-2], [None, lanes])
        sch.unroll(panel)
        # A loop imports one piece of code: that over tasks has the instruction's.
        turn(sch, inner[0], column, 4 if words.is_flat else 5, rows, lanes, dot.sums)
        *_, out_o, out_p = sch.get_loops(output)
        vectorize(sch, out_p, min(turned_width(rows, lanes), lanes))
        sch.unroll(out_o)
    y, x, steps, lane = _schedule_tile(sch, dot, tiles, config)
    if config["ahead"]:
        window = int(sch.get(y).extent) * int(sch.get(x).extent)
        has_sums = bool(dot.zero_points(attrs, str(outs.args[0].dtype))[0])
        # Tiles of a line prefetch the same part.
        prefetch_panels(
            sch, inner[1], steps, panel=window * (words.count + has_sums) * width, around=(y, x),
            step=width * integer(config, "unroll"), dtype="int32",
            tiles=integer(config, "p_block") if config["inner"] == "pixels" else 1,
        )
    use_dot_of_words(sch, dot, task, lane, broadcast="data")
    return sch


def _schedule_sums(sch: Any, stages: dict[str, Any], lanes: int) -> None:
    """Sum the words of pixels by vectors, and windows, all in parallel."""
    if "window_sums" not in stages:
        return
    pixels, windows = stages["pixel_sums"], stages["window_sums"]
    n, g, h, w, k = sch.get_loops(pixels)
    sch.reorder(n, g, h, k, w)
    copy_by_vectors(sch, pixels, lanes)
    line = sch.fuse(n, g, h)
    sch.parallel(line)
    copy_by_vectors(sch, sch.decompose_reduction(pixels, k), lanes)
    sch.parallel(sch.fuse(*sch.get_loops(windows)[:3]))


def _schedule_tile(sch: Any, dot: Dot, tiles: Any, config: Config) -> tuple[Any, Any, Any, Any]:
    """Schedule a tile's sums; return the loops over a panel, and that over lanes."""
    high, columns, y, x, words = sch.get_loops(tiles)[-5:]
    vectors, lane = sch.split(columns, [None, dot.lanes])
    outer, inner = sch.split(words, [None, integer(config, "unroll")])
    sch.reorder(y, x, outer, inner, high, vectors, lane)
    unrolled = {"unrolled": (y, x), "rows": (x,), "loops": ()}[str(config["window"])]
    for loop in (*unrolled, inner, high, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, y))
    return y, x, outer, lane
