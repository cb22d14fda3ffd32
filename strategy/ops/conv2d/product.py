"""Convolutions as products: weight[o, k] · columns[k, p], with pixels in the vector lanes.

The weight is packed into tiles [ceil(o / rows), k, rows], whose numbers are broadcast; vectors of pixels have the
image's layout, so the result needs no transposition. Rows and columns are padded to whole tiles: rows are zeros
in the packed weight, pixels beyond the last are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.condition import Clause
from strategy.cpu.ahead import prefetch_panels
from strategy.cpu.tile import ALWAYS, round_up, schedule_tile
from strategy.ops.conv2d.operator import DATA, Conv2DAttrs
from strategy.ops.window import windowed_extents
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    find_stages,
    integer,
    join_epilogue,
    new_schedule,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, Knob
from strategy.types import TensorType

BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 21, 24, 25, 32, 48, 64, 96, 128)
INNER = Knob("inner", ["channels", "pixels"])
USUAL = 56  # rows and columns of an image of any size: only a fallback rests on it
MOST_UNROLLED = 2048  # products of a window and a tile; those of 31 × 31 and 14 columns take LLVM minutes


@dataclass(frozen=True)
class Geometry:
    """The extents of a convolution, with the channels of one group: those of the weight are constant.

    A symbolic batch or image is made of variables of TE in computes; where a space is made, a batch is 1 and
    an extent of the image `USUAL`.
    """

    batch: Any
    groups: int
    channels: int
    out_channels: int
    kernel_h: int
    kernel_w: int
    out_h: Any
    out_w: Any

    @classmethod
    def of(cls, inputs: Sequence[TensorType], out_type: TensorType) -> Geometry:
        batch, _, out_h, out_w = (
            int(d) if d.is_constant else usual
            for d, usual in zip(out_type.shape, (1, 0, USUAL, USUAL), strict=True)
        )
        out_channels, channels, kernel_h, kernel_w = inputs[1].concrete_shape
        groups = int(inputs[0].shape[1]) // channels
        return cls(batch, groups, channels, out_channels // groups, kernel_h, kernel_w, out_h, out_w)

    @classmethod
    def of_tensors(cls, attrs: Conv2DAttrs, data: Any, weight: Any, out_type: TensorType) -> Geometry:
        """From the image, and a weight that is packed into tiles."""
        channels, kernel_h, kernel_w = (int(extent) for extent in weight.shape[1:4])
        found = windowed_extents(attrs, data.shape[2:], (kernel_h, kernel_w))
        out_h, out_w = (
            int(known) if known.is_constant else extent
            for known, extent in zip(out_type.shape[2:], found, strict=True)
        )
        out_channels = int(out_type.shape[1]) // attrs.groups
        return cls(
            data.shape[0], attrs.groups, channels, out_channels, kernel_h, kernel_w, out_h, out_w
        )

    @property
    def depth(self) -> int:
        """The number of terms of an output element's sum."""
        return self.channels * self.kernel_h * self.kernel_w

    @property
    def pixels(self) -> Any:
        return self.out_h * self.out_w


def fitting_blocks(counts: Sequence[int], part: int) -> list[int]:
    """The numbers of tiles of a task that divide those of at least one in `part` sizes of tiles, `counts` of each.

    Draws of a block and of a tile are then often valid together.
    """
    return [b for b in BLOCKS if part * sum(n % b == 0 for n in counts) >= len(counts)]


def idle_window(geometry: Geometry) -> dict[str, Clause]:
    """The condition under which the knob `window` is idle: a window of one pixel has no loops."""
    return {"window": ALWAYS} if geometry.kernel_h == geometry.kernel_w == 1 else {}


def usual_window(wanted: str, window: Sequence[int], tile: int) -> str:
    """The untuned value of the knob `window`: `wanted`, or one of fewer unrolled loops around a tile's products."""
    kernel_h, kernel_w = window
    if wanted == "unrolled" and kernel_h * kernel_w * tile <= MOST_UNROLLED:
        return wanted
    return "rows" if kernel_w * tile <= MOST_UNROLLED else "loops"


def pack_rows(rows: int, groups: int) -> Callable[[Any], Any]:
    """The packing of weight[o, c, kh, kw] into tiles [ceil(o / rows), c, kh, kw, rows], of each group."""

    def pack(weight: Any) -> Any:
        out_channels, channels, kernel_h, kernel_w = (int(extent) for extent in weight.shape)
        own = out_channels // groups
        tiles = -(-own // rows)

        def read(tile: Any, c: Any, y: Any, x: Any, row: Any) -> Any:
            o = tile % tiles * rows + row
            return zero_beyond(weight[tile // tiles * own + o, c, y, x], o, own, rows)

        shape = (groups * tiles, channels, kernel_h, kernel_w, rows)
        return compute_stage("weight_tiles", shape, read)

    return pack


def product(
    geometry: Geometry,
    weight: Any,
    column: Callable[[Any, Any, Any, Any], Any],
    config: Config,
    dtype: str,
    *,
    whole: bool = False,
) -> Any:
    """The sums of the weight's tiles with `column(n, g, k, p)`, where p counts the output's pixels.

    With `whole`, there are columns for all pixels of the last panel.
    """
    from tvm import te

    rows, width = integer(config, "rows"), integer(config, "width")
    pixels, out_w = geometry.pixels, geometry.out_w
    r = te.reduce_axis((0, geometry.depth), name="r")
    wide, window = accumulator(dtype), geometry.kernel_h * geometry.kernel_w
    out_channels = geometry.out_channels
    per_group = -(-out_channels // rows)

    def term(n: Any, g: Any, o: Any, p: Any) -> Any:
        number = column(n, g, r, p)
        number = number if whole else zero_beyond(number, p, pixels, width)
        c, y, x = r // window, r // geometry.kernel_w % geometry.kernel_h, r % geometry.kernel_w
        weighted = weight[g * per_group + o // rows, c, y, x, o % rows].astype(wide) * number.astype(wide)
        return te.sum(weighted, axis=r)

    tiles = compute_stage(
        "tiles", (geometry.batch, geometry.groups, round_up(out_channels, rows), round_up(pixels, width)), term
    )
    return te.compute(
        (geometry.batch, geometry.groups * out_channels, geometry.out_h, out_w),
        lambda n, o, h, w: tiles[n, o // out_channels, o % out_channels, h * out_w + w].astype(dtype),
        name="conv2d",
    )


def split_groups(
    outs: Outs, groups: int, places: Callable[[Any, Any], tuple[Any, ...]], layout: str = DATA
) -> tuple[Any, Any]:
    """The schedule, and its output over [n, g, o, …], where `places` are those of a pixel's row and column.

    Over [n, g, …, o] where channels are last in memory.
    """
    from tvm import s_tir

    sch = new_schedule(outs)
    output = join_epilogue(sch)
    down, across = outs.phases
    own = int(outs.tensors[0].shape[layout.index("C")]) * down * across // groups
    if layout == DATA:
        sch.transform_block_layout(
            output,
            lambda n, o, h, w: (
                n, (o // own * down + h % down) * across + w % across, o % own, *places(h // down, w // across)
            ),
        )
    else:
        sch.transform_block_layout(output, lambda n, h, w, o: (n, o // own, *places(h, w), o % own))
    if groups > 1:
        # Else (g * own + o) // own stays as it is, and hides what the output reads.
        sch = s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod))
        (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    return sch, output


def schedule_product(
    outs: Outs, config: Config, groups: int, o_block: int, p_block: int, lanes: int, *, vectors: bool = True
) -> tuple[Any, dict[str, Any], Any, Any]:
    """Tasks of channels × pixels in parallel; in each, one register tile after the other.

    Returns the schedule, the stages before the tiles, which are still to be scheduled, the loop over tasks, and the
    loop over lanes, which is not vectorised without `vectors`, but left to an instruction. With the knob `ahead` the
    next panel of the image is prefetched.
    """
    out_w = int(outs.tensors[0].shape[3]) // outs.phases[1]
    sch, output = split_groups(outs, groups, lambda h, w: (h * out_w + w,))
    stages = find_stages(sch)
    tiles = stages.pop("tiles")
    anchor = stages.pop("total", tiles)
    for block in dict.fromkeys((tiles, anchor)):
        sch.set_scope(block, 0, "local")
    n, g, o, p, *steps = sch.get_loops(anchor)
    o_task, o_tile, rows = sch.split(o, [None, o_block, integer(config, "rows")])
    p_task, panel, columns = sch.split(p, [None, p_block, integer(config, "width")])
    inner = (panel, o_tile) if config["inner"] == "channels" else (o_tile, panel)
    sch.reorder(n, g, p_task, o_task, *inner, rows, columns, *steps)
    sch.reverse_compute_at(output, inner[1], preserve_unit_loops=True)
    if anchor is not tiles:
        sch.compute_at(tiles, inner[1], preserve_unit_loops=True)
        vectorize(sch, columns, lanes)
        sch.unroll(rows)
    task = sch.fuse(n, g, p_task, o_task)
    sch.parallel(task)
    unroll = integer(config, "unroll")
    lane = schedule_tile(sch, tiles, output, sch.get_loops(tiles)[-3:], lanes, unroll, vectors=vectors)
    if config.get("ahead"):
        along, step = o_block if config["inner"] == "channels" else 1, integer(config, "width")
        place, dtype = sch.get_loops(tiles)[-6:-4], str(outs.args[0].dtype)
        prefetch_panels(sch, *place, panel=0, step=step, tiles=along, dtype=dtype)
    return sch, stages, task, lane


def schedule_packing(sch: Any, stages: dict[str, Any]) -> None:
    """Pack the tiles of a weight that is not constant in parallel."""
    for name in ("weight_sums", "weight_tiles"):
        if name in stages:
            sch.parallel(sch.get_loops(stages[name])[0])
