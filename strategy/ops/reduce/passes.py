"""`reduce_row.cpu` and `reduce_column.cpu` of reductions whose second pass reads what the first has found.

Such are variance, standard deviation, logsumexp, and the places of the largest and the smallest element. Rows are of
the last axes, as those of `row.py`; columns of other axes that are next to each other, as those of `column.py`. Both
passes over a row, or over some columns, are by one task, so that the second finds in the cache what the first has read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from strategy.cpu.loop import allocate, fill, run_tasks, written
from strategy.cpu.row import (
    PARALLEL_BYTES,
    constant_size,
    reduce_row,
    reduction,
    schedule_stages,
    schedule_tasks,
    task_counts,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.reduce.operator import ReduceAttrs, reduced_axes
from strategy.pattern import extents_of, register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import (
    Outs,
    compute_stage,
    dtype_bytes,
    integer,
    lanes_of,
    start_schedule,
)
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_MOST = 2**31  # elements that an int32 counts


@dataclass(frozen=True)
class Passes:
    """A reduction in one pass or two, by functions of expressions; `count` is the number of elements.

    Attributes:
        dtype: the dtype of what is reduced, for that of the data.
        number: what is reduced of an element, in that dtype.
        first: the first pass, a name of `reduction`.
        between: `(total, count)`: what the second pass takes.
        second: the second pass, or None.
        term: `(number, taken, place)`: what the second pass reduces.
        result: `(attrs, total of the last pass, taken, count)`.
    """

    dtype: Callable[[str], str]
    number: Callable[[Any, str], Any]
    first: str
    result: Callable[[Any, Any, Any, int], Any]
    between: Callable[[Any, int], Any] = lambda total, count: total
    second: str | None = None
    term: Callable[[Any, Any, Any], Any] = lambda number, taken, place: number


def converted(value: Any, dtype: str) -> Any:
    """`Passes.number` of elements as they are."""
    from tvm import tirx

    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _rows(attrs: ReduceAttrs, shape: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The extents that stay, which may be symbolic, and those that are reduced, the last."""
    first = min(reduced_axes(attrs, len(shape)))
    return list(shape[:first]), [int(d) for d in shape[first:]]


def _columns(attrs: ReduceAttrs, shape: Sequence[Any]) -> tuple[int, int, int]:
    """Numbers of elements before the reduced axes, along them, and behind them."""
    axes, extents = reduced_axes(attrs, len(shape)), [int(d) for d in shape]
    return math.prod(extents[: axes[0]]), math.prod(extents[axes[0] : axes[-1] + 1]), math.prod(extents[axes[-1] + 1 :])


def row_space(
    passes: Passes, attrs: ReduceAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Vectors, chains of accumulators, unrolling, and tasks."""
    (data,) = inputs
    kept, reduced = _rows(attrs, data.shape)
    rows, row = constant_size(kept), math.prod(reduced)
    extents = None if rows is None else tuple(map(int, kept))
    parallel = rows is None or rows * row * dtype_bytes(data.dtype) >= PARALLEL_BYTES
    return _row_space(extents, row, lanes_of(target, passes.dtype(data.dtype)), target.threads if parallel else 1)


@lru_cache(maxsize=1024)
def _row_space(leading: tuple[int, ...] | None, row: int, full: int, threads: int) -> ConfigSpace:
    tasks = task_counts(leading)

    def fallback() -> dict[str, Any]:
        vectors = max(1, row // full)
        return {
            "lanes": full, "chains": max(c for c in (1, 2, 4) if c <= vectors), "unroll": 1,
            "tasks": next((t for t in tasks if t % threads == 0), 1),
        }

    return ConfigSpace(
        [
            Knob("lanes", tuple(x for x in (full // 4, full // 2, full) if x >= 1)),
            Knob("chains", (1, 2, 4, 8)),
            Knob("unroll", (1, 2, 4)),
            Knob("tasks", tasks),
        ],
        [knob("chains") * knob("unroll") <= 16],
        derived={"width": knob("lanes") * knob("chains")},
        fallback=fallback,
    )


def _compute_row(
    passes: Passes, attrs: ReduceAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    from tvm import te

    (data,) = inputs
    kept, reduced = _rows(attrs, data.shape)
    row, dtype = math.prod(reduced), passes.dtype(str(data.dtype))
    rows = [*kept, 1]  # a result of all elements has a loop, too

    def read(*index: Any) -> Any:
        *place, _, flat = index
        inner = row
        for extent in reduced:
            inner //= extent
            place.append(flat // inner)
            flat = flat % inner
        return passes.number(data(*place), dtype)

    taken = total = reduce_row(
        passes.first, rows, row, dtype, read, config, "first", lambda found: passes.between(found, row)
    )
    if passes.second is not None:
        total = reduce_row(
            passes.second, rows, row, dtype, lambda *i: passes.term(read(*i), taken(*i[:-1]), i[-1]), config, "second"
        )
    outcome = compute_stage(
        "outcome", rows, lambda *i: converted(passes.result(attrs, total(*i), taken(*i), row), out_type.dtype)
    )
    return [te.compute(extents_of(out_type, inputs), lambda *i: outcome(*i[: len(kept)], 0), name="reduced")]


def _schedule_row(attrs: ReduceAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Rows in tasks, and the stages of a row one after the other."""
    sch, stages, output = start_schedule(outs)
    outcome = stages.pop("outcome")
    row = schedule_tasks(sch, sch.get_loops(outcome), config)
    for block in reversed(stages.values()):
        sch.compute_at(block, row, preserve_unit_loops=True)
    sch.reverse_compute_at(output, row, preserve_unit_loops=True)
    _, reduced = _rows(attrs, outs.args[0].shape)
    schedule_stages(sch, stages, config, math.prod(reduced))
    return sch


def column_space(
    passes: Passes, attrs: ReduceAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> ConfigSpace:
    """Lanes and vectors of a block of columns, unrolling, and threads or none."""
    (data,) = inputs
    parallel = data.size * dtype_bytes(data.dtype) >= PARALLEL_BYTES
    return _column_space(
        *_columns(attrs, data.shape), lanes_of(target, passes.dtype(data.dtype)), target.threads if parallel else 1
    )


@lru_cache(maxsize=1024)
def _column_space(count: int, extent: int, columns: int, full: int, threads: int) -> ConfigSpace:
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    vectors = tuple(v for v in (1, 2, 4, 8) if (v - 1) * lanes[0] < columns)

    def fallback() -> dict[str, Any]:
        wide = [v for v in vectors if v <= 4 and (v == 1 or (v - 1) * full < columns)]
        shared = [v for v in wide if count * -(-columns // (v * full)) % threads == 0]
        return {"lanes": full, "vectors": max(shared or wide[:1]), "unroll": 1, "parallel": threads > 1}

    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("vectors", vectors),
            Knob("unroll", tuple(u for u in (1, 2, 4) if extent % u == 0)),
            Knob("parallel", (False, True)),
        ],
        [knob("vectors") * knob("unroll") <= 16],
        derived={"width": knob("lanes") * knob("vectors")},
        fallback=fallback,
    )


def _compute_column(
    passes: Passes, attrs: ReduceAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    return written(lambda ins, out: _loops(passes, attrs, ins[0], out, config), inputs, out_type, "reduced")


def _loops(passes: Passes, attrs: ReduceAttrs, data: Any, out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    count, extent, columns = _columns(attrs, data.shape)
    lanes, vectors, unroll = (integer(config, name) for name in ("lanes", "vectors", "unroll"))
    width, dtype = lanes * vectors, passes.dtype(str(data.dtype))
    blocks = -(-columns // width)
    source, result = script.buffer_proxy(data), script.buffer_proxy(out)

    def take_columns(task: Any) -> None:
        taken, total = allocate(width, dtype), allocate(width, dtype)

        def each(step: Callable[[Any], None]) -> None:
            with script.unroll(0, vectors) as vector, script.vectorized(0, lanes) as lane:
                step(vector * lanes + lane)

        def column(x: Any) -> Any:
            return task % blocks * width + x

        def read(j: Any, x: Any) -> Any:
            found = passes.number(source[(task // blocks * extent + j) * columns + column(x)], dtype)
            if columns % width == 0:
                return found
            return tirx.if_then_else(column(x) < columns, found, tirx.const(0, dtype))

        def pass_over(how: str, kept: Any, term: Callable[[Any, Any], Any]) -> None:
            found = reduction(how)
            each(lambda x: fill(kept, x, found.identity(dtype)))
            with script.serial(0, extent // unroll) as outer, script.unroll(0, unroll) as inner:
                j = outer * unroll + inner
                each(lambda x: fill(kept, x, found.combine(kept[x], term(j, x))))

        pass_over(passes.first, taken, read)
        each(lambda x: fill(taken, x, passes.between(taken[x], extent)))
        last = taken
        if passes.second is not None:
            pass_over(passes.second, total, lambda j, x: passes.term(read(j, x), taken[x], j))
            last = total
        # One by one, as TVM stores no vectors of comparisons.
        with script.serial(0, tirx.min(columns - task % blocks * width, width)) as x:
            found = passes.result(attrs, last[x], taken[x], extent)
            result[task // blocks * columns + column(x)] = converted(found, str(out.dtype))

    return run_tasks(count * blocks, take_columns, parallel=bool(config["parallel"]))


def register_passes(name: str, passes: Passes) -> None:
    """Add both implementations to a reduction, of all dtypes that its types accept."""

    def add(
        strategy: OpStrategy, attrs: ReduceAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
    ) -> None:
        (data,) = inputs
        axes = reduced_axes(attrs, data.ndim)
        if not axes or not all(int(d) >= 1 for d in data.shape if d.is_constant):
            return
        together = axes == tuple(range(axes[0], axes[-1] + 1))
        if not together or not all(data.shape[a].is_constant for a in axes) or _long(data, axes):
            return
        if axes[-1] == data.ndim - 1:
            strategy.add_implementation(
                partial(_compute_row, passes), _schedule_row, "reduce_row.cpu", 12, space=partial(row_space, passes)
            )
        elif data.is_constant:
            strategy.add_implementation(
                partial(_compute_column, passes), schedule_extern_cpu, "reduce_column.cpu", 12,
                space=partial(column_space, passes), symbolic=False,
            )

    register_cpu_implementations(name, add)


def _long(data: TensorType, axes: Sequence[int]) -> bool:
    return math.prod(int(data.shape[axis]) for axis in axes) >= _MOST
