"""`adaptive_pool2d_row.cpu`: rows of windows first down their columns by vectors, then across.

Windows of an axis differ by at most a pixel: a window is as many pixels as the shortest has, without a check, and
one that is chosen. Across, an unrolled row has constant places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from strategy.cpu.row import PARALLEL_BYTES, reader, reduction
from strategy.layout import PLAIN
from strategy.op_strategy import OpStrategy
from strategy.ops.adaptive_pool2d.operator import AdaptivePool2DAttrs, begin, end, lengths
from strategy.order import FLOATS
from strategy.pattern import register_cpu_implementations
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    start_schedule,
    vectorize,
)
from strategy.space import Config, ConfigSpace, Knob, divisors
from strategy.target import Target
from strategy.types import TensorType

_MOST_TASKS = 64
_WHOLE = 4  # vectors of a row that is written without a mask at its end
_LONGEST_WINDOW = 64  # pixels of an axis, whose terms are unrolled
_MOST_UNROLLED = 512  # terms of a row of windows


def space(
    attrs: AdaptivePool2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Vector width, and the number of parallel tasks of rows of windows."""
    (data,) = inputs
    dtype = accumulator(data.dtype)
    full = lanes_of(target, dtype)
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    rows = math.prod(out_type.concrete_shape[: attrs.layout.index("H") + 1])
    tasks = tuple(d for d in divisors(rows) if d <= _MOST_TASKS)
    parallel = data.size * (8 if dtype == "float64" else 4) >= PARALLEL_BYTES
    threads = target.threads if parallel else 1
    return ConfigSpace(
        [Knob("lanes", lanes), Knob("tasks", tasks)],
        fallback={"lanes": full, "tasks": next((t for t in tasks if t % threads == 0), 1)},
    )


def compute(
    mean: bool, attrs: AdaptivePool2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """The reduction down the windows' columns, then across them, and the mean's division."""
    from tvm import te, tirx

    (data,) = inputs
    dtype = accumulator(out_type.dtype)
    found = reduction("sum" if mean else "max")
    shape = [int(d) for d in data.shape]

    def pooled(read: Any, axis: int, index: Sequence[Any]) -> Any:
        """The reduction along an axis of the layout of the window that an index counts."""
        extent, size, i = shape[axis], out_type.concrete_shape[axis], index[axis]
        (shortest, longest), first = lengths(extent, size), begin(i, extent, size)

        def at(place: Any) -> Any:
            return read(*index[:axis], place, *index[axis + 1 :])

        values = [at(first + k) for k in range(shortest)]
        if longest > shortest:
            last = first + shortest
            inside = last < end(i, extent, size)
            values.append(tirx.Select(inside, at(tirx.min(last, extent - 1)), found.identity(dtype)))
        return found.join(values)

    height, width = attrs.layout.index("H"), attrs.layout.index("W")
    columns = compute_stage(
        "down", [*shape[:height], out_type.concrete_shape[height], *shape[height + 1 :]],
        lambda *index: pooled(reader(data, dtype), height, index),
    )

    def result(*index: Any) -> Any:
        value = pooled(columns, width, index)
        if mean:
            counts = [
                end(index[axis], shape[axis], size) - begin(index[axis], shape[axis], size)
                for axis, size in zip((height, width), attrs.output_size, strict=True)
            ]
            value = value / (counts[0] * counts[1]).astype(dtype)
        return value.astype(out_type.dtype)

    return [te.compute(out_type.concrete_shape, result, name="adaptive_pool2d")]


def schedule(attrs: AdaptivePool2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of rows of windows in parallel; a row that is reduced down stays in the first-level cache."""
    sch, stages, output = start_schedule(outs)
    height, lanes, tasks = attrs.layout.index("H"), integer(config, "lanes"), integer(config, "tasks")
    loops = sch.get_loops(output)
    across = loops[height + 1]
    task, row = sch.split(sch.fuse(*loops[: height + 1]), [tasks, None])
    sch.compute_at(stages["down"], row, preserve_unit_loops=True)
    if tasks > 1:
        sch.parallel(task)
    columns = sch.get_loops(stages["down"])[-1]
    width, size = int(sch.get(columns).extent), int(sch.get(across).extent)
    # Stores with a mask are not forwarded to the loads across.
    vectorize(sch, columns, width if width <= _WHOLE * lanes else lanes)
    if attrs.layout == PLAIN:
        if width + size <= _MOST_UNROLLED:
            sch.unroll(across)
    else:
        _, lane = sch.split(loops[-1], [None, lanes])
        sch.vectorize(lane)
    return sch


def _add(
    mean: bool, strategy: OpStrategy, attrs: AdaptivePool2DAttrs, inputs: Sequence[TensorType], out_type: TensorType,
    target: Target,
) -> None:
    (data,) = inputs
    if data.dtype not in FLOATS or not all(d.is_constant and int(d) >= 1 for d in data.shape):
        return
    axes = [attrs.layout.index(axis) for axis in "HW"]
    longest = [
        lengths(int(data.shape[axis]), size)[1] for axis, size in zip(axes, attrs.output_size, strict=True)
    ]
    if max(longest) <= _LONGEST_WINDOW:
        strategy.add_implementation(
            partial(compute, mean), schedule, "adaptive_pool2d_row.cpu", 12, space=space, symbolic=False
        )


register_cpu_implementations("adaptive_avg_pool2d", partial(_add, True))
register_cpu_implementations("adaptive_max_pool2d", partial(_add, False))
