"""Implementations in handwritten CUDA C, with their knobs as macros.

If a kernel cannot be expressed as a schedule (a scan, a selection), `schedule` returns a `Template` instead of a
scheduled module; space, constraints, version and records are those of any implementation. `compute` only
declares the outputs (`outputs_of`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strategy.cuda.program import Launch, Program, Workspace
from strategy.schedule import Outs, ScheduleError
from strategy.types import TensorType, TupleType, Type

# Names of dtypes in CUDA C.
C_TYPES = {
    "float64": "double", "float32": "float", "float16": "half", "bfloat16": "nv_bfloat16",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "bool": "bool",
}


@dataclass(frozen=True)
class Template:
    """CUDA C, its macros, and the launches of its kernels.

    Args:
        source: kernels declared `extern "C" __global__`.
        macros: values by name: knobs, extents, types.
        parameters: the names of the function's arguments in launches, in order.
        shared_bytes: static shared memory that each kernel declares, for the check before compiling.
    """

    source: str
    macros: Mapping[str, int | str]
    parameters: tuple[str, ...]
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()
    shared_bytes: Mapping[str, int] | None = None

    @property
    def code(self) -> str:
        lines = [f"#define {name} {value}" for name, value in self.macros.items()]
        return "\n".join([*lines, self.source])

    @property
    def program(self) -> Program:
        return Program(self.parameters, self.launches, self.workspaces)


def outputs_of(out_type: Type) -> list[Any]:
    """Outputs that a template computes, as TE tensors without a computation."""
    from tvm import te

    kinds = out_type.fields if isinstance(out_type, TupleType) else (out_type,)
    found = []
    for kind in kinds:
        if not isinstance(kind, TensorType) or not kind.is_constant:
            raise ScheduleError(f"a template needs constant shapes, but an output is {kind}")
        found.append(te.placeholder(kind.concrete_shape, kind.dtype, name="output"))
    return found


def rows_along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Rows along an axis, their length, and how far apart their elements lie."""
    axis %= len(shape)
    inner = math.prod(shape[axis + 1 :])
    return math.prod(shape[:axis]) * inner, shape[axis], inner


def refuse_epilogue(outs: Outs) -> None:
    """Raise `ScheduleError` if an epilogue follows the template's outputs."""
    from tvm import te

    if not all(isinstance(t.op, te.PlaceholderOp) for t in outs.tensors):
        raise ScheduleError("a handwritten kernel takes no epilogue")
