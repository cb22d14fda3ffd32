"""`scatter_in_order.cpu` and `scatter_add_in_order.cpu`: updates one after the other, rows and columns in parallel.

Their work grows with the updates, where that of a choice among all updates for each element grows with both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import strategy.ops.scatter  # noqa: F401  # the operator of one of them
from strategy.cpu.loop import allocate, fill, run_tasks, written
from strategy.cpu.row import PARALLEL_BYTES, constant_size
from strategy.cpu.widened import NARROW
from strategy.op_strategy import OpStrategy
from strategy.ops.gather import GatherAttrs, as_int64, place_of
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType, Type

_FEW = 3  # places, up to which vectors of choices are faster
_PART = 64  # updates of a row whose places are computed by vectors, before the sums
_LANES = 16


def space(attrs: GatherAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """The neighbouring columns that a task writes, and threads or none."""
    data, indices, _ = inputs
    axis = attrs.axis % data.ndim
    rows, inner, size = (constant_size(s) for s in (data.shape[:axis], data.shape[axis + 1 :], indices.shape))
    widths = [n * lanes_of(target, data.dtype) for n in (1, 2, 4, 8, 16)]
    columns = (1,) if inner == 1 else (widths[0], *(w for w in widths[1:] if inner is None or w < 2 * inner))
    shared = [c for c in columns if rows is None or inner is None or rows * -(-inner // c) >= target.threads]
    is_large = size is None or size * dtype_bytes(data.dtype) >= PARALLEL_BYTES // 8
    return ConfigSpace(
        [Knob("columns", columns), Knob("parallel", (False, True))], [],
        fallback={
            "columns": max(shared, default=columns[0]), "parallel": target.threads > 1 and bool(shared) and is_large,
        },
    )


def compute_sum(attrs: GatherAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The data, to which updates are added, as loops."""
    return written(partial(_loops, attrs, config, True), inputs, out_type, "scatter_add")


def compute(attrs: GatherAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """The data, into which updates are written, as loops."""
    return written(partial(_loops, attrs, config, False), inputs, out_type, "scatter")


def _loops(attrs: GatherAttrs, config: Config, is_sum: bool, ins: Sequence[Any], out: Any) -> Any:
    """Sums of narrow floats are in float32 until all are added."""
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    shape, given = ([int(n) if isinstance(n, tirx.IntImm) else n for n in b.shape] for b in ins[:2])
    axis, width, dtype = attrs.axis % len(shape), integer(config, "columns"), str(out.dtype)
    extent, count, inner = shape[axis], given[axis], math.prod(shape[axis + 1 :])
    parts = (inner + width - 1) // width
    data, indices, updates, result = (script.buffer_proxy(b) for b in (*ins, out))
    apart = is_sum and dtype in NARROW

    def write(row: Any, begin: Any) -> None:
        columns = width if isinstance(inner, int) and inner % width == 0 else tirx.min(inner - begin, width)
        sums = allocate(extent * width, "float32", "global") if apart else result

        def whole(j: Any, c: Any) -> Any:
            return (row * extent + j) * inner + begin + c

        def own(j: Any, c: Any) -> Any:
            return j * width + c if apart else whole(j, c)

        def wide(value: Any) -> Any:
            return tirx.Cast("float32", value) if apart else value

        def add_parts(first: Any, length: int) -> None:
            kind = "int32" if isinstance(extent, int) and extent < 1 << 31 else "int64"
            with script.serial(0, length // _PART) as part:
                at, places = first + part * _PART, allocate(_PART, kind)
                with script.serial(0, _PART // _LANES) as v, script.vectorized(0, _LANES) as lane:
                    k = v * _LANES + lane
                    fill(places, k, place_of(indices[at + k], extent).astype(kind))
                with script.serial(0, _PART) as k:
                    place = own(places[k], 0)
                    fill(sums, place, sums[place] + wide(updates[at + k]))

        with script.serial(0, extent) as j, script.serial(0, columns) as c:
            sums[own(j, c)] = wide(data[whole(j, c)])
        done = count // _PART * _PART if is_sum and inner == 1 and isinstance(count, int) else 0
        if done:
            add_parts(row * count, done)
        with script.serial(done, count) as k, script.serial(0, columns) as c:
            source = (row * count + k) * inner + begin + c
            if is_sum:
                place = own(place_of(indices[source], extent), c)
                sums[place] = sums[place] + wide(updates[source])
            else:
                place = as_int64(indices[source])
                with script.If(tirx.all(place >= 0, place < extent)), script.Then():
                    result[whole(place, c)] = updates[source]
        if apart:
            with script.serial(0, extent) as j, script.serial(0, columns) as c:
                result[whole(j, c)] = tirx.Cast(dtype, sums[own(j, c)])

    tasks = math.prod(shape[:axis]) * parts
    return run_tasks(tasks, lambda task: write(task // parts, task % parts * width), parallel=bool(config["parallel"]))


def _add(
    strategy: OpStrategy, attrs: GatherAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target, *,
    name: str, compute: Any, version: int,
) -> None:
    data, indices, _ = inputs
    if any(d.is_constant and int(d) < 1 for d in (*data.shape, *indices.shape)):
        return
    extent = data.shape[attrs.axis]
    level = 8 if extent.is_constant and int(extent) <= _FEW else 12
    strategy.add_implementation(
        compute, schedule_extern_cpu, f"{name}_in_order.cpu", level, version=version, space=space
    )


for _name, _compute, _version in (("scatter", compute, 1), ("scatter_add", compute_sum, 2)):
    register_cpu_implementations(_name, partial(_add, name=_name, compute=_compute, version=_version))
