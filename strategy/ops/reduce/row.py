"""`reduce_row.cpu`: reductions over the last axes, whose elements lie next to each other.

A row may be taken in several parts, so that a few long ones are shared out among threads too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.cpu.row import (
    PARALLEL_BYTES,
    constant_size,
    reduce_row,
    reduction,
    reduction_accumulator,
    schedule_stages,
    schedule_tasks,
    task_counts,
)
from strategy.op_strategy import OpStrategy
from strategy.ops.reduce.operator import ReduceAttrs, reduced_axes
from strategy.pattern import extents_of, register_cpu_implementations
from strategy.schedule import Outs, integer, lanes_of, start_schedule
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})


def _split(attrs: ReduceAttrs, shape: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The extents that stay, which may be symbolic, and those that are reduced."""
    first = min(reduced_axes(attrs, len(shape)))
    return list(shape[:first]), [int(d) for d in shape[first:]]


def space(attrs: ReduceAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
    """Vectors, chains of accumulators, unrolling, parts of a row, and tasks."""
    kept, reduced = _split(attrs, inputs[0].shape)
    rows, row = constant_size(kept), math.prod(reduced)
    extents = None if rows is None else tuple(map(int, kept))
    dtype = reduction_accumulator(inputs[0].dtype)
    full = lanes_of(target, dtype)
    parallel = rows is None or rows * row * (target.vector_bytes // full) >= PARALLEL_BYTES
    return _space(extents, row, full, target.threads, parallel)


@lru_cache(maxsize=1024)
def _space(leading: tuple[int, ...] | None, row: int, full: int, threads: int, parallel: bool) -> ConfigSpace:
    rows = None if leading is None else math.prod(leading)
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    # Without a number of rows, of which there may be few, they are taken whole.
    parts = (1,) if rows is None else tuple(p for p in (1, 2, 4, 8, 16) if row % p == 0)
    tasks = task_counts(leading, parts[-1])
    equal = [] if rows is None else [rows * knob("parts") % knob("tasks") == 0]

    def fallback() -> dict[str, Any]:
        most = threads if rows is None else rows
        part = next((p for p in parts if most * p % threads == 0), 1) if parallel and most % threads else 1
        vectors = max(1, row // part // full)
        return {
            "lanes": full, "chains": max(c for c in (1, 2, 4, 8) if c <= vectors),
            "unroll": 1, "parts": part,
            "tasks": next((t for t in tasks if t % threads == 0 and most * part % t == 0), 1)
            if parallel else 1,
        }

    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("chains", (1, 2, 4, 8, 16)),
            Knob("unroll", (1, 2, 4)),
            Knob("parts", parts),
            Knob("tasks", tasks),
        ],
        [knob("chains") * knob("unroll") <= 16, *equal],
        derived={"width": knob("lanes") * knob("chains")},
        fallback=fallback,
    )


def _compute(name: str) -> Any:
    def compute(attrs: ReduceAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
        from tvm import te, tirx

        how = "sum" if name == "mean" else name
        data = inputs[0]
        kept, reduced = _split(attrs, data.shape)
        dtype, row, parts = reduction_accumulator(str(data.dtype)), math.prod(reduced), integer(config, "parts")

        def read(*index: Any) -> Any:
            *place, part, element = index
            flat = part * (row // parts) + element
            inner = row
            for extent in reduced:
                inner //= extent
                place.append(flat // inner)
                flat = flat % inner
            value = data(*place)
            return value if data.dtype == dtype else tirx.Cast(dtype, value)

        totals = reduce_row(how, [*kept, parts], row // parts, dtype, read, config, how)

        def result(*index: Any) -> Any:
            place = index[: len(kept)]
            value = reduction(how).join([totals(*place, p) for p in range(parts)])
            if name == "mean":
                value = value * tirx.const(1 / row, dtype)
            return value.astype(out_type.dtype)

        return [te.compute(extents_of(out_type, inputs), result, name=name)]

    return compute


def schedule(attrs: ReduceAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Parts of rows in tasks; then, where there are several parts, what they add up to."""
    sch, stages, output = start_schedule(outs)
    (total,) = (name for name in stages if name.endswith(".total"))
    row = schedule_tasks(sch, sch.get_loops(stages[total]), config)
    for name in reversed(stages):
        if name != total:
            sch.compute_at(stages[name], row, preserve_unit_loops=True)
    if integer(config, "parts") == 1:
        sch.reverse_compute_at(output, row, preserve_unit_loops=True)
    _, reduced = _split(attrs, outs.args[0].shape)
    extent = math.prod(reduced) // integer(config, "parts")
    schedule_stages(sch, {name: block for name, block in stages.items() if name != total}, config, extent)
    return sch


def _add(name: str) -> None:
    compute = _compute(name)

    def add(strategy: OpStrategy, attrs: Any, inputs: Sequence[TensorType], out_type: Type, target: Target) -> None:
        data = inputs[0]
        axes = reduced_axes(attrs, data.ndim)
        if data.dtype not in _DTYPES or not axes or axes != tuple(range(axes[0], data.ndim)):
            return
        known = all(data.shape[axis].is_constant for axis in axes)
        if known and all(int(d) >= 1 for d in data.shape if d.is_constant):
            strategy.add_implementation(compute, schedule, "reduce_row.cpu", 12, version=3, space=space)

    register_cpu_implementations(name, add)


for _name in ("sum", "mean", "max", "min", "prod"):
    _add(_name)
