"""`conv2d_nchw_amx_direct.cpu`, `qconv2d_nchw_amx_direct.cpu`: images [n, c, h, w] by AMX, without unfolding.

As `conv2d_nchw_amx.cpu`, the weight on the left: tiles of sums are output channels × pixels, as the result lies. The
image is put into words of neighbouring channels once, beside its padding: [n, h, words, w]. A tile of it is the words
of some channels at neighbouring pixels, which each place of the window sees from another one on. With a stride along
lines, each line is dealt into phases, so that the pixels of a tile lie side by side: [n, h, words, phase, w]. Of few
channels, a tile is the words of all lines of the window: [n, h words, ..., w]. Short lines are joined, with their
padding, into one that fills tiles: [n, words, h w]; what a tile has between two lines is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from strategy.cpu.amx import Window, use_tiles_of_image
from strategy.cpu.amx_code import LANES, Block, Image
from strategy.cpu.tile import round_up
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.amx import amx_of
from strategy.ops.conv2d.amx_nchw_space import (
    BEFORE,
    BY_TASK,
    Windows,
    joined_lines,
    pays,
    space,
    width_of,
)
from strategy.ops.conv2d.dot import word_of
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.schedule import Outs, compute_stage, integer, start_schedule, vectorize, zero_beyond
from strategy.space import Config
from strategy.target import Target
from strategy.types import TensorType


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, name: str,
    target: Target,
) -> None:
    """Add the implementation to a strategy, of types in NCHW and OIHW, as `amx_nchw.add`, of one group.

    Windows read each phase of a line. It is chosen untuned where it `pays`.
    """
    data, weight = inputs
    dot = amx_of(attrs, data, weight, out_type, target, weight_left=True)
    if dot is None:
        return
    out_channels, channels, kernel_h, kernel_w = weight.concrete_shape
    windows = Windows(dot, channels, Window(kernel_h, kernel_w, attrs.strides, attrs.dilation))
    if attrs.groups > 1 or windows.phases > kernel_w:
        return
    plevel = 19 if pays(windows, out_channels, int(out_type.shape[3])) else 12
    strategy.add_implementation(
        partial(compute, windows), partial(schedule, windows), name, plevel,
        version=3, space=partial(space, windows), prepare=partial(prepare, windows),
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
    rows, lines, joined = integer(config, "rows"), integer(config, "lines"), joined_lines(config)
    width = width_of(windows, config, out_w)
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
        ]
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
        )

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
    rows, lines, joined = integer(config, "rows"), integer(config, "lines"), joined_lines(config)
    width, pitch = width_of(windows, config, out_w), windows.extents(1, out_w)[1]
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
    if config["copied"] == BY_TASK:
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
    if config["copied"] == BEFORE:
        sch.parallel(sch.fuse(*sch.get_loops(image)[:2]))
    row_words = windows.phases * across
    line_words = pitch if joined > 1 else (window.pixel or depth.total) * row_words
    around = (window.kernel_h, window.dilation[0] * line_words), (window.kernel_w, windows.dilation_w)
    block = Block(
        dot, rows, lines * width, depth.steps, depth.words,
        row_words=depth.words, step_words=rows * depth.words, panel_words=0, ahead=0,
        around=tuple(loop for loop in around if loop[0] > 1), phases=(windows.phases, across),
        image=Image(lines, row_words, depth.words * row_words, window.strides[0] * line_words),
    )
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
