"""`conv2d_nchw_spatial_pack.cpu`: direct convolution, with output channels in the vector lanes.

The weight is packed into panels [ceil(o / width), c, kh, kw, width]; the image is read where it lies,
each number broadcast to all lanes. So small images fill the vectors as well as large ones, and nothing
is unfolded; a finished tile is turned once. The layout is TVM's NCHWc for one tile at a time.

A tile is of consecutive pixels: of a whole image, or of one row of it where its size is symbolic.
"""
# Over 300 lines: one implementation, whose space, packing and schedule share its extents.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.ahead import fits_ahead, prefetch_panels
from strategy.cpu.tile import (
    ALWAYS,
    ROWS,
    VECTORS,
    accumulators,
    block_knob,
    largest_divisor,
    one_order,
    register_constraint,
    round_up,
    tile_share,
    whole_blocks,
    width_knob,
)
from strategy.cpu.turn import turn, turned_width
from strategy.layout import plain
from strategy.ops.conv2d.operator import DATA, Conv2DAttrs
from strategy.ops.conv2d.pad import (
    copy_by_vectors,
    pad_zeros,
    pick_pixels,
    put_in_order,
    schedule_padding,
)
from strategy.ops.conv2d.product import (
    BLOCKS,
    INNER,
    Geometry,
    idle_window,
    pack_rows,
    split_groups,
    usual_window,
)
from strategy.ops.conv2d.task_padding import BY_TASK, have_lines, is_large, tiles_of_task
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    find_stages,
    integer,
    lanes_of,
    unroll_tile,
    vectorize,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import Dim, TensorType

WINDOW = Knob("window", ["unrolled", "rows", "loops"])
_AHEAD = Knob("ahead", [False, True])
_PICKED = Knob("picked", [False, True])
_MOST_PIXELS = 14  # of an untuned tile
_MOST_VECTORS = 3  # of one with a window, whose panel, in the second level, is read for each tile
_USUAL_VECTORS = 2
_FEW_PIXELS = 100


def space(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` pixels × `width` channels, unrolling over the window, and tiles per task.

    With `ahead` the next panel of the weight is prefetched meanwhile, where the image's size is known. Windows of one
    pixel with a stride read their pixels where they lie, or `picked` and put next to each other. A large image is
    padded before all tasks, or `by_task`: each then has whole lines, and pads those that it reads.
    """
    geometry, any_size = Geometry.of(inputs, out_type), not _is_constant(out_type.shape[2:])
    lanes = lanes_of(target, inputs[0].dtype)
    fitting = list(ROWS) if any_size else _fitting(geometry.out_w, geometry.pixels)
    pixels = geometry.out_w if any_size else geometry.pixels
    high, wide = Knob("rows", fitting), width_knob(lanes, geometry.out_channels)
    picks = attrs.data_layout == DATA and attrs.strides != (1, 1) and not any_size
    picks = picks and geometry.kernel_h == geometry.kernel_w == 1
    pads = attrs.data_layout == DATA and attrs.groups == 1 and not any_size and not picks and is_large(attrs, inputs[0])

    def fallback() -> dict[str, Any]:
        # The addresses of more pixels do not fit the general registers. LLVM broadcasts those that a step of a window
        # has in registers of their own, one of which all tiles have, and keeps those that a later step has again: with
        # a stride, beside those of the next step.
        apart, stride = geometry.kernel_h * geometry.kernel_w > 1, attrs.strides[1]
        kept = 2 if geometry.kernel_w > stride + 1 > 2 else 1 if apart else 0
        registers = target.vector_registers
        few = [r for r in fitting if r <= min(_MOST_PIXELS, (registers - 3) // max(kept, 1))]
        widths = [v * lanes for v in VECTORS if wide.has(v * lanes) and (not apart or v <= _MOST_VECTORS)]
        offered = [(r, w) for r in few for w in widths if (r + 1) * w // lanes + 1 <= registers - kept * r + apart]

        def merit(tile: tuple[int, int]) -> tuple[bool, float]:
            rows, vectors = tile[0], tile[1] // lanes
            whole = geometry.out_channels / int(round_up(geometry.out_channels, tile[1]))
            # Of one vector, a number and its address would be loaded for each multiply-add.
            return apart or vectors > 1, whole * tile_share(pixels, rows, vectors, target.multiply_adds)

        rows, width = max(offered, key=merit)
        panels, tiles = -(-geometry.out_channels // width), -(-pixels // rows)
        shared = panels * geometry.groups < 2 * target.threads
        panel_bytes = geometry.depth * width * dtype_bytes(inputs[0].dtype)
        weight_bytes = panels * panel_bytes * geometry.groups
        o_block, p_block = 1, largest_divisor(BLOCKS, tiles, -(-tiles // target.threads) if shared else tiles)
        alone = tiles_of_task(rows, attrs, inputs[0], geometry, target) if pads and panels in BLOCKS else 0
        # The whole weight is read for some lines after the other, and stays in the second level.
        by_task = alone > 0 and weight_bytes <= target.l2_bytes // 2
        if by_task:
            o_block, p_block = panels, alone
        return {
            "rows": rows,
            "width": width,
            "window": usual_window("rows", (geometry.kernel_h, geometry.kernel_w), rows * width // lanes),
            "o_block": o_block,
            "p_block": p_block,
            "inner": "pixels",
            "ahead": weight_bytes >= target.l2_bytes // 2 and not any_size and fits_ahead(panel_bytes, target),
            **({"picked": True} if picks else {}),
            **({"by_task": by_task} if pads else {}),
        }

    return ConfigSpace(
        [
            wide,
            high,
            WINDOW,
            block_knob("o_block", BLOCKS, geometry.out_channels, wide),
            Knob("p_block", BLOCKS) if any_size else block_knob("p_block", BLOCKS, pixels, high),
            INNER,
            _AHEAD,
            *([_PICKED] if picks else []),
            *([BY_TASK] if pads else []),
        ],
        [
            register_constraint(target.vector_registers, lanes),
            whole_blocks(geometry.out_channels, "width", "o_block"),
            *([] if any_size else [whole_blocks(pixels, "rows", "p_block")]),
            *([have_lines(geometry)] if pads else []),
        ],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={
            **idle_window(geometry),
            **({"ahead": ALWAYS} if any_size else {}),
            "inner": one_order(knob("o_block"), knob("p_block"), ahead=True),
        },
    )


def waits(inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> bool:
    """Return whether untuned tiles of few pixels wait for the weight.

    A panel that is too large to be prefetched comes from the last level while its first tile is computed. A vector of
    it takes as long to come as the multiply-adds of some ten pixels.
    """
    geometry, size = Geometry.of(inputs, out_type), dtype_bytes(inputs[0].dtype)
    panel_bytes = geometry.depth * _USUAL_VECTORS * lanes_of(target, inputs[0].dtype) * size
    return geometry.pixels < _FEW_PIXELS and not fits_ahead(panel_bytes, target)


def reads_in_place(attrs: Conv2DAttrs, config: Config) -> bool:
    """Return whether no copy of the image is made."""
    return not any(attrs.padding) and not config.get("picked")


def fills_tiles(out_type: TensorType) -> bool:
    """Return whether an untuned tile has four pixels or more, or the image has few."""
    out_h, out_w = (int(extent) for extent in out_type.shape[2:])
    pixels = out_h * out_w
    return pixels < 16 or any(4 <= r <= _MOST_PIXELS for r in _fitting(out_w, pixels))


def _fitting(out_w: int, pixels: int) -> list[int]:
    """The pixels of tiles that are a part of a row of the image, or whole rows."""
    return [r for r in ROWS if out_w % r == 0 or (r % out_w == 0 and r <= pixels)]


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into panels [ceil(o / width), c, kh, kw, width]."""
    return {1: pack_rows(integer(config, "width"), attrs.groups)}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The sums of whole tiles [n, g, p, o], a copy of them in memory, and what of it is in the output.

    [n, g, h, p, o], with p the pixels of a row, for an image of any size.
    """
    from tvm import te, tirx

    data, weight = inputs
    geometry = Geometry.of_tensors(attrs, data, weight, out_type)
    any_size = not _is_constant(out_type.shape[2:])
    dtype, out_w = str(data.dtype), geometry.out_w
    pixels = out_w if any_size else geometry.pixels
    rows, width = integer(config, "rows"), integer(config, "width")
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs.strides, attrs.dilation
    if config.get("picked"):
        padded, stride_h, stride_w = pick_pixels(data, attrs, geometry.out_h, out_w), 1, 1
    else:
        padded = pad_zeros(data, attrs.padding)
    c = te.reduce_axis((0, geometry.channels), name="c")
    y = te.reduce_axis((0, geometry.kernel_h), name="y")
    x = te.reduce_axis((0, geometry.kernel_w), name="x")
    wide = accumulator(dtype)

    own = geometry.out_channels
    per_group = -(-own // width)

    def term(n: Any, g: Any, *place: Any) -> Any:
        *line, p, o = place
        if any_size or pixels % rows:
            p = tirx.min(p, pixels - 1)
        h, w = (*line, p) if any_size else (p // out_w, p % out_w)
        number = padded[
            n, g * geometry.channels + c, h * stride_h + y * dilation_h, w * stride_w + x * dilation_w
        ]
        weighted = number.astype(wide) * weight[g * per_group + o // width, c, y, x, o % width].astype(wide)
        return te.sum(weighted, axis=[c, y, x])

    lines = [geometry.out_h] if any_size else []
    shape = (geometry.batch, geometry.groups, *lines, round_up(pixels, rows), round_up(own, width))
    tiles = compute_stage("tiles", shape, term)
    kept = compute_stage("kept", shape, lambda *place: tiles[place])
    *outer, high, deep = shape
    turned = compute_stage(
        "turned", (*outer, deep, high), lambda *place: kept[(*place[:-2], place[-1], place[-2])]
    )

    def out(n: Any, o: Any, h: Any, w: Any) -> Any:
        *line, p = (h, w) if any_size else (h * out_w + w,)
        return turned[(n, o // own, *line, o % own, p)].astype(dtype)

    full = (geometry.batch, geometry.groups * own, geometry.out_h, out_w)
    return [te.compute(full, out, name="conv2d")]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of channels × pixels in parallel; in each, one register tile after the other."""
    from tvm import tirx

    layout = attrs.data_layout
    _, _, *image = plain(outs.tensors[0].shape, layout)
    any_size, out_w = not all(isinstance(extent, tirx.IntImm) for extent in image), image[1] // outs.phases[1]
    sch, output = split_groups(outs, attrs.groups, lambda h, w: (h, w) if any_size else (h * out_w + w,), layout)
    stages = find_stages(sch)
    lanes = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    padded = stages.get("padded")
    phases = math.prod(outs.phases)  # each reads the same channels as its neighbours
    are_tasks = _are_tasks(outs.tensors[0].shape[0], attrs.groups // phases, target)
    each = padded is not None and layout == DATA and not any_size and are_tasks
    by_task = each or bool(config.get("by_task"))
    if padded is not None:
        put_in_order(sch, padded, channels_last=layout != DATA)
        if not by_task:
            schedule_padding(sch, padded, lanes)
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    tiles, kept = stages["tiles"], stages["kept"]
    n, g, *line, p, o = sch.get_loops(kept)
    p_task, p_tile, rows = sch.split(p, [None, integer(config, "p_block"), integer(config, "rows")])
    o_task, panel, columns = sch.split(o, [None, integer(config, "o_block"), integer(config, "width")])
    inner = (panel, p_tile) if config["inner"] == "pixels" else (p_tile, panel)
    sch.reorder(n, g, *line, o_task, p_task, *inner, rows, columns)
    turned = stages["turned"]
    # A block with a condition, of tiles or lines that tasks may not have, is no intrinsic.
    conditional = any_size and (integer(config, "p_block") > 1 or not _has_lines(image[0]))
    shuffles = layout == DATA and integer(config, "rows") > 1 and not conditional
    if not shuffles:
        sch.compute_inline(turned)
    else:
        sch.reverse_compute_at(turned, inner[1], preserve_unit_loops=True)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    sch.compute_at(tiles, inner[1], preserve_unit_loops=True)
    # A group that is one task pads its own channels, which then are in the second level.
    own = sch.split(g, [None, phases])[0] if each and phases > 1 else g
    task = sch.fuse(n, own) if each else sch.fuse(n, g, *line, o_task, p_task)
    sch.parallel(task)
    if by_task:
        sch.compute_at(padded, task, preserve_unit_loops=True)
        copy_by_vectors(sch, padded, lanes)
    sch.set_scope(tiles, 0, "local")
    vectorize(sch, columns, lanes)
    sch.unroll(rows)
    if layout != DATA:
        vectorize(sch, sch.get_loops(output)[-1], lanes)
    elif shuffles:
        panel, column = sch.split(sch.get_loops(turned)[-2], [None, lanes])
        sch.unroll(panel)
        dtype = accumulator(str(outs.args[0].dtype))
        turn(sch, task, column, 5 if any_size else 4, integer(config, "rows"), lanes, dtype)
        *_, out_o, out_p = sch.get_loops(output)
        vectorize(sch, out_p, min(turned_width(integer(config, "rows"), lanes), lanes))
        sch.unroll(out_o)
    steps, *window = schedule_window(sch, tiles, lanes, str(config["window"]))
    if config["ahead"] and not any_size:
        channels, *extents = (int(sch.get(loop).extent) for loop in (steps, *window))
        step = math.prod(extents) * integer(config, "width")
        prefetch_panels(
            sch, inner[1], steps, panel=channels * step, step=step,
            tiles=integer(config, "p_block") if config["inner"] == "pixels" else 1, dtype=str(outs.args[1].dtype),
        )
    return sch


def _are_tasks(batch: Any, groups: int, target: Target) -> bool:
    """Return whether there are as many groups, of all images, as keep all threads at work."""
    from tvm import tirx

    return groups > 1 and isinstance(batch, tirx.IntImm) and int(batch) * groups >= 8 * target.threads


def _has_lines(height: Any) -> bool:
    """Return whether an image has lines at all sizes: one that is less than a symbolic extent may have none."""
    from tvm import sym

    return bool(sym.Analyzer().can_prove(height >= 0))


def _is_constant(extents: Sequence[Dim]) -> bool:
    return all(extent.is_constant for extent in extents)


def schedule_window(sch: Any, tiles: Any, lanes: int, window: str) -> tuple[Any, Any, Any]:
    """Schedule a tile's sums over a window, of which `window` says what is unrolled; return the loops over it.

    Must be called last, as it decomposes the reduction.
    """
    rows, columns, c, y, x = sch.get_loops(tiles)[-5:]
    vectors, lane = sch.split(columns, [None, lanes])
    sch.reorder(c, y, x, rows, vectors, lane)
    sch.vectorize(lane)
    unrolled = {"unrolled": (y, x), "rows": (x,), "loops": ()}[window]
    for loop in (*unrolled, rows, vectors):
        sch.unroll(loop)
    unroll_tile(sch, sch.decompose_reduction(tiles, c))
    return c, y, x
