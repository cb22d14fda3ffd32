"""The image of winograd's algorithm in vectors of channels, before its products and after them.

Channels lie in blocks, which are the lanes of the transforms, so that images of any size fill them. An image of layout
NCHW is turned into blocks of a cache line, and the result, in blocks of a panel's output channels, back.
"""
# Over 300 lines: the image before and after, of two layouts.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.cpu.turn import fit_side_by_side, turn, turned_width
from strategy.layout import block_of, plain_type
from strategy.ops.conv2d.blocked import lanes_of_block
from strategy.ops.conv2d.blocked import schedule_padding as schedule_blocks_padding
from strategy.ops.conv2d.layout import plain_weight
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.pad import copy_by_vectors, pad_zeros
from strategy.ops.conv2d.transform import KERNEL, Transform, combine, weight_columns
from strategy.schedule import accumulator, compute_stage, dtype_bytes, integer, lanes_of, vectorize
from strategy.space import Config
from strategy.target import Target
from strategy.types import TensorType

_LINE_BYTES = 64  # of a cache
_TURNED = 16  # the most pixels that are turned together


def input_block(attrs: Conv2DAttrs, dtype: str) -> int:
    """The input channels that lie together: those of the layout's blocks, or those of a cache line."""
    block = block_of(attrs.data_layout)
    return block if block > 1 else _LINE_BYTES // dtype_bytes(dtype)


def output_lanes(attrs: Conv2DAttrs, dtype: str, target: Target) -> int:
    """Those of a vector of output channels, which are of one block."""
    return lanes_of_block(attrs, dtype, target) if block_of(attrs.result_layout) > 1 else lanes_of(target, dtype)


def count_tiles(transform: Transform, attrs: Conv2DAttrs, plain: TensorType) -> int:
    """Those of all images, of a plain output."""
    batch, _, *extents = plain.concrete_shape
    counts = (transform.count(-(-extent // d)) * d for extent, d in zip(extents, attrs.dilation, strict=True))
    return math.prod(counts, start=batch)


def weight_bytes_of(transform: Transform, weight: TensorType) -> int:
    """Those of the weight in the transformed domain."""
    out_channels, channels, *_ = weight.concrete_shape
    return transform.alpha**2 * out_channels * channels * dtype_bytes(accumulator(weight.dtype))


def prepare(
    transform: Transform, attrs: Conv2DAttrs, inputs: Sequence[TensorType], config: Config
) -> dict[int, Callable[[Any], Any]]:
    """The weight in the transformed domain: [alpha, alpha, ceil(o / width), ceil(c / block), block, width]."""
    width, alpha, block = integer(config, "width"), transform.alpha, input_block(attrs, inputs[0].dtype)

    def apply(given: Any) -> Any:
        columns = weight_columns(transform, plain_weight(attrs, given), width, block)
        *_, channels, padded = (int(extent) for extent in columns.shape)
        return compute_stage(
            "weight_transform", (alpha, alpha, padded // width, channels // block, block, width),
            lambda i, j, panel, outer, inner, lane: combine(
                transform.weight,
                j,
                [columns[i, x, outer * block + inner, panel * width + lane] for x in range(KERNEL)],
            ),
        )

    return {1: apply}


def schedule_weight(sch: Any, stages: dict[str, Any]) -> None:
    """The transforms of a weight that is not constant, in parallel."""
    if "weight_transform" in stages:
        for name in ("weight_columns", "weight_transform"):
            _, _, *loops, _ = sch.get_loops(stages[name])
            sch.parallel(loops[0])


@dataclass(frozen=True)
class Tiles:
    """The extents of one convolution: `down` × `across` tiles of each of `images`, and channels in blocks.

    An image has parts of `lines` of tiles. A window that is dilated by d has an image of every d-th row and column.
    """

    transform: Transform
    attrs: Conv2DAttrs
    images: int
    out_channels: int
    out_h: int
    out_w: int
    blocks: int
    block: int
    out_blocks: int
    out_block: int
    lines: int

    @classmethod
    def of(
        cls, transform: Transform, attrs: Conv2DAttrs, weight: Any, out_type: TensorType, lines: int | None = None
    ) -> Tiles:
        """Of the weight that `prepare` has transformed; without `lines` an image is one part."""
        *_, blocks, block, width = (int(extent) for extent in weight.shape)
        batch, out_channels, out_h, out_w = plain_type(out_type, attrs.result_layout).concrete_shape
        given = block_of(attrs.result_layout)
        out_block = given if given > 1 else width
        return cls(
            transform, attrs, batch * math.prod(attrs.dilation), out_channels, out_h, out_w, blocks, block,
            -(-out_channels // out_block), out_block, lines or transform.count(-(-out_h // attrs.dilation[0])),
        )

    @property
    def down(self) -> int:
        return self.transform.count(-(-self.out_h // self.attrs.dilation[0]))

    @property
    def parts(self) -> int:
        return self.down // self.lines

    @property
    def across(self) -> int:
        return self.transform.count(-(-self.out_w // self.attrs.dilation[1]))

    def columns(self, data: Any) -> Any:
        """The stage of the image transformed down: [n, part, c / block, line, column, alpha, block]."""
        tile, alpha, matrix = self.transform.tile, self.transform.alpha, self.transform.data
        height, width = self.lines * tile + KERNEL - 1, self.across * tile + KERNEL - 1
        read = self._pixels(data, height, width)
        return compute_stage(
            "data_columns", (self.images, self.parts, self.blocks, self.lines, width, alpha, self.block),
            lambda n, p, o, y, x, i, c: combine(matrix, i, [read(n, p, o, y * tile + a, x, c) for a in range(alpha)]),
        )

    def _pixels(self, data: Any, height: int, width: int) -> Callable[..., Any]:
        """The pixel at (n, part, c / block, h, w, channel of the block), with zeros to whole tiles."""
        from tvm import tirx

        top, left, *_ = self.attrs.padding
        apart = self.lines * self.transform.tile
        dilation_h, dilation_w = self.attrs.dilation

        def place(n: Any, p: Any, h: Any, w: Any) -> tuple[Any, Any, Any]:
            h, w = (p * apart + h) * dilation_h + n // dilation_w % dilation_h, w * dilation_w + n % dilation_w
            return n // (dilation_h * dilation_w), h, w

        if block_of(self.attrs.data_layout) > 1:
            whole = (self.down * self.transform.tile + KERNEL - 1) * dilation_h
            missing = (whole - int(data.shape[2]) - top, width * dilation_w - int(data.shape[3]) - left)
            padded = pad_zeros(data, (top, left, max(0, missing[0]), max(0, missing[1])))

            def blocked_pixel(n: Any, p: Any, o: Any, h: Any, w: Any, c: Any) -> Any:
                n, h, w = place(n, p, h, w)
                return padded[n, o, h, w, c]

            return blocked_pixel
        channels, image_h, image_w = (int(extent) for extent in data.shape[1:])

        def pixel(n: Any, p: Any, o: Any, h: Any, inner: Any, w: Any) -> Any:
            n, h, w = place(n, p, h, w)
            c, h, w = o * self.block + inner, h - top, w - left
            inside = [h >= 0, h < image_h, w >= 0, w < image_w]
            if channels % self.block:
                inside.append(c < channels)
            return tirx.if_then_else(tirx.all(*inside), data[n, c, h, w], tirx.const(0, data.dtype))

        # Turned by whole vectors, which are an axis of their own: the parts that read one turn all of it.
        together = _LINE_BYTES // dtype_bytes(str(data.dtype))
        lines, vectors = (self.images, self.parts, self.blocks, height), -(-width // together)
        padded = compute_stage("padded", (*lines, self.block, vectors * together), pixel)
        image = compute_stage(
            "image", (*lines, vectors, together, self.block),
            lambda n, p, o, h, w, lane, c: padded[n, p, o, h, c, w * together + lane],
        )
        return lambda n, p, o, h, w, c: image[n, p, o, h, w // together, w % together, c]

    def result(self, product: Callable[..., Any], dtype: str) -> list[Any]:
        """The output of the products at (point down, point across, n, c / block, tile down, tile across, channel)."""
        from tvm import te

        tile, alpha, matrix = self.transform.tile, self.transform.alpha, self.transform.inverse
        inverse = compute_stage(
            "inverse", (self.images, self.out_blocks, self.down, self.across, alpha, tile, self.out_block),
            lambda n, o, y, x, b, i, c: combine(matrix, i, [product(a, b, n, o, y, x, c) for a in range(alpha)]),
        )

        def pixel(n: Any, o: Any, h: Any, w: Any, c: Any) -> Any:
            values = [inverse[n, o, h // tile, w // tile, b, h % tile, c] for b in range(alpha)]
            return combine(matrix, w % tile, values).astype(dtype)

        dilation_h, dilation_w = self.attrs.dilation
        batch = self.images // (dilation_h * dilation_w)

        def image(n: Any, h: Any, w: Any) -> Any:
            return (n * dilation_h + h % dilation_h) * dilation_w + w % dilation_w

        if block_of(self.attrs.result_layout) > 1:
            full = (batch, self.out_blocks, self.out_h, self.out_w, self.out_block)
            return [te.compute(
                full, lambda n, o, h, w, c: pixel(image(n, h, w), o, h // dilation_h, w // dilation_w, c),
                name="conv2d_winograd",
            )]
        height, width = self.down * tile, self.across * tile
        pixels = compute_stage("pixels", (self.images, self.out_blocks, height, width, self.out_block), pixel)
        turned = compute_stage(
            "turned", (self.images, self.out_blocks, height, self.out_block, width),
            lambda n, o, h, c, w: pixels[n, o, h, w, c],
        )

        def join(n: Any, o: Any, h: Any, w: Any) -> Any:
            return turned[image(n, h, w), o // self.out_block, h // dilation_h, o % self.out_block, w // dilation_w]

        return [te.compute((batch, self.out_channels, self.out_h, self.out_w), join, name="conv2d_winograd")]


def schedule_image(sch: Any, stages: dict[str, Any], lanes: int, task: Any = None) -> None:
    """Pad the image, and turn it into blocks if it is not: in parallel, or in a `task` the lines that it reads."""
    padded = stages.get("padded")
    if "image" not in stages:
        if padded is not None and task is None:
            schedule_blocks_padding(sch, padded, lanes)
        elif padded is not None:
            sch.compute_at(padded, task, preserve_unit_loops=True)
            *_, c = sch.get_loops(padded)
            vectorize(sch, c, lanes)
        return
    image, dtype = stages["image"], str(sch.get(padded).writes[0].source.dtype)
    if task is not None:
        sch.compute_at(image, task, preserve_unit_loops=True)
    *outer, h, _, lane, c = sch.get_loops(image)
    sch.compute_at(padded, h, preserve_unit_loops=True)
    copy_by_vectors(sch, padded, lanes)
    if task is None:
        h = sch.fuse(*outer, h)
        sch.parallel(h)
    together, block = int(sch.get(lane).extent), int(sch.get(c).extent)
    column = lane if lanes >= together else sch.split(lane, [None, lanes])[1]
    turn(sch, h, column, 7, block, min(lanes, together), dtype)


def schedule_data(sch: Any, stages: dict[str, Any], loops: Sequence[Any], lanes: int) -> None:
    """For each line of tiles both transforms, one after the other; `loops` are its lines, points and channels."""
    y, i, j, c = loops
    sch.compute_at(stages["data_columns"], y, preserve_unit_loops=True)
    vectorize(sch, c, lanes)
    sch.unroll(i)
    sch.unroll(j)
    *_, points, channels = sch.get_loops(stages["data_columns"])
    vectorize(sch, channels, lanes)
    sch.unroll(points)


def start_result(
    sch: Any, stages: dict[str, Any], output: Any, form: tuple[int, int], dilation: tuple[int, int] = (1, 1)
) -> tuple[list[Any], tuple[Any, Any, Any]]:
    """Put the inverse of a tile beside what reads it.

    Args:
        form: the rows of a tile, and the lines of tiles of a task.
        dilation: of a result that is written in place.

    Returns:
        The loops over images, tasks, blocks, lines, and every d-th row and column; those of a tile.
    """
    (tile, lines), (down, across) = form, dilation
    n, o, h, w, c = sch.get_loops(stages.get("pixels", output))
    task, y, row, phase = sch.split(h, [None, lines, tile, down])
    x, column, side = sch.split(w, [None, tile, across])
    sch.reorder(n, task, o, y, phase, side, x, row, column, c)
    sch.compute_at(stages["inverse"], x, preserve_unit_loops=True)
    return [n, task, o, y, phase, side], (row, column, c)


def schedule_result(
    sch: Any,
    stages: dict[str, Any],
    output: Any,
    loops: tuple[Any, Any, Any],
    lanes: int,
    line: Any,
    *,
    joins: bool = False,
) -> None:
    """Unroll a tile's inverse, by vectors of channels, and turn a line of tiles back.

    Args:
        loops: a tile's rows, columns and channels.
        line: the loop over lines of tiles.
        joins: the output joins images of a dilated window, in parallel when all are computed.
    """
    inverse, (row, column, c) = stages["inverse"], loops
    sch.set_scope(inverse, 0, "local")
    *_, points, rows, channels = sch.get_loops(inverse)
    for loop in (c, channels):
        vectorize(sch, loop, lanes)
    for loop in (row, column, points, rows):
        sch.unroll(loop)
    if "pixels" not in stages:
        return
    turned = stages["turned"]
    sch.reverse_compute_at(turned, line, preserve_unit_loops=True)
    *_, h, o, w = sch.get_loops(turned)
    width, dtype = int(sch.get(w).extent), str(sch.get(turned).writes[0].source.dtype)
    # Tiles that are joined later lie side by side in a whole line; else there is one at a time.
    fitting = (d for d in range(1, _TURNED + 1) if width % d == 0 and (not joins or fit_side_by_side(width, d, lanes)))
    together = max(fitting)
    across, w = sch.split(w, [None, together])
    vectors, lane = sch.split(o, [None, lanes])
    sch.reorder(h, across, vectors, lane, w)
    if not joins:
        sch.reverse_compute_at(output, across, preserve_unit_loops=True)
        vectorize(sch, sch.get_loops(output)[-1], min(turned_width(together, lanes), lanes))
    else:
        n, o, *_ = sch.get_loops(output)
        sch.parallel(sch.fuse(n, o))
    sch.unroll(vectors)
    turn(sch, line, lane, 5, together, lanes, dtype)
