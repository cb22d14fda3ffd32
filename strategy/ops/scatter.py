"""`scatter_add_loops.cpu` and `take_backward_loops.cpu`: updates are added one after the other, where each index says.

The computes for any target look, for each element, at all indices. Here a task has some columns behind the indexed
axis, and goes along the indices once, so that no two tasks add to one element. Sums of narrow floats are of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from strategy.cpu.loop import allocate, bound, fill, written
from strategy.cpu.row import PARALLEL_BYTES, reduction_accumulator
from strategy.op_strategy import OpStrategy
from strategy.ops.gather import GatherAttrs, place_of
from strategy.ops.take import TakeAttrs, place_in_range
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import dtype_bytes, integer, lanes_of
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType

_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "int32", "int64"})
_MOST = 2**31  # elements that loops count by int32


class _Extents(NamedTuple):
    """Numbers of elements of the data before the indexed axis, along it and behind it, and of updates along it."""

    outer: int
    along: int
    inner: int
    updates: int


def _split(shape: Sequence[Any], axis: int, updates: int) -> _Extents:
    own = [int(d) for d in shape]
    return _Extents(math.prod(own[:axis]), own[axis], math.prod(own[axis + 1 :]), updates)


def _scattered(attrs: GatherAttrs, inputs: Sequence[Any]) -> _Extents:
    """The extents of scatter_add, whose inputs are data, indices and updates."""
    axis = attrs.axis % len(inputs[0].shape)
    return _split(inputs[0].shape, axis, int(inputs[1].shape[axis]))


def _taken(attrs: TakeAttrs, inputs: Sequence[Any]) -> _Extents:
    """The extents of take_backward, whose inputs are the gradient, indices and data."""
    _, indices, data = inputs
    count = math.prod(int(d) for d in indices.shape[attrs.batch_dims :])
    if attrs.axis is None:
        return _Extents(1, math.prod(int(d) for d in data.shape), 1, count)
    return _split(data.shape, attrs.axis % len(data.shape), count)


@lru_cache(maxsize=1024)
def _space(extents: _Extents, full: int, threads: int) -> ConfigSpace:
    """Columns of a task, and threads or none."""
    inner = extents.inner
    columns = sorted({min(n, inner) for n in (1, full, 4 * full, 16 * full, inner)} - ({1} if inner > 1 else set()))

    def fallback() -> dict[str, Any]:
        fitting = [n for n in columns if extents.outer * -(-inner // n) >= threads]
        return {"columns": max(fitting, default=columns[0]), "parallel": threads > 1 and bool(fitting)}

    return ConfigSpace([Knob("columns", columns), Knob("parallel", (False, True))], fallback=fallback)


def _space_of(split: Callable[[Any, Sequence[Any]], _Extents]) -> Callable[..., ConfigSpace]:
    def space(attrs: Any, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
        moved = sum(t.size * dtype_bytes(t.dtype) for t in (*inputs, out_type))
        full = lanes_of(target, reduction_accumulator(out_type.dtype))
        return _space(split(attrs, inputs), full, target.threads if moved >= PARALLEL_BYTES else 1)

    return space


def _add_up(
    extents: _Extents, start: Any, updates: Any, place: Callable[[Any, Any, Any], Any], out: Any, config: Config,
    *, is_shared: bool,
) -> Any:  # fmt: skip
    """The loops: of each task its elements as they begin, then update after update.

    Args:
        start: the buffer that the updates are added to, None for zeros.
        place: `(outer, update, column)`: the place along the axis; of all columns if it `is_shared`.
    """
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    outer, along, inner, count = extents
    width, kind = integer(config, "columns"), str(out.dtype)
    dtype, blocks = reduction_accumulator(kind), -(-inner // width)
    is_narrow = dtype != kind
    given, result = script.buffer_proxy(updates), script.buffer_proxy(out)

    def take_columns(task: Any) -> None:
        o, first = task // blocks, task % blocks * width
        size = width if inner % width == 0 else bound(tirx.min(inner - first, width))
        sums = allocate(along * width, dtype, "global") if is_narrow else result

        def spot(at: Any, x: Any, extent: int = along) -> Any:
            return (o * extent + at) * inner + first + x

        def kept(at: Any, x: Any) -> Any:
            return at * width + x if is_narrow else spot(at, x)

        def add(at: Any, j: Any, x: Any) -> None:
            fill(sums, kept(at, x), sums[kept(at, x)] + given[spot(j, x, count)].astype(dtype))

        with script.serial(0, along) as at, script.serial(0, size) as x:
            begin = tirx.const(0, dtype) if start is None else script.buffer_proxy(start)[spot(at, x)].astype(dtype)
            fill(sums, kept(at, x), begin)
        with script.serial(0, count) as j:
            if is_shared:
                at = bound(place(o, j, None))
                with script.serial(0, size) as x:
                    add(at, j, x)
            else:
                with script.serial(0, size) as x:
                    add(bound(place(o, j, first + x)), j, x)
        if is_narrow:
            with script.serial(0, along) as at, script.serial(0, size) as x:
                fill(result, spot(at, x), sums[kept(at, x)].astype(kind))

    with IRBuilder() as builder:
        with (script.parallel if config["parallel"] else script.serial)(0, outer * blocks) as task:
            take_columns(task)
        return builder.get()


def compute_scatter_add(
    attrs: GatherAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    extents = _scattered(attrs, inputs)

    def loops(ins: Sequence[Any], out: Any) -> Any:
        from tvm.script.ir_builder import tirx as script

        data, indices, updates = ins
        numbers = script.buffer_proxy(indices)

        def place(o: Any, j: Any, column: Any) -> Any:
            own = 0 if column is None else column
            return place_of(numbers[(o * extents.updates + j) * extents.inner + own], extents.along)

        return _add_up(extents, data, updates, place, out, config, is_shared=extents.inner == 1)

    return written(loops, inputs, out_type, "scatter_add")


def compute_take_backward(
    attrs: TakeAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config
) -> list[Any]:
    extents = _taken(attrs, inputs)
    entries = math.prod(int(d) for d in inputs[1].shape[: attrs.batch_dims])

    def loops(ins: Sequence[Any], out: Any) -> Any:
        from tvm.script.ir_builder import tirx as script

        grad, indices, _ = ins
        numbers = script.buffer_proxy(indices)

        def place(o: Any, j: Any, column: Any) -> Any:
            entry = o // (extents.outer // entries)  # of axes that the indices share with the data
            return place_in_range(attrs, numbers[entry * extents.updates + j], extents.along)

        return _add_up(extents, None, grad, place, out, config, is_shared=True)

    return written(loops, inputs, out_type, "take_backward")


def _adder(name: str, compute: Callable[..., list[Any]], split: Callable[[Any, Sequence[Any]], _Extents]) -> None:
    space = _space_of(split)

    def add(
        strategy: OpStrategy, attrs: Any, inputs: Sequence[TensorType], out_type: TensorType, target: Target
    ) -> None:
        known = all(d.is_constant and int(d) >= 1 for t in inputs for d in t.shape)
        if known and out_type.dtype in _DTYPES and max(t.size for t in inputs) < _MOST:
            strategy.add_implementation(
                compute, schedule_extern_cpu, f"{name}_loops.cpu", 12, space=space, symbolic=False
            )

    register_cpu_implementations(name, add)


_adder("scatter_add", compute_scatter_add, _scattered)
_adder("take_backward", compute_take_backward, _taken)
