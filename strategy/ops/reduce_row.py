"""`reduce_row.cpu`: reductions over the last axes, whose elements lie next to each other.

A row may be taken in several parts, so that a few long ones are shared out among threads too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strategy.attrs import Attrs
from strategy.op_strategy import OpStrategy
from strategy.ops.reduce import ReduceAttrs, reduced_axes
from strategy.ops.row import (
    PARALLEL_BYTES,
    accumulator,
    fold,
    reduce_row,
    reduction,
    schedule_stages,
    schedule_tasks,
)
from strategy.pattern import register_cpu_implementations
from strategy.schedule import Outs, find_stages, integer, lanes_of, new_schedule
from strategy.space import Config, ConfigSpace, Knob, divisors, knob
from strategy.target import Target
from strategy.types import TensorType, Type

_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})
_MOST_TASKS = 64


def _split(attrs: ReduceAttrs, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """The extents that stay, and those that are reduced."""
    first = min(reduced_axes(attrs, len(shape)))
    return list(shape[:first]), list(shape[first:])


def _accumulator(dtype: str) -> str:
    return dtype if dtype.startswith("int") else accumulator(dtype)


def space(attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
    """Vectors, chains of accumulators, unrolling, parts of a row, and tasks."""
    assert isinstance(attrs, ReduceAttrs)
    rows, row = (math.prod(e) for e in _split(attrs, inputs[0].concrete_shape))
    dtype = _accumulator(inputs[0].dtype)
    full = lanes_of(target, dtype)
    parallel = rows * row * (target.vector_bytes // full) >= PARALLEL_BYTES
    return _space(rows, row, full, target.threads, parallel)


@lru_cache(maxsize=1024)
def _space(rows: int, row: int, full: int, threads: int, parallel: bool) -> ConfigSpace:
    lanes = tuple(x for x in (full // 4, full // 2, full) if x >= 1)
    parts = tuple(p for p in (1, 2, 4, 8, 16) if row % p == 0)
    tasks = tuple(sorted({d for d in divisors(rows * parts[-1]) if d <= _MOST_TASKS} | {1}))

    def fallback() -> dict[str, Any]:
        share = parallel and rows % threads
        part = next((p for p in parts if rows * p % threads == 0), 1) if share else 1
        vectors = max(1, row // part // full)
        return {
            "lanes": full, "chains": max(c for c in (1, 2, 4, 8) if c <= vectors),
            "unroll": 1, "parts": part,
            "tasks": next((t for t in tasks if t % threads == 0 and rows * part % t == 0), 1)
            if parallel else 1,
        }  # fmt: skip

    return ConfigSpace(
        [
            Knob("lanes", lanes),
            Knob("chains", (1, 2, 4, 8, 16)),
            Knob("unroll", (1, 2, 4)),
            Knob("parts", parts),
            Knob("tasks", tasks),
        ],
        [knob("chains") * knob("unroll") <= 16, rows * knob("parts") % knob("tasks") == 0],
        derived={"width": knob("lanes") * knob("chains")},
        fallback=fallback,
    )


def _compute(name: str) -> Any:
    def compute(attrs: ReduceAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
        from tvm import te, tirx

        how = "sum" if name == "mean" else name
        data = inputs[0]
        kept, reduced = _split(attrs, [int(d) for d in data.shape])
        dtype, row, parts = _accumulator(str(data.dtype)), math.prod(reduced), integer(config, "parts")

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
            value = fold(reduction(how).combine, [totals(*place, p) for p in range(parts)])
            if name == "mean":
                value = value * tirx.const(1 / row, dtype)
            return value.astype(out_type.dtype)

        return [te.compute(out_type.concrete_shape, result, name=name)]

    return compute


def schedule(attrs: ReduceAttrs, outs: Outs, target: Target, config: Config) -> Any:
    """Parts of rows in tasks; then, where there are several parts, what they add up to."""
    sch = new_schedule(outs)
    stages = find_stages(sch)
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    (total,) = (name for name in stages if name.endswith(".total"))
    row = schedule_tasks(sch, sch.get_loops(stages[total]), config)
    for name in reversed(stages):
        if name != total:
            sch.compute_at(stages[name], row, preserve_unit_loops=True)
    if integer(config, "parts") == 1:
        sch.reverse_compute_at(output, row, preserve_unit_loops=True)
    schedule_stages(sch, {name: block for name, block in stages.items() if name != total}, config)
    return sch


def _add(name: str) -> None:
    compute = _compute(name)

    def add(strategy: OpStrategy, attrs: Any, inputs: Sequence[TensorType], out_type: Type, target: Target) -> None:
        data = inputs[0]
        if data.dtype not in _DTYPES or not all(d.is_constant and int(d) >= 1 for d in data.shape):
            return
        axes = reduced_axes(attrs, data.ndim)
        if axes and axes == tuple(range(axes[0], data.ndim)):
            strategy.add_implementation(
                compute, schedule, "reduce_row.cpu", 12, space=space, symbolic=False
            )

    register_cpu_implementations(name, add)


for _name in ("sum", "mean", "max", "min", "prod"):
    _add(_name)
