"""`take_backward_loops.cpu`: gradients are added one after the other, each where its index says.

The compute for any target looks, for each element, at all indices. Here a task has some columns behind the indexed
axis, and goes along the indices once, so that no two tasks add to one element. Sums of narrow floats are of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from strategy.cpu.loop import allocate, bound, fill, run_tasks, written
from strategy.cpu.row import PARALLEL_BYTES, reduction_accumulator
from strategy.op_strategy import OpStrategy
from strategy.ops.take import TakeAttrs, place_in_range
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int32", "int64"})
_MOST = 2**31  # elements that loops count by int32


class _Extents(NamedTuple):
    """Numbers of elements of the data before the indexed axis, along it and behind it, and of indices along it."""

    outer: int
    along: int
    inner: int
    indices: int


def _extents(attrs: TakeAttrs, inputs: Sequence[Any]) -> _Extents:
    """Those of inputs that are the gradient, indices and data."""
    _, indices, data = inputs
    count = math.prod(int(d) for d in indices.shape[attrs.batch_dims :])
    shape = [int(d) for d in data.shape]
    if attrs.axis is None:
        return _Extents(1, math.prod(shape), 1, count)
    axis = attrs.axis % len(shape)
    return _Extents(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), count)


@lru_cache(maxsize=1024)
def _space(extents: _Extents, full: int, threads: int) -> ConfigSpace:
    """Columns of a task, and threads or none."""
    inner = extents.inner
    columns = sorted({min(n, inner) for n in (1, full, 4 * full, 16 * full, inner)} - ({1} if inner > 1 else set()))

    def fallback() -> dict[str, Any]:
        fitting = [n for n in columns if extents.outer * -(-inner // n) >= threads]
        return {"columns": max(fitting, default=columns[0]), "parallel": threads > 1 and bool(fitting)}

    return ConfigSpace([Knob("columns", columns), Knob("parallel", (False, True))], fallback=fallback)


def space(attrs: TakeAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    moved = sum(t.size * dtype_bytes(t.dtype) for t in (*inputs, out_type))
    full = lanes_of(target, reduction_accumulator(out_type.dtype))
    return _space(_extents(attrs, inputs), full, target.threads if moved >= PARALLEL_BYTES else 1)


def compute(attrs: TakeAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """Of each task zeros, then one gradient after the other."""
    outer, along, inner, count = _extents(attrs, inputs)
    entries = math.prod(int(d) for d in inputs[1].shape[: attrs.batch_dims])

    def loops(ins: Sequence[Any], out: Any) -> Any:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as script

        width, kind = integer(config, "columns"), str(out.dtype)
        dtype, blocks = reduction_accumulator(kind), -(-inner // width)
        is_narrow = dtype != kind
        grad, numbers, result = (script.buffer_proxy(b) for b in (*ins[:2], out))

        def take_columns(task: Any) -> None:
            o, first = task // blocks, task % blocks * width
            entry = o // (outer // entries)  # of axes that the indices share with the data
            size = width if inner % width == 0 else bound(tirx.min(inner - first, width))
            sums = allocate(along * width, dtype, "global") if is_narrow else result

            def whole(at: Any, x: Any) -> Any:
                return (o * along + at) * inner + first + x

            def own(at: Any, x: Any) -> Any:
                return at * width + x if is_narrow else whole(at, x)

            with script.serial(0, along) as at, script.serial(0, size) as x:
                fill(sums, own(at, x), tirx.const(0, dtype))
            with script.serial(0, count) as j:
                at = bound(place_in_range(attrs, numbers[entry * count + j], along))
                with script.serial(0, size) as x:
                    given = grad[(o * count + j) * inner + first + x].astype(dtype)
                    fill(sums, own(at, x), sums[own(at, x)] + given)
            if is_narrow:
                with script.serial(0, along) as at, script.serial(0, size) as x:
                    fill(result, whole(at, x), sums[own(at, x)].astype(kind))

        return run_tasks(outer * blocks, take_columns, parallel=bool(config["parallel"]))

    return written(loops, inputs, out_type, "take_backward")


def _add(
    strategy: OpStrategy, attrs: TakeAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target
) -> None:
    known = all(d.is_constant and int(d) >= 1 for t in inputs for d in t.shape)
    if known and out_type.dtype in _DTYPES and max(t.size for t in inputs) < _MOST:
        strategy.add_implementation(
            compute, schedule_extern_cpu, "take_backward_loops.cpu", 12, space=space, symbolic=False
        )


register_cpu_implementations("take_backward", _add)
