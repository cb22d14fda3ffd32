"""`unique_radix.cpu`: the vector sorted by the digits of its keys, and one pass over it in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cpu.radix import Radix
from strategy.op_strategy import OpStrategy
from strategy.ops.unique.operator import UniqueAttrs
from strategy.pattern import register_cpu_implementations, schedule_extern_cpu
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import TensorType, TupleType, Type


def space(attrs: UniqueAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> ConfigSpace:
    """The bits of a digit."""
    extent = int(inputs[0].shape[0])
    return ConfigSpace(
        [Knob("bits", (4, 6, 8, 11))], [], fallback={"bits": 4 if extent < 64 else 8 if extent < 1 << 15 else 11}
    )


def compute(attrs: UniqueAttrs, inputs: Sequence[Any], out_type: TupleType, config: Config) -> list[Any]:
    """All outputs as loops."""
    from tvm import te

    kinds = [kind for kind in out_type.fields if isinstance(kind, TensorType)]
    return list(
        te.extern(
            [kind.concrete_shape for kind in kinds], list(inputs),
            lambda ins, outs: _loops(attrs, config, ins[0], outs), dtype=[kind.dtype for kind in kinds], name="unique",
        )
    )


def _loops(attrs: UniqueAttrs, config: Config, data: Any, outs: Sequence[Any]) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    extent, dtype = int(data.shape[0]), str(data.dtype)
    source, values, indices, inverse, number, *counts = (script.buffer_proxy(b) for b in (data, *outs))
    one = tirx.const(1, attrs.dtype)

    def collect() -> None:
        sorter = Radix(extent, dtype, integer(config, "bits"), is_ascend=True)
        sorter.clear()
        with script.serial(0, extent) as j:
            sorter.put(j, source[j], tirx.Cast("int32", j))
        sorter.sort(extent)
        number[0] = tirx.const(0, attrs.dtype)
        with script.serial(0, extent) as j:
            at = script.bind(sorter.index(j))
            is_new = tirx.Or(j == 0, sorter.key(j) != sorter.key(tirx.max(j - 1, 0)))
            with script.If(is_new), script.Then():
                values[number[0]] = source[at]
                indices[number[0]] = tirx.Cast(attrs.dtype, at)
                for count in counts:
                    count[number[0]] = tirx.const(0, attrs.dtype)
                number[0] = number[0] + one
            inverse[at] = number[0] - one
            for count in counts:
                count[number[0] - 1] = count[number[0] - 1] + one
        with script.serial(number[0], extent) as j:
            values[j] = tirx.const(0, dtype)
            indices[j] = -one
            for count in counts:
                count[j] = tirx.const(0, attrs.dtype)

    with IRBuilder() as builder:
        with script.serial(0, 1):  # one statement, which a function's body is
            collect()
        return builder.get()


def _add(
    strategy: OpStrategy, attrs: UniqueAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> None:
    extent = inputs[0].shape[0]
    if extent.is_constant and int(extent) >= 1:
        strategy.add_implementation(
            compute, schedule_extern_cpu, "unique_radix.cpu", 12, space=space, symbolic=False
        )


register_cpu_implementations("unique", _add)
