"""A compiled CUDA function as a value: what to launch with which arguments, and the code for it.

A `Program` is the host's part: launches of kernels and calls of NVIDIA's libraries, in order, over the function's
parameters and workspaces. Sizes that depend on symbolic dimensions are expressions (`strategy/condition.py`) in
JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from strategy.condition import Expr
from strategy.cuda.limit import BLOCK, GRID, STATIC_SHARED_BYTES, DeviceLimits, LimitError
from strategy.signature import Signature
from strategy.types import TensorType

Number = int | str | list[Any]  # a constant, or an expression over symbolic dimensions


def evaluate(number: Number, symbols: Mapping[str, int]) -> int:
    """The number for these values of the symbols; raise `ExpressionError` if one is missing."""
    return number if isinstance(number, int) else int(Expr.from_json(number).evaluate(symbols))


def times(left: Number, right: Number) -> Number:
    """The product of two numbers."""
    return left * right if isinstance(left, int) and isinstance(right, int) else ["*", left, right]


class Pointer(msgspec.Struct, frozen=True, tag="pointer"):
    """A kernel's argument that is a parameter of the function, or a workspace."""

    buffer: str


class Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    """A kernel's argument that is a number."""

    dtype: str
    value: Number


class Workspace(msgspec.Struct, frozen=True):
    """Temporary memory of the function, allocated once, outside of timing."""

    name: str
    size_bytes: Number


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """One kernel launch. `shared_bytes` is dynamic shared memory."""

    kernel: str
    arguments: tuple[Pointer | Scalar, ...]
    grid: tuple[Number, Number, Number]
    block: tuple[int, int, int]
    shared_bytes: int = 0

    def bind(self, symbols: Mapping[str, int]) -> Launch:
        """The launch with all sizes known.

        Raises:
            LimitError: the grid exceeds the limits of all devices.
        """
        x, y, z = (evaluate(extent, symbols) for extent in self.grid)
        for axis, extent, most in zip("xyz", (x, y, z), GRID, strict=True):
            if not 1 <= extent <= most:
                raise LimitError(
                    f"{self.kernel}: a grid of {extent} blocks along {axis} is out of range 1 … {most}"
                )
        arguments = tuple(
            Scalar(a.dtype, evaluate(a.value, symbols)) if isinstance(a, Scalar) else a
            for a in self.arguments
        )
        return Launch(self.kernel, arguments, (x, y, z), self.block, self.shared_bytes)

    def rename(self, names: Mapping[str, str]) -> Launch:
        """The launch over other buffers."""
        arguments = tuple(
            Pointer(names[a.buffer]) if isinstance(a, Pointer) else a for a in self.arguments
        )
        return msgspec.structs.replace(self, arguments=arguments)


class Gemm(msgspec.Struct, frozen=True, kw_only=True, tag="gemm"):
    """A product by `cublasGemmStridedBatchedEx`: c = op(a) · op(b), column-major.

    op(a) is [m, k], op(b) is [k, n] and c is [m, n], for each entry of the batch. `ld…` is the distance of columns in
    memory, `stride_…` that of entries, in elements. Sums are in float32, for float64 in float64.
    """

    a: str
    b: str
    c: str
    dtype: str
    out_dtype: str
    transpose_a: bool
    transpose_b: bool
    m: Number
    n: Number
    k: Number
    lda: Number
    ldb: Number
    ldc: Number
    batch: Number = 1
    stride_a: Number = 0
    stride_b: Number = 0
    stride_c: Number = 0

    @property
    def library(self) -> str:
        return "cublas"

    def bind(self, symbols: Mapping[str, int]) -> Gemm:
        """The product with all sizes known.

        Raises:
            LimitError: an extent exceeds cuBLAS's 32 bits.
        """
        names = ("m", "n", "k", "lda", "ldb", "ldc", "batch", "stride_a", "stride_b", "stride_c")
        sizes = {name: evaluate(getattr(self, name), symbols) for name in names}
        for name, size in sizes.items():
            if size >= 2**31 and not name.startswith("stride"):
                raise LimitError(f"cuBLAS: {name} = {size} exceeds {2**31 - 1}")
        return msgspec.structs.replace(self, **sizes)

    def rename(self, names: Mapping[str, str]) -> Gemm:
        """The product over other buffers."""
        return msgspec.structs.replace(self, a=names[self.a], b=names[self.b], c=names[self.c])


class Convolution(msgspec.Struct, frozen=True, kw_only=True, tag="convolution"):
    """A convolution by cuDNN: shapes in the order [n, c, h, w], the algorithm by cuDNN's name for it.

    The library on the device's host determines its workspace.
    """

    data: str
    weight: str
    output: str
    dtype: str
    data_shape: tuple[int, int, int, int]
    weight_shape: tuple[int, int, int, int]
    output_shape: tuple[int, int, int, int]
    padding: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    algorithm: str

    @property
    def library(self) -> str:
        return "cudnn"

    def bind(self, symbols: Mapping[str, int]) -> Convolution:
        """Return itself, as its sizes are known."""
        return self

    def rename(self, names: Mapping[str, str]) -> Convolution:
        """The convolution over other buffers."""
        return msgspec.structs.replace(
            self, data=names[self.data], weight=names[self.weight], output=names[self.output]
        )


LibraryCall = Gemm | Convolution


class Program(msgspec.Struct, frozen=True):
    """One function: its parameters in order, and its steps."""

    parameters: tuple[str, ...]
    steps: tuple[Launch | Gemm | Convolution, ...]
    workspaces: tuple[Workspace, ...] = ()

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The steps that are kernels."""
        return tuple(step for step in self.steps if isinstance(step, Launch))


class Usage(msgspec.Struct, frozen=True):
    """A kernel's resource usage, as the compiler reports it; spills if it reports them."""

    registers: int
    shared_bytes: int  # static
    stack_bytes: int  # per thread: local memory for arrays and spilled registers
    spill_bytes: int | None = None
    parameters: int | None = None  # number of the kernel's parameters


class CudaArtefact(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled CUDA code, which a host with a driver can run, and its source for reading.

    `programs` has `main`, and one `prepare_…` for each prepared argument. Source, compiler and cubin are empty if it
    only calls libraries.
    """

    signature: Signature
    programs: dict[str, Program]
    source: str
    arch: str
    compiler: str  # its name, version and flags, which affect the use of registers
    cubin: bytes
    usage: dict[str, Usage]

    @property
    def digest(self) -> str:
        """The digest of the cubin and its programs."""
        plan = msgspec.json.encode(self.programs, order="sorted")
        return hashlib.sha256(self.cubin + plan).hexdigest()

    def save(self, path: Path) -> None:
        """Write the artefact to one file, for `load`."""
        path.write_bytes(msgspec.json.encode(self))

    def export(self, path: Path) -> tuple[Path, ...]:
        """Write the cubin to `path`, with its source and a JSON file of the rest beside it.

        If it only calls libraries, there is only the JSON file, with the routines and their arguments.
        """
        source, plan = path.with_suffix(".cu"), path.with_suffix(".json")
        rest = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("cubin", "source")
        }
        plan.write_bytes(msgspec.json.format(msgspec.json.encode(rest)))
        if not self.source:
            return (plan,)
        path.write_bytes(self.cubin)
        source.write_text(self.source)
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


def check_launch(launch: Launch, static_bytes: int, limits: DeviceLimits) -> None:
    """Raise `LimitError` if a launch exceeds a limit of the device.

    Symbolic extents of the grid are checked when they are known.

    Args:
        static_bytes: bytes of shared memory that the kernel's source declares.
    """
    name = launch.kernel
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if threads > limits.threads:
        raise LimitError(f"{name}: {threads} threads per block exceed the device's {limits.threads}")
    for axis, found, most in zip("xyz", launch.block, BLOCK, strict=True):
        if not 1 <= found <= most:
            raise LimitError(f"{name}: a block of {found} threads along {axis} exceeds {most}")
    for axis, extent, most in zip("xyz", launch.grid, GRID, strict=True):
        if isinstance(extent, int) and not 1 <= extent <= most:
            raise LimitError(f"{name}: a grid of {extent} blocks along {axis} exceeds {most}")
    if static_bytes > STATIC_SHARED_BYTES:
        raise LimitError(
            f"{name}: {static_bytes} bytes of static shared memory exceed {STATIC_SHARED_BYTES}"
        )
    used = static_bytes + launch.shared_bytes
    if used > limits.shared_bytes:
        raise LimitError(
            f"{name}: {used} bytes of shared memory exceed the device's {limits.shared_bytes}"
        )
