"""`conv2d_nchw_lines.cpu`: direct convolution, with the pixels of a line in the vector lanes.

A tile is output channels of a group × neighbouring pixels of a line. Numbers of the weight are broadcast to all lanes,
and the image is read where it lies, or from a copy with zeros around it: nothing is unfolded, and no tile is turned. So
it serves groups of few output channels, which leave lanes of `conv2d_nchw_spatial_pack.cpu` idle. Lines end with whole
vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.condition import ceildiv
from strategy.cpu.tile import (
    ROWS,
    VECTORS,
    accumulators,
    one_order,
    register_constraint,
    round_up,
    tile_share,
    up_to,
    width_knob,
)
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import (
    copy_by_vectors,
    pad_zeros,
    read_windows,
    schedule_split,
    splits_columns,
    whole_padding,
)
from strategy.ops.conv2d.product import (
    INNER,
    Geometry,
    idle_window,
    pack_rows,
    schedule_packing,
    split_groups,
    usual_window,
)
from strategy.ops.conv2d.spatial_pack import WINDOW, schedule_window
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    dtype_bytes,
    find_stages,
    integer,
    lanes_of,
    vectorize,
)
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_MOST_CHANNELS = 32  # of a group's output


def is_offered(inputs: Sequence[TensorType], out_type: TensorType) -> bool:
    """Return whether groups have few output channels, and windows several places."""
    geometry = Geometry.of(inputs, out_type)
    return geometry.out_channels <= _MOST_CHANNELS and geometry.kernel_h * geometry.kernel_w > 1


def pays(inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> bool:
    """Return whether pixels of a line fill their vectors better than output channels of a group would.

    Of a single group they are less than a vector: winograd's algorithms take over from there.
    """
    geometry, lanes = Geometry.of(inputs, out_type), lanes_of(target, inputs[0].dtype)
    of_line, of_channels = (n / int(round_up(n, lanes)) for n in (geometry.out_w, geometry.out_channels))
    return of_line > of_channels and (geometry.groups > 1 or geometry.out_channels < lanes)


def space(
    attrs: Conv2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile of `rows` channels × `width` pixels, unrolling over the window, and lines of the image per task."""
    geometry, lanes = Geometry.of(inputs, out_type), lanes_of(target, inputs[0].dtype)
    own, out_h, out_w = geometry.out_channels, geometry.out_h, geometry.out_w
    high, wide = up_to("rows", ROWS, own, "layout"), width_knob(lanes, out_w)

    def fallback() -> dict[str, Any]:
        def merit(tile: tuple[int, int]) -> float:
            rows, vectors = tile
            whole = out_w / int(round_up(out_w, vectors * lanes))
            return float(whole * tile_share(own, rows, vectors, target.multiply_adds))

        rows, vectors = max(
            (
                (r, v)
                for r in ROWS if high.has(r)
                for v in VECTORS if wide.has(v * lanes) and r * v + v + 1 <= target.vector_registers
            ),
            key=merit,
        )
        tasks = geometry.batch * geometry.groups

        def fits(lines: int) -> bool:
            """Return whether all threads have tasks, and what one reads takes half of the second level."""
            height = (lines - 1) * attrs.strides[0] + (geometry.kernel_h - 1) * attrs.dilation[0] + 1
            size = geometry.channels * height * int(inputs[0].shape[3]) * dtype_bytes(inputs[0].dtype)
            return tasks * (out_h // lines) >= 4 * target.threads and size <= target.l2_bytes // 2

        return {
            "rows": rows,
            "width": vectors * lanes,
            "window": usual_window("rows", (geometry.kernel_h, geometry.kernel_w), rows * vectors),
            "lines": max(filter(fits, divisors(out_h)), default=1),
            "inner": "pixels",
        }

    return ConfigSpace(
        [high, wide, WINDOW, Knob("lines", divisors(out_h)), INNER],
        [register_constraint(target.vector_registers, lanes)],
        derived={"accumulators": accumulators(lanes)},
        fallback=fallback,
        idle={
            **idle_window(geometry),
            "inner": one_order(ceildiv(own, knob("rows")), knob("lines") * ceildiv(out_w, knob("width"))),
        },
    )


def prepare(attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [ceil(o / rows), c, kh, kw, rows], of each group."""
    return {1: pack_rows(integer(config, "rows"), attrs.groups)}


def compute(attrs: Conv2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The sums of whole tiles [n, g, o, h, w], and what of them is in the output."""
    from tvm import te

    data, weight = inputs
    geometry = Geometry.of_tensors(attrs, data, weight, out_type)
    own, kernel_w, dtype = geometry.out_channels, geometry.kernel_w, str(data.dtype)
    rows, wide = integer(config, "rows"), accumulator(dtype)
    across, per_group = int(round_up(geometry.out_w, integer(config, "width"))), -(-own // rows)
    top, left, bottom, right = whole_padding(
        attrs, data.shape[2:], (geometry.out_h, across), (geometry.kernel_h, kernel_w)
    )
    if splits_columns(attrs, kernel_w):
        right += -(left + int(data.shape[3]) + right) % attrs.strides[1]
    pixel = read_windows(pad_zeros(data, (top, left, bottom, right)), attrs, kernel_w)
    c, y, x = (
        te.reduce_axis((0, extent), name=name)
        for extent, name in ((geometry.channels, "c"), (geometry.kernel_h, "y"), (kernel_w, "x"))
    )

    def term(n: Any, g: Any, o: Any, h: Any, w: Any) -> Any:
        number = pixel(n, g * geometry.channels + c, y, x, h, w).astype(wide)
        return te.sum(weight[g * per_group + o // rows, c, y, x, o % rows].astype(wide) * number, axis=[c, y, x])

    shape = (geometry.batch, geometry.groups, round_up(own, rows), geometry.out_h, across)
    tiles = compute_stage("tiles", shape, term)
    return [
        te.compute(
            (geometry.batch, geometry.groups * own, geometry.out_h, geometry.out_w),
            lambda n, o, h, w: tiles[n, o // own, o % own, h, w].astype(dtype), name="conv2d",
        )
    ]


def schedule(attrs: Conv2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of groups × lines in parallel; in each, the padding of what it reads, and one tile after the other."""
    sch, output = split_groups(outs, attrs.groups, lambda h, w: (h, w))
    stages, lanes = find_stages(sch), lanes_of(target, accumulator(str(outs.args[0].dtype)))
    schedule_packing(sch, stages)
    tiles, padded = stages["tiles"], stages.get("padded")
    sch.set_scope(tiles, 0, "local")
    n, g, o, h, w, *steps = sch.get_loops(tiles)
    o_tile, rows = sch.split(o, [None, integer(config, "rows")])
    part, line = sch.split(h, [None, integer(config, "lines")])
    panel, columns = sch.split(w, [None, integer(config, "width")])
    order = (o_tile, line, panel) if config["inner"] == "pixels" else (line, panel, o_tile)
    sch.reorder(n, g, part, *order, rows, columns, *steps)
    sch.reverse_compute_at(output, order[-1], preserve_unit_loops=True)
    task = sch.fuse(n, g, part)
    sch.parallel(task)
    if "split" in stages:
        schedule_split(sch, stages["split"], padded, lanes, task)
    elif padded is not None:
        sch.compute_at(padded, task, preserve_unit_loops=True)
        copy_by_vectors(sch, padded, lanes)
    *_, channel, _, place = sch.get_loops(output)
    vectorize(sch, place, lanes)
    sch.unroll(channel)
    schedule_window(sch, tiles, lanes, str(config["window"]))
    return sch
