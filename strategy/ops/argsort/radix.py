"""`argsort_radix.cpu`: each row sorted by the digits of its keys, rows in parallel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.cpu.loop import run_tasks, written
from strategy.cpu.radix import Radix
from strategy.cpu.row import PARALLEL_BYTES, constant_size
from strategy.op_strategy import OpStrategy
from strategy.ops.argsort.operator import ArgsortAttrs
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import dtype_bytes, integer
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType, Type


def space(attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """The bits of a digit, and threads or none."""
    data = inputs[0]
    extent, size = data.shape[attrs.axis], constant_size(data.shape)
    is_large = size is None or size * dtype_bytes(data.dtype) >= PARALLEL_BYTES // 16
    parallel = target.threads > 1 and is_large
    bits = 8 if not extent.is_constant or 64 <= int(extent) < 1 << 15 else 4 if int(extent) < 64 else 11
    return ConfigSpace(
        [Knob("bits", (4, 6, 8, 11)), Knob("parallel", (False, True))], [],
        fallback={"bits": bits, "parallel": parallel},
    )


def compute(attrs: ArgsortAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """All passes as loops."""
    return written(lambda ins, out: _sort(attrs, ins[0], out, config), inputs, out_type, "argsort")


def _sort(attrs: ArgsortAttrs, data: Any, out: Any, config: Config) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    shape, dtype = [int(n) if isinstance(n, tirx.IntImm) else n for n in data.shape], str(data.dtype)
    axis = attrs.axis % len(shape)
    extent, inner = shape[axis], math.prod(shape[axis + 1 :])
    source, result = script.buffer_proxy(data), script.buffer_proxy(out)

    def sort_row(row: Any) -> None:
        sorter = Radix(extent, dtype, integer(config, "bits"), is_ascend=attrs.is_ascend)

        def spot(j: Any) -> Any:
            return (row // inner * extent + j) * inner + row % inner

        sorter.clear()
        with script.serial(0, extent) as j:
            sorter.put(j, source[spot(j)], tirx.Cast("int32", j))
        sorter.sort(extent)
        with script.serial(0, extent) as j:
            result[spot(j)] = tirx.Cast(attrs.dtype, sorter.index(j))

    return run_tasks(math.prod(shape[:axis]) * inner, sort_row, parallel=bool(config["parallel"]))


def _add(
    strategy: OpStrategy, attrs: ArgsortAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> None:
    if all(int(d) >= 1 for d in inputs[0].shape if d.is_constant):
        strategy.add_implementation(compute, schedule_extern_cpu, "argsort_radix.cpu", 12, space=space)


register_cpu_implementations("argsort", _add)
