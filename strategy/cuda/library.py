"""Steps of a program as TE tensors: calls of NVIDIA's libraries, and handwritten kernels.

A step is a text in the host part of the lowered function, which `strategy/cuda/source.py` reads into the program;
an epilogue becomes a kernel after it, over a workspace. Libraries are called by the runner
(`workers/cuda/library.py`), not by TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from strategy.attrs import Attrs
from strategy.cuda.limit import limits_of
from strategy.cuda.program import Convolution, Gemm, Launch, Number, times
from strategy.cuda.schedule import bind_block
from strategy.schedule import Outs, join_epilogue, new_schedule, stage
from strategy.space import Config
from strategy.target import Target

CALL = "plevel_step"
# Placeholders of a step's buffers, until the program's names are known.
LEFT, RIGHT, THIRD, FOURTH, OUTPUT = "left", "right", "third", "fourth", "output"
_INPUTS = (LEFT, RIGHT, THIRD, FOURTH)


class Handwritten(msgspec.Struct, frozen=True, tag="handwritten"):
    """A kernel in CUDA C, with dynamic shared memory only, and its launch."""

    code: str
    launch: Launch

    def rename(self, names: Mapping[str, str]) -> Handwritten:
        """The launch over other buffers."""
        return Handwritten(self.code, self.launch.rename(names))


Step = Gemm | Convolution | Handwritten


def call_in_place(
    step: Step, inputs: Sequence[Any], shape: Sequence[Any], dtype: str, name: str
) -> Any:
    """The tensor that a step over `LEFT`, `RIGHT` …, as many as there are inputs, writes to `OUTPUT`."""
    from tvm import te, tirx

    text = msgspec.json.encode(step).decode()

    def whole(extents: Any, dtype: str) -> Any:
        # Without an offset, which would be a parameter of the host part.
        return tirx.decl_buffer(extents, dtype, layout=None)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        pointers = [buffer.data for buffer in (*ins, *outs)]
        return tirx.Evaluate(tirx.call_extern("int32", CALL, text, *pointers))

    return te.extern(
        tuple(shape), list(inputs), body, name=name, dtype=dtype, attrs=stage("step"),
        in_buffers=[whole(t.shape, t.dtype) for t in inputs], out_buffers=[whole(shape, dtype)],
    )


def read_step(text: str, names: Sequence[str]) -> Step:
    """The step that `call_in_place` wrote, over the buffers of these names: the inputs in order, and the output."""
    step = msgspec.json.decode(text, type=Gemm | Convolution | Handwritten)
    *inputs, output = names
    return step.rename({**dict(zip(_INPUTS, inputs, strict=False)), OUTPUT: output})


def schedule_in_place(attrs: Attrs, outs: Outs, target: Target, *config: Config) -> Any:
    """Schedule only the epilogue, over the step's output."""
    from tvm import te

    sch = new_schedule(outs)
    if not isinstance(outs.tensors[0].op, te.ExternOp):
        bind_block(sch, join_epilogue(sch), limits_of(target))
    return sch


def number_of(extent: Any) -> Number:
    """The extent of a tensor of TE: an integer, or the name of its symbol."""
    return int(extent) if isinstance(extent, int) or hasattr(extent, "value") else str(extent.name)


def multiplies(dtype: str, out_dtype: str) -> bool:
    """True if cuBLAS has products of this dtype, summed in float32 (float64) and written in `out_dtype`."""
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
    """The product left[m, k] · right[k, n] of row-major matrices, for cuBLAS.

    A row-major matrix is, column-major, its transpose. So cuBLAS must compute, column-major,
    outᵀ[n, m] = rightᵀ[n, k] · leftᵀ[k, m], with right first, and

        right stored [k, n]   is, by columns, [n, k] = rightᵀ:   as it is,   ld n
        right stored [n, k]   is, by columns, [k, n] = right:    transposed, ld k
        left  stored [m, k]   is, by columns, [k, m] = leftᵀ:    as it is,   ld k
        left  stored [k, m]   is, by columns, [m, k] = left:     transposed, ld m
        out   stored [m, n]   is, by columns, [n, m] = outᵀ:                 ld n

    Args:
        transpose_left, transpose_right: whether they are stored transposed, [k, m] and [n, k].
        one_left, one_right: True if the operand is shared by all entries of the batch.
    """
    return Gemm(
        a=RIGHT, b=LEFT, c=OUTPUT, dtype=dtype, out_dtype=out_dtype,
        transpose_a=transpose_right, transpose_b=transpose_left, m=n, n=m, k=k,
        lda=k if transpose_right else n, ldb=m if transpose_left else k, ldc=n,
        batch=batch, stride_a=0 if one_right else times(n, k),
        stride_b=0 if one_left else times(m, k), stride_c=times(m, n),
    )
