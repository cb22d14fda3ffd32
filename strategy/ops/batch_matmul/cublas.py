"""`batch_matmul_cublas.cuda`: the vendor's products, one call for the whole batch; as dense's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.cuda.library import call_in_place, number_of, row_major_gemm
from strategy.ops.batch_matmul.operator import BatchMatmulAttrs
from strategy.pattern import extents_of
from strategy.types import TensorType


def compute(attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """Products of the entries; a batch of 1 is read for all."""
    x, y = inputs
    batch, m, n = extents_of(out_type, inputs)
    k = x.shape[1 if attrs.transpose_a else 2]
    call = row_major_gemm(
        number_of(m), number_of(n), number_of(k), str(x.dtype), out_type.dtype,
        transpose_left=attrs.transpose_a, transpose_right=attrs.transpose_b, batch=number_of(batch),
        one_left=number_of(x.shape[0]) == 1, one_right=number_of(y.shape[0]) == 1,
    )
    return [call_in_place(call, inputs, (batch, m, n), out_type.dtype, "batch_matmul")]
