"""Common parts of operators over rows: a row is the contiguous elements along the last axis.

A row is reduced into `chains` vectors of accumulators, to hide the latency of additions; these are combined as a
tree, first vectors, then the lanes of one. All steps of a row run while it is in the cache, and tasks of rows in
parallel.
"""
# Over 300 lines: one way to take rows, as computation, space and schedule.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strategy import order
from strategy.attrs import Attrs
from strategy.op_strategy import OpStrategy
from strategy.pattern import register_cpu_implementations
from strategy.schedule import (
    Outs,
    accumulator,
    compute_stage,
    integer,
    lanes_of,
    stage,
    start_schedule,
    sum_in_tile,
    zero_beyond,
)
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import Dim, TensorType, Type

# Number of bytes from which a second thread pays.
PARALLEL_BYTES = 1 << 17
MOST_TASKS = 64


@dataclass(frozen=True)
class Reduction:
    """A commutative reduction: the combination of two expressions, and its identity.

    `join` combines parts reduced by threads, vectors or lanes.
    """

    combine: Callable[[Any, Any], Any]
    identity: Callable[[str], Any]
    join: Callable[[Sequence[Any]], Any]


def reduction(name: str) -> Reduction:
    """The reduction of a name: sum, prod, max, min, or `max_number`, which may lose NaN."""
    from tvm import tirx

    # TVM inspects the number of parameters, which its own maximum leaves open.
    def plain(combine: Callable[[Any, Any], Any], identity: Callable[[str], Any]) -> Reduction:
        return Reduction(combine, identity, lambda parts: order.fold(combine, parts))

    def extreme(combine: Callable[[Any, Any], Any], end: Callable[[str], Any], of_numbers: Any) -> Reduction:
        return Reduction(combine, end, lambda parts: order.join(lambda a, b: of_numbers(a, b), parts))  # noqa: PLW0108

    # LLVM's maximum returns its second operand if one is NaN, so only `value` must be checked.
    def larger(kept: Any, value: Any) -> Any:
        return tirx.Select(order.is_number(value), tirx.max(value, kept), value)

    def smaller(kept: Any, value: Any) -> Any:
        return tirx.Select(order.is_number(value), tirx.min(value, kept), value)

    return {
        "sum": lambda: plain(lambda a, b: a + b, lambda dtype: tirx.const(0, dtype)),
        "prod": lambda: plain(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype)),
        "max": lambda: extreme(larger, order.lowest, tirx.max),
        "min": lambda: extreme(smaller, order.highest, tirx.min),
        "max_number": lambda: plain(lambda a, b: tirx.max(a, b), order.lowest),  # noqa: PLW0108
    }[name]()


def reduce_row(
    how: str,
    rows: Sequence[Any],
    extent: int,
    dtype: str,
    read: Callable[..., Any],
    config: Config,
    name: str,
    finish: Callable[[Any], Any] = lambda total: total,
) -> Any:
    """The reduction of each row, a tensor over `rows`; `schedule_rows` knows its stages by `name`.

    Args:
        how: the reduction, by name or as a value of `reduction`.
        rows: the extents of the axes of rows.
        extent: the number of elements of a row.
        read: returns an element, given the row's indices and its own.
        finish: applied to the total.
    """
    from tvm import te, tirx

    found = reduction(how)
    lanes, chains = integer(config, "lanes"), integer(config, "chains")
    width = lanes * chains
    step = te.reduce_axis((0, -(-extent // width)), name="step")
    reducer = te.comm_reducer(found.combine, found.identity, name=how)

    def partial(*index: Any) -> Any:
        *row, place = index
        element = step * width + place
        value = read(*row, element)
        if extent % width:
            value = tirx.if_then_else(element < extent, value, found.identity(dtype))
        return reducer(value, axis=step)

    def vector(*index: Any) -> Any:
        *row, lane = index
        return found.join([partials(*row, c * lanes + lane) for c in range(chains)])

    def total(*row: Any) -> Any:
        return finish(found.join([vectors(*row, lane) for lane in range(lanes)]))

    partials = te.compute((*rows, width), partial, name=f"{name}_partial", attrs=stage(f"{name}.partial"))
    vectors = te.compute((*rows, lanes), vector, name=f"{name}_vector", attrs=stage(f"{name}.vector"))
    return te.compute(tuple(rows), total, name=f"{name}_total", attrs=stage(f"{name}.total"))


def row_space(inputs: Sequence[TensorType], target: Target) -> ConfigSpace:
    """The space: vector width, chains of accumulators, unrolling of both kinds of loops, and tasks."""
    *leading, last = inputs[0].shape
    rows = constant_size(leading)
    extents = None if rows is None else tuple(map(int, leading))
    dtype = accumulator(inputs[0].dtype)
    parallel = rows is None or rows * int(last) * (8 if dtype == "float64" else 4) >= PARALLEL_BYTES
    return _row_space(extents, int(last), lanes_of(target, dtype), target.threads, parallel)


@lru_cache(maxsize=1024)
def _row_space(
    leading: tuple[int, ...] | None, extent: int, full: int, threads: int, parallel: bool
) -> ConfigSpace:
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    tasks = task_counts(leading)
    if leading is not None:
        tasks = tuple(sorted({*tasks, math.prod(leading)}))

    def fallback() -> dict[str, Any]:
        vectors = max(1, extent // full)
        shared = [t for t in tasks if t % threads == 0] or [t for t in tasks if t > threads] or [1]
        return {
            "lanes": full, "chains": max(c for c in (1, 2, 4) if c <= vectors), "unroll": 1,
            "out_lanes": full, "out_unroll": max(u for u in (1, 2, 4) if u <= vectors),
            "tasks": shared[0] if parallel else 1,
        }

    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("chains", (1, 2, 4, 8)),
            Knob("unroll", (1, 2, 4)),
            Knob("out_lanes", lanes),
            Knob("out_unroll", (1, 2, 4, 8)),
            Knob("tasks", tasks),
        ],
        [knob("chains") * knob("unroll") <= 16],
        derived={"width": knob("lanes") * knob("chains")},
        fallback=fallback,
    )


def constant_size(extents: Sequence[Dim]) -> int | None:
    """The number of elements, None if an extent is symbolic."""
    return math.prod(int(d) for d in extents) if all(d.is_constant for d in extents) else None


def task_counts(leading: Sequence[int] | None, parts: int = 1) -> tuple[int, ...]:
    """Possible numbers of tasks of rows: divisors, or any number if rows are symbolic.

    A task's rows are whole inner axes, or a part of one: TVM schedules no others, whose indices are not affine.

    Args:
        leading: the extents of the axes of rows; None if one is symbolic.
        parts: of a row, which may be tasks of their own.
    """
    if leading is None:
        return tuple(range(1, MOST_TASKS + 1))
    rows = math.prod(leading)
    inner = [math.prod(leading[axis:]) for axis in range(1, len(leading))]

    def whole(share: int) -> bool:
        return all(share % extent == 0 or extent % share == 0 for extent in inner)

    return tuple(
        d for d in divisors(rows * parts)
        if d <= MOST_TASKS and (d % rows == 0 or (rows % d == 0 and whole(rows // d)))
    )


def rowwise(axis: int, inputs: Sequence[TensorType]) -> bool:
    """True if `axis` is the last of at least two, with a constant extent, and no extent is known to be 0."""
    data = inputs[0]
    if data.ndim < 2 or axis % data.ndim != data.ndim - 1 or not data.shape[-1].is_constant:
        return False
    return all(int(d) >= 1 for d in data.shape if d.is_constant)


def row_extents(tensor: Any) -> tuple[list[Any], int]:
    """The extents of a TE tensor's axes of rows, which may be symbolic, and of a row."""
    *rows, extent = tensor.shape
    return rows, int(extent)


def reduction_accumulator(dtype: str) -> str:
    """The dtype in which numbers of this dtype are reduced; integers in their own."""
    return dtype if dtype.startswith("int") else accumulator(dtype)


def reader(tensor: Any, dtype: str) -> Callable[..., Any]:
    """The elements of a tensor, converted to `dtype`."""
    from tvm import tirx

    return lambda *index: tensor(*index) if tensor.dtype == dtype else tirx.Cast(dtype, tensor(*index))


def keep_row(rows: Sequence[Any], extent: int, value: Callable[..., Any], config: Config, name: str) -> Any:
    """Values of a row that are read more than once, padded by zeros to whole vectors.

    The padding makes bound checks of readers unnecessary.
    """
    lanes, unroll = integer(config, "out_lanes"), integer(config, "out_unroll")
    width = max(integer(config, "lanes") * integer(config, "chains"), lanes * unroll)

    def element(*index: Any) -> Any:
        return zero_beyond(value(*index), index[-1], extent, width)

    return compute_stage(name, (*rows, -(-extent // width) * width), element)


def schedule_rows(outs: Outs, config: Config) -> Any:
    """Schedule rows in tasks, and the stages of a row one after the other, the output last."""
    sch, stages, output = start_schedule(outs)
    *leading, elements = sch.get_loops(output)
    extent = int(sch.get(elements).extent)
    row = schedule_tasks(sch, leading, config)
    for block in reversed(stages.values()):
        sch.compute_at(block, row, preserve_unit_loops=True)
    schedule_stages(sch, stages, config, extent)
    schedule_elements(sch, output, config)
    return sch


def schedule_tasks(sch: Any, leading: Sequence[Any], config: Config) -> Any:
    """Make the loops over rows parallel tasks; return the loop over a task's rows.

    If the number of rows is symbolic, only the outermost axis is split into tasks.
    """
    from tvm import tirx

    known = all(isinstance(sch.get(loop).extent, tirx.IntImm) for loop in leading)
    outer, *inner = [sch.fuse(*leading)] if known else leading
    tasks = integer(config, "tasks")
    task, row = sch.split(outer, [tasks, None])
    if tasks > 1:
        sch.parallel(task)
    return inner[-1] if inner else row


def schedule_stages(sch: Any, stages: dict[str, Any], config: Config, extent: int | None = None) -> None:
    """The stages of a row of that extent, once they stand in its loop."""
    for name, block in stages.items():
        if name.endswith(".partial"):
            schedule_partial(sch, block, config, extent)
        elif name.endswith(".vector"):
            sch.set_scope(block, 0, "local")
            sch.vectorize(sch.get_loops(block)[-1])
        elif name.endswith(".total"):
            sch.set_scope(block, 0, "local")
        else:
            schedule_elements(sch, block, config, extent)


def schedule_partial(sch: Any, block: Any, config: Config, extent: int | None = None) -> None:
    """Schedule the accumulators of a row, in registers over all of its steps."""
    sch.set_scope(block, 0, "local")
    *_, width, steps = sch.get_loops(block)
    chains = sch.split(width, [None, integer(config, "lanes")])
    outer = sum_in_tile(sch, block, chains, steps, integer(config, "unroll"))
    group = integer(config, "chains") * integer(config, "lanes") * integer(config, "unroll")
    part_whole(sch, outer, (extent or 0) // group)


def part_whole(sch: Any, loop: Any, whole: int) -> None:
    """Make a loop of its own of the first turns, those that need no mask."""
    if 0 < whole < int(sch.get(loop).extent):
        sch.loop_partition(loop, [whole, None])


def schedule_elements(sch: Any, block: Any, config: Config, extent: int | None = None) -> None:
    """A loop over a row's elements, in vectors; what is masked at the end of `extent` in a loop of its own."""
    *_, elements = sch.get_loops(block)
    lanes, unroll = integer(config, "out_lanes"), integer(config, "out_unroll")
    count = int(sch.get(elements).extent)
    outer, several, vector = sch.split(elements, [None, unroll, lanes])
    sch.unroll(several)
    sch.vectorize(vector)
    part_whole(sch, outer, (extent or count) // (lanes * unroll))


def register_rows(name: str, compute: Any) -> None:
    """Add `NAME_row.cpu`: `compute` row by row, of rows along the operator's `axis`."""

    def space(attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
        return row_space(inputs, target)

    def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
        return schedule_rows(outs, config)

    def add(strategy: OpStrategy, attrs: Any, inputs: Any, out_type: Type, target: Target) -> None:
        if rowwise(attrs.axis, inputs):
            strategy.add_implementation(compute, schedule, f"{name}_row.cpu", 12, version=2, space=space)

    register_cpu_implementations(name, add)
