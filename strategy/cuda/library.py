"""Calls of NVIDIA's libraries as tensors of TE: what an implementation that is a library's routine computes.

The call stands in the host part of the lowered function, as text, and `strategy/cuda/source.py` reads
it from there into the program: an epilogue becomes a kernel after it, over a workspace between them.
Whoever runs the program calls the library (`workers/cuda_library.py`); TVM does not, nor the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from strategy.attrs import Attrs
from strategy.cuda.limit import limits_of
from strategy.cuda.program import Convolution, Gemm, LibraryCall, Number
from strategy.cuda.schedule import bind_block
from strategy.schedule import Outs, join_epilogue, new_schedule, stage
from strategy.space import Config
from strategy.target import Target

CALL = "plevel_call_library"
# What a call's buffers are named until the program's own names for them are known.
LEFT, RIGHT, OUTPUT = "left", "right", "output"


def call_library(
    call: LibraryCall, inputs: Sequence[Any], shape: Sequence[Any], dtype: str, name: str
) -> Any:
    """The tensor that a call over `LEFT` and `RIGHT` writes to `OUTPUT`."""
    from tvm import te, tirx

    text = msgspec.json.encode(call).decode()

    def whole(extents: Any, dtype: str) -> Any:
        # Without an offset, which the host part would have to be told.
        return tirx.decl_buffer(extents, dtype, layout=None)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        pointers = [buffer.data for buffer in (*ins, *outs)]
        return tirx.Evaluate(tirx.call_extern("int32", CALL, text, *pointers))

    return te.extern(
        tuple(shape), list(inputs), body, name=name, dtype=dtype, attrs=stage("library"),
        in_buffers=[whole(t.shape, t.dtype) for t in inputs], out_buffers=[whole(shape, dtype)],
    )  # fmt: skip


def read_call(text: str, names: Sequence[str]) -> LibraryCall:
    """The call that `call_library` wrote, over the buffers of these names: left, right, output."""
    call = msgspec.json.decode(text, type=Gemm | Convolution)
    return call.rename(dict(zip((LEFT, RIGHT, OUTPUT), names, strict=True)))


def schedule_library(attrs: Attrs, outs: Outs, target: Target, *config: Config) -> Any:
    """Nothing to schedule but an epilogue, over the library's finished output."""
    from tvm import te

    sch = new_schedule(outs)
    if not isinstance(outs.tensors[0].op, te.ExternOp):
        bind_block(sch, join_epilogue(sch), limits_of(target))
    return sch


def number_of(extent: Any) -> Number:
    """The extent of a tensor of TE: an integer, or the name of its symbol."""
    return int(extent) if isinstance(extent, int) or hasattr(extent, "value") else str(extent.name)


def multiplies(dtype: str, out_dtype: str) -> bool:
    """Whether cuBLAS has products of this dtype, summed in float32 (float64) and written in `out_dtype`."""
    return dtype == out_dtype in ("float16", "bfloat16", "float32", "float64") or (
        dtype in ("float16", "bfloat16") and out_dtype == "float32"
    )


def row_major_gemm(
    m: Number,
    n: Number,
    k: Number,
    dtype: str,
    out_dtype: str,
    *,
    transpose_left: bool,
    transpose_right: bool,
    batch: Number = 1,
    one_left: bool = True,
    one_right: bool = True,
) -> Gemm:
    """The product left[m, k] · right[k, n] of matrices that lie by rows, as cuBLAS takes it.

    A matrix that lies by rows is, by columns, its transpose. So what cuBLAS must compute, by columns,
    is outᵀ[n, m] = rightᵀ[n, k] · leftᵀ[k, m]: right comes first, and

        right stored [k, n]   is, by columns, [n, k] = rightᵀ:   as it is,   ld n
        right stored [n, k]   is, by columns, [k, n] = right:    transposed, ld k
        left  stored [m, k]   is, by columns, [k, m] = leftᵀ:    as it is,   ld k
        left  stored [k, m]   is, by columns, [m, k] = left:     transposed, ld m
        out   stored [m, n]   is, by columns, [n, m] = outᵀ:                 ld n

    Args:
        transpose_left, transpose_right: whether they are stored transposed, [k, m] and [n, k].
        one_left, one_right: whether there is one of them for all entries of the batch.
    """
    return Gemm(
        a=RIGHT, b=LEFT, c=OUTPUT, dtype=dtype, out_dtype=out_dtype,
        transpose_a=transpose_right, transpose_b=transpose_left, m=n, n=m, k=k,
        lda=k if transpose_right else n, ldb=m if transpose_left else k, ldc=n,
        batch=batch, stride_a=0 if one_right else _times(n, k),
        stride_b=0 if one_left else _times(m, k), stride_c=_times(m, n),
    )  # fmt: skip


def _times(left: Number, right: Number) -> Number:
    return left * right if isinstance(left, int) and isinstance(right, int) else ["*", left, right]
