"""Common parts of computes that are written as loops: the output they write, and what holds numbers meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.pattern import extents_of
from strategy.types import TensorType


def written(
    loops: Callable[[Sequence[Any], Any], Any], inputs: Sequence[Any], out_type: TensorType, name: str
) -> list[Any]:
    """The output that `loops(inputs, output)` writes, given buffers."""
    from tvm import te

    return [
        te.extern(
            [extents_of(out_type, inputs)], list(inputs), lambda ins, outs: loops(ins, outs[0]),
            dtype=out_type.dtype, name=name,
        )
    ]


def run_tasks(count: Any, run: Callable[[Any], None], *, parallel: bool = True) -> Any:
    """Loops that `run` makes for each of the tasks, given its number, in parallel or one after the other."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    with IRBuilder() as builder:
        with (script.parallel if parallel else script.serial)(0, count) as task:
            run(task)
        return builder.get()


def allocate(count: int, dtype: str, scope: str = "local") -> Any:
    """An array of numbers: `local` is in registers, `global` on the heap."""
    from tvm.script.ir_builder import tirx as script

    return script.buffer_proxy(script.alloc_buffer([count], dtype, scope=scope))


def fill(target: Any, place: Any, value: Any) -> None:
    """Assign an element, as an expression."""
    target[place] = value


def bound(value: Any) -> Any:
    """A value that is computed here, once.

    TVM leaves the conversion of a bfloat16 that is bound to a name undone: that is kept in an array of one.
    """
    from tvm import tirx
    from tvm.script.ir_builder import tirx as script

    if not isinstance(value, tirx.Cast) or str(value.value.ty.dtype) != "bfloat16":
        return script.bind(value)
    kept = allocate(1, str(value.ty.dtype))
    kept[0] = value
    return kept[0]
