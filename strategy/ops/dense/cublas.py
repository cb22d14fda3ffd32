"""`dense_cublas.cuda`: the vendor's product; float32 without TF32, narrower floats summed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.cuda.library import call_in_place, number_of, row_major_gemm
from strategy.types import TensorType


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """data[m, k] · weight[n, k]ᵀ by one call; m may be symbolic."""
    data, weight = inputs
    (m, k), n = data.shape, weight.shape[0]
    call = row_major_gemm(
        number_of(m), number_of(n), number_of(k), str(data.dtype), out_type.dtype,
        transpose_left=False, transpose_right=True,
    )
    return [call_in_place(call, inputs, (m, n), out_type.dtype, "dense")]
