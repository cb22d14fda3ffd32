"""`conv2d_nhwc_dot.cpu`, `qconv2d_nhwc_dot.cpu`: images [n, h, w, c], and a dot-product instruction.

The channels of a pixel lie together, so neighbours are read where they lie and broadcast to all lanes, which hold
output channels. A word is the channels that a lane takes at a time, or numbers of a window's row where they are few. A
tile is `rows` pixels of a line × `width` channels; where windows are of one pixel, it may go over lines. An image is
copied where it is padded, where the channels of a group end within a word, and, if it pays, where the instruction takes
numbers of the other sign. Zero points are taken off by sums of the weight's rows and of windows.
"""
# Over 300 lines: one implementation, whose space, sums and schedule share its form.

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.condition import ceildiv
from strategy.cpu.ahead import LINE_BYTES, fits_ahead, prefetch_panels
from strategy.cpu.dot import Dot, use_dot
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    best_tile_of,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.layout import plain_type
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.dot import dot_of
from strategy.ops.conv2d.dot_form import Form, copied, prepare, unfolded
from strategy.ops.conv2d.dot_tasks import Tasks
from strategy.ops.conv2d.layout import plain_inputs
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import copy_by_vectors, schedule_padding
from strategy.ops.conv2d.product import (
    INNER,
    Geometry,
    fitting_blocks,
    idle_window,
    split_groups,
    usual_window,
)
from strategy.ops.conv2d.task_padding import BY_TASK
from strategy.schedule import Outs, compute_stage, find_stages, integer, store_tile, unroll_tile
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_LAYOUT = "NHWC"
_WINDOW = Knob("window", ["unrolled", "rows", "loops"])
_AHEAD = Knob("ahead", [False, True])


def add(
    strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], name: str, plevel: int, target: Target
) -> None:
    """Add the implementation to a strategy of images in NHWC where the target has an instruction for them."""
    if (attrs.data_layout, attrs.result_layout) != (_LAYOUT, _LAYOUT):
        return
    data, weight = plain_inputs(attrs, inputs)
    dot = dot_of(attrs, (data, weight), target)
    if dot is None:
        return
    form = Form.of(dot, attrs, weight)
    strategy.add_implementation(
        partial(compute, form), partial(schedule, form), name, plevel, version=4,
        space=partial(space, form), prepare=partial(prepare, form),
    )


def space(
    form: Form, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over the window and words, tasks, and the copy.

    The image is copied before all tasks, or `by_task`, each what it reads. With `ahead` the next panel of the weight is
    prefetched meanwhile.
    """
    geometry = Geometry.of(plain_inputs(attrs, inputs), plain_type(out_type, _LAYOUT))
    dot, words = form.dot, form.words
    lanes, o = dot.lanes, geometry.out_channels
    across = geometry.pixels if form.is_flat else geometry.out_w
    widths = tuple(v * lanes for v in VECTORS if v == 1 or (v - 1) * lanes < o)
    high, wide = up_to("rows", ROWS, 2 * across), Knob("width", widths, "layout")
    needed = any(attrs.padding) or geometry.channels % dot.group > 0
    choices = (True,) if needed else (False, True) if dot.shift(inputs[0].dtype) else (False,)
    # The sums of windows, which a zero point of the weight needs, are made before all tasks.
    apart = choices == (False,) or dot.zero_points(attrs, inputs[0].dtype)[1]
    by_task = Knob("by_task", [False] if apart else BY_TASK.values)

    def parts(rows: Any) -> int:
        """The number of lines that tasks share, or of tiles where these may go over lines."""
        return int(-(-across // rows)) if form.is_flat else int(geometry.out_h)

    # Tiles over lines have two blocks that divide numbers of them.
    o_blocks = fitting_blocks([-(-o // w) for w in widths], 4 if form.is_flat else len(widths))
    p_blocks = fitting_blocks([parts(r) for r in high.values], 6)
    if not form.is_flat and parts(1) not in p_blocks:
        p_blocks.append(parts(1))  # all lines

    def fallback() -> dict[str, Any]:
        rows, width = best_tile_of(across, o, lanes, target.vector_registers, target.multiply_adds)
        panels, window = -(-o // width), (geometry.kernel_h, 1 if form.in_rows else geometry.kernel_w)
        # Threads that write parts of one cache line, each a panel's channels of the same pixels, wait for each other:
        # a first layer of 8 bits did most of its time.
        whole = [b for b in o_blocks if panels % b == 0 and b * width * 4 // dot.group % LINE_BYTES == 0]
        steps = attrs.strides[0], (geometry.kernel_h - 1) * attrs.dilation[0] + 1
        wide = geometry.out_w if form.unfolds else (geometry.out_w - 1) * attrs.strides[1] + form.reach(attrs)
        tasks = Tasks(
            geometry, target, lanes, terms=window[0] * window[1] * words,
            words=-(-form.stored // dot.group) if choices[-1] else 0, is_flat=form.is_flat, steps=steps, wide=wide,
            offered=(whole or [panels if panels in o_blocks else 1], p_blocks, by_task.values),
        ).best([(rows, width)])
        unroll = largest_divisor((1, 2, 4), words, max(1, 4 // geometry.kernel_w))
        panel_bytes = 4 * window[0] * window[1] * words * width
        weight_bytes = panels * geometry.groups * panel_bytes
        return {
            **tasks,
            "window": usual_window("rows", window, rows * width // lanes * unroll),
            "unroll": unroll,
            "inner": "pixels",
            "copied": choices[-1],
            # A single tile would bring as much as it reads.
            "ahead": tasks["p_block"] > 1 and weight_bytes >= target.l2_bytes // 2 and fits_ahead(panel_bytes, target),
        }

    return ConfigSpace(
        [
            wide,
            high,
            _WINDOW,
            Knob("unroll", [u for u in (1, 2, 4, 8) if words % u == 0]),
            Knob("o_block", o_blocks),
            Knob("p_block", p_blocks),
            INNER,
            Knob("copied", choices),
            by_task,
            _AHEAD,
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(o, "width", "o_block"),
            *([whole_blocks(across, "rows", "p_block")] if form.is_flat else []),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={
            **idle_window(geometry),
            **({"by_task": knob("copied") == 0} if by_task.has(True) else {}),
            "inner": one_order(
                knob("o_block"), knob("p_block") * (1 if form.is_flat else ceildiv(across, knob("rows"))), ahead=True
            ),
        },
    )


def compute(
    form: Form, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The sums of whole tiles [n, g, h, w, o], [n, g, p, o] if flat, less the zero points' shares."""
    from tvm import te, tirx

    data, weight = inputs
    _, out_h, out_w, out_channels = (int(d) if d.is_constant else 0 for d in out_type.shape)
    dot, is_flat, channels, words = form.dot, form.is_flat, form.channels, form.words
    batch, own, dtype = data.shape[0], out_channels // attrs.groups, str(data.dtype)
    kernel_h, rows, width = int(weight.shape[1]), integer(config, "rows"), integer(config, "width")
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    lines, across = ((), out_h * out_w) if is_flat else ((out_h,), out_w)
    image, stored, shift = data, channels, dot.shift(dtype)
    if form.unfolds:
        image, stored, stride_w = unfolded(form, attrs, data, round_up(across, rows)), form.stored, 1
    elif config["copied"]:
        columns = 0 if is_flat else (round_up(across, rows) - 1) * stride_w + form.reach(attrs)
        image, stored, shift = copied(form, attrs, data, columns), form.stored, 0
    of_data, of_weight = dot.zero_points(attrs, dtype)
    panels = -(-own // width)
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, int(weight.shape[2])), name="x")
    r, t = te.reduce_axis((0, words), name="r"), te.reduce_axis((0, dot.group), name="t")

    def read(n: Any, h: Any, w: Any, channel: Any) -> Any:
        """A number of the image in the dtype of the sums, before the instruction's shift."""
        if form.unfolds:
            return dot.number(image[n, h, w, channel])
        if config["copied"]:
            return dot.number(image[n, h, w * stored * attrs.groups + channel])
        return image[n, h, w, channel].astype(dot.sums)

    def pixel(place: Sequence[Any]) -> tuple[Any, Any]:
        """The line and column where a window begins; for places beyond the last, which are not stored, some inside."""
        *line, p = place
        if across % rows and not (config["copied"] and not is_flat):
            p = tirx.min(p, across - 1)
        if is_flat:
            return p // out_w, p % out_w
        return line[0] * stride_h, p * stride_w

    def panel_of(g: Any, o: Any) -> Any:
        return g * panels + o // width

    def term(n: Any, g: Any, *place: Any) -> Any:
        *at, o = place
        h, w = pixel(at)
        number = read(n, h + y * dilation_h, w + x * dilation_w, g * stored + r * dot.group + t)
        number = number + shift if shift else number
        return te.sum(number * dot.number(weight[panel_of(g, o), y, x, r, o % width, t]), axis=[y, x, r, t])

    shape = (batch, attrs.groups, *lines, round_up(across, rows), round_up(own, width))
    total = tiles = compute_stage("tiles", shape, term)
    windows = None
    if of_weight:
        zero = of_data - shift
        k = te.reduce_axis((0, channels), name="k")
        height, columns = int(image.shape[1]), int(image.shape[2]) // (stored * attrs.groups if config["copied"] else 1)
        pixels = compute_stage(
            "pixel_sums", (batch, height, columns, attrs.groups),
            lambda n, h, w, g: te.sum(read(n, h, w, g * stored + k) - zero, axis=k),
        )
        s, c = te.reduce_axis((0, kernel_h), name="s"), te.reduce_axis((0, form.kernel_w), name="c")

        def of_window(n: Any, g: Any, *place: Any) -> Any:
            h, w = pixel(place)
            return te.sum(pixels[n, h + s * dilation_h, w + c * dilation_w, g], axis=[s, c])

        windows = compute_stage("window_sums", shape[:-1], of_window)

    def byte(g: Any, o: Any, place: int) -> Any:
        flat = place * width + o % width
        found = weight[panel_of(g, o), 0, 0, words, flat // dot.group, flat % dot.group]
        return found.astype("uint8").astype("int32") << place * 8

    def less_zeros(n: Any, g: Any, *place: Any) -> Any:
        *at, o = place
        found = tiles[(n, g, *place)]
        if of_data:
            found = found - of_data * sum((byte(g, o, i) for i in range(1, 4)), byte(g, o, 0))
        return found - of_weight * windows[(n, g, *at)] if windows is not None else found

    if of_data or of_weight:
        total = compute_stage("total", shape, less_zeros)

    def out(n: Any, h: Any, w: Any, o: Any) -> Any:
        place = (h * out_w + w,) if is_flat else (h, w)
        return total[(n, o // own, *place, o % own)].astype(out_type.dtype)

    return [te.compute((batch, out_h, out_w, out_channels), out, name="conv2d")]


def schedule(form: Form, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels × pixels in parallel; in each, one register tile after the other."""
    dot, out_w = form.dot, int(outs.tensors[0].shape[2])
    sch, output = split_groups(
        outs, attrs.groups, lambda h, w: (h * out_w + w,) if form.is_flat else (h, w), _LAYOUT
    )
    stages = find_stages(sch)
    for name in ("sums", "panels", "pixel_sums", "window_sums"):
        if name in stages:
            outer = sch.get_loops(stages[name])
            sch.parallel(sch.fuse(*outer[:2]) if len(outer) > 4 else outer[0])
    tiles = stages["tiles"]
    anchor = stages.get("total", tiles)
    for block in dict.fromkeys((tiles, anchor)):
        sch.set_scope(block, 0, "local")
    steps = sch.get_loops(anchor)[-4:] if anchor is tiles else []
    n, g, *line, p, o = sch.get_loops(anchor)[: -4 if steps else None]
    tile, rows = sch.split(p, [None, integer(config, "rows")])
    p_task, *p_tile = sch.split(*(line or [tile]), [None, integer(config, "p_block")])
    p_tile += [tile] if line else []
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), integer(config, "width")])
    inner = (panel, *p_tile) if config["inner"] == "pixels" else (*p_tile, panel)
    sch.reorder(n, g, o_task, p_task, *inner, rows, columns, *steps)
    sch.reverse_compute_at(output, inner[-1], preserve_unit_loops=True)
    if anchor is not tiles:
        sch.compute_at(tiles, inner[-1], preserve_unit_loops=True)
    task = sch.fuse(n, g, o_task, p_task)
    sch.parallel(task)
    for block in (output,) if anchor is tiles else (output, anchor):
        store_tile(sch, block, dot.lanes)
    if "copied" in stages and config["by_task"]:
        sch.compute_at(stages["copied"], task, preserve_unit_loops=True)
        copy_by_vectors(sch, stages["copied"], target.vector_bytes * dot.group // 4)
    elif "copied" in stages:
        schedule_padding(sch, stages["copied"], target.vector_bytes * dot.group // 4)
    y, x, words = _schedule_tile(sch, dot, tiles, config)
    if config["ahead"]:
        step, window = integer(config, "width") * dot.group, int(sch.get(y).extent) * int(sch.get(x).extent)
        has_sums = bool(dot.zero_points(attrs, str(outs.args[0].dtype))[0])
        # Tiles of a line prefetch the same part.
        prefetch_panels(
            sch, inner[1], words, panel=window * (form.words + has_sums) * step, around=(y, x),
            step=step * integer(config, "unroll"), dtype=str(outs.args[1].dtype),
            tiles=integer(config, "p_block") if config["inner"] == "pixels" else 1,
        )
    use_dot(sch, dot, _dtype(dot, outs, config), task, sch.get_loops(tiles)[-2])
    return sch


def _dtype(dot: Dot, outs: Outs, config: Config) -> str:
    """The dtype of the numbers that tiles read."""
    return dot.kept if config["copied"] else str(outs.args[0].dtype)


def _schedule_tile(sch: Any, dot: Dot, tiles: Any, config: Config) -> tuple[Any, Any, Any]:
    """Schedule a tile's sums; return the loops over a panel."""
    rows, columns, y, x, words, group = sch.get_loops(tiles)[-6:]
    vectors, lane = sch.split(columns, [None, dot.lanes])
    outer, inner = sch.split(words, [None, integer(config, "unroll")])
    sch.reorder(y, x, outer, inner, rows, vectors, lane, group)
    unrolled = {"unrolled": (y, x), "rows": (x,), "loops": ()}[str(config["window"])]
    for loop in (*unrolled, inner, rows, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, y))
    return y, x, outer
