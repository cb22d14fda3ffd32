"""`conv2d_nhwc_mmla.cpu`, `qconv2d_nhwc_mmla.cpu`, and of NCHW: windows unfolded, and Arm's matrix instructions.

The windows of two pixels lie side by side in a copy [n, g, p / 2, kh, kw, words, 2, group], where a word is the
channels that an instruction takes of each, or numbers of a window's row where they are few. A tile is `rows` pixels ×
`width` channels, and goes over lines. An image is copied before, channels last, where it is padded or in NCHW, or where
the channels of a group end within a word. Zero points are taken off as by `conv2d_nhwc_dot.cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from strategy.cpu.matrices import find_matrix, schedule_matrices
from strategy.cpu.tile import (
    accumulators,
    block_knob,
    largest_divisor,
    one_order,
    round_up,
    up_to,
    whole_blocks,
)
from strategy.layout import plain_type
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d.dot import takes
from strategy.ops.conv2d.dot_form import Form, copied, prepare
from strategy.ops.conv2d.layout import plain_inputs
from strategy.ops.conv2d.operator import DATA, Conv2DAttrs
from strategy.ops.conv2d.pad import schedule_padding
from strategy.ops.conv2d.product import BLOCKS, INNER, Geometry, split_groups
from strategy.ops.dense.dot_tile import fit_registers, heights, usual_tile, widths
from strategy.schedule import (
    VIEW,
    Outs,
    compute_stage,
    find_stages,
    integer,
    store_tile,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_LAYOUTS = (DATA, "NHWC")
_PAYS = 128  # products of each number of an image in NCHW that pay for its copy, channels last; estimated, not measured


def add(strategy: OpStrategy, attrs: Conv2DAttrs, inputs: Sequence[TensorType], op: str, target: Target) -> None:
    """Add the implementation to a strategy of images in NCHW or NHWC where the target has an instruction for them."""
    if attrs.data_layout not in _LAYOUTS or attrs.result_layout != attrs.data_layout:
        return
    data, weight = plain_inputs(attrs, inputs)
    dot = find_matrix(target, data.dtype, weight.dtype)
    if dot is None or not takes(attrs, data, weight):
        return
    form = replace(Form.of(dot, attrs, weight), unfolds=False)  # all are unfolded here
    if form.length * 2 <= dot.group:
        return
    out_channels, _, *window = weight.concrete_shape
    products = out_channels // attrs.groups * math.prod(window) // math.prod(attrs.strides)
    pays = attrs.data_layout != DATA or products >= _PAYS
    strategy.add_implementation(
        partial(compute, form), partial(schedule, form), f"{op}_{attrs.data_layout.lower()}_mmla.cpu",
        16 if pays else 13, space=partial(space, form), prepare=partial(prepare, form),
    )


def space(
    form: Form, attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over words, and tasks."""
    geometry = Geometry.of(plain_inputs(attrs, inputs), plain_type(out_type, attrs.result_layout))
    dot, words, pixels, o = form.dot, form.words, int(geometry.pixels), geometry.out_channels
    lanes = dot.lanes
    # In NCHW the lanes of what is stored are pixels.
    of_pixels = lanes if attrs.data_layout == DATA else 1
    high = up_to("rows", heights(dot, of_pixels), pixels + lanes)
    wide = up_to("width", widths(dot, target, of_pixels), o + lanes - 1, "layout")

    def fallback() -> dict[str, Any]:
        rows, width = usual_tile(dot, pixels, o, target, of_pixels)
        panels, count = -(-o // width) * geometry.groups * int(geometry.batch), -(-pixels // rows)
        shared = panels < 2 * target.threads
        return {
            "rows": rows,
            "width": width,
            "unroll": largest_divisor((1, 2, 4), words, max(1, 4 // geometry.kernel_w)),
            "o_block": 1,
            "p_block": largest_divisor(BLOCKS, count, -(-count // target.threads) if shared else count),
            "inner": "pixels",
        }

    return ConfigSpace(
        [
            wide,
            high,
            Knob("unroll", [u for u in (1, 2, 4, 8) if words % u == 0]),
            block_knob("o_block", BLOCKS, o, wide),
            block_knob("p_block", BLOCKS, pixels, high),
            INNER,
        ],
        [fit_registers(dot, target), whole_blocks(o, "width", "o_block"), whole_blocks(pixels, "rows", "p_block")],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={"inner": one_order(knob("o_block"), knob("p_block"))},
    )


def compute(
    form: Form, attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The sums of whole tiles [n, g, p, o], less the zero points' shares."""
    from tvm import te

    data, weight = inputs
    _, out_channels, out_h, out_w = (
        int(d) if d.is_constant else 0 for d in plain_type(out_type, attrs.result_layout).shape
    )
    dot, words, pixels, own = form.dot, form.words, out_h * out_w, out_channels // attrs.groups
    batch, rows, width = data.shape[0], integer(config, "rows"), integer(config, "width")
    of_data, of_weight = dot.zero_points(attrs, str(data.dtype))
    kernel_h, kernel_w = (int(extent) for extent in weight.shape[1:3])
    panels = -(-own // width)
    pairs = _pairs(form, attrs, data, (kernel_h, kernel_w), (out_h, out_w), round_up(pixels, rows))
    y, x = te.reduce_axis((0, kernel_h), name="y"), te.reduce_axis((0, kernel_w), name="x")
    r, t = te.reduce_axis((0, words), name="r"), te.reduce_axis((0, dot.group), name="t")

    def number(n: Any, g: Any, p: Any, *place: Any) -> Any:
        *step, neighbour = place
        return dot.number(pairs[(n, g, p // dot.rows, *step, p % dot.rows, neighbour)])

    def panel_of(g: Any, o: Any) -> Any:
        return g * panels + o // width

    def term(n: Any, g: Any, p: Any, o: Any) -> Any:
        packed = dot.number(weight[panel_of(g, o), y, x, r, o % width, t])
        return te.sum(number(n, g, p, y, x, r, t) * packed, axis=[y, x, r, t])

    shape = (batch, attrs.groups, round_up(pixels, rows), round_up(own, width))
    total = tiles = compute_stage("tiles", shape, term)
    windows = None
    if of_weight:
        s, c = te.reduce_axis((0, kernel_h), name="s"), te.reduce_axis((0, kernel_w), name="c")
        k = te.reduce_axis((0, form.length), name="k")
        windows = compute_stage(
            "window_sums", shape[:-1],
            lambda n, g, p: te.sum(number(n, g, p, s, c, k // dot.group, k % dot.group) - of_data, axis=[s, c, k]),
        )

    def byte(g: Any, o: Any, place: int) -> Any:
        flat = place * width + o % width
        found = weight[panel_of(g, o), 0, 0, words, flat // dot.group, flat % dot.group]
        return found.astype("uint8").astype("int32") << place * 8

    def less_zeros(n: Any, g: Any, p: Any, o: Any) -> Any:
        found = tiles[n, g, p, o]
        if of_data:
            found = found - of_data * sum((byte(g, o, i) for i in range(1, 4)), byte(g, o, 0))
        return found - of_weight * windows[n, g, p] if windows is not None else found

    if of_data or of_weight:
        total = compute_stage("total", shape, less_zeros)

    def out(*place: Any) -> Any:
        n, o, h, w = (place[attrs.result_layout.index(axis)] for axis in DATA)
        return total[n, o // own, h * out_w + w, o % own].astype(out_type.dtype)

    extents = {"N": batch, "C": out_channels, "H": out_h, "W": out_w}
    return [te.compute([extents[axis] for axis in attrs.result_layout], out, name="conv2d")]


def _pairs(
    form: Form, attrs: Conv2DAttrs, data: Any, window: tuple[int, int], outputs: tuple[int, int], rows: int
) -> Any:
    """The windows [n, g, rows / 2, kh, kw, words, 2, group]; of rows beyond the last pixel, those of that one."""
    from tvm import te, tirx

    dot, channels, (out_h, out_w) = form.dot, form.channels, outputs
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    image, stored, is_last = data, channels, attrs.data_layout != DATA
    is_copied = not is_last or any(attrs.padding) or channels % dot.group > 0
    if is_copied:
        if not is_last:
            n, c, height, across = data.shape
            image = te.compute(
                (n, height, across, c), lambda n, h, w, c: data[n, c, h, w], name="last", attrs={VIEW: "last"}
            )
        columns = (out_w - 1) * stride_w + form.reach(attrs)
        image, stored = copied(form, attrs, image, columns), form.stored

    def number(n: Any, g: Any, pair: Any, y: Any, x: Any, word: Any, place: Any, neighbour: Any) -> Any:
        p = pair * dot.rows + place
        if out_h * out_w < rows:
            p = tirx.min(p, out_h * out_w - 1)
        h, w = p // out_w * stride_h + y * dilation_h, p % out_w * stride_w + x * dilation_w
        channel = g * stored + word * dot.group + neighbour
        if not is_copied:
            return dot.keep(image[n, h, w, channel])
        found = image[n, h, w * stored * attrs.groups + channel]
        # Behind a row of a window are other pixels, which the weight has zeros for.
        is_row = form.in_rows and dot.sums != "int32"
        return zero_beyond(found, word * dot.group + neighbour, form.length, dot.group) if is_row else found

    shape = (data.shape[0], attrs.groups, rows // dot.rows, *window, form.words, dot.rows, dot.group)
    return compute_stage("pairs", shape, number)


def schedule(form: Form, attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of panels × pixels in parallel; in each, one register tile after the other."""
    dot, layout = form.dot, attrs.result_layout
    out_w = int(outs.tensors[0].shape[layout.index("W")])
    sch, output = split_groups(outs, attrs.groups, lambda h, w: (h * out_w + w,), layout)
    stages = find_stages(sch)
    for name in ("sums", "panels", "window_sums", "pairs"):
        if name in stages:
            outer = sch.get_loops(stages[name])
            sch.parallel(sch.fuse(*outer[:3]) if name in ("window_sums", "pairs") else outer[0])
    sch.vectorize(sch.get_loops(stages["pairs"])[-1])
    tiles = stages["tiles"]
    anchor = stages.get("total", tiles)
    for block in dict.fromkeys((tiles, anchor)):
        sch.set_scope(block, 0, "local")
    n, g, p, o, *steps = sch.get_loops(anchor)
    p_task, p_tile, rows = sch.split(p, [None, integer(config, "p_block"), integer(config, "rows")])
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), integer(config, "width")])
    inner = (panel, p_tile) if config["inner"] == "pixels" else (p_tile, panel)
    sch.reorder(n, g, o_task, p_task, *inner, rows, columns, *steps)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    if anchor is not tiles:
        sch.compute_at(tiles, inner[1], preserve_unit_loops=True)
    task = sch.fuse(n, g, o_task, p_task)
    sch.parallel(task)
    for block in (output,) if anchor is tiles else (output, anchor):
        store_tile(sch, block, dot.lanes)
    if "copied" in stages:
        schedule_padding(sch, stages["copied"], target.vector_bytes)
    schedule_matrices(sch, dot, tiles, task, 3, integer(config, "unroll"))
    return sch
