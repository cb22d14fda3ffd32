"""`resize2d_row.cpu`: rows between those of the image by vectors, and pixels between those of a row.

Across first, places and weights of the pixels of a row are constants of an unrolled loop, of shuffles where the row
fits registers, and rows between those of the wide image are vectors. Down first, for rows that are too long, places and
weights are computed once for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cpu.row import PARALLEL_BYTES
from strategy.op_strategy import OpStrategy
from strategy.ops.resize2d.operator import Resize2DAttrs, inside, interpolate, neighbours
from strategy.pattern import register_cpu_implementations
from strategy.schedule import Outs, compute_stage, integer, lanes_of, start_schedule, vectorize
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType

_MOST_TASKS = 64
_IN_REGISTERS = 4  # vectors of a row that is shuffled
_MOST_UNROLLED = 1024  # terms of a row's pixels


def space(attrs: Resize2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Vector widths of both steps, which step is first, and the number of parallel tasks of rows if it is that down."""
    rows, full = out_type.size // attrs.size[1], lanes_of(target, "float32")
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    tasks = tuple(d for d in divisors(rows) if d <= _MOST_TASKS)
    threads = target.threads if 4 * out_type.size >= PARALLEL_BYTES else 1
    images, wide_bytes = rows // attrs.size[0], 4 * int(inputs[0].shape[2]) * attrs.size[1]
    whole = _taps(attrs) * attrs.size[1] <= _MOST_UNROLLED and wide_bytes <= target.l2_bytes // 2
    across = whole and (images % threads == 0 or images >= 4 * threads)
    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("down_lanes", lanes),
            Knob("across_first", (False, True) if whole else (False,)),
            Knob("tasks", tasks),
        ],
        # Across first a task is an image, and a row's pixels are unrolled.
        [knob("across_first") * (knob("tasks") - 1 + full - knob("lanes")) == 0],
        fallback={
            "lanes": full, "down_lanes": full, "across_first": across,
            "tasks": 1 if across else next((t for t in tasks if t % threads == 0), 1),
        },
    )


def _taps(attrs: Resize2DAttrs) -> int:
    return 2 if attrs.method == "linear" else 4


def compute(
    attrs: Resize2DAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    """Pixels of each row of the image, then rows between them, or the other way around."""
    from tvm import te, tirx

    (data,) = inputs
    batch, channels, height, width = (int(d) for d in data.shape)
    dtype, size, taps = "float64" if data.dtype == "float64" else "float32", attrs.size[1], _taps(attrs)

    def down(image: Any, n: Any, c: Any, y: Any, x: Any) -> Any:
        rows = neighbours(attrs, 0, y.astype("int64"), height, dtype)
        return interpolate(lambda row: image(n, c, inside(row, height), x).astype(dtype), rows)

    def across(n: Any, c: Any, y: Any, x: Any) -> Any:
        columns = neighbours(attrs, 1, x.astype("int64"), width, dtype)
        return interpolate(lambda column: data(n, c, y, inside(column, width)).astype(dtype), columns)

    if config["across_first"]:
        wide = compute_stage("across", (batch, channels, height, size), across)
        return [
            te.compute(
                (batch, channels, *attrs.size), lambda *i: down(wide, *i).astype(out_type.dtype), name="resize2d"
            )
        ]

    def table(part: int) -> Any:
        def entry(tap: Any, x: Any) -> Any:
            found = neighbours(attrs, 1, x.astype("int64"), width, dtype)
            values = [inside(place, width).astype("int32") if part == 0 else weight for place, weight in found]
            chosen = values[0]
            for n, value in enumerate(values[1:], 1):
                chosen = tirx.Select(tap == n, value, chosen)
            return chosen

        name = ("places", "weights")[part]
        return compute_stage(name, (taps, size), entry)

    places, weights = table(0), table(1)
    rows = compute_stage("down", (batch, channels, attrs.size[0], width), lambda *i: down(data, *i))

    def element(n: Any, c: Any, y: Any, x: Any) -> Any:
        columns = [(places[tap, x], weights[tap, x]) for tap in range(taps)]
        # A place is within the row; TVM sees it by the bounds.
        return interpolate(lambda column: rows(n, c, y, inside(column, width)), columns).astype(out_type.dtype)

    return [te.compute((batch, channels, *attrs.size), element, name="resize2d")]


def schedule(attrs: Resize2DAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Tasks of images or of rows in parallel; what the first step makes stays in cache."""
    sch, stages, output = start_schedule(outs)
    *rows, x = sch.get_loops(output)
    if config["across_first"]:
        image = sch.fuse(*rows[:2])
        sch.compute_at(stages["across"], image, preserve_unit_loops=True)
        sch.parallel(image)
        *_, row, column = sch.get_loops(stages["across"])
        if int(outs.args[0].shape[3]) <= _IN_REGISTERS * lanes_of(target, "float32"):
            # Read at constant places, a row in registers is shuffled; stores with a mask are not forwarded to loads.
            kept = sch.cache_read(stages["across"], 0, "local")
            sch.compute_at(kept, row, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(kept)[-1])
            vectorize(sch, column, max(d for d in divisors(attrs.size[1]) if d <= integer(config, "lanes")))
        else:
            sch.unroll(column)
        _, lane = sch.split(x, [None, integer(config, "down_lanes")])
        sch.vectorize(lane)
        return sch
    tasks = integer(config, "tasks")
    task, row = sch.split(sch.fuse(*rows), [tasks, None])
    sch.compute_at(stages["down"], row, preserve_unit_loops=True)
    if tasks > 1:
        sch.parallel(task)
    vectorize(sch, sch.get_loops(stages["down"])[-1], integer(config, "down_lanes"))
    _, lane = sch.split(x, [None, integer(config, "lanes")])
    sch.vectorize(lane)
    return sch


def _add(
    strategy: OpStrategy, attrs: Resize2DAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    known = all(d.is_constant and int(d) >= 1 for d in inputs[0].shape)
    if known and attrs.method != "nearest_neighbor":
        strategy.add_implementation(
            compute, schedule, "resize2d_row.cpu", 12, version=3, space=space, symbolic=False
        )


register_cpu_implementations("resize2d", _add)
