"""The operator `plevel::run`, and its lowering to a call with Inductor's own output buffer.

Its arguments are the kernel's digest and the output's extents, so that the text of a graph, which is what
Inductor's caches go by, says which kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from plevel.torch.kernel import Kernel
from plevel.torch.native import native
from plevel.torch.node import DTYPES
from strategy.compile import huge_page
from strategy.compile.artefact import ALIGNMENT
from strategy.signature import Argument, Role
from strategy.types import TensorType

# DLPack's codes with the bits, and PyTorch's dtypes of as many bits.
_TYPES = {
    "float32": (2, 32, torch.float32), "float16": (2, 16, torch.float16), "bfloat16": (4, 16, torch.bfloat16),
    "uint16": (1, 16, torch.int16), "int32": (0, 32, torch.int32), "int64": (0, 64, torch.int64),
}
_loaded: set[str] = set()


def load(kernel: Kernel) -> None:
    """Makes a kernel callable in this process."""
    if kernel.digest not in _loaded:
        types = tuple(_type(a.tensor, kernel.dims) for a in kernel.arguments)
        native().load(kernel.digest, str(kernel.path), types)
        _loaded.add(kernel.digest)


def pack(kernel: Kernel, argument: Argument, source: Any) -> Any:
    """A constant as the kernel takes it: packed by the kernel's own function where it has one."""
    is_packed = argument.role is Role.PREPARED
    given = source
    # A kernel reads a copy, of huge pages; its packing reads what is aligned, as code for vectors needs it.
    if not (is_packed and source.is_contiguous() and source.data_ptr() % ALIGNMENT == 0):
        given = _reserve(source.shape, source.dtype).copy_(source)
    if not is_packed:
        return _collapsed(given)
    code, bits, dtype = _TYPES[argument.tensor.dtype]
    packed = _reserve(argument.tensor.concrete_shape, dtype)
    native().prepare(
        kernel.digest, f"__tvm_ffi_{argument.preparation}",
        given, (*_TYPES[DTYPES[given.dtype]][:2], tuple(given.shape)), packed, (code, bits, tuple(packed.shape)),
    )
    return _collapsed(packed)


def _reserve(shape: Sequence[int], dtype: torch.dtype) -> Any:
    """A tensor for a constant, of huge pages where the system gives them to what asks."""
    made = torch.empty(shape, dtype=dtype, device="cpu")
    huge_page.advise(made.data_ptr(), made.nbytes)
    return made


def _collapsed(constant: Any) -> Any:
    """The constant, whose memory may have had small pages before it was reserved."""
    huge_page.collapse(constant.data_ptr(), constant.nbytes)
    return constant


def _type(kind: TensorType, dims: Sequence[str] = ()) -> tuple[int, int, tuple[int, ...]]:
    """The type as the runtime takes it: a symbolic extent as -1 less its place among the kernel's."""
    if kind.dtype not in _TYPES:
        raise ValueError(f"{kind}: the runtime passes on {', '.join(_TYPES)}")
    shape = (int(e) if e.is_constant else -1 - dims.index(str(e)) for e in kind.shape)
    return *_TYPES[kind.dtype][:2], tuple(shape)


@cache
def operator() -> Any:
    """The overload of `plevel::run`, with its lowering; `dims` are the kernel's symbolic extents."""
    library = torch.library.Library("plevel", "DEF")
    library.define("run(Tensor[] inputs, str kernel, SymInt[] shape, SymInt[] dims, ScalarType dtype) -> Tensor")
    library.impl("run", _run, "CPU")
    library.impl("run", _make_empty, "Meta")
    operator._library = library  # type: ignore[attr-defined]  # it ends with its last reference
    found = torch.ops.plevel.run.default
    _register_lowering(found)
    return found


def _make_empty(
    inputs: Sequence[Any], kernel: str, shape: Sequence[Any], dims: Sequence[Any], dtype: torch.dtype
) -> Any:
    return inputs[0].new_empty(shape, dtype=dtype)


def _run(
    inputs: Sequence[Any], kernel: str, shape: Sequence[int], dims: Sequence[int], dtype: torch.dtype
) -> Any:
    """The form of the dispatcher, for what runs the graph without compiling it."""
    out = torch.empty(shape, dtype=dtype, device="cpu")
    native().run(*(tensor.contiguous() for tensor in inputs), kernel, *dims, out=out)
    return out


def _register_lowering(overload: Any) -> None:
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering
    from torch._inductor.select_algorithm import extern_kernels

    extern_kernels.plevel_run = native().run

    def lowering(
        inputs: Sequence[Any], kernel: str, shape: Sequence[Any], dims: Sequence[Any], dtype: torch.dtype
    ) -> Any:
        # In this order: what is computed transposed and turned back is computed contiguous at once.
        given = [
            ir.ExternKernel.realize_input(ir.ExternKernel.require_contiguous(i)) for i in inputs
        ]
        strides = ir.FlexibleLayout.contiguous_strides(shape)
        layout = ir.FixedLayout(torch.device("cpu"), dtype, list(shape), strides)
        return ir.TensorBox.create(
            ir.ExternKernelOut(
                layout=layout, inputs=given, constant_args=(kernel, *dims),
                python_kernel_name="extern_kernels.plevel_run", op_overload=overload,
            )
        )

    register_lowering(overload, type_promotion_kind=None)(lowering)
