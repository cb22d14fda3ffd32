"""`conv2d_nchw_dot_direct.cpu`, `qconv2d_nchw_dot_direct.cpu`: the words of an image, and a dot-product instruction.

As `conv2d_nchw_dot.cpu`, words are neighbouring channels of a pixel; but output channels are in the lanes, so that
small images fill vectors as well as large ones, and nothing is unfolded. The image is put into words once, beside its
padding, each line of all channels together: [n, h, words, w]. Words are broadcast to all lanes from where they lie, and
a finished tile is turned. A tile is `rows` pixels of a line × `width` channels; where windows are of one pixel, lines
are the pixels of a tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strategy.condition import ceildiv
from strategy.cpu.dot import Dot, plevel_of, use_dot_of_words
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    block_knob,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    tile_share,
    up_to,
    whole_blocks,
)
from strategy.cpu.turn import turn, turned_width
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.dot import count_words, dot_of, word_of
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import copy_by_vectors, put_in_order
from strategy.ops.conv2d.pointwise import leaves_pixels
from strategy.ops.conv2d.product import BLOCKS, INNER, Geometry, idle_window, split_groups
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

_FILLED = 0.75  # of the lanes
_BALANCED = 0.9  # of the time of all threads, that they work: more is worth no smaller tasks


@dataclass(frozen=True)
class Words:
    """The words that windows of one group read, for an instruction.

    Attributes:
        is_flat: outputs read the pixel at their own place alone, so tiles may go over lines.
        steps: lines and columns from one window to the next in the words: of windows of one pixel, others are left out.
    """

    dot: Dot
    is_flat: bool
    steps: tuple[int, int]
    channels: int

    @classmethod
    def of(cls, dot: Dot, attrs: Conv2DAttrs, weight: TensorType) -> Words:
        """Those of a weight of OIHW."""
        _, channels, *window = weight.concrete_shape
        is_pixel = window == [1, 1]
        return cls(dot, is_pixel and leaves_pixels(attrs), (1, 1) if is_pixel else attrs.strides, channels)

    @property
    def count(self) -> int:
        """The words of a pixel."""
        return count_words(self.dot, self.channels)


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], name: str, target: Target
) -> None:
    """Add the implementation to a strategy, of types in NCHW and OIHW, where the target has an instruction for it.

    It is chosen untuned over pixels in the lanes where a group's output channels fill vectors.
    """
    dot = dot_of(attrs, inputs, target)
    if dot is None:
        return
    data, weight = inputs
    words, own = Words.of(dot, attrs, weight), int(weight.shape[0]) // attrs.groups
    pays = own / int(round_up(own, dot.lanes)) >= _FILLED
    strategy.add_implementation(
        partial(compute, words), partial(schedule, words), name, plevel_of(target, data.dtype, 15 if pays else 13),
        space=partial(space, words), prepare=partial(prepare, words),
    )


def space(
    words: Words, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over the window and words, and tiles or lines per task.

    The image is put into words before all tasks, or `by_task`, each those that it reads.
    """
    geometry = Geometry.of(inputs, out_type)
    dot, is_flat, entries = words.dot, words.is_flat, int(geometry.batch) * geometry.groups
    lanes, o = dot.lanes, geometry.out_channels
    across = geometry.pixels if is_flat else geometry.out_w
    widths = tuple(v * lanes for v in VECTORS if v == 1 or (v - 1) * lanes < o)
    high, wide = up_to("rows", ROWS, 2 * across), Knob("width", widths, "layout")

    def parts(rows: Any) -> int:
        """The number of lines that tasks share, or of tiles where these may go over lines."""
        return int(-(-across // rows)) if is_flat else int(geometry.out_h)

    o_blocks = block_knob("o_block", BLOCKS, o, wide)
    p_blocks = Knob("p_block", [b for b in BLOCKS if any(parts(r) % b == 0 for r in high.values)])
    # The sums of windows, which a zero point of the weight needs, are made before all tasks.
    by_task = Knob("by_task", BY_TASK.values if not dot.zero_points(attrs, inputs[0].dtype)[1] else [False])

    def blocks(rows: int, width: int) -> tuple[float, int, int]:
        """The share of time that threads have tasks, and the panels and lines of each."""
        panels, count = -(-o // width), parts(rows)
        # A weight that stays in the second level is read by each task for its part of the image.
        is_kept = panels * width * words.count * geometry.kernel_h * geometry.kernel_w * 4 <= target.l2_bytes // 2
        o_block = panels if is_kept and o_blocks.has(panels) else 1

        def share(p_block: int) -> float:
            tasks = entries * panels // o_block * (count // p_block)
            return tasks / int(round_up(tasks, target.threads))

        p_block = max((b for b in p_blocks.values if count % b == 0), key=lambda b: (min(share(b), _BALANCED), b))
        return share(p_block), o_block, p_block

    def fallback() -> dict[str, Any]:
        def merit(tile: tuple[int, int]) -> float:
            rows, width = tile
            whole = across * o / (int(round_up(across, rows)) * int(round_up(o, width)))
            return whole * blocks(*tile)[0] * tile_share(rows, rows, width // lanes, target.multiply_adds)

        rows, width = max(
            (
                (r, w) for r, w in itertools.product(high.values, widths)
                if (r + 1) * w // lanes + 1 <= target.vector_registers
            ),
            key=merit,
        )
        _, o_block, p_block = blocks(rows, width)
        seen = (p_block - 1) * attrs.strides[0] + (geometry.kernel_h - 1) * attrs.dilation[0] + 1
        # Few lines are put into words twice.
        once = o_block * width >= o and (is_flat or 4 * seen <= 5 * p_block * attrs.strides[0])
        return {
            "rows": rows,
            "width": width,
            "window": "rows",
            "unroll": largest_divisor((1, 2, 4), words.count, max(1, 4 // geometry.kernel_w)),
            "o_block": o_block,
            "p_block": p_block,
            "inner": "pixels",
            "by_task": once and by_task.has(True),
        }

    return ConfigSpace(
        [
            wide,
            high,
            WINDOW,
            Knob("unroll", [u for u in (1, 2, 4, 8) if words.count % u == 0]),
            o_blocks,
            p_blocks,
            INNER,
            by_task,
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
                knob("o_block"), knob("p_block") * (1 if is_flat else ceildiv(across, knob("rows")))
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
            found = word_of(dot, channels, c, lambda channel: dot.pack(weight[row, channel, y, x]))
            if sums is not None:
                found = tirx.if_then_else(c < words.count, found, sums[row])
            return zero_beyond(found, o, own, width)

        return compute_stage("weight_tiles", (groups * panels, kernel_h, kernel_w, words.count + has_sums, width), word)

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

    dot, channels, count, (top, left, *_) = words.dot, words.channels, words.count, attrs.padding
    height, width = (int(extent) for extent in data.shape[2:])
    down, across = words.steps
    if words.is_flat:
        high, wide = -(-geometry.pixels // rows), rows
    else:
        high = (geometry.out_h - 1) * down + (geometry.kernel_h - 1) * attrs.dilation[0] + 1
        wide = (int(round_up(geometry.out_w, rows)) - 1) * across + (geometry.kernel_w - 1) * attrs.dilation[1] + 1
    down, across = attrs.strides[0] // down, attrs.strides[1] // across  # from one word to the next
    zero = getattr(attrs, "input_zero_point", 0) & 255
    padding = tirx.const(int.from_bytes(bytes([zero] * 4), "little", signed=True), "int32")
    signs = tirx.const(0x80808080 - 2**32, "int32")

    def word(n: Any, c: Any, h: Any, w: Any) -> Any:
        if words.is_flat:
            p = h * rows + w
            y, x = p // width, p % width
            tests = [p < geometry.pixels] if geometry.pixels % rows else []
        else:
            y, x = h * down - top, w * across - left
            below, behind = -(-(top + height) // down), -(-(left + width) // across)
            tests = [
                test
                for test, needed in (
                    (h >= -(-top // down), top), (h < below, high > below),
                    (w >= -(-left // across), left), (w < behind, wide > behind),
                ) if needed
            ]
        first = c // count * channels
        found = word_of(dot, channels, c % count, lambda channel: data[n, first + channel, y, x], zero)
        found = tirx.if_then_else(tirx.all(*tests), found, padding) if tests else found
        return found ^ signs if dot.shift(str(data.dtype)) else found

    return compute_stage("image", (data.shape[0], geometry.groups * count, high, wide), word)


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
    if not config["by_task"]:
        sch.parallel(sch.fuse(*sch.get_loops(image)[:3]))
    _schedule_sums(sch, stages, lanes)
    sch.set_scope(tiles, 0, "local")
    vectorize(sch, columns, lanes)
    sch.unroll(high)
    if shuffles:
        panel, column = sch.split(sch.get_loops(turned)[-2], [None, lanes])
        sch.unroll(panel)
        # A loop imports one piece of code: that over tasks has the instruction's.
        turn(sch, inner[0], column, 5 if line else 4, rows, lanes, dot.sums)
        *_, out_o, out_p = sch.get_loops(output)
        vectorize(sch, out_p, min(turned_width(rows, lanes), lanes))
        sch.unroll(out_o)
    _schedule_tile(sch, dot, tiles, task, config)
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


def _schedule_tile(sch: Any, dot: Dot, tiles: Any, task: Any, config: Config) -> None:
    high, columns, y, x, words = sch.get_loops(tiles)[-5:]
    vectors, lane = sch.split(columns, [None, dot.lanes])
    outer, inner = sch.split(words, [None, integer(config, "unroll")])
    sch.reorder(y, x, outer, inner, high, vectors, lane)
    unrolled = {"unrolled": (y, x), "rows": (x,), "loops": ()}[str(config["window"])]
    for loop in (*unrolled, inner, high, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, y))
    use_dot_of_words(sch, dot, task, lane, broadcast="data")
