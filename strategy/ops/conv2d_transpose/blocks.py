"""`conv2d_transpose_blocks.cpu`: strides as large as the window, so that each pixel makes a block of its own.

All blocks are one product [o * kh * kw, c] · [c, h * w], with pixels in the vector lanes. A tile has whole rows of
blocks: their vectors are neighbours in the output once they are interleaved, by shuffles of registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strategy.cpu import widened
from strategy.cpu.tile import ROWS, VECTORS, round_up, tile_share, up_to
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d_transpose.operator import Conv2DTransposeAttrs
from strategy.pattern import register_cpu_implementations
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    find_stages,
    integer,
    join_epilogue,
    lanes_of,
    new_schedule,
    sum_in_tile,
    vectorize,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_WIDTHS = (1, 2, 4)  # of blocks: whole vectors of the output are interleaved of as many
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_FULL = 0.8  # share of lanes with pixels from which it is chosen untuned


@dataclass(frozen=True)
class _Geometry:
    """The extents of the product, with the channels of one group.

    Attributes:
        depth: input channels.
        own: output channels.
        window: height and width of a block.
        lines: parts of an image that begin with a vector: its rows, or the whole of it where vectors end with them.
        vectors: vectors of a line.
    """

    batch: int
    groups: int
    depth: int
    own: int
    window: tuple[int, int]
    lines: int
    vectors: int

    @classmethod
    def of(cls, attrs: Conv2DTransposeAttrs, shape: Sequence[int], out_channels: int, lanes: int) -> _Geometry:
        batch, channels, height, width = shape
        lines, pixels = (height, width) if width % lanes else (1, height * width)
        depth, own = channels // attrs.groups, out_channels // attrs.groups
        return cls(batch, attrs.groups, depth, own, attrs.strides, lines, -(-pixels // lanes))

    @property
    def numbers(self) -> int:
        """Numbers of the blocks of a pixel."""
        return self.own * self.window[0] * self.window[1]


def space(
    attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Tile, unrolling, tasks that share the weight's tiles, and pixels copied to lie together or not."""
    lanes = lanes_of(target, out_type.dtype)
    geometry = _Geometry.of(attrs, inputs[0].concrete_shape, int(out_type.shape[1]), lanes)
    numbers, across = geometry.numbers, attrs.strides[1]
    heights = [r for r in ROWS if r % across == 0 and r < 2 * numbers]
    widths = [v for v in VECTORS if geometry.vectors % v == 0]
    parts = [p for p in _PARTS if p * heights[0] <= numbers] or [1]

    def fallback() -> dict[str, Any]:
        rows, vectors = max(
            ((r, v) for r in heights for v in widths if (r + 1) * v < target.vector_registers),
            key=lambda t: tile_share(numbers, t[0], t[1], target.multiply_adds),
        )
        panels = geometry.vectors // vectors * geometry.lines * geometry.batch * geometry.groups
        # Each of few tasks reads a part of the weight only, for all pixels.
        few = panels < 8 * target.threads and target.threads in parts
        return {"rows": rows, "vectors": vectors, "unroll": 1, "parts": target.threads if few else 1, "copied": True}

    return ConfigSpace(
        [
            Knob("rows", heights, "layout"),
            Knob("vectors", widths),
            up_to("unroll", (1, 2, 4, 8), geometry.depth),
            Knob("parts", parts, "layout"),
            Knob("copied", (False, True)),
        ],
        [knob("rows") * knob("vectors") + knob("vectors") + 1 <= target.vector_registers],
        derived={"accumulators": knob("rows") * knob("vectors")},
        fallback=fallback,
    )


def prepare(
    attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight is packed into tiles [g * tiles, c, rows] of o * kh * kw numbers, as many in each part."""
    rows, parts = integer(config, "rows"), integer(config, "parts")

    def pack(weight: Any) -> Any:
        channels, own, height, width = (int(extent) for extent in weight.shape)
        depth, numbers = channels // attrs.groups, own * height * width
        tiles = round_up(numbers, rows * parts) // rows

        def read(tile: Any, c: Any, row: Any) -> Any:
            place = tile % tiles * rows + row
            window = place // (height * width), place // width % height, place % width
            return zero_beyond(weight[tile // tiles * depth + c, *window], place, numbers, rows * parts)

        return compute_stage("weight_tiles", (attrs.groups * tiles, depth, rows), read)

    return {1: pack}


def compute(
    lanes: int, attrs: Conv2DTransposeAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The sums [n, g, o * kh, line, vector, kw, lane], and what of them is in the output."""
    from tvm import te, tirx

    data, weight = inputs
    shape, dtype = [int(extent) for extent in data.shape], str(data.dtype)
    geometry = _Geometry.of(attrs, shape, int(out_type.shape[1]), lanes)
    rows, (down, across), width = integer(config, "rows"), attrs.strides, shape[3]
    depth, lines, vectors, wide = geometry.depth, geometry.lines, geometry.vectors, accumulator(dtype)
    tiles = round_up(geometry.numbers, rows * integer(config, "parts")) // rows

    def pixel(n: Any, g: Any, c: Any, line: Any, vector: Any, lane: Any) -> Any:
        place = vector * lanes + lane
        channel = g * depth + c
        if width % lanes == 0:
            return data[n, channel, place // width, place % width]
        return tirx.if_then_else(place < width, data[n, channel, line, place], tirx.const(0, dtype))

    copied = compute_stage("copied", (geometry.batch, geometry.groups, depth, lines, vectors, lanes), pixel)
    c = te.reduce_axis((0, depth), name="c")

    def term(n: Any, g: Any, q: Any, line: Any, vector: Any, x: Any, lane: Any) -> Any:
        row = q * across + x
        number = weight[g * tiles + row // rows, c, row % rows]
        return te.sum(number.astype(wide) * copied[n, g, c, line, vector, lane].astype(wide), axis=c)

    sums = compute_stage(
        "tiles", (geometry.batch, geometry.groups, tiles * rows // across, lines, vectors, across, lanes), term
    )

    def element(n: Any, o: Any, y: Any, x: Any) -> Any:
        line, place = (0, y // down * width + x // across) if lines == 1 else (y // down, x // across)
        q = o % geometry.own * down + y % down
        return sums[n, o // geometry.own, q, line, place // lanes, x % across, place % lanes].astype(dtype)

    return [te.compute(out_type.concrete_shape, element, name="conv2d_transpose")]


def schedule(attrs: Conv2DTransposeAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of tiles × vectors of pixels in parallel; in each, one register tile after the other."""
    from tvm import s_tir

    sch = new_schedule(outs)
    output = join_epilogue(sch)
    lanes = lanes_of(target, accumulator(str(outs.args[0].dtype)))
    shape, (down, across) = [int(extent) for extent in outs.tensors[0].shape], attrs.strides
    own, whole = shape[1] // attrs.groups, shape[3] % (across * lanes) == 0
    wide = across * lanes
    each = shape[3] // wide

    def place(n: Any, o: Any, y: Any, x: Any) -> tuple[Any, ...]:
        rest = (y // down * each + x // wide, x % wide) if whole else (y // down, x)
        return (n, o // own, o % own * down + y % down, *rest)

    sch.transform_block_layout(output, place)
    # Else the group of o stays as it is, and hides what the output reads.
    sch = s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod))
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    stages = find_stages(sch)
    tiles, copied = stages["tiles"], stages["copied"]
    sch.set_scope(tiles, 0, "local")
    n, g, q, line, vector, x, lane, step = sch.get_loops(tiles)
    part, tile, rows = sch.split(q, [integer(config, "parts"), None, integer(config, "rows") // across])
    panel, vectors = sch.split(vector, [None, integer(config, "vectors")])
    sch.reorder(n, g, part, line, panel, tile, rows, x, vectors, lane, step)
    sch.reverse_compute_at(output, tile, preserve_unit_loops=True)
    task = sch.fuse(n, g, part, line, panel)
    if config["copied"]:
        sch.compute_at(copied, task, preserve_unit_loops=True)
        *_, copied_lane = sch.get_loops(copied)
        sch.vectorize(copied_lane)
    else:
        sch.compute_inline(copied)
    sch.parallel(task)
    sum_in_tile(sch, tiles, [rows, x, vectors, lane], step, integer(config, "unroll"))
    *_, out_rows, out_columns = sch.get_loops(output)[: -1 if whole else None]
    vectorize(sch, sch.get_loops(output)[-1], lanes)
    for loop in (out_rows, out_columns) if whole else (out_rows,):
        sch.unroll(loop)
    if "weight_tiles" in stages:
        sch.parallel(sch.get_loops(stages["weight_tiles"])[0])
    return sch


def _add(
    strategy: OpStrategy, attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], out_type: TensorType,
    target: Target,
) -> None:
    """Add the implementation where the window is as large as the strides, and nothing is cut off or added."""
    known = all(d.is_constant and int(d) >= 1 for kind in inputs for d in kind.shape)
    if not known or not widened.serves(inputs, out_type):
        return
    window, width = inputs[1].concrete_shape[2:], int(inputs[0].shape[3])
    apart = window == attrs.strides and attrs.dilation == (1, 1) and window[1] in _WIDTHS
    if apart and not any((*attrs.padding, *attrs.output_padding)):
        lanes = lanes_of(target, accumulator(out_type.dtype))
        full = width / int(round_up(width, lanes)) >= _FULL
        found = OpStrategy()
        found.add_implementation(
            partial(compute, lanes), schedule, "conv2d_transpose_blocks.cpu", 13 if full else 10, space=space,
            prepare=prepare, symbolic=False,
        )
        strategy.extend(widened.for_types(found, inputs))


register_cpu_implementations("conv2d_transpose", _add)
