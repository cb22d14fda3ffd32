"""`batch_matmul_mma.cuda` and `batch_matmul_wgmma.cuda`, of matrices that both lie along k.

See `strategy/cuda/mma.py` and `wgmma.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cuda.library import Handwritten, call_in_place, number_of
from strategy.cuda.limit import limits_of
from strategy.cuda.staging import ByHand
from strategy.ops.batch_matmul.operator import BatchMatmulAttrs
from strategy.pattern import extents_of
from strategy.space import Config
from strategy.target import Target
from strategy.types import TensorType


def takes(
    fits: Callable[..., bool], attrs: BatchMatmulAttrs, inputs: Sequence[TensorType],
    out_type: TensorType, target: Target,
) -> bool:
    """Return whether both operands lie along k, and as `fits`, `takes_mma` or `takes_wgmma`, wants them."""
    _, n, k = inputs[1].shape
    batch, kinds = out_type.shape[0], (inputs[0].dtype, out_type.dtype)
    along = attrs.transpose_b and not attrs.transpose_a
    return along and fits(batch, n, k, *kinds, limits_of(target))


def compute(
    product: Callable[[ByHand, Config], Handwritten],
    attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config,
) -> list[Any]:
    """Products of the entries by one launch of `mma_product` or `wgmma_product`; a batch of 1 is read for all."""
    x, y = inputs
    batch, m, n = extents_of(out_type, inputs)
    of = ByHand(
        number_of(batch), number_of(m), n, int(y.shape[2]), str(x.dtype), out_type.dtype,
        one_left=number_of(x.shape[0]) == 1, one_right=number_of(y.shape[0]) == 1,
    )
    return [call_in_place(product(of, config), inputs, (batch, m, n), out_type.dtype, "batch_matmul")]
