"""A compiled CUDA function as a value: what to launch with which arguments, and the code for it.

A `Program` is what the host does: kernels launched in order, over the function's parameters and
workspaces of its own. Sizes may depend on symbolic dimensions: then they are expressions of the small
language (`strategy/condition.py`), as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from strategy.condition import Expr
from strategy.cuda.limit import GRID, LimitError
from strategy.lower import Signature
from strategy.types import TensorType

Number = int | str | list[Any]  # a constant, or an expression over symbolic dimensions


def evaluate(number: Number, symbols: Mapping[str, int]) -> int:
    """The number for these values of the symbols; raises `ExpressionError` where one is missing."""
    return number if isinstance(number, int) else int(Expr.from_json(number).evaluate(symbols))


class Pointer(msgspec.Struct, frozen=True, tag="pointer"):
    """A kernel's argument that is a parameter of the function, or a workspace."""

    buffer: str


class Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    """A kernel's argument that is a number."""

    dtype: str
    value: Number


class Workspace(msgspec.Struct, frozen=True):
    """Memory that the function needs while it runs, allocated once, outside of what is timed."""

    name: str
    size_bytes: Number


class Launch(msgspec.Struct, frozen=True):
    """One kernel launch. `shared_bytes` are of dynamic shared memory."""

    kernel: str
    arguments: tuple[Pointer | Scalar, ...]
    grid: tuple[Number, Number, Number]
    block: tuple[int, int, int]
    shared_bytes: int = 0

    def bind(self, symbols: Mapping[str, int]) -> Launch:
        """The same launch with all sizes known.

        Raises:
            LimitError: the grid is larger than any device's.
        """
        x, y, z = (evaluate(extent, symbols) for extent in self.grid)
        for axis, extent, most in zip("xyz", (x, y, z), GRID, strict=True):
            if not 1 <= extent <= most:
                raise LimitError(
                    f"{self.kernel}: a grid of {extent} blocks along {axis}, it may have 1 to {most}"
                )
        arguments = tuple(
            Scalar(a.dtype, evaluate(a.value, symbols)) if isinstance(a, Scalar) else a
            for a in self.arguments
        )
        return Launch(self.kernel, arguments, (x, y, z), self.block, self.shared_bytes)


class Program(msgspec.Struct, frozen=True):
    """One function: its parameters in order, and what is launched over them."""

    parameters: tuple[str, ...]
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """What a kernel takes of a multiprocessor, as the compiler says; spills where it tells them."""

    registers: int
    shared_bytes: int  # static
    stack_bytes: int  # per thread: local memory for arrays and spilled registers
    spill_bytes: int | None = None
    parameters: int | None = None  # how many the kernel takes


class CudaArtefact(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled CUDA code: all that a host with a driver needs to run it, and its source to be read.

    `programs` has `main`, and one `prepare_…` for each argument that is prepared.
    """

    signature: Signature
    programs: dict[str, Program]
    source: str
    arch: str
    compiler: str  # its name, version and flags: they decide what registers are used
    cubin: bytes
    usage: dict[str, Usage]

    def save(self, path: Path) -> None:
        """Writes all of it to one file, which `load` reads."""
        path.write_bytes(msgspec.json.encode(self))

    def export(self, path: Path) -> tuple[Path, Path, Path]:
        """Writes the cubin to `path`, and its source and all the rest beside it, to be used elsewhere."""
        source, plan = path.with_suffix(".cu"), path.with_suffix(".json")
        rest = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("cubin", "source")
        }
        path.write_bytes(self.cubin)
        source.write_text(self.source)
        plan.write_bytes(msgspec.json.format(msgspec.json.encode(rest)))
        return path, source, plan

    @classmethod
    def load(cls, path: Path) -> CudaArtefact:
        return msgspec.json.decode(path.read_bytes(), type=cls)


def symbols_of(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The values of a signature's symbolic dimensions, read from the shapes of its arguments."""
    found: dict[str, int] = {}
    for argument in signature.arguments:
        kind: TensorType = argument.tensor
        for dim, extent in zip(kind.shape, shapes.get(argument.name, ()), strict=False):
            if not dim.is_constant:
                found[str(dim)] = extent
    return found
