"""Pooling: `pool2d_row.cpu` row by row, first down the columns, then across the row; `pool2d_channels.cpu` elsewhere.

The columns of all windows of a row are reduced once, by contiguous vectors without regard to the stride. Across,
a window's elements are a stride apart, which takes vectors and shuffles. Both steps of a row stay in the
first-level cache. In NHWC and with blocks of channels vectors are of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial, reduce
from itertools import product
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu.row import PARALLEL_BYTES, reduction
from strategy.layout import PLAIN, laid_out_index, plain, plain_index
from strategy.op_strategy import OpStrategy
from strategy.order import FLOATS, fold
from strategy.pattern import register_cpu_implementations
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    join_epilogue,
    lanes_of,
    new_schedule,
    start_schedule,
)
from strategy.space import Config, ConfigSpace, Knob, divisors
from strategy.target import Target
from strategy.types import TensorType, Type

_MOST_TASKS = 64
_LARGEST_WINDOW = 64  # elements, which are unrolled


def space(attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
    """The space: vector width, unrolling of both steps, and tasks of images."""
    data = inputs[0]
    dtype = accumulator(data.dtype)
    parallel = data.size * (8 if dtype == "float64" else 4) >= PARALLEL_BYTES
    images = int(data.shape[0]) * int(data.shape[1])
    return _space(images, lanes_of(target, dtype), target.threads if parallel else 1)


@lru_cache(maxsize=1024)
def _space(images: int, full: int, threads: int) -> ConfigSpace:
    tasks = tuple(d for d in divisors(images) if d <= _MOST_TASKS)
    return ConfigSpace(
        [
            Knob("lanes", tuple(x for x in (full // 4, full // 2, full) if x >= 1)),
            Knob("down_unroll", (1, 2, 4, 8)),
            Knob("unroll", (1, 2, 4, 8)),
            Knob("tasks", tasks),
        ],
        fallback={
            "lanes": full, "down_unroll": 2, "unroll": 1,
            "tasks": next((t for t in tasks if t % threads == 0), 1),
        },
    )


def compute(
    mean: bool, attrs: Any, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The reduction down the windows' columns, then across, and the output's part of it."""
    from tvm import te, tirx

    data, lanes = inputs[0], integer(config, "lanes")
    batch, channels, height, width = (int(d) for d in data.shape)
    *_, out_height, out_width = (int(d) for d in out_type.shape)
    found = reduction("sum" if mean else "max")
    dtype = accumulator(out_type.dtype)
    top, left, *_ = attrs.padding
    padded = -(-out_width // lanes) * lanes
    reach = (padded - 1) * attrs.strides[1] + (attrs.pool_size[1] - 1) * attrs.dilation[1] + 1

    def down(n: Any, c: Any, y: Any, x: Any) -> Any:
        def element(step: int) -> Any:
            row, column = y * attrs.strides[0] + step * attrs.dilation[0] - top, x - left
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            value = data(n, c, row, column)
            value = value if data.dtype == dtype else tirx.Cast(dtype, value)
            return tirx.if_then_else(inside, value, found.identity(dtype))

        return reduce(found.combine, [element(step) for step in range(attrs.pool_size[0])])

    def across(n: Any, c: Any, y: Any, x: Any) -> Any:
        first, step = x * attrs.strides[1], attrs.dilation[1]
        return reduce(found.combine, [columns(n, c, y, first + k * step) for k in range(attrs.pool_size[1])])

    def result(n: Any, c: Any, y: Any, x: Any) -> Any:
        value = rows(n, c, y, x)
        if mean:
            value = value / window_count(attrs, (height, width), (y, x), dtype)
        return value.astype(out_type.dtype)

    columns = compute_stage("down", (batch, channels, out_height, reach), down)
    rows = compute_stage("across", (batch, channels, out_height, padded), across)
    return [te.compute((batch, channels, out_height, out_width), result, name="pool2d")]


def window_count(attrs: Any, extents: Sequence[Any], window: tuple[Any, Any], dtype: str) -> Any:
    """The number of elements of a window's mean."""
    from tvm import tirx

    if not attrs.ceil_mode and (attrs.count_include_pad or not any(attrs.padding)):
        return tirx.const(attrs.pool_size[0] * attrs.pool_size[1], dtype)
    counts = []
    for axis in range(2):
        first = window[axis] * attrs.strides[axis] - attrs.padding[axis]
        steps = range(attrs.pool_size[axis])
        places = [first + k * attrs.dilation[axis] for k in steps]
        before, after = attrs.padding[axis::2] if attrs.count_include_pad else (0, 0)
        inside = [tirx.Cast("int32", tirx.all(p >= -before, p < extents[axis] + after)) for p in places]
        counts.append(fold(lambda a, b: a + b, inside))
    # At least one, which TVM does not know of the lanes beyond the windows: by 0 it divides while it compiles.
    return tirx.Cast(dtype, tirx.max(counts[0] * counts[1], 1))


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Schedule tasks of images, row after row."""
    sch, stages, output = start_schedule(outs)
    lanes, tasks = integer(config, "lanes"), integer(config, "tasks")
    batch, channel, y, x = sch.get_loops(output)
    task, _ = sch.split(sch.fuse(batch, channel), [tasks, None])
    if tasks > 1:
        sch.parallel(task)
    _, several, lane = sch.split(x, [None, integer(config, "unroll"), lanes])
    sch.compute_at(stages["across"], several, preserve_unit_loops=True)
    sch.compute_at(stages["down"], y, preserve_unit_loops=True)
    sch.set_scope(stages["across"], 0, "local")
    sch.unroll(several)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(stages["across"])[-1])
    _, several, lane = sch.split(
        sch.get_loops(stages["down"])[-1], [None, integer(config, "down_unroll"), lanes]
    )
    sch.unroll(several)
    sch.vectorize(lane)
    return sch


def channels_space(attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """The space where channels lie together: vector width, vectors at a time, and tasks of rows of windows."""
    data = inputs[0]
    dtype = accumulator(data.dtype)
    parallel = data.size * (8 if dtype == "float64" else 4) >= PARALLEL_BYTES
    *outer, _, channels = (int(d) for d in out_type.shape)
    return _channels_space(math.prod(outer), channels, lanes_of(target, dtype), target.threads if parallel else 1)


@lru_cache(maxsize=1024)
def _channels_space(rows: int, channels: int, full: int, threads: int) -> ConfigSpace:
    tasks = tuple(d for d in divisors(rows) if d <= _MOST_TASKS)
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    vectors = tuple(v for v in (1, 2, 4, 8) if (v - 1) * lanes[0] < channels)
    return ConfigSpace(
        [Knob("lanes", lanes), Knob("vectors", vectors), Knob("tasks", tasks)],
        fallback={
            "lanes": full, "vectors": max(v for v in vectors if v == 1 or (v <= 2 and v * full <= channels)),
            "tasks": next((t for t in tasks if t % threads == 0), next((t for t in tasks if t >= threads), 1)),
        },
    )


def compute_channels(mean: bool, attrs: Any, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """All elements of a window at once, of images whose channels lie together."""
    from tvm import te, tirx

    (data,) = inputs
    _, _, height, width = plain([int(d) for d in data.shape], attrs.layout)
    found = reduction("sum" if mean else "max")
    dtype = accumulator(out_type.dtype)

    def pooled(*index: Any) -> Any:
        n, c, y, x = plain_index(index, attrs.layout)

        def element(down: int, across: int) -> Any:
            row = y * attrs.strides[0] + down * attrs.dilation[0] - attrs.padding[0]
            column = x * attrs.strides[1] + across * attrs.dilation[1] - attrs.padding[1]
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            value = data(*laid_out_index((n, c, row, column), attrs.layout))
            value = value if data.dtype == dtype else tirx.Cast(dtype, value)
            return tirx.if_then_else(inside, value, found.identity(dtype))

        value = reduce(found.combine, [element(i, j) for i, j in product(*map(range, attrs.pool_size))])
        if mean:
            value = value / window_count(attrs, (height, width), (y, x), dtype)
        return value.astype(out_type.dtype)

    return [te.compute([int(d) for d in out_type.shape], pooled, name="pool2d")]


def schedule_channels(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    """Schedule tasks of rows of windows, and vectors of channels."""
    sch = new_schedule(outs)
    *rows, _, channel = sch.get_loops(join_epilogue(sch))
    tasks = integer(config, "tasks")
    task, _ = sch.split(sch.fuse(*rows), [tasks, None])
    if tasks > 1:
        sch.parallel(task)
    _, several, lane = sch.split(channel, [None, integer(config, "vectors"), integer(config, "lanes")])
    sch.unroll(several)
    sch.vectorize(lane)
    return sch


def register_pool2d_rows(name: str, *, mean: bool) -> None:
    """Register pooling row by row, of means or maxima, and by vectors of channels where these lie together.

    Args:
        name: an operator with the attributes of pooling, whose strategy `register_schedule` made.
    """

    def add(strategy: OpStrategy, attrs: Any, inputs: Sequence[TensorType], out_type: Type, target: Target) -> None:
        data = inputs[0]
        known = all(d.is_constant and int(d) >= 1 for d in data.shape)
        if known and data.dtype in FLOATS and attrs.pool_size[0] * attrs.pool_size[1] <= _LARGEST_WINDOW:
            rows = partial(compute, mean), schedule, "pool2d_row.cpu"
            channels = partial(compute_channels, mean), schedule_channels, "pool2d_channels.cpu"
            if attrs.layout == PLAIN:
                strategy.add_implementation(*rows, 12, version=2, space=space, symbolic=False)
            else:
                strategy.add_implementation(*channels, 12, space=channels_space, symbolic=False)

    register_cpu_implementations(name, add)
